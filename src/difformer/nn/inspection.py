"""Inspection of a trained model: the pairs that exchange most, energy and rank of each layer, masks of explainers.

The energy is measured: a trained network infers the exchange from queries and keys, which no theorem covers.

An explainer of PyTorch Geometric sets a mask m ``[E]`` on each `MessagePassing` module of ``model.modules()``; the
message along edge e is then multiplied by σ(m_e), after normalisation. Once torch_geometric is loaded, a layer exposes
such a module (`mask_holder`), reads the mask from it (`mask_of`) and no longer uses fused kernels.
"""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention import explain
from difformer.attention.reference import attention_matrix
from difformer.attention.segments import Segments
from difformer.diffusion.energy import effective_rank, penalty
from difformer.diffusivity import CONSTANT, Diffusivity
from difformer.errors import UserError
from difformer.kernels.fused import why_not_fused, why_not_plain
from difformer.nn.context import Structure
from difformer.nn.protocol import check_count

if TYPE_CHECKING:
    from difformer.nn.conv import DIFFormerConv

PAIRS_OF_A_BLOCK = 1 << 22


@dataclass(frozen=True)
class StrongestPairs:
    """Pairs with the largest attention, strongest first.

    Args:
        source: ``[k]`` instances that are attended to.
        target: ``[k]`` instances that attend.
        weight: ``[k]`` attention of target to source; the weights of one target sum to 1 over all sources.
    """

    source: Tensor
    target: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return self.weight.numel()


def explain_layer(layer: nn.Module, z: Tensor, structure: Structure) -> str:
    """How a layer computes its step for states like ``z [N, d]``, and why."""
    reason = why_not_plain(layer) or why_not_fused(layer, z, structure)
    if reason is None:
        return "a fused kernel"
    if getattr(layer, "form", None) in (None, "identity"):
        return f"the formula, because {reason}"
    largest = z.shape[0] if structure.segments is None else structure.segments.largest
    options: dict[str, Any] = {"diffusivity": layer.diffusivity, "heads": layer.num_heads}
    choice = explain(largest, layer.out_channels, device=z.device, dtype=z.dtype, **options)  # type: ignore[arg-type]
    return f"the formula, because {reason}; all pairs by {choice}"


def strongest_pairs(
    layer: DIFFormerConv, z: Tensor, segments: Segments | None, top_k: int, head: int | None = None
) -> StrongestPairs:
    """`difformer.DIFFormer.attention` of a layer; memory holds the attention of one block of rows at a time."""
    check_count("top_k", top_k)
    if layer.diffusivity is None or layer.form == "identity":
        raise UserError(f"diffusivity {layer.form!r} propagates over no latent pairs, so there is no attention")
    if layer.query is None:  # constant: every pair alike
        q = k = z.new_zeros(z.shape[0], layer.num_heads, 1)
    else:
        q, k = layer.queries_and_keys(z, Structure(None, segments))
    if head is not None:
        if not 0 <= head < layer.num_heads:
            raise UserError(f"head must lie in 0 … {layer.num_heads - 1}, got {head}")
        q, k = q[:, head : head + 1], k[:, head : head + 1]
    everything = torch.arange(z.shape[0], device=z.device)
    best = [everything[:0], everything[:0], z.new_empty(0)]  # source, target, weight
    for nodes in [everything] if segments is None else segments.by_graph.split(segments.sizes.tolist()):
        for targets in nodes.split(max(PAIRS_OF_A_BLOCK // max(nodes.numel(), 1), 1)):
            weights = attention_matrix(q[targets], k[nodes], layer.diffusivity).mean(0)
            weights = weights.masked_fill(targets.unsqueeze(1) == nodes, -torch.inf)
            value, place = weights.flatten().topk(min(top_k, weights.numel()))
            found = (nodes[place % len(nodes)], targets[place // len(nodes)], value)
            best = [torch.cat(pair) for pair in zip(best, found, strict=True)]
            order = best[2].topk(min(top_k, best[2].numel())).indices
            best = [x[order] for x in best]
    return StrongestPairs(*(x[best[2] > -torch.inf] for x in best))


@dataclass(frozen=True)
class EnergyProfile:
    """How states converge from layer to layer; entry k is Z^(k), entry 0 the input layer's.

    Args:
        energy: ``[L + 1]`` mean over ordered pairs of δ(||z_i - z_j||²), on states scaled to unit length; δ(u) = u
            without latent propagation.
        dirichlet: ``[L + 1]`` mean over edges of a_ij ||z_i - z_j||² on the same states; None without edges.
        effective_rank: ``[L + 1]`` exp of the entropy of the singular values of Z: 1 if all states are alike.
    """

    energy: Tensor
    dirichlet: Tensor | None
    effective_rank: Tensor

    def __len__(self) -> int:
        return self.energy.numel()


def energy_profile(states: Tensor, diffusivity: Diffusivity | None, structure: Structure) -> EnergyProfile:
    """Energy and effective rank of each state of a trajectory ``[L + 1, N, d]``."""
    segments, graph, unit = structure.segments, structure.graph, functional.normalize(states, dim=-1)
    pairs = states.shape[1] ** 2 if segments is None else int(segments.sizes.square().sum())
    each = lambda measure: torch.stack([measure(z) for z in unit])
    energy = each(penalty(diffusivity or CONSTANT, batch=segments)) / max(pairs, 1)
    dirichlet = None if graph is None else each(penalty(CONSTANT, graph=graph)) / graph.num_edges
    return EnergyProfile(energy, dirichlet, torch.stack([effective_rank(z) for z in states]))


_HOLDERS: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()  # not part of any saved layer


@functools.cache
def _holder_class(base: type[nn.Module]) -> type[nn.Module]:
    class EdgeMask(base):  # type: ignore[misc, valid-type]
        """What explainers expect of a layer, without any messages of its own."""

        explain: bool | None = None
        flow = "source_to_target"
        _apply_sigmoid = True

        def __init__(self, layer: nn.Module) -> None:
            nn.Module.__init__(self)  # a MessagePassing generates code when it is made
            self._layer: Any = weakref.ref(layer)
            self._edge_mask = None

        def register_forward_hook(self, *args: Any, **options: Any) -> Any:
            return self._layer().register_forward_hook(*args, **options)  # PGExplainer reads the states of the layer

        def register_message_forward_hook(self, hook: Any) -> Any:
            problem = "AttentionExplainer needs attention of edges, but DIFFormer attends to all pairs"
            raise UserError(f"{problem}: use GNNExplainer or PGExplainer for edges, and model.attention(…) for pairs")

    return EdgeMask


def mask_holder(layer: nn.Module) -> nn.Module | None:
    """The module on which explainers set the masks of `layer`; None while torch_geometric is not loaded."""
    base = getattr(sys.modules.get("torch_geometric.nn.conv"), "MessagePassing", None)
    if base is None or torch.compiler.is_compiling():
        return None
    if layer not in _HOLDERS:
        _HOLDERS[layer] = _holder_class(base)(layer)
    return _HOLDERS[layer]


def mask_of(layer: nn.Module) -> Tensor | None:
    """Factors ``[E]`` of the messages along observed edges, set by an explainer; None otherwise."""
    holder = None if torch.compiler.is_compiling() or not _HOLDERS else _HOLDERS.get(layer)
    if holder is None or not holder.explain or holder._edge_mask is None:
        return None
    return holder._edge_mask.sigmoid() if holder._apply_sigmoid else holder._edge_mask
