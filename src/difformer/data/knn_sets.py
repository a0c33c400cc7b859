"""Nearest neighbours within each of many point sets, which are often too small to be searched one at a time.

Of small sets all pairs are measured, millions of pairs of thousands of sets at once; large ones are searched singly.
Both give the distances and the order of `nearest`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.data.knn_exact import Metric, distance, keep_nearest, nearest, norms
from difformer.data.sparse import segments, take_rows

SMALL = 48  # points; beyond, the search of a single set is worth its fixed cost
PAIRS = 2**22  # measured at a time


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

    small = size <= (SMALL if points.layout == torch.strided else 1)
    for start, end in zip(ptr[:-1][~small].tolist(), ptr[1:][~small].tolist(), strict=True):
        nodes = torch.arange(start, end, device=device)
        if end - start > 1:
            found = nearest(take_rows(points, nodes), min(k, end - start - 1), metric=metric, block_size=block_size)
            put(nodes, found[0] + start, found[1])
    norm = norms(points) if bool(small.any()) and points.layout == torch.strided else torch.empty(0)
    for wanted in range(1, min(k, SMALL - 1) + 1):
        sets = (small & ((size - 1).clamp(max=k) == wanted)).nonzero().squeeze(1)
        for chunk in sets.split(max(1, PAIRS // SMALL**2)):
            nodes, _ = segments(ptr, chunk)
            other, other_ptr = segments(ptr, set_of[nodes])
            node = torch.repeat_interleave(nodes, other_ptr.diff())
            node, other = node[node != other], other[node != other]
            index = torch.empty(nodes.numel(), wanted, dtype=torch.long, device=device)
            length = torch.empty(nodes.numel(), wanted, dtype=torch.double, device=device)
            row = torch.searchsorted(nodes, node)
            keep_nearest(row, other, distance(points, norm, node, other, metric), index, length)
            put(nodes, index, length)
    return neighbours, distances, count
