"""Exact nearest neighbours, a block of rows at a time.

*Exact* means: the k smallest of the distances computed in double precision, ties going to the smaller index, whatever
the size of the blocks. A block of rows meets all points in one matrix product, whose rounding error is at most

    |fl(aᵀb) - aᵀb| ≤ ε = (F + 8) · u · ‖a‖‖b‖        (F columns, u the unit of the arithmetic).

Whoever lies within 2ε of the k-th smallest is a candidate; the candidates alone are measured again, difference by
difference. The product runs in single precision first, and in double precision for the few rows where that leaves too
many candidates. Memory is one block of distances, time that of the product.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from difformer.data.sparse import to_scipy

Metric = Literal["cosine", "euclidean"]

BLOCK_BYTES = 192 * 2**20  # distances held at a time
CHUNK_BYTES = 64 * 2**20  # candidates measured at a time
CHUNK_ROWS = 8192  # points brought to double precision at a time
SPARE = 16  # candidates beyond k that single precision may leave; a row with more goes to double precision


def nearest(points: Tensor, k: int, *, metric: Metric, block_size: int | None = None) -> tuple[Tensor, Tensor]:
    """The k nearest other points of every point, and their distances: both ``[N, k]``, nearest first.

    Args:
        points: ``[N, F]``, dense (on any device) or sparse CSR.
        k: At most N - 1.
        metric: ``"euclidean"`` or ``"cosine"``.
        block_size: Rows at a time; the result does not depend on it.
    """
    if points.layout == torch.sparse_csr:
        return _nearest_sparse(points, k, metric, block_size)
    n = points.shape[0]
    neighbours = torch.empty(n, k, dtype=torch.long, device=points.device)
    distances = torch.empty(n, k, dtype=torch.double, device=points.device)
    norm = norms(points)
    rows = torch.arange(n, device=points.device)
    if metric == "cosine":
        # At distance 1 from everything: its neighbours are the first k others, and no product need find that out.
        empty = rows[norm == 0]
        neighbours[empty] = torch.arange(k, device=points.device) + (rows[:k] >= empty[:, None])
        distances[empty] = 1.0
        rows = rows[norm > 0]
    # A product of lowered precision (TF32, bfloat16) would break the bound on its error.
    trusted = points.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    for dtype in (torch.float32, torch.float64) if trusted else (torch.float64,):
        if rows.numel():
            rows = _search(points, rows, norm, dtype, metric, block_size, neighbours, distances)
    return neighbours, distances


def distance(points: Tensor, norm: Tensor, first: Tensor, second: Tensor, metric: Metric) -> Tensor:
    """Distances between ``points[first]`` and ``points[second]``, pair by pair, in double precision."""
    result = torch.empty(first.numel(), dtype=torch.double, device=points.device)
    chunk = max(1, CHUNK_BYTES // (8 * max(1, points.shape[1])))
    for start in range(0, first.numel(), chunk):
        i, j = first[start : start + chunk], second[start : start + chunk]
        if metric == "euclidean":
            part = (points[i].double() - points[j].double()).square_().sum(1).sqrt_()
        else:
            scale = torch.where(norm > 0, norm, 1.0)
            a, b = points[i].double() / scale[i, None], points[j].double() / scale[j, None]
            part = (1 - (a * b).sum(1)).clamp_(min=0)
        result[start : start + chunk] = part
    return result


def _search(
    points: Tensor,
    rows: Tensor,
    norm: Tensor,
    dtype: torch.dtype,
    metric: Metric,
    block_size: int | None,
    neighbours: Tensor,
    distances: Tensor,
) -> Tensor:
    """Fill in the neighbours of `rows`; give back the rows that this precision cannot settle (none in double)."""
    n, k = points.shape[0], neighbours.shape[1]
    rough, half_square = _rough(points, norm, dtype, metric)
    length = rough.norm(dim=1)
    unit = (points.shape[1] + 8) * torch.finfo(dtype).eps
    wanted = min(k + SPARE, n)
    size = block_size or max(1, BLOCK_BYTES // (n * rough.element_size()))
    unsettled = []
    for block in rows.split(size):
        # ‖a - b‖²/2 less ‖a‖²/2, which a row has in common; for unit vectors -aᵀb.
        keys = torch.addmm(half_square, rough[block], rough.T, alpha=-1)
        keys.scatter_(1, block[:, None], torch.inf)
        slack = 2 * unit * (length[block, None] + 1)  # every ‖b‖ ≤ 1
        if dtype == torch.float64:
            limit = keys.topk(k, dim=1, largest=False).values[:, -1:] + slack
            row, candidate = (keys <= limit).nonzero(as_tuple=True)
        else:
            near, found = keys.topk(wanted, dim=1, largest=False)
            limit = near[:, k - 1 : k] + slack
            open_ = (near[:, -1] <= limit[:, 0]) if wanted < n else torch.zeros_like(block, dtype=torch.bool)
            unsettled.append(block[open_])
            row, place = ((near <= limit) & ~open_[:, None]).nonzero(as_tuple=True)
            candidate = found[row, place]
        del keys
        row = block[row]
        keep_nearest(row, candidate, distance(points, norm, row, candidate, metric), neighbours, distances)
    return torch.cat(unsettled) if unsettled else rows[:0]


def _rough(points: Tensor, norm: Tensor, dtype: torch.dtype, metric: Metric) -> tuple[Tensor, Tensor]:
    """Points scaled into the unit ball, and ‖b‖²/2, for ordering by ‖b‖²/2 - aᵀb."""
    rough = torch.empty(points.shape, dtype=dtype, device=points.device)
    if metric == "cosine":
        for part, source, length in zip(*(t.split(CHUNK_ROWS) for t in (rough, points, norm)), strict=True):
            part.copy_(source.double() / torch.where(length > 0, length, 1.0)[:, None])
        return rough, rough.new_zeros(points.shape[0])
    # Distances do not change when the origin moves to the middle, but products of smaller vectors round less.
    middle = points.mean(0, dtype=torch.double)
    radius = max(float((part.double() - middle).norm(dim=1).max()) for part in points.split(CHUNK_ROWS))
    half_square = []
    for part, source in zip(rough.split(CHUNK_ROWS), points.split(CHUNK_ROWS), strict=True):
        part.copy_((source.double() - middle) / (radius or 1.0))
        half_square.append(part.double().square().sum(1) / 2)
    return rough, torch.cat(half_square).to(dtype)


def keep_nearest(row: Tensor, candidate: Tensor, length: Tensor, neighbours: Tensor, distances: Tensor) -> None:
    """Of every row's candidates keep the k nearest, the smaller index first where distances tie."""
    order = candidate.argsort(stable=True)
    for key in (length, row):
        order = order[key[order].argsort(stable=True)]
    row, candidate, length = row[order], candidate[order], length[order]
    which, count = row.unique_consecutive(return_counts=True)
    first = count.cumsum(0) - count
    place = first[:, None] + torch.arange(neighbours.shape[1], device=row.device)
    neighbours[which] = candidate[place]
    distances[which] = length[place]


