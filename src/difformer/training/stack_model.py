"""Several models of one shape as a single one: parameters with a leading axis of runs, one forward pass for all.

`torch.vmap` runs the model's own code on all runs at once: a linear map becomes a batched product, the graph multiplies
the columns of all runs side by side. Hyper-parameters that differ from run to run (step size, graph weight, source
weight, dropout) are tensors with one value per run, put in place of the modules' plain attributes during the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from difformer.errors import UserError
from difformer.nn.dropout import dropout_key


class _WithPenalty(nn.Module):
    """A model whose pass gives its penalty too, so that both see the parameters of their run."""

    def __init__(self, model: nn.Module, penalty: Callable[[], Tensor] | None) -> None:
        super().__init__()
        self.model, self.penalty = model, penalty

    def forward(self, inputs: Callable[[nn.Module], Tensor]) -> tuple[Tensor, Tensor]:
        outputs = inputs(self.model)
        # Nobody reads the penalty of an evaluation.
        if self.penalty is None or not torch.is_grad_enabled():
            return outputs, outputs.new_zeros(())
        return outputs, self.penalty()


class StackModel:
    """Models of one shape, trained as one.

    Args:
        models: One per run, on the CPU or the device, equal in all but parameters and the attributes in `hyper`.
        hyper: Attributes that differ: one value per run for every name.
        device: Where the stack lives.
        penalty: The models' term of the loss, a method of the first model; None where there is none.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        hyper: Mapping[str, Sequence[float]],
        device: torch.device,
        penalty: Callable[[], Tensor] | None = None,
    ) -> None:
        def stacked(states: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> dict[str, Tensor]:
            return {name: torch.stack([state[name].detach().to(device) for state in states]) for name in names}

        states = [model.state_dict(keep_vars=True) for model in models]
        self.names = tuple(states[0])
        trained = {name for name, parameter in models[0].named_parameters() if parameter.requires_grad}
        self.shapes = {name: value.shape for name, value in states[0].items() if name in trained}
        # One row per run: the optimiser, the best epoch and the norm of a gradient are then operations on one matrix.
        rows = [torch.cat([state[name].detach().reshape(-1) for name in self.shapes]) for state in states]
        self.flat = torch.stack([row.to(device) for row in rows])
        self.buffers = stacked(states, [name for name in states[0] if name not in trained])
        # Not saved and not trained, such as which nodes are labelled: every run has its own, and none is changed.
        own = [dict(model.named_buffers()) for model in models]
        self._fixed = stacked(own, [name for name in own[0] if name not in states[0]])
        self._hyper = {name: torch.tensor(values, device=device) for name, values in hyper.items()}
        self._module = _WithPenalty(models[0].to(device), penalty)
        self.site = 0  # dropouts of the present keys that were; the passes of an epoch share their keys
        self._holders = {}  # modules that have a plain attribute of a name that differs
        for name in hyper:
            found = [module for module in models[0].modules() if isinstance(vars(module).get(name), float | int)]
            if not found:
                raise UserError(f"{name} differs between the runs, but no module of {type(models[0]).__name__} has it")
            self._holders[name] = found

    def parameters(self, flat: Tensor) -> dict[str, Tensor]:
        """Views ``[runs, …]`` into the rows of ``flat [runs, P]``."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], dim=1)
        return {n: part.view(-1, *shape) for (n, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def leaves(self) -> dict[str, Tensor]:
        """The current parameters, to be differentiated; they share the memory of `flat`."""
        return {name: value.detach().requires_grad_() for name, value in self.parameters(self.flat).items()}

    def outputs(
        self,
        inputs: Callable[[nn.Module], Tensor],
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor] | None = None,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[runs, N, C]`` and penalties ``[runs]`` of one pass.

        Args:
            inputs: What to ask of a model, such as `Inputs.outputs`.
            parameters: See `parameters` and `leaves`.
            buffers: ``[runs, …]``; left out, the current ones, which a pass in training mode may change.
            keys: ``[runs, 2]`` of `dropout_keys`: the pass is one of training; None for evaluation.
        """
        self._module.train(keys is not None)
        whole = {**parameters, **(self.buffers if buffers is None else buffers), **self._fixed}
        state = {f"model.{name}": value for name, value in whole.items()}

        def one(state: dict[str, Tensor], hyper: dict[str, Tensor], key: Tensor | None) -> tuple[Tensor, Tensor]:
            with self._attributes(hyper):
                if key is None:
                    return functional_call(self._module, state, (inputs,))
                with dropout_key(key, site=self.site) as place:
                    found = functional_call(self._module, state, (inputs,))
                self.site = place.site
                return found

        dims = (0, 0, None if keys is None else 0)
        return torch.vmap(one, in_dims=dims, randomness="different")(state, self._hyper, keys)

    @contextmanager
    def _attributes(self, hyper: Mapping[str, Tensor]) -> Iterator[None]:
        """Hyper-parameters as attributes of the modules that have them, for one pass."""
        before = [(m, name, getattr(m, name)) for name, modules in self._holders.items() for m in modules]
        try:
            for module, name, _ in before:
                setattr(module, name, hyper[name])
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)

    def state_of(self, run: int, flat: Tensor, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters and buffers of one run, on the CPU, as its own model would save them."""
        row = {name: value[0] for name, value in self.parameters(flat[run : run + 1]).items()}
        row |= {name: value[run] for name, value in buffers.items()}
        return {name: row[name].detach().cpu().clone() for name in self.names}
