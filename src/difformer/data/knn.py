"""Nearest-neighbour graphs: node i receives an edge from each of its k nearest others.

    j → i  for the k smallest d(x_i, x_j),    euclidean  d(a, b) = ‖a - b‖,
                                              cosine     d(a, b) = 1 - aᵀb / (‖a‖‖b‖), and 1 where a or b is zero.

The search is exact: the k smallest of the distances computed in double precision, ties going to the smaller index. The
products of a block of rows with all points are one matrix product, whose rounding error is at most

    |fl(aᵀb) - aᵀb| ≤ ε = (F + 8) · u · ‖a‖‖b‖        (F columns, u the unit of the arithmetic).

Points within 2ε of the k-th smallest are candidates; only the candidates are measured again, difference by difference.
The product runs in single precision first, and in double precision for the few rows where that leaves too many
candidates. Small point sets of equal size form one batch in which all pairs are measured.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from difformer.data.edges import tidy_edges
from difformer.data.errors import require
from difformer.data.sparse import from_scipy, take_rows, to_scipy
from difformer.errors import UserError

Metric = Literal["cosine", "euclidean"]
Found = tuple[Tensor, Tensor]  # neighbours and their distances

BLOCK_BYTES = 192 * 2**20  # distances held at a time
CHUNK_NUMBERS = 2**23  # coordinates of pairs measured at a time
CHUNK_ROWS = 8192  # points brought to double precision at a time
SPARE = 16  # candidates beyond k that single precision may leave; a row with more goes to double precision
SMALL_SET = 256  # points; beyond, the search of a single set is worth its fixed cost


def knn_graph(x: Any, k: int, **options: Any) -> Tensor:
    """Edges ``[2, E]`` from every node's k nearest neighbours to it: `knn_edges`, with its options, less distances."""
    return knn_edges(x, k, **options)[0]