def norms(points: Tensor) -> Tensor:
    return torch.cat([part.double().norm(dim=1) for part in points.split(CHUNK_ROWS)])


def _nearest_sparse(points: Tensor, k: int, metric: Metric, block_size: int | None) -> tuple[Tensor, Tensor]:
    """As for dense points, from one sparse product a block in double precision.

    Cosines are read off the product, which always sums alike. In squared distances large norms may cancel:

        |fl(‖a‖² + ‖b‖² - 2aᵀb) - ‖a - b‖²| ≤ (m + 8) · u · (‖a‖ + ‖b‖)²      (m entries a row at the most),

    so that whoever lies within twice that of the k-th is measured again.
    """
    x = to_scipy(points).astype(np.float64)
    n = x.shape[0]
    row_of = np.repeat(np.arange(n), np.diff(x.indptr))
    # bincount adds one after the other as the sparse product does, so that a point is at distance 0 from its copy.
    square = np.bincount(row_of, weights=x.data**2, minlength=n)
    if metric == "cosine":
        x.data /= np.sqrt(square)[row_of]
    transposed = x.T.tocsr()
    neighbours = torch.empty(n, k, dtype=torch.long)
    distances = torch.empty(n, k, dtype=torch.double)
    size = block_size or max(1, BLOCK_BYTES // (8 * n))
    norm = np.sqrt(square)
    unit = 2 * (int(np.diff(x.indptr).max(initial=0)) + 8) * np.finfo(np.float64).eps
    for start in range(0, n, size):
        rows = slice(start, start + size)
        product = (x[rows] @ transposed).toarray()
        if metric == "cosine":
            rough, slack = np.maximum(1 - product, 0), 0.0
        else:
            rough, slack = square[rows, None] + square - 2 * product, unit * (norm[rows, None] + norm.max()) ** 2
        rough[np.arange(len(rough)), np.arange(start, start + len(rough))] = np.inf
        row, candidate = np.nonzero(rough <= np.partition(rough, k - 1, axis=1)[:, k - 1 : k] + slack)
        if metric == "cosine":
            length = torch.from_numpy(rough[row, candidate])
        else:
            length = distance_sparse(x, row + start, candidate, metric)
        keep_nearest(torch.from_numpy(row + start), torch.from_numpy(candidate), length, neighbours, distances)
    return neighbours.to(points.device), distances.to(points.device)


def distance_sparse(x: Any, first: Any, second: Any, metric: Metric) -> Tensor:
    """Distances between chosen pairs of rows of a scipy matrix."""
    if metric == "cosine":
        norm = np.sqrt(x.multiply(x).sum(axis=1))
        x.data /= np.repeat(norm, np.diff(x.indptr))
    parts = []
    for start in range(0, first.size, 2**18):
        a, b = x[first[start : start + 2**18]], x[second[start : start + 2**18]]
        if metric == "cosine":
            parts.append(np.maximum(1 - a.multiply(b).sum(axis=1), 0))
        else:
            parts.append(np.sqrt((a - b).power(2).sum(axis=1)))
    return torch.from_numpy(np.concatenate(parts))
