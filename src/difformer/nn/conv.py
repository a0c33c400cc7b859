"""One DIFFormer layer: infer diffusivity, propagate over latent and observed structure, step."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention import BACKENDS, propagate
from difformer.attention.scores import form_of, score_key
from difformer.attention.segments import Segments
from difformer.diffusion.diffusivity import Diffusivity, as_diffusivity
from difformer.graph import GRAPH_NORMS, Graph
from difformer.nn.gram import gram_attention
from difformer.nn.short_step import over_heads, short_step
from difformer.nn.structure import Structure, as_structure
from difformer.nn.unit import unit_rows

QK_NORMS = ("row", "global", "none")


class DIFFormerConv(nn.Module):
    r"""One step of energy-constrained diffusion over all pairs and over observed edges.

    .. math::
        Z^{+} = (1 - τ) Z + τ \bar P + τ β Z^{(0)}, \qquad
        \bar P = \frac{1}{H} \sum_h \left( \hat S^{(h)} V^{(h)} + \tilde A V^{(h)} \right),

    for node i and head h

    .. math::
        (\hat S V)_i = \frac{\sum_j g(\tilde q_i^\top \tilde k_j) \, v_j}{\sum_l g(\tilde q_i^\top \tilde k_l)},

    with queries and keys of unit length. `graph_weight` w mixes, :math:`(1 - w) \hat S V + w \tilde A V`, instead of
    adding.

    Args:
        in_channels: Length of a state before the layer.
        out_channels: Length after it; must be `in_channels` with `residual`, without `transform`, or with a source.
        num_heads: Heads H, averaged.
        diffusivity: A name or a `Diffusivity`. ``"identity"`` propagates each node to itself; None switches latent
            propagation off, so that only observed edges remain (a graph without edges then propagates to itself).
        step_size: τ.
        source_weight: β, weight of the initial states that `forward` is given as `source`.
        graph_weight: None adds the graph term; w in [0, 1] mixes. Ignored for graphs without edges.
        graph_norm: ``"gcn"``, ``"random_walk"`` or ``"none"``, see `Graph`.
        transform: Whether V = Z W_V + b; otherwise V = Z.
        residual: Whether the step keeps (1 - τ) Z; otherwise Z⁺ = P̄ (+ τβZ⁰).
        qk_norm: ``"row"`` (unit rows, as the paper), ``"global"`` (one norm over nodes and heads of a graph) or
            ``"none"``.
        tied_qk: Whether keys are the queries, so that the exchange is symmetric. The theorems cover the step where,
            moreover, W_Q is an isometry without bias, V = Z, states are of unit length and there is no graph.
        backend: Operator for all pairs, see `difformer.attention.propagate`.

    Shapes:
        ``[N, in_channels]`` → ``[N, out_channels]``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_heads: int = 1,
        diffusivity: str | Diffusivity | None = "simple",
        step_size: float = 0.5,
        source_weight: float = 0.0,
        graph_weight: float | None = None,
        graph_norm: str = "gcn",
        transform: bool = True,
        residual: bool = True,
        qk_norm: str = "row",
        tied_qk: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        _check_choice("qk_norm", qk_norm, QK_NORMS)
        _check_choice("graph_norm", graph_norm, GRAPH_NORMS)
        _check_choice("backend", backend, BACKENDS)
        for name, count in (("in_channels", in_channels), ("out_channels", out_channels), ("num_heads", num_heads)):
            check_count(name, count)
        if not math.isfinite(source_weight):
            raise ValueError(f"source_weight must be a finite number, got {source_weight!r}")
        if not 0 < step_size <= 1:
            raise ValueError(f"step_size must lie in (0, 1], got {step_size!r}")
        if graph_weight is not None and not 0 <= graph_weight <= 1:
            raise ValueError(f"graph_weight must lie in [0, 1], or be None to add the graph term, got {graph_weight!r}")
        if in_channels != out_channels and (residual or not transform or source_weight):
            raise ValueError(
                f"in_channels {in_channels} and out_channels {out_channels} must be equal with residual=True, "
                f"transform=False or a source"
            )
        self.in_channels, self.out_channels, self.num_heads = in_channels, out_channels, num_heads
        self.diffusivity = None if diffusivity is None else as_diffusivity(diffusivity, channels=out_channels)
        self.step_size, self.source_weight, self.graph_weight = step_size, source_weight, graph_weight
        self.graph_norm, self.qk_norm, self.backend = graph_norm, qk_norm, backend
        self.residual, self.tied_qk = residual, tied_qk
        # Diffusivities that look at no pair need no queries and keys; unused parameters would only feel weight decay.
        self.form = None if self.diffusivity is None else form_of(self.diffusivity)
        self._score = None if self.diffusivity is None else score_key(self.diffusivity)
        infers = self.form not in (None, "identity", "constant")
        width = out_channels * num_heads
        self.query = nn.Linear(in_channels, width) if infers else None
        self.key = nn.Linear(in_channels, width) if infers and not tied_qk else None
        self.value = nn.Linear(in_channels, width) if transform else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._score = None if self.diffusivity is None else score_key(self.diffusivity)  # keys are those of a process

    def extra_repr(self) -> str:
        name = None if self.diffusivity is None else self.diffusivity.name
        return f"{self.in_channels}, {self.out_channels}, num_heads={self.num_heads}, diffusivity={name}"

    def queries_and_keys(self, z: Tensor, segments: Segments | None = None) -> tuple[Tensor, Tensor]:
        """Normalised Q and K, each ``[N, H, out_channels]``."""
        if self.query is None:
            raise ValueError(f"diffusivity {self.extra_repr()} infers no exchange, so it has no queries and keys")
        shape = (z.shape[0], self.num_heads, self.out_channels)
        q = self._normalise(self.query(z).view(shape), segments)
        return q, q if self.key is None else self._normalise(self.key(z).view(shape), segments)

    def _normalise(self, x: Tensor, segments: Segments | None) -> Tensor:
        if self.qk_norm == "row":
            return unit_rows(x)
        if self.qk_norm == "none":
            return x
        squares = x.square().sum((1, 2))
        if segments is None:
            return x / squares.sum().sqrt().clamp_min(1e-12)
        total = squares.new_zeros(segments.num_graphs).index_add(0, segments.batch, squares)
        return x / total.sqrt().clamp_min(1e-12)[segments.batch].view(-1, 1, 1)

    def is_linear_in_states(self, segments: Segments | None) -> bool:
        """Whether all pairs can be summed without queries and keys, see `difformer.nn.gram`."""
        return (
            self.form == "simple" and self.qk_norm != "row" and segments is None and self.backend in ("auto", "linear")
        )

    def latent(self, z: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
        """Mean over heads of the all-pair term, ``[N, out_channels]``, from values ``[N, H or 1, out_channels]``."""
        if self.diffusivity is None or self.form == "identity":
            return over_heads(v)
        if self.query is not None and self.is_linear_in_states(segments):
            key = self.query if self.key is None else self.key
            return gram_attention(z, self.query, key, self.value, self.num_heads, scaled=self.qk_norm == "global")
        if self.query is None:
            q = k = v.expand(-1, self.num_heads, -1)  # constant: no pair is looked at
        else:
            q, k = self.queries_and_keys(z, segments)
        # By the key of its score: older compilers cannot pass the object.
        assert self._score is not None
        return over_heads(propagate(q, k, v.to(q.dtype), self._score, batch=segments, backend=self.backend))

    def propagated(self, z: Tensor, structure: Structure) -> Tensor:
        """P̄: latent and observed propagation together, ``[N, out_channels]``."""
        shape = (z.shape[0], self.num_heads, self.out_channels)
        v = z.unsqueeze(1) if self.value is None else self.value(z).view(shape)
        if structure.graph is None:
            return self.latent(z, v, structure.segments)
        # The graph is the same for every head, so the mean over heads may be taken before it.
        observed = structure.graph.propagate(over_heads(v), self.graph_norm)
        if self.diffusivity is None and structure.has_edges is None:
            return observed
        latent = self.latent(z, v, structure.segments)
        if self.diffusivity is None:
            mixed = observed
        elif self.graph_weight is None:
            mixed = latent + observed
        else:
            mixed = torch.lerp(latent, observed, self.graph_weight)
        return mixed if structure.has_edges is None else torch.where(structure.has_edges, mixed, latent)

    def step(self, z: Tensor, structure: Structure, source: Tensor | None = None) -> Tensor:
        """Z⁺ from Z, with the structure of the whole forward pass worked out before."""
        short = short_step(self, z, structure, source)
        if short is not None:
            return short
        p = self.propagated(z, structure)
        if self.residual:
            p = torch.lerp(z, p.to(z.dtype), self.step_size)
        if source is not None and (isinstance(self.source_weight, Tensor) or self.source_weight):
            p = p + self.step_size * self.source_weight * source
        return p

    def forward(
        self,
        z: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
        *,
        source: Tensor | None = None,
    ) -> Tensor:
        if z.dim() != 2 or z.shape[1] != self.in_channels:
            raise ValueError(f"z must have shape [N, {self.in_channels}], got {tuple(z.shape)}")
        used = source is not None and self.source_weight
        if used and (source.shape != (z.shape[0], self.out_channels) or source.dtype != z.dtype):  # type: ignore[union-attr]
            raise ValueError(
                f"source must have shape {(z.shape[0], self.out_channels)} and type {z.dtype} as the states have, got "
                f"{tuple(source.shape)} and {source.dtype}"  # type: ignore[union-attr]
            )
        return self.step(z, as_structure(z.shape[0], edge_index, edge_weight, batch), source)


def check_count(name: str, count: int, least: int = 1) -> None:
    """Raises a ValueError that names the argument if `count` is no integer (numpy's count as such) or too small."""
    try:
        enough = operator.index(count) >= least
    except TypeError:
        enough = False
    if not enough:
        raise ValueError(f"{name} must be an integer of at least {least}, got {count!r}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
