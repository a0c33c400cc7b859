"""Nearest-neighbour graphs: node i receives an edge from each of its k nearest others.

    j → i  for the k smallest d(x_i, x_j),    euclidean  d(a, b) = ‖a - b‖,
                                              cosine     d(a, b) = 1 - aᵀb / (‖a‖‖b‖), and 1 where a or b is zero.

The search is exact: the k smallest of the distances computed in double precision, ties going to the smaller index. The
products of a block of rows with all points are one matrix product, whose rounding error is at most

    |fl(aᵀb) - aᵀb| ≤ ε = (F + 8) · u · ‖a‖‖b‖        (F columns, u the unit of double precision).

Points within 2ε of the k-th smallest are candidates; only the candidates are measured again, difference by difference.
Small point sets of equal size form one batch in which all pairs are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from difformer.data.edges import tidy_edges
from difformer.data.sparse_features import from_scipy, stack_rows, take_rows, to_scipy
from difformer.errors import UserError, require

Metric = Literal["cosine", "euclidean"]
Found = tuple[Tensor, Tensor]  # neighbours and their distances

BLOCK_BYTES = 192 * 2**20  # distances held at a time
CHUNK_NUMBERS = 2**23  # coordinates of pairs measured at a time
SMALL_SET = 256  # points; beyond, the search of a single set is worth its fixed cost


def knn_graph(x: Any, k: int, **options: Any) -> Tensor:
    """Edges ``[2, E]`` from every node's k nearest neighbours to it: `knn_edges` without the distances."""
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
    n, device = points.shape[0], points.device
    points = points.cpu() if points.layout == torch.sparse_csr else points  # scipy's sparse products are on the CPU
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
    itself = node[:, None][:, : int(include_self)]
    parts = [(node, itself, torch.zeros_like(itself, dtype=torch.double))]
    if approximate and others:
        parts.append((node, *_approximately(points, others, metric, seed)))
    elif others:
        parts += _nearest_within(points, torch.tensor([0, n]) if node_ptr is None else node_ptr, others, metric)
    target = torch.cat([nodes.repeat_interleave(index.shape[1]) for nodes, index, _ in parts])
    source, distances = (torch.cat([part[i].reshape(-1) for part in parts]) for i in (1, 2))
    order = target.argsort(stable=True)
    edge_index, distances = torch.stack([source, target])[:, order].to(device), distances[order].to(device)
    if not symmetric:
        return edge_index, distances
    return tidy_edges(edge_index, distances, num_nodes=n, self_loops="keep", duplicates="max")  # type: ignore[return-value]


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
        raise UserError("x: holds NaN or infinite entries, so distances are not defined")
    return points if points.is_floating_point() else points.double()


