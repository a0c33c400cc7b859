"""Nearest neighbours within many small sets of points at once: all sets of one size are one batch.

    j → i  for the k smallest ‖p_i - p_j‖ among the points j of i's set, i itself counted as the first.

`knn.knn_graph` does the same set by set; for thousands of molecules a batch is a hundred times faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

BATCH_NUMBERS = 1 << 22  # coordinates of differences held at a time


def nearest_in_sets(points: Tensor, node_ptr: Tensor, k: int) -> Tensor:
    """Edges from every point's k nearest ones, itself counted, to it.

    Args:
        points: ``[ΣN, D]``.
        node_ptr: ``[G + 1]``; points of set g are ``node_ptr[g]:node_ptr[g + 1]``.
        k: Neighbours a point; a set of fewer points gives all of them.

    Returns:
        ``edge_index [2, E]``, row 0 the neighbours; sorted by target, then by distance, ties by source.
    """
    if k < 1:
        raise ValueError(f"knn counts the point itself and must be at least 1, got {k}")
    size = node_ptr.diff()
    taken = size.clamp(max=k)
    edge_ptr = torch.cat([taken.new_zeros(1), (size * taken).cumsum(0)])
    edges = torch.empty(2, int(edge_ptr[-1]), dtype=torch.long)
    for n in size.unique().tolist():
        if n == 0:
            continue
        sets = (size == n).nonzero().squeeze(1)
        width = min(n, k)
        for part in sets.split(max(1, BATCH_NUMBERS // (n * n * points.shape[1]))):
            first = node_ptr[part]
            p = points[(first[:, None] + torch.arange(n))].double()  # [g, n, D]
            distance = (p[:, :, None] - p[:, None]).square().sum(-1)
            distance.diagonal(dim1=1, dim2=2).fill_(-1.0)  # itself first, before any point in the same place
            near = distance.sort(dim=2, stable=True).indices[:, :, :width] + first[:, None, None]
            target = (first[:, None] + torch.arange(n))[:, :, None].expand_as(near)
            place = edge_ptr[part][:, None] + torch.arange(n * width)
            edges[0, place], edges[1, place] = near.flatten(1), target.flatten(1)
    return edges
