"""One DIFFormer layer: infer diffusivity, propagate over latent and observed structure, step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention import BACKENDS
from difformer.attention.scores import form_of, score_key
from difformer.diffusivity import Diffusivity, as_diffusivity
from difformer.errors import UserError, check_choice
from difformer.graph import GRAPH_NORMS
from difformer.kernels.fused import fused_layer, why_not_fused, why_not_gram
from difformer.kernels.gram import gram_attention
from difformer.kernels.rows import unit_rows
from difformer.nn.context import Context, Structure, as_structure
from difformer.nn.inspection import mask_holder, mask_of
from difformer.nn.protocol import Batch, Edges, Weight, check_counts

LARGEST_SOURCE = 1e6  # far beyond any useful β, and far below what overflows a float32


class DIFFormerConv(nn.Module):
    r"""One step of energy-constrained diffusion over all pairs and over observed edges.

    .. math::
        Z^{+} &= (1 - τ) Z + τ \bar P + τ β Z^{(0)}, \qquad
        \bar P = \frac{1}{H} \sum_h \left( \hat S^{(h)} V^{(h)} + \tilde A V^{(h)} \right), \\
        (\hat S V)_i &= \frac{\sum_j g(\tilde q_i^\top \tilde k_j) \, v_j}{\sum_l g(\tilde q_i^\top \tilde k_l)},

    for node i in each head, with queries and keys of unit length. By default the two terms are mixed,
    :math:`(1 - w) \hat S V + w \tilde A V` with w = `graph_weight`, which keeps the total mass at one; the paper adds
    them. In a graph without edges :math:`\tilde A` is the identity: each node keeps its own value. `forward` is this
    formula, or a kernel that computes the same (`difformer.kernels.fused.why_not_fused`).

    Args:
        in_channels: Length of a state before the layer; -1 takes it from the first input.
        out_channels: Length after it; must be `in_channels` with `residual`, without `transform`, or with a source.
        num_heads, diffusivity, …, backend: As in `difformer.DIFFormer`.

    Shapes:
        ``[N, in_channels]`` → ``[N, out_channels]``.

    Example:
        >>> import torch
        >>> layer = DIFFormerConv(8, 8, diffusivity="sigmoid")
        >>> layer(torch.randn(5, 8), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([5, 8])
    """

    edge_mask = mask_of
    written_here = True  # not inherited: kernels replace this class alone, see `difformer.kernels.fused`

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_heads: int = 1,
        diffusivity: str | Diffusivity | None = "simple",
        step_size: float = 0.5,
        source_weight: float = 0.2,
        graph_weight: float | None = 0.8,
        graph_norm: str = "gcn",
        transform: bool = True,
        residual: bool = True,
        qk_norm: str = "row",
        tied_qk: bool = False,
        initialisation: str = "identity",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_choice("qk_norm", qk_norm, ("row", "global", "none"))
        check_choice("graph_norm", graph_norm, GRAPH_NORMS)
        check_choice("initialisation", initialisation, ("identity", "torch"))
        check_choice("backend", backend, BACKENDS)
        check_counts(in_channels=in_channels, out_channels=out_channels, num_heads=num_heads)
        if not abs(source_weight) <= LARGEST_SOURCE:
            raise UserError(f"source_weight must be a finite number, got {source_weight!r}; at most {LARGEST_SOURCE:g}")
        if not 0 < step_size <= 1:
            raise UserError(f"step_size must lie in (0, 1], got {step_size!r}")
        if graph_weight is not None and not 0 <= graph_weight <= 1:
            raise UserError(f"graph_weight must lie in [0, 1], or be None to add the graph term, got {graph_weight!r}")
        self.out_channels, self.num_heads, self.residual, self.tied_qk = out_channels, num_heads, residual, tied_qk
        self.diffusivity = None if diffusivity is None else as_diffusivity(diffusivity, channels=out_channels)
        self.step_size, self.source_weight, self.graph_weight = step_size, source_weight, graph_weight
        self.graph_norm, self.qk_norm, self.backend, self.initialisation = graph_norm, qk_norm, backend, initialisation
        # A diffusivity that compares no pairs needs no queries and keys: they would only undergo weight decay.
        self.form = None if self.diffusivity is None else form_of(self.diffusivity)
        self._score: Any = None if self.diffusivity is None else score_key(self.diffusivity)
        infers = self.form not in (None, "identity", "constant")
        width = out_channels * num_heads
        self.query = linear_map(in_channels, width) if infers else None
        self.key = linear_map(in_channels, width) if infers and not tied_qk else None
        self.value = linear_map(in_channels, width) if transform else None
        self.set_in_channels(in_channels)

    def forward(
        self,
        z: Tensor,
        edge_index: Edges = None,
        edge_weight: Weight = None,
        batch: Batch = None,
        *,
        source: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Z⁺ from Z.

        Args:
            z: States ``[N, in_channels]``.
            edge_index, edge_weight, batch: Observed edges and graphs, as in `difformer.DIFFormer.forward`.
            source: Z⁰ ``[N, out_channels]``; used where `source_weight` is not 0.
            context: How to sum over the rows that send (`difformer.nn.context`), in place of `edge_index` and `batch`.
        """
        if self.in_channels == -1 and z.dim() == 2:
            self.set_in_channels(z.shape[1])
        if z.dim() != 2 or z.shape[1] != self.in_channels:
            series = "; a series [T, N, F] goes through the model DIFFormer, not a layer" if z.dim() == 3 else ""
            raise UserError(f"z must have shape [N, {self.in_channels}], got {tuple(z.shape)}{series}")
        if not isinstance(self.source_weight, Tensor) and self.source_weight == 0:  # stacked runs have tensors
            source = None
        if source is not None and (source.shape != (z.shape[0], self.out_channels) or source.dtype != z.dtype):
            wanted = f"shape {(z.shape[0], self.out_channels)} and type {z.dtype} as the states have"
            raise UserError(f"source must have {wanted}, got {tuple(source.shape)} and {source.dtype}")
        if context is None:
            context = as_structure(z.shape[0], edge_index, edge_weight, batch)
        elif edge_index is not None or edge_weight is not None or batch is not None:
            raise UserError("context already defines the senders; leave out edge_index, edge_weight and batch")
        if why_not_fused(self, z, context) is None and (out := fused_layer(self, z, context, source)) is not None:
            return out
        mask = self.edge_mask()
        options = {} if mask is None else {"mask": mask}  # only a `Structure` takes masks
        v = self.values(z)
        own = over_heads(v)  # the graph is the same for every head, so their mean suffices
        latent, observed = self.latent(z, v, context), context.observed(own, self.graph_norm, **options)
        p = self.mixed(latent, observed, own, context.has_edges)
        step = _between(z, p, self.step_size) if self.residual else p
        return step if source is None else step + self.step_size * self.source_weight * source

    def latent(self, z: Tensor, v: Tensor, context: Context) -> Tensor:
        """Mean over heads of the all-pair term, ``[N, out_channels]``."""
        if self.diffusivity is None or self.form == "identity":
            return over_heads(v)
        if self.query is not None and why_not_gram(self, z, context) is None:
            key = self.query if self.key is None else self.key
            return gram_attention(z, self.query, key, self.value, self.num_heads, scaled=self.qk_norm == "global")
        if self.query is None:
            q = k = v.expand(-1, self.num_heads, -1)  # constant: only their number matters
        else:
            q, k = self.queries_and_keys(z, context)
        # By the key of its score: older compilers cannot pass the object.
        return over_heads(context.latent(q, k, v.to(q.dtype), self._score, self.backend))

    def mixed(self, latent: Tensor, observed: Tensor | None, own: Tensor, has_edges: Tensor | None) -> Tensor:
        """P̄ from both terms; in a graph without edges each node's own value stands for the observed one."""
        if self.graph_weight is None and self.diffusivity is not None:  # added; without edges nothing is observed
            return latent if observed is None else latent + observed
        if observed is None:
            observed = own
        elif has_edges is not None:
            observed = torch.where(has_edges, observed, own)
        return observed if self.diffusivity is None else _between(latent, observed, self.graph_weight)

    def values(self, z: Tensor) -> Tensor:
        """V: ``[N, H, out_channels]``, or the states themselves, ``[N, 1, out_channels]``, without `transform`."""
        if self.value is None:
            return z.unsqueeze(1)
        return self.value(z).view(z.shape[0], self.num_heads, self.out_channels)

    def queries_and_keys(self, z: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor]:
        """Normalised Q and K, each ``[N, H, out_channels]``; `context` gives the norms of ``qk_norm="global"``."""
        q, k = self._queries_and_keys(z)
        if self.qk_norm == "none":
            return q, k
        if self.qk_norm == "row":
            scaled = unit_rows(q)
            return scaled, scaled if k is q else unit_rows(k)
        query_norm, key_norm = (Structure() if context is None else context).norms(q, k)
        scaled = (q / query_norm).to(q.dtype)
        return scaled, scaled if k is q else (k / key_norm).to(k.dtype)

    def _queries_and_keys(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if self.query is None:
            raise UserError(f"diffusivity {self.diffusivity!r} infers no exchange, so it has no queries and keys")
        shape = (z.shape[0], self.num_heads, self.out_channels)
        q = self.query(z).view(shape)
        return q, q if self.key is None else self.key(z).view(shape)

    def set_in_channels(self, in_channels: int) -> None:
        """Gives the layer its input size and its initial values; if it is -1, the first forward pass will."""
        if in_channels not in (-1, self.out_channels) and (self.residual or self.value is None):
            sizes = f"in_channels {in_channels} and out_channels {self.out_channels}"
            advice = "to change the size, set residual=False and keep transform=True"
            raise UserError(f"{sizes} must be equal with residual=True or transform=False; {advice}")
        self.in_channels = in_channels
        if in_channels == -1:
            return
        for layer in (self.query, self.key, self.value):
            give_size(layer, in_channels)
        if self.initialisation == "identity" and type(self.value) is nn.Linear:  # W = I + 0.1 W₀, b = 0
            with torch.no_grad():
                self.value.weight.mul_(0.1).view(self.num_heads, -1, in_channels).diagonal(dim1=1, dim2=2).add_(1)
                self.value.bias.zero_()

    def reset_parameters(self) -> None:
        """Draws all parameters again."""
        for layer in (self.query, self.key, self.value):
            if layer is not None and hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        self.set_in_channels(self.in_channels)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """As in `nn.Module`, and the module on which explainers of PyTorch Geometric set their edge masks."""
        yield from super().named_modules(memo, prefix, remove_duplicate)
        if (holder := mask_holder(self)) is not None:
            yield f"{prefix}.edge_mask" if prefix else "edge_mask", holder

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._score = None if self.diffusivity is None else score_key(self.diffusivity)  # a key is valid in one process

    def extra_repr(self) -> str:
        name = None if self.diffusivity is None else self.diffusivity.name
        graph = "added" if self.graph_weight is None else f"mixed in with weight {float(self.graph_weight):g}"
        heads = f"num_heads={self.num_heads}"
        return f"{self.in_channels}, {self.out_channels}, {heads}, diffusivity={name}, graph term {graph}"


def linear_map(in_channels: int, out_channels: int) -> nn.Linear:
    """`nn.Linear`; with -1 input channels a lazy one, which becomes `nn.Linear` at its first input."""
    if in_channels != -1:
        return nn.Linear(in_channels, out_channels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # lazy modules of torch announce that they are new
        return nn.LazyLinear(out_channels)


@torch.no_grad()
def give_size(layer: nn.Module | None, in_channels: int) -> None:
    """Makes the parameters of a lazy map, in place, so that optimisers keep them."""
    if isinstance(layer, nn.LazyLinear):
        layer(torch.empty(0, in_channels, dtype=layer.weight.dtype, device=layer.weight.device))


def _between(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    """(1 - w) start + w end, in the type of `start`; in stacked runs w is a tensor."""
    end = end.to(start.dtype)
    if torch.compiler.is_compiling():  # with dynamic=True the weight is a symbol, for which inductor has no lerp
        return start + weight * (end - start)
    return torch.lerp(start, end, weight)


def over_heads(x: Tensor) -> Tensor:
    """Mean of ``[N, H, c]`` over heads, a view of a single one."""
    return x.squeeze(1) if x.shape[1] == 1 else x.mean(1)
