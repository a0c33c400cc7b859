"""Looking into a trained model: which pairs exchange most, and how energy and rank fall from layer to layer.

In a trained network queries differ from keys, so the exchange is not symmetric and no theorem covers it: what is
reported here is measured. With ``tied_qk=True``, unit rows and no LayerNorm the theorems apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.reference import safe_total
from difformer.attention.scores import least_of
from difformer.attention.segments import Segments, as_segments
from difformer.diffusion.diffusivity import CONSTANT, Diffusivity
from difformer.diffusion.energy import effective_rank, penalty
from difformer.nn.structure import Structure

if TYPE_CHECKING:
    from difformer.nn.conv import DIFFormerConv

ROWS_OF_A_BLOCK = 1024


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


def attention_rows(
    layer: DIFFormerConv,
    z: Tensor,
    segments: Segments | None = None,
    *,
    head: int | None = None,
    block_size: int = ROWS_OF_A_BLOCK,
) -> Iterator[tuple[int, Tensor]]:
    """Attention of one layer in blocks of rows: first row, and ``[rows, N]``, mean over heads unless one is named."""
    if layer.diffusivity is None or layer.diffusivity.name == "identity":
        name = None if layer.diffusivity is None else layer.diffusivity.name
        raise ValueError(f"diffusivity {name!r} propagates over no latent pairs, so there is no attention to look at")
    if layer.diffusivity is CONSTANT:
        q = k = z.new_zeros(z.shape[0], layer.num_heads, 1)
    else:
        q, k = layer.queries_and_keys(z, segments)
    if head is not None:
        if not 0 <= head < layer.num_heads:
            raise ValueError(f"head must lie in 0 … {layer.num_heads - 1}, got {head}")
        q, k = q[:, head : head + 1], k[:, head : head + 1]
    for start in range(0, z.shape[0], block_size):
        weights = layer.diffusivity.g(torch.einsum("nhd,mhd->hnm", q[start : start + block_size], k))
        count: Tensor | int = z.shape[0]
        if segments is not None:
            own = segments.batch[start : start + block_size]
            weights = weights * (own.unsqueeze(1) == segments.batch)
            count = segments.sizes[own].view(1, -1, 1)
        yield start, (weights / safe_total(weights.sum(-1, keepdim=True), count, least_of(layer.diffusivity))).mean(0)


def strongest_pairs(
    layer: DIFFormerConv,
    z: Tensor,
    batch: Tensor | Segments | None = None,
    *,
    top_k: int = 100,
    head: int | None = None,
    include_self: bool = False,
    block_size: int = ROWS_OF_A_BLOCK,
) -> StrongestPairs:
    """The `top_k` pairs with the largest attention, never more than `block_size` rows of attention in memory."""
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    segments = as_segments(batch)
    best, where = z.new_empty(0), torch.empty(0, dtype=torch.long, device=z.device)
    for start, rows in attention_rows(layer, z, segments, head=head, block_size=block_size):
        number = torch.arange(start, start + rows.shape[0], device=z.device)
        excluded = torch.zeros_like(rows, dtype=torch.bool)
        if not include_self:
            excluded[number - start, number] = True
        if segments is not None:
            excluded |= segments.batch[number].unsqueeze(1) != segments.batch
        rows = rows.masked_fill(excluded, -torch.inf).flatten()
        value, place = rows.topk(min(top_k, rows.numel()))
        best, where = torch.cat([best, value]), torch.cat([where, place + start * z.shape[0]])
        best, order = best.topk(min(top_k, best.numel()))
        where = where[order]
    there = best.isfinite()
    where = where[there]
    return StrongestPairs(where % max(z.shape[0], 1), where // max(z.shape[0], 1), best[there])


@dataclass(frozen=True)
class EnergyProfile:
    """How states come together from layer to layer; entry k is Z^(k), entry 0 the input layer's.

    Args:
        energy: ``[L + 1]`` mean over ordered pairs of δ(||z_i - z_j||²), on states scaled to unit length. Without
            latent propagation δ(u) = u.
        dirichlet: ``[L + 1]`` mean over edges of a_ij ||z_i - z_j||² on the same states; None without edges.
        effective_rank: ``[L + 1]`` exp of the entropy of the singular values of Z: 1 where all states are alike.
    """

    energy: Tensor
    dirichlet: Tensor | None
    effective_rank: Tensor

    def __len__(self) -> int:
        return self.energy.numel()


def energy_profile(states: Tensor, diffusivity: Diffusivity | None, structure: Structure) -> EnergyProfile:
    """Energy and effective rank of each state of a trajectory ``[L + 1, N, d]``."""
    chosen = CONSTANT if diffusivity is None else diffusivity
    segments, graph = structure.segments, structure.graph
    pairs = states.shape[1] ** 2 if segments is None else int(segments.sizes.square().sum())
    energies, edge_energies, ranks = [], [], []
    for z in states:
        unit = functional.normalize(z, dim=-1)
        energies.append(penalty(chosen, batch=segments)(unit) / max(pairs, 1))
        ranks.append(effective_rank(z))
        if graph is not None:
            edge_energies.append(penalty(CONSTANT, graph=graph)(unit) / graph.num_edges)
    dirichlet = torch.stack(edge_energies) if edge_energies else None
    return EnergyProfile(torch.stack(energies), dirichlet, torch.stack(ranks))
