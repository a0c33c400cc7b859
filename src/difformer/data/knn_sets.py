"""Nearest neighbours within each of many point sets, which are often too small to be searched one at a time.

Small sets of one size are one batch: all their pairs are measured, thousands of sets at once. Large ones are searched
singly. Both give the distances and the order of `nearest`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.data.knn_exact import Metric, nearest, norms
from difformer.data.sparse import take_rows

SMALL = 256  # points; beyond, the search of a single set is worth its fixed cost
NUMBERS = 2**22  # coordinates of pairs held at a time


def nearest_within(
    points: Tensor, ptr: Tensor, k: int, *, metric: Metric, block_size: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """For every point its k nearest of the same set, or all others where there are fewer.

    Args:
        points: ``[N, F]``.
        ptr: ``[S + 1]``: set s is ``points[ptr[s]:ptr[s + 1]]``.
        k: At least 1.
        metric: ``"euclidean"`` or ``"cosine"``.
        block_size: For large sets, as in `nearest`.

    Returns:
        neighbours: ``[E]`` those of point 0, nearest first, then those of point 1, …
        distances: ``[E]``.
        count: ``[N]`` how many each point has.
    """
    device = points.device
    ptr = ptr.to(device)
    size = ptr.diff()
    set_of = torch.repeat_interleave(torch.arange(size.numel(), device=device), size)
    count = (size - 1).clamp(max=k)[set_of]
    begin = count.cumsum(0) - count
    neighbours = torch.empty(int(count.sum()), dtype=torch.long, device=device)
    distances = torch.empty(neighbours.numel(), dtype=torch.double, device=device)

    def put(nodes: Tensor, index: Tensor, length: Tensor) -> None:
        place = begin[nodes, None] + torch.arange(index.shape[1], device=device)
        neighbours[place] = index
        distances[place] = length

    small = (size <= SMALL) & (size * size * points.shape[1] <= NUMBERS)
    if points.layout != torch.strided:
        small = size <= 1
    for start, end in zip(ptr[:-1][~small].tolist(), ptr[1:][~small].tolist(), strict=True):
        nodes = torch.arange(start, end, device=device)
        if end - start > 1:
            found = nearest(take_rows(points, nodes), min(k, end - start - 1), metric=metric, block_size=block_size)
            put(nodes, found[0] + start, found[1])
    for n in size[small & (size > 1)].unique().tolist():
        sets = (small & (size == n)).nonzero().squeeze(1)
        for chunk in sets.split(max(1, NUMBERS // (n * n * points.shape[1]))):
            nodes = ptr[chunk, None] + torch.arange(n, device=device)
            length, near = _all_pairs(points[nodes.reshape(-1)], n, metric).sort(dim=2, stable=True)
            index = near[:, :, : min(k, n - 1)] + ptr[chunk, None, None]
            put(nodes.reshape(-1), index.flatten(0, 1), length[:, :, : min(k, n - 1)].flatten(0, 1))
    return neighbours, distances, count


def _all_pairs(points: Tensor, n: int, metric: Metric) -> Tensor:
    """Distances ``[g, n, n]`` within g sets of n points each, in double precision; a point is nobody to itself."""
    p = points.double()
    if metric == "cosine":
        norm = norms(points)
        p = (p / torch.where(norm > 0, norm, 1.0)[:, None]).unflatten(0, (-1, n))
        length = (1 - (p[:, :, None] * p[:, None]).sum(-1)).clamp_(min=0)
    else:
        p = p.unflatten(0, (-1, n))
        length = (p[:, :, None] - p[:, None]).square_().sum(-1).sqrt_()
    length.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    return length