def knn_edges(
    x: Any,
    k: int,
    *,
    metric: Metric = "cosine",
    include_self: bool = False,
    symmetric: bool = False,
    approximate: bool = False,
    node_ptr: Tensor | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Edges from every node's k nearest neighbours to it, and their distances.

    Args:
        x: Points ``[N, F]``: a tensor (dense, on any device, or sparse CSR), a numpy array or a scipy sparse matrix.
        k: Neighbours per node; at most N - 1, or N with `include_self`.
        metric: ``"cosine"`` or ``"euclidean"``.
        include_self: Count every node as the first of its own k neighbours.
        symmetric: List both directions, each edge once; otherwise edges run from the neighbour to the node only.
        approximate: Search with pynndescent (the ``neighbours`` extra): for more points than N² allows.
        node_ptr: Search within each of several point sets, ``x[node_ptr[g]:node_ptr[g + 1]]``; in a set of too few
            points every point has as many neighbours as there are.
        seed: Of the approximate search.

    Returns:
        ``edge_index [2, E]``, row 0 the neighbours, sorted by target, then distance, then source (where `symmetric`, by
        source and target); and ``distances [E]`` in double precision.
    """
    points = _points(x)
    n = points.shape[0]
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise UserError(f"k: expected a whole number, got {k!r}")
    if metric not in ("cosine", "euclidean"):
        raise UserError(f"metric: expected 'cosine' or 'euclidean', got {metric!r}")
    if node_ptr is not None:
        if approximate:
            raise UserError("approximate: a search within many small sets is exact; leave approximate out")
        node_ptr = torch.as_tensor(node_ptr)
        rising = node_ptr.dim() == 1 and node_ptr.numel() > 1 and not node_ptr.is_floating_point()
        if not rising or (int(node_ptr[0]), int(node_ptr[-1])) != (0, n) or bool((node_ptr.diff() < 0).any()):
            raise UserError(f"node_ptr: expected whole numbers that rise from 0 to the {n} points of x")
    most = n - (0 if include_self else 1)
    if k < 1 or (node_ptr is None and k > most):
        raise UserError(f"k: {n} points have at most {most} neighbours each, got k = {k}")
    node, others = torch.arange(n, device=points.device), k - 1 if include_self else k
    if approximate and others:
        found = _approximately(points, others, metric, seed)
        source, distances, target = found[0].reshape(-1), found[1].reshape(-1), node.repeat_interleave(others)
    else:
        ptr = torch.tensor([0, n]) if node_ptr is None else node_ptr
        source, distances, count = _nearest_within(points, ptr, others, metric)
        target = node.repeat_interleave(count)
    if include_self:
        order = torch.cat([node, target]).argsort(stable=True)  # itself first
        source, target = torch.cat([node, source])[order], torch.cat([node, target])[order]
        distances = torch.cat([distances.new_zeros(n), distances])[order]
    edge_index = torch.stack([source, target])
    if not symmetric:
        return edge_index, distances
    both = tidy_edges(edge_index, distances, num_nodes=n, self_loops="keep", duplicates="max")
    return both  # type: ignore[return-value]


def _points(x: Any) -> Tensor:
    if not isinstance(x, Tensor) and not hasattr(x, "tocsr"):
        x = np.asarray(x)
        if x.dtype.kind not in "biuf":
            raise UserError(f"x: expected a matrix of numbers [N, F], got {x.dtype} of shape {list(x.shape)}")
    points = x if isinstance(x, Tensor) else from_scipy(x) if hasattr(x, "tocsr") else torch.from_numpy(x)
    if points.dim() != 2 or points.layout not in (torch.strided, torch.sparse_csr):
        raise UserError(f"x: expected a matrix [N, F], dense or CSR, got {tuple(points.shape)} in {points.layout}")
    values = points.values() if points.layout == torch.sparse_csr else points
    if not bool(values.isfinite().all()):
        raise UserError("x: holds NaN or infinite entries, from which there are no distances")
    return points if points.is_floating_point() else points.double()


def nearest(points: Tensor, k: int, metric: Metric) -> Found:
    """The k nearest other points of every point, and their distances: both ``[N, k]``, nearest first."""
    if points.layout == torch.sparse_csr:
        return _nearest_sparse(points, k, metric)
    found = _empty(points, k)
    norm, rows = _norms(points), torch.arange(points.shape[0], device=points.device)
    if metric == "cosine":
        # A zero vector is at distance 1 from everything: its neighbours are the first k others.
        zero = rows[norm == 0]
        found[0][zero] = torch.arange(k, device=points.device) + (rows[:k] >= zero[:, None])
        found[1][zero] = 1.0
        rows = rows[norm > 0]
    # A product of lowered precision (TF32, bfloat16) would break the bound on its error.
    trusted = points.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    for dtype in (torch.float32, torch.float64) if trusted else (torch.float64,):
        if rows.numel():
            rows = _search(points, rows, norm, dtype, metric, found)
    return found


def _search(points: Tensor, rows: Tensor, norm: Tensor, dtype: torch.dtype, metric: Metric, found: Found) -> Tensor:
    """Fill in the neighbours of `rows`; give back the rows that this precision cannot settle (none in double)."""
    n, k = points.shape[0], found[0].shape[1]
    rough, half_square = _rough(points, norm, dtype, metric)
    length = rough.norm(dim=1)
    unit = (points.shape[1] + 8) * torch.finfo(dtype).eps
    wanted = min(k + SPARE, n)
    unsettled = [rows[:0]]
    for block in rows.split(max(1, BLOCK_BYTES // (n * rough.element_size()))):
        # ‖a - b‖²/2 less ‖a‖²/2, which a row has in common; for unit vectors -aᵀb.
        keys = torch.addmm(half_square, rough[block], rough.T, alpha=-1)
        keys.scatter_(1, block[:, None], torch.inf)
        slack = 2 * unit * (length[block, None] + 1)  # every ‖b‖ ≤ 1
        if dtype == torch.float64:
            limit = keys.topk(k, dim=1, largest=False).values[:, -1:] + slack
            row, candidate = (keys <= limit).nonzero(as_tuple=True)
        else:
            near, index = keys.topk(wanted, dim=1, largest=False)
            limit = near[:, k - 1 : k] + slack
            open_ = (near[:, -1] <= limit[:, 0]) if wanted < n else torch.zeros_like(block, dtype=torch.bool)
            unsettled.append(block[open_])
            row, place = ((near <= limit) & ~open_[:, None]).nonzero(as_tuple=True)
            candidate = index[row, place]
        del keys
        row = block[row]
        _keep_nearest(row, candidate, _distance(points, norm, row, candidate, metric), found)
    return torch.cat(unsettled)


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


def _norms(points: Tensor) -> Tensor:
    return torch.cat([part.double().norm(dim=1) for part in points.split(CHUNK_ROWS)])


def _empty(points: Tensor, k: int) -> Found:
    neighbours = torch.empty(points.shape[0], k, dtype=torch.long, device=points.device)
    return neighbours, torch.empty_like(neighbours, dtype=torch.double)


def _distance(points: Tensor, norm: Tensor, first: Tensor, second: Tensor, metric: Metric) -> Tensor:
    """Distances between ``points[first]`` and ``points[second]``, pair by pair, in double precision."""
    result = torch.empty(first.numel(), dtype=torch.double, device=points.device)
    scale = torch.where(norm > 0, norm, 1.0)[:, None]
    chunk = max(1, CHUNK_NUMBERS // max(1, points.shape[1]))
    for part, i, j in zip(*(t.split(chunk) for t in (result, first, second)), strict=True):
        if metric == "euclidean":
            part.copy_((points[i].double() - points[j].double()).square_().sum(1).sqrt_())
        else:
            a, b = points[i].double() / scale[i], points[j].double() / scale[j]
            part.copy_((1 - (a * b).sum(1)).clamp_(min=0))
    return result


def _keep_nearest(row: Tensor, candidate: Tensor, length: Tensor, found: Found) -> None:
    """Of every row's candidates keep the k nearest, the smaller index first where distances tie."""
    order = candidate.argsort(stable=True)
    for key in (length, row):
        order = order[key[order].argsort(stable=True)]
    which, count = row[order].unique_consecutive(return_counts=True)
    first = count.cumsum(0) - count
    place = order[first[:, None] + torch.arange(found[0].shape[1], device=row.device)]
    found[0][which], found[1][which] = candidate[place], length[place]


def _nearest_sparse(points: Tensor, k: int, metric: Metric) -> Found:
    """As for dense points, from one sparse product per block in double precision.

    Cosines are read off the product, which always sums alike. In squared distances large norms may cancel:

        |fl(‖a‖² + ‖b‖² - 2aᵀb) - ‖a - b‖²| ≤ (m + 8) · u · (‖a‖ + ‖b‖)²      (at most m entries per row),

    so that points within twice that of the k-th are measured again.
    """
    x, square = _sparse_rows(points, metric)
    n, norm, transposed = x.shape[0], np.sqrt(square), x.T.tocsr()
    found = _empty(points.cpu(), k)
    unit = 2 * (int(np.diff(x.indptr).max(initial=0)) + 8) * np.finfo(np.float64).eps
    size = max(1, BLOCK_BYTES // (8 * n))
    for start in range(0, n, size):
        rows = slice(start, start + size)
        product = (x[rows] @ transposed).toarray()
        if metric == "cosine":
            rough, slack = np.maximum(1 - product, 0), 0.0
        else:
            rough, slack = square[rows, None] + square - 2 * product, unit * (norm[rows, None] + norm.max()) ** 2
        rough[np.arange(len(rough)), np.arange(start, start + len(rough))] = np.inf
        row, candidate = np.nonzero(rough <= np.partition(rough, k - 1, axis=1)[:, k - 1 : k] + slack)
        length = rough[row, candidate] if metric == "cosine" else _sparse_distance(x, row + start, candidate, metric)
        _keep_nearest(torch.from_numpy(row + start), torch.from_numpy(candidate), torch.from_numpy(length), found)
    return found[0].to(points.device), found[1].to(points.device)


def _sparse_rows(points: Tensor, metric: Metric) -> tuple[Any, Any]:
    """Rows as a scipy matrix of doubles, of unit length for ``"cosine"``, and ‖a‖² of the rows as given."""
    x = to_scipy(points).astype(np.float64)
    row_of = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    # bincount adds one after the other as the sparse product does, so that a point is at distance 0 from its copy.
    square = np.bincount(row_of, weights=x.data**2, minlength=x.shape[0])
    if metric == "cosine":
        x.data /= np.sqrt(square)[row_of]
    return x, square


def _sparse_distance(x: Any, first: Any, second: Any, metric: Metric) -> Any:
    """Distances between pairs of rows of a scipy matrix, for ``"cosine"`` of unit rows."""
    parts = []
    for start in range(0, first.size, 2**18):
        a, b = (x[index[start : start + 2**18]] for index in (first, second))
        cosine = metric == "cosine"
        parts.append(np.maximum(1 - a.multiply(b).sum(axis=1), 0) if cosine else np.sqrt((a - b).power(2).sum(axis=1)))
    return np.concatenate(parts)


def _approximately(points: Tensor, k: int, metric: Metric, seed: int) -> Found:
    """Candidates by nearest-neighbour descent; their distances, and their order, are exact."""
    pynndescent = require("pynndescent", extra="neighbours", purpose="an approximate neighbour graph")
    sparse = points.layout == torch.sparse_csr
    data = to_scipy(points) if sparse else points.float().numpy(force=True)
    n = points.shape[0]
    # The descent finds the first entries of a longer list far more reliably than all of a short one.
    search = pynndescent.NNDescent(data, metric=metric, n_neighbors=min(k + 1 + max(10, k // 2), n), random_state=seed)
    listed = torch.from_numpy(np.asarray(search.neighbor_graph[0], dtype=np.int64))
    row, place = ((listed >= 0) & (listed != torch.arange(n)[:, None])).nonzero(as_tuple=True)
    if int(torch.bincount(row, minlength=n).min()) < k:
        raise UserError(f"approximate: found fewer than k = {k} neighbours for a point; use the exact search")
    candidate = listed[row, place]
    if sparse:
        rows, _ = _sparse_rows(points, metric)
        length = torch.from_numpy(_sparse_distance(rows, row.numpy(), candidate.numpy(), metric))
    row, candidate = row.to(points.device), candidate.to(points.device)
    if not sparse:
        length = _distance(points, _norms(points), row, candidate, metric)
    found = _empty(points, k)
    _keep_nearest(row, candidate, length.to(points.device), found)
    return found


def _nearest_within(points: Tensor, ptr: Tensor, k: int, metric: Metric) -> tuple[Tensor, Tensor, Tensor]:
    """For every point its k nearest of the same set ``points[ptr[s]:ptr[s + 1]]``, or all others if there are fewer.

    Returns the neighbours ``[E]`` of point 0, nearest first, then those of point 1, …; their distances; and how many
    each point has.
    """
    device = points.device
    ptr = ptr.to(device)
    size = ptr.diff()
    count = (size - 1).clamp(max=k).repeat_interleave(size)
    begin = count.cumsum(0) - count
    neighbours = torch.empty(int(count.sum()), dtype=torch.long, device=device)
    distances = torch.empty_like(neighbours, dtype=torch.double)

    def put(nodes: Tensor, index: Tensor, length: Tensor) -> None:
        place = begin[nodes, None] + torch.arange(index.shape[1], device=device)
        neighbours[place], distances[place] = index, length

    dense = points.layout == torch.strided
    norm = _norms(points) if dense else torch.empty(0)
    pair = 2 * max(1, points.shape[1])  # coordinates
    small = (size <= SMALL_SET) & (size * size * pair <= CHUNK_NUMBERS) & dense
    for start, end in zip(ptr[:-1][~small].tolist(), ptr[1:][~small].tolist(), strict=True):
        nodes = torch.arange(start, end, device=device)
        if min(k, end - start - 1) > 0:
            index, length = nearest(take_rows(points, nodes), min(k, end - start - 1), metric)
            put(nodes, index + start, length)
    for n in size[small & (size > 1)].unique().tolist():
        sets = (small & (size == n)).nonzero().squeeze(1)
        for chunk in sets.split(max(1, CHUNK_NUMBERS // (n * n * pair))):
            nodes = ptr[chunk, None] + torch.arange(n, device=device)  # [g, n], then all their pairs [g, n, n]
            first, second = torch.broadcast_tensors(nodes[:, :, None], nodes[:, None])
            length = _distance(points, norm, first.reshape(-1), second.reshape(-1), metric).view(-1, n, n)
            length.diagonal(dim1=1, dim2=2).fill_(torch.inf)
            length, near = length.flatten(0, 1).sort(dim=1, stable=True)
            most = min(k, n - 1)
            put(nodes.reshape(-1), near[:, :most] + ptr[chunk].repeat_interleave(n)[:, None], length[:, :most])
    return neighbours, distances, count