class _Dense:
    """Dense points on any device: how far two are apart, and keys that order all points by their distance to some."""

    def __init__(self, points: Tensor, metric: Metric) -> None:
        self.points, self.metric = points.double(), metric
        self.norm = self.points.norm(dim=1)
        if metric == "cosine":
            self.points = self.points / torch.where(self.norm > 0, self.norm, 1.0)[:, None]

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        """Between ``points[first]`` and ``points[second]``, pair by pair."""
        parts, chunk = [], max(1, CHUNK_NUMBERS // max(1, self.points.shape[1]))
        for i, j in zip(first.split(chunk), second.split(chunk), strict=True):
            a, b = self.points[i], self.points[j]
            cosine = self.metric == "cosine"
            parts.append((1 - (a * b).sum(1)).clamp_(min=0) if cosine else (a - b).square_().sum(1).sqrt_())
        return torch.cat(parts)

    def keys(self, among: int) -> Callable[[Tensor], Tensor]:
        """A function of rows a that gives ‖b‖²/2 - aᵀb for the first `among` b, scaled such that ‖a‖, ‖b‖ ≤ 1."""
        unit, half_square = self.points, self.points.new_zeros(among)
        if self.metric == "euclidean":
            # Distances do not change when the origin moves to the middle, but products of smaller vectors round less.
            unit = self.points - self.points.mean(0)
            unit /= float(unit.norm(dim=1).max()) or 1.0
            half_square = unit[:among].square().sum(1) / 2
        near = unit[:among].T
        return lambda rows: torch.addmm(half_square, unit[rows], near, alpha=-1)


class _Sparse:
    """As `_Dense`, of points in compressed rows, by sparse products."""

    def __init__(self, points: Tensor, metric: Metric) -> None:
        self.rows, self.metric = to_scipy(points).astype(np.float64), metric
        row_of = np.repeat(np.arange(self.rows.shape[0]), np.diff(self.rows.indptr))
        norm = np.sqrt(np.bincount(row_of, weights=self.rows.data**2, minlength=self.rows.shape[0]))
        self.norm = torch.from_numpy(norm)
        if metric == "cosine":
            self.rows.data /= norm[row_of]

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        parts, ones = [np.empty(0)], np.ones(self.rows.shape[1])
        for i, j in zip(first.split(2**18), second.split(2**18), strict=True):
            a, b = self.rows[i.numpy()], self.rows[j.numpy()]
            cosine = self.metric == "cosine"  # the product adds in the order of the columns
            parts.append(np.maximum(1 - a.multiply(b) @ ones, 0) if cosine else np.sqrt((a - b).power(2).sum(axis=1)))
        return torch.from_numpy(np.concatenate(parts))

    def keys(self, among: int) -> Callable[[Tensor], Tensor]:
        rows, half_square = self.rows, torch.zeros(among, dtype=torch.double)
        if self.metric == "euclidean":
            largest = float(self.norm.max()) or 1.0
            rows, half_square = self.rows / largest, (self.norm[:among] / largest).square() / 2
        columns = rows[:among].T.tocsr()
        return lambda block: half_square - torch.from_numpy((rows[block.numpy()] @ columns).toarray())


def _space(points: Tensor, metric: Metric) -> _Dense | _Sparse:
    return (_Sparse if points.layout == torch.sparse_csr else _Dense)(points, metric)


def nearest(points: Tensor, k: int, metric: Metric, queries: Tensor | None = None) -> Found:
    """The k nearest points of every query, by default the k nearest others of every point; and their distances.

    Both are ``[M, k]``, nearest first, and do not depend on what else is searched at the same time.
    """
    among = points.shape[0]
    points = points if queries is None else stack_rows((points, queries))
    space, found = _space(points, metric), _empty(points, k)
    rows = torch.arange(0 if queries is None else among, points.shape[0], device=points.device)
    if metric == "cosine":
        # A zero vector is at distance 1 from everything: its neighbours are the first k others.
        zero, first = rows[space.norm[rows] == 0], torch.arange(k, device=points.device)
        found[0][zero] = first + (first >= zero[:, None])
        found[1][zero] = 1.0
        rows = rows[space.norm[rows] > 0]
    keys_of = space.keys(among)
    slack = 4 * (points.shape[1] + 8) * torch.finfo(torch.double).eps
    for block in rows.split(max(1, BLOCK_BYTES // (8 * among))):
        keys = keys_of(block)
        if queries is None:  # no point is its own neighbour
            keys.scatter_(1, block[:, None], torch.inf)
        limit = keys.topk(k, dim=1, largest=False).values[:, -1:] + slack
        row, candidate = (keys <= limit).nonzero(as_tuple=True)
        del keys
        _keep_nearest(block[row], candidate, space.distance(block[row], candidate), found)
    return found if queries is None else (found[0][among:], found[1][among:])


def _empty(points: Tensor, k: int) -> Found:
    neighbours = torch.empty(points.shape[0], k, dtype=torch.long, device=points.device)
    return neighbours, torch.empty_like(neighbours, dtype=torch.double)


def _keep_nearest(row: Tensor, candidate: Tensor, length: Tensor, found: Found) -> None:
    """Of every row's candidates keep the k nearest, the smaller index first where distances tie."""
    order = candidate.argsort(stable=True)
    for key in (length, row):
        order = order[key[order].argsort(stable=True)]
    which, count = row[order].unique_consecutive(return_counts=True)
    first = count.cumsum(0) - count
    place = order[first[:, None] + torch.arange(found[0].shape[1], device=row.device)]
    found[0][which], found[1][which] = candidate[place], length[place]


def _approximately(points: Tensor, k: int, metric: Metric, seed: int) -> Found:
    """Candidates by nearest-neighbour descent; their distances, and their order, are exact."""
    pynndescent = require("pynndescent", extra="neighbours", purpose="an approximate neighbour graph")
    data = to_scipy(points) if points.layout == torch.sparse_csr else points.float().numpy(force=True)
    n = points.shape[0]
    # The descent finds the first entries of a longer list far more reliably than all of a short one.
    search = pynndescent.NNDescent(data, metric=metric, n_neighbors=min(k + 1 + max(10, k // 2), n), random_state=seed)
    listed = torch.from_numpy(np.asarray(search.neighbor_graph[0], dtype=np.int64)).to(points.device)
    row, place = ((listed >= 0) & (listed != torch.arange(n, device=points.device)[:, None])).nonzero(as_tuple=True)
    if int(torch.bincount(row, minlength=n).min()) < k:
        raise UserError(f"approximate: found fewer than k = {k} neighbours for a point; use the exact search")
    found, candidate = _empty(points, k), listed[row, place]
    _keep_nearest(row, candidate, _space(points, metric).distance(row, candidate), found)
    return found


def _nearest_within(points: Tensor, ptr: Tensor, k: int, metric: Metric) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Points ``[m]``, and the k nearest of the same set ``points[ptr[s]:ptr[s + 1]]``, or all others if they are fewer.

    The neighbours and their distances are ``[m, k]``.
    """
    device = points.device
    ptr = ptr.to(device)
    size = ptr.diff()
    space, pair = _space(points, metric), 2 * max(1, points.shape[1])  # coordinates
    small = (size <= SMALL_SET) & (size * size * pair <= CHUNK_NUMBERS)
    for start, end in zip(ptr[:-1][~small].tolist(), ptr[1:][~small].tolist(), strict=True):
        nodes, most = torch.arange(start, end, device=device), min(k, end - start - 1)
        if most > 0:
            index, length = nearest(take_rows(points, nodes), most, metric)
            yield nodes, index + start, length
    for n in size[small & (size > 1)].unique().tolist():
        sets, most = (small & (size == n)).nonzero().squeeze(1), min(k, n - 1)
        for chunk in sets.split(max(1, CHUNK_NUMBERS // (n * n * pair))):
            nodes = ptr[chunk, None] + torch.arange(n, device=device)  # [g, n], then all their pairs [g, n, n]
            first, second = torch.broadcast_tensors(nodes[:, :, None], nodes[:, None])
            length = space.distance(first.reshape(-1), second.reshape(-1)).view(-1, n, n)
            length.diagonal(dim1=1, dim2=2).fill_(torch.inf)
            length, near = length.flatten(0, 1).sort(dim=1, stable=True)
            yield nodes.reshape(-1), near[:, :most] + ptr[chunk].repeat_interleave(n)[:, None], length[:, :most]
