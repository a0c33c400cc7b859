"""Sums over all pairs of states, tile by tile, without an N×N matrix.

With centred states z and half squared norms h_i = ||z_i||²/2, the squared distance and the score of two unit states
with that distance are

    u_ij = 2 h_i + 2 h_j - 2 z_iᵀz_j,   x_ij = 1 - u_ij/2 = [z_i, 1 - h_i, 1]ᵀ [z_j, 1, -h_j],

so that f(u_ij) = g(q_iᵀk_j) with two more channels for every diffusivity: attention on scores also computes attention
on distances. Centring keeps distances and avoids rounding by a common offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from difformer.attention.segments import Segments, as_segments
from difformer.diffusivity import CONSTANT, IDENTITY, SIMPLE, Diffusivity
from difformer.errors import UserError

Batch = Tensor | Segments | None

BLOCK_SIZE = 2048  # most rows and columns of a graph per tile: 32 MiB in double precision


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """``[…, n, d]`` and ``[…, m, d]`` to ``[…, n, m]``, for states centred at the same point."""
    norms = (a * a).sum(-1).unsqueeze(-1) + (b * b).sum(-1).unsqueeze(-2)
    return (norms - 2 * a @ b.mT).clamp_min(0.0)


def distance_factors(z: Tensor, segments: Segments | None = None) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[N, d + 2]`` whose inner products are 1 - ||z_i - z_j||²/2 within a graph."""
    z = z - (z.mean(0) if segments is None else segments.means(z)[segments.batch])
    half = (z * z).sum(1, keepdim=True) / 2
    one = torch.ones_like(half)
    return torch.cat([z, 1 - half, one], 1), torch.cat([z, one, -half], 1)


def _graphs(z: Tensor, batch: Batch) -> Segments:
    """The graphs of a batch; by default a single graph."""
    everything = torch.zeros(z.shape[0], dtype=torch.long, device=z.device)
    segments = as_segments(everything if batch is None else batch)
    assert segments is not None
    if segments.batch.numel() != z.shape[0]:
        raise UserError(f"batch names {segments.batch.numel()} rows, but z has {z.shape[0]}")
    return segments


def centred_graphs(z: Tensor, batch: Batch = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Graphs of similar size as zero-padded, centred blocks: ``(z [B, n, d], mask [B, n], sizes [B])``."""
    for block in _graphs(z, batch).blocks:
        padded = block.pad(z)
        mean = padded.sum(1, keepdim=True) / block.sizes.to(z.dtype).view(-1, 1, 1)
        yield (padded - mean) * block.mask.unsqueeze(-1), block.mask, block.sizes


def tiles(z: Tensor, batch: Batch = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All unordered pairs of tiles within a graph: ``(rows [B, n, d], columns [B, m, d], weight [B, n, m])``.

    The weight counts ordered pairs: one in diagonal tiles, two in other tiles, zero for padding.
    """
    for states, mask, _ in centred_graphs(z, batch):
        there, starts = mask.to(z.dtype), range(0, states.shape[1], BLOCK_SIZE)
        for i, j in combinations_with_replacement(starts, 2):
            rows, columns = slice(i, i + BLOCK_SIZE), slice(j, j + BLOCK_SIZE)
            weight = there[:, rows].unsqueeze(-1) * there[:, columns].unsqueeze(-2)
            yield states[:, rows], states[:, columns], weight if i == j else 2 * weight


def pair_sum(z: Tensor, function: Callable[[Tensor], Tensor], *, batch: Batch = None) -> Tensor:
    """Σ_ij function(||z_i - z_j||²) over all ordered pairs of a graph, in O(N² d) time and the memory of one tile."""

    def part(rows: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
        return (function(squared_distances(rows, columns)) * weight).sum(dtype=torch.float64)

    total = z.new_zeros((), dtype=torch.float64)
    for tile in tiles(z, batch):
        # Tiles are recomputed in the backward pass.
        differentiable = torch.is_grad_enabled() and z.requires_grad
        total = total + (checkpoint(part, *tile, use_reentrant=False) if differentiable else part(*tile))
    return total.to(z.dtype)


@torch.no_grad()
def largest_squared_distance(z: Tensor, *, batch: Batch = None) -> float:
    """max_ij ||z_i - z_j||² within a graph."""
    parts = (squared_distances(rows, columns) * weight.sign() for rows, columns, weight in tiles(z, batch))
    return max((part.max().item() for part in parts), default=0.0)


def penalty_sum(z: Tensor, diffusivity: Diffusivity, *, batch: Batch = None) -> Tensor:
    """Σ_ij δ(||z_i - z_j||²); in O(N d²) for `simple` and `constant`.

    For centred states with squared norms n_i, Σ u = 2NΣn and Σ u² = 2NΣn² + 2(Σn)² + 4||ZᵀZ||².
    """
    if diffusivity is IDENTITY:
        return (0 * z).sum()
    if diffusivity is not SIMPLE and diffusivity is not CONSTANT:
        return pair_sum(z, diffusivity.delta, batch=batch)
    total = z.new_zeros((), dtype=torch.float64)
    for states, _, sizes in centred_graphs(z, batch):
        wide = states.double()
        norms, count = (wide * wide).sum(-1), sizes.double()
        first = 2 * count * norms.sum(-1)
        total = total + (first if diffusivity is CONSTANT else 2 * first).sum()
        if diffusivity is SIMPLE:
            second = 2 * count * (norms * norms).sum(-1) + 2 * norms.sum(-1) ** 2
            total = total - (second + 4 * ((wide.mT @ wide) ** 2).sum((-2, -1))).sum() / 4
    return total.to(z.dtype)


def exchange_sums(q: Tensor, k: Tensor, diffusivity: Diffusivity, *, batch: Batch = None) -> Tensor:
    """Row sums ``[N]`` of the exchange g(q_iᵀk_j) within each graph; ones for the identity."""
    if diffusivity is IDENTITY:
        return q.new_ones(q.shape[0])
    sums = q.new_zeros(1, q.shape[0])
    for block in _graphs(q, batch).blocks:
        block.put(sums, _padded_sums(block.pad(q), block.pad(k), block.mask.to(q.dtype), diffusivity))
    return sums.squeeze(0)


def _padded_sums(q: Tensor, k: Tensor, there: Tensor, diffusivity: Diffusivity) -> Tensor:
    count = there.sum(1, keepdim=True)
    if diffusivity is CONSTANT:
        return count * there
    if diffusivity is SIMPLE:
        return count + (q @ k.sum(1).unsqueeze(-1)).squeeze(-1)
    columns = list(zip(k.split(BLOCK_SIZE, 1), there.split(BLOCK_SIZE, 1), strict=True))

    def row_sums(tile: Tensor) -> Any:
        return sum((diffusivity.g(tile @ keys.mT) @ on.unsqueeze(-1)).squeeze(-1) for keys, on in columns)

    return torch.cat([row_sums(tile) for tile in q.split(BLOCK_SIZE, 1)], 1)
