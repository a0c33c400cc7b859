"""The model of a configuration, its optional hooks, and whether it acts alike in training and evaluation."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.nn import GraphLevel
from difformer.training.config import TrainConfig
from difformer.training.losses import Summed, target_units
from difformer.training.randomness import private_rng
from difformer.zoo import MODELS, build, find, options_of

UNITS = ("target_mean", "target_deviation")
# Modules of torch that draw numbers or keep statistics in training mode, whatever their rates are; the first is also
# that of instance norms that keep statistics.
CHANGING = (nn.modules.batchnorm._NormBase, nn.RReLU)


def split_number(task: Task, seed: int) -> int:
    """Seed s uses split s modulo the number of splits."""
    return seed % len(task.splits)


def build_model(task: Task, config: TrainConfig, seed: int = 0) -> nn.Module:
    """The model of a configuration, with the sizes of the task; its parameters follow from the seed."""
    info = find(config.model)
    if task.kind not in info.kinds:
        others = [one.name for one in MODELS.values() if one.group == info.group and task.kind in one.kinds]
        instead = f", which {', '.join(others)} of the same group ({info.group}) would serve" if others else ""
        serves = f"model {config.model!r} serves {', '.join(info.kinds)}"
        raise UserError(f"{serves}; task {task.name!r} is {task.kind!r}{instead}")
    options = dict(config.options)
    if "num_nodes" in options_of(config.model) and options.get("num_nodes") is None:  # a model with weights per node
        options["num_nodes"] = task.num_nodes
    with private_rng(seed):
        model = build(config.model, task.num_features, task.num_outputs, **options)
    return GraphLevel(model, config.readout) if task.kind == "graphs" else model  # type: ignore[arg-type]


def prepared_model(
    task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device, summed: Summed = lambda x: x
) -> nn.Module:
    """The model of a run on its device: initialised, in the units of the targets, and given the labels it requires."""
    model = build_model(task, config, seed).to(device)
    units = target_units(task.y[split.train], task.num_outputs, task.problem, config, summed)
    if units is not None:
        set_units(model, *units)
    for name, index in (("observe", split.train), ("observe_validation", split.valid)):
        if (observe := hook(model, name)) is not None:
            observe(task.y.to(device), index.to(device))
    return model


def set_units(model: nn.Module, mean: Tensor, deviation: Tensor) -> None:
    """From now on the model gives mean + deviation · output; both ``[C]`` are buffers, saved with its weights."""
    place = next((parameter.device for parameter in model.parameters()), mean.device)
    for name, value in zip(UNITS, (mean, deviation), strict=True):
        model.register_buffer(name, value.to(place))
    model.register_forward_hook(_in_units)


def in_units(model: nn.Module, outputs: Tensor) -> Tensor:
    """What ``model.decode`` gave, in the units of the targets."""
    return outputs if getattr(model, UNITS[0], None) is None else _in_units(model, None, outputs)


def _in_units(model: Any, inputs: Any, outputs: Tensor) -> Tensor:
    return torch.addcmul(model.target_mean, outputs.float(), model.target_deviation)


def hook(model: nn.Module, name: str) -> Any:
    """An optional method of a model, also of one that is wrapped for graph-level tasks, or None.

    There are four: ``penalty() -> Tensor``, a term of the loss of the pass just made; ``observe(y, train_index)``,
    called once with the training labels; ``observe_validation(y, valid_index)``, for a model that also trains on
    validation labels and states so; ``prepare(x, edge_index, edge_weight)``, called once to convert the inputs to the
    form that the model prefers.
    """
    found = getattr(model, name, None)
    return getattr(getattr(model, "encoder", None), name, None) if found is None else found


def is_as_written(module: nn.Module) -> bool:
    """Whether a module does what its class in torch or this package does: no hooks, no methods set on the instance."""
    kind = type(module)
    if not kind.__module__.startswith(("torch.nn.modules.", "difformer.nn.", "difformer.kernels.")):
        return False
    if module._forward_pre_hooks or any(hooked is not _in_units for hooked in module._forward_hooks.values()):
        return False
    return not any(inspect.isfunction(getattr(kind, name, None)) for name in vars(module))


def acts_alike(model: nn.Module) -> bool:
    """Whether a pass in training mode is one in evaluation mode, so that one pass can serve as both.

    Decided from the types of the modules and their dropout rates, never from a trial: layers of ``torch.nn`` and
    ``difformer.nn`` act alike without dropout and batch statistics. Of any other module nothing is known.
    """
    for module in model.modules():
        rates = [value for name, value in vars(module).items() if "dropout" in name and isinstance(value, int | float)]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates = [module.p]
        if not is_as_written(module) or isinstance(module, CHANGING) or any(rates):
            return False
    return True
