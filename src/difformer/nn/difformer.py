"""The DIFFormer encoder: input layer, L diffusion steps, output layer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.kernels.cpu.layer import fused_input
from difformer.kernels.fused import fused_layer, fused_tail, linear, why_not_fused, why_not_fused_input
from difformer.kernels.rows import LayerNorm
from difformer.nn.context import Context, Structure, as_structure, snapshots
from difformer.nn.conv import DIFFormerConv, give_size, linear_map
from difformer.nn.dropout import LayerDropout, replay
from difformer.nn.inspection import EnergyProfile, StrongestPairs, energy_profile, explain_layer, strongest_pairs
from difformer.nn.pretrained import Pretrained
from difformer.nn.protocol import Batch, Edges, Features, Weight, check_count, check_counts, check_range
from difformer.sparse import SparseMatrix

ACTIVATIONS: dict[str, Any] = {"relu": torch.relu, "elu": functional.elu, "gelu": functional.gelu, "tanh": torch.tanh}


class DIFFormer(Pretrained):
    r"""Diffusion over latent and observed structure, each layer one Euler step.

    .. math::
        Z^{(0)} &= \mathrm{ReLU}(\mathrm{LayerNorm}(X W_I + b_I)) \\
        Z^{(k+1)} &= σ'(\mathrm{LayerNorm}((1 - τ) Z^{(k)} + τ \bar P^{(k)} + τ β Z^{(0)})) \\
        \hat Y &= Z^{(L)} W_O + b_O

    with the propagation :math:`\bar P` of `DIFFormerConv`. ``diffusivity="simple"`` is DIFFormer-s, linear in N;
    ``"sigmoid"`` is DIFFormer-a. Defaults are those under which deep models train; the paper's exact form is
    ``graph_weight=None, source_weight=0, initialisation="torch"``.

    Args:
        in_channels: Features of an instance; -1 takes their number from the first input.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance: classes, targets.
        num_layers: Diffusion steps L.
        num_heads: Heads H, averaged.
        diffusivity: A name or a `Diffusivity`. ``"identity"`` propagates each node to itself; None switches latent
            propagation off, so that only observed edges remain (a graph without edges then propagates to itself).
        step_size: τ in (0, 1].
        source_weight: β; each step adds τβZ⁰, which keeps deep models from over-smoothing. The paper uses 0.
        graph_weight: w in [0, 1] mixes: (1 - w) latent + w graph (total mass 1); a graph without edges gives each node
            its own value. None adds the graph term to the latent one (total mass 2 with edges), as in the paper.
        graph_norm: ``"gcn"``, ``"random_walk"`` or ``"none"``, see `Graph`. No self-loops are added, and with ``"gcn"``
            a directed edge whose source receives nothing has weight 0.
        transform: Whether values are Z W_V + b, or Z itself.
        norm: Whether there are LayerNorms, the input layer's included.
        residual: Whether a step keeps (1 - τ) Z; otherwise Z⁺ = P̄ (+ τβZ⁰).
        activation: σ' after each layer's norm: None, ``"relu"``, ``"elu"``, ``"gelu"`` or ``"tanh"``.
        dropout: Rate after the input's ReLU and after each layer's norm and activation.
        qk_norm: ``"row"`` (unit rows, as the paper), ``"global"`` (one norm over nodes and heads of a graph) or
            ``"none"``.
        tied_qk: Whether keys are the queries, so that the exchange is symmetric. The theorems cover the step if, in
            addition, W_Q is an isometry without bias, V = Z, states are of unit length and there is no graph.
        initialisation: ``"identity"``: W_V is the identity plus a tenth of torch's initialisation, b_V and the input
            layer's bias are 0, so that a deep stack begins as diffusion of the states themselves; ``"torch"``:
            `nn.Linear` as it is.
        backend: Operator for all pairs, see `difformer.attention.propagate`.
        checkpoint: Whether layers are computed again in the backward pass, so that training keeps only the states
            between layers: less memory for about a third more time. Gradients are the same, dropout included. It is
            not part of a saved model.

    Example:
        >>> model = DIFFormer(16, 64, 3, diffusivity="sigmoid")
        >>> model(torch.randn(100, 16)).shape
        torch.Size([100, 3])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        num_heads: int = 1,
        diffusivity: str | Diffusivity | None = "simple",
        step_size: float = 0.5,
        source_weight: float = 0.2,
        graph_weight: float | None = 0.8,
        graph_norm: str = "gcn",
        transform: bool = True,
        norm: bool = True,
        residual: bool = True,
        activation: str | None = None,
        dropout: float = 0.0,
        qk_norm: str = "row",
        tied_qk: bool = False,
        initialisation: str = "identity",
        backend: str = "auto",
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        given = locals()
        self.config: dict[str, Any] = {name: given[name] for name in inspect.signature(DIFFormer).parameters}
        self.checkpoint = self.config.pop("checkpoint")  # says how the model is computed, not what it is
        check_counts(in_channels=in_channels, hidden_channels=hidden_channels, out_channels=out_channels)
        check_count("num_layers", num_layers, least=0)
        if activation is not None and activation not in ACTIVATIONS:
            raise UserError(f"activation must be None or one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        if not 0 <= dropout < 1:
            raise UserError(f"dropout must lie in [0, 1), got {dropout!r}")
        self.activation, self.dropout = activation, dropout
        self.input = linear_map(in_channels, hidden_channels)
        self.input_norm = LayerNorm(hidden_channels) if norm else nn.Identity()
        sizes = {"in_channels": hidden_channels, "out_channels": hidden_channels}
        options = {name: given[name] for name in inspect.signature(DIFFormerConv).parameters} | sizes
        self.layers = nn.ModuleList(DIFFormerConv(**options) for _ in range(num_layers))
        self.norms = nn.ModuleList(LayerNorm(hidden_channels) if norm else nn.Identity() for _ in range(num_layers))
        self.output = nn.Linear(hidden_channels, out_channels)
        self._clear_bias()

    def forward(
        self,
        x: Features,
        edge_index: Edges = None,
        edge_weight: Weight = None,
        batch: Batch = None,
        *,
        context: Context | Sequence[Context] | None = None,
    ) -> Tensor:
        """Outputs ``[N, out_channels]``.

        Args:
            x: Features ``[N, in_channels]``, dense, a torch sparse tensor, or a `SparseMatrix` (sorted once). A series
                ``[T, N, in_channels]`` is T snapshots of the same nodes and edges, each diffused by itself; its outputs
                are ``[T, N, out_channels]``.
            edge_index: ``[2, E]``, a torch or scipy sparse matrix, or a `Graph`, which says how each is read; sorted
                and normalised once per object.
            edge_weight: ``[E]`` weights of an ``edge_index`` tensor.
            batch: Graph of each row, in any order, best by keyword; a graph in a batch gets the answer it gets alone.
            context: How layers sum over the rows that send (`difformer.nn.context`), in place of `edge_index` and
                `batch`: one for all layers, or one per layer.
        """
        return self.decode(self.embed(x, edge_index, edge_weight, batch, context=context))

    def embed(
        self,
        x: Features,
        edge_index: Edges = None,
        edge_weight: Weight = None,
        batch: Batch = None,
        *,
        context: Context | Sequence[Context] | None = None,
    ) -> Tensor:
        """Final states Z^L, ``[N, hidden_channels]``; the arguments are those of `forward`."""
        rows, structure = self._prepare(x, edge_index, edge_weight, batch)
        if context is None:
            context = structure
        elif not (edge_index is edge_weight is batch is None):
            raise UserError("context already defines the senders; leave out edge_index, edge_weight and batch")
        contexts = context if isinstance(context, Sequence) else [context] * len(self.layers)
        if len(contexts) != len(self.layers):
            raise UserError(f"context must be one for all, or one per layer: {len(self.layers)}, got {len(contexts)}")
        for z in self._states(rows, contexts):
            final = z
        return final if x.dim() == 2 else final.unflatten(0, x.shape[:2])

    def _states(self, x: Features, contexts: Sequence[Context]) -> Iterator[Tensor]:
        z = source = self.encode(x)
        yield z
        advance: Callable[..., Tensor] = self.advance
        if self.checkpoint and torch.is_grad_enabled():  # the backward pass computes each layer again, with its masks
            same_masks: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": replay}
            advance = functools.partial(checkpoint, self.advance, use_reentrant=False, **same_masks)
        for k, context in enumerate(contexts):
            z = advance(k, z, source, context=context)
            yield z

    def encode(self, x: Features) -> Tensor:
        """Z⁰ = dropout(ReLU(LayerNorm(X W_I + b_I))); a bag of words stays sparse."""
        drop = LayerDropout(self.dropout, self.training)
        reference = self.config["backend"] == "reference"  # in plain operations, which differentiate twice
        if not reference and why_not_fused_input(self.input, self.input_norm, x) is None:
            mask = drop.key()
            z = fused_input(self.input, None if isinstance(self.input_norm, nn.Identity) else self.input_norm, x, mask)
            return drop.apply(z) if mask is None else z
        h = linear(self.input, x)
        fused = None if reference else fused_tail(self.input_norm, h, relu=True, dropout=drop)
        return drop.apply(functional.relu(self.input_norm(h))) if fused is None else fused

    def advance(self, k: int, z: Tensor, source: Tensor, *, context: Context | None = None) -> Tensor:
        """Z^(k+1) from Z^(k) and Z⁰: layer k, its norm, activation and dropout; without a `context`, of one graph."""
        layer, norm, drop = self.layers[k], self.norms[k], LayerDropout(self.dropout, self.training)
        context = Structure() if context is None else context
        if self.activation in (None, "relu") and why_not_fused(layer, z, context) is None:
            fused = fused_layer(layer, z, context, source, norm, relu=self.activation == "relu", dropout=drop)
            if fused is not None:
                return fused
        if type(context) is Structure and context.weight is None:  # a layer that replaces ours may take no context
            z = layer(z, context.graph, None, context.segments, source=source)
        else:
            z = layer(z, source=source, context=context)
        z = norm(z)
        return drop.apply(z if self.activation is None else ACTIVATIONS[self.activation](z))

    def decode(self, states: Tensor) -> Tensor:
        """Outputs of states, or of pooled states: ``[…, out_channels]``."""
        return self.output(states)

    def _prepare(
        self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None
    ) -> tuple[Features, Structure]:
        """Features ``[N, in_channels]`` and who sends to whom, checked."""
        if self.config["in_channels"] == -1 and hasattr(x, "shape"):
            self.config["in_channels"] = x.shape[-1]
            give_size(self.input, x.shape[-1])
            self._clear_bias()
        channels, dtype = self.config["in_channels"], next(self.parameters()).dtype  # input may have been replaced
        if not isinstance(x, Tensor | SparseMatrix):
            advice = "convert numpy arrays by torch.as_tensor(x, dtype=torch.float32)"
            raise TypeError(f"x must be a torch tensor [N, {channels}], got {type(x).__name__}; {advice}")
        if isinstance(x, Tensor) and x.layout != torch.strided:
            x = SparseMatrix.of(x)
        if x.dim() not in (2, 3) or x.shape[-1] != channels:
            series = f"a series of T snapshots has shape [T, N, {channels}]"
            raise UserError(f"x must have shape [N, {channels}], got {tuple(x.shape)}; {series}")
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise UserError(f"x is {x.dtype}, the model {dtype}: convert one, for example x.float()")
        check_range(x)
        if isinstance(x, SparseMatrix) or x.dim() == 2:
            return x, as_structure(x.shape[0], edge_index, edge_weight, batch)
        if batch is not None:
            raise UserError("a series [T, N, F] is a batch of T snapshots already, so batch must be left out")
        count, nodes = x.shape[:2]
        return x.flatten(0, 1), snapshots(count, nodes, edge_index, edge_weight, x.device)

    def trajectory(
        self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None
    ) -> Tensor:
        """States of every layer, ``[L + 1, N, hidden_channels]``, from Z⁰ to Z^L; snapshots one after the other."""
        rows, structure = self._prepare(x, edge_index, edge_weight, batch)
        return torch.stack(list(self._states(rows, [structure] * len(self.layers))))

    @torch.no_grad()
    def attention(
        self,
        x: Features,
        edge_index: Edges = None,
        edge_weight: Weight = None,
        batch: Batch = None,
        *,
        layer: int = -1,
        head: int | None = None,
        top_k: int = 100,
    ) -> StrongestPairs:
        """The `top_k` latent pairs of different nodes that exchange most at a layer, strongest first.

        Args:
            x, edge_index, edge_weight, batch: As in `forward`.
            layer: Which layer, from 0; negative numbers count from the last.
            head: Which head, from 0; None for the mean over heads.
            top_k: How many pairs.
        """
        if not -len(self.layers) <= layer < len(self.layers):
            raise UserError(f"layer must lie in {-len(self.layers)} … {len(self.layers) - 1}, got {layer}")
        states, structure = self._inspected(x, edge_index, edge_weight, batch)
        z, chosen = states[layer % len(self.layers)], cast(DIFFormerConv, self.layers[layer])
        return strongest_pairs(chosen, z, structure.segments, top_k, head)

    @torch.no_grad()
    def energy(
        self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None
    ) -> EnergyProfile:
        """Measured energy and effective rank of the states of every layer."""
        states, structure = self._inspected(x, edge_index, edge_weight, batch)
        diffusivity: Any = self.layers[0].diffusivity if len(self.layers) else None
        return energy_profile(states, diffusivity, structure)

    def explain(
        self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None
    ) -> list[str]:
        """One line per layer: whether a fused kernel computes it or the formula, and why."""
        x, structure = self._prepare(x, edge_index, edge_weight, batch)
        z = torch.empty(x.shape[0], self.config["hidden_channels"], dtype=x.dtype, device=x.device)
        return [f"layer {k}: {explain_layer(layer, z, structure)}" for k, layer in enumerate(self.layers)]

    def _inspected(self, *given: Any) -> tuple[Tensor, Structure]:
        """The trajectory without dropout, and who sends to whom."""
        in_training = [module for module in self.modules() if module.training]  # others may be frozen
        self.eval()
        try:
            return self.trajectory(*given), self._prepare(*given)[1]
        finally:
            for module in in_training:
                module.training = True

    def reset_parameters(self) -> None:
        """Draws all parameters again."""
        for module in (self.input, self.input_norm, *self.layers, *self.norms, self.output):
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        self._clear_bias()

    def _clear_bias(self) -> None:
        if self.config["initialisation"] == "identity" and type(self.input) is nn.Linear:
            nn.init.zeros_(self.input.bias)
