"""Nearest-neighbour graphs: node i receives an edge from each of its k nearest others.

j → i  for the k smallest d(x_i, x_j),    euclidean  d(a, b) = ‖a - b‖,
                                          cosine     d(a, b) = 1 - aᵀb / (‖a‖‖b‖), and 1 where a or b is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.errors import require
from difformer.data.knn_exact import Metric, distance, distance_sparse, keep_nearest, nearest, norms
from difformer.data.knn_sets import nearest_within
from difformer.data.sparse import from_scipy, to_scipy
from difformer.errors import UserError


def knn_graph(
    x: Any,
    k: int,
    *,
    metric: Metric = "cosine",
    include_self: bool = False,
    symmetric: bool = False,
    approximate: bool = False,
    node_ptr: Tensor | None = None,
    block_size: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Edges from every node's k nearest neighbours to it; `knn_edges` gives their distances too.

    Args:
        x: Points ``[N, F]``: a tensor (dense, on any device, or sparse CSR), a numpy array or a scipy sparse matrix.
        k: Neighbours a node; at most N - 1, or N with `include_self`.
        metric: ``"cosine"`` or ``"euclidean"``.
        include_self: Count every node as the first of its own k neighbours.
        symmetric: List both directions, each edge once; otherwise edges run from the neighbour to the node only.
        approximate: Search with pynndescent (the ``neighbours`` extra): for more points than N² allows.
        node_ptr: Search within each of several point sets, ``x[node_ptr[g]:node_ptr[g + 1]]``; in a set of too few
            points every point has as many neighbours as there are.
        block_size: Rows at a time; None takes blocks of 192 MB. The result does not depend on it.
        seed: Of the approximate search.

    Returns:
        ``edge_index [2, E]``, row 0 the neighbours. Sorted by target, then distance, then source; where `symmetric`, by
        source and target.
    """
    return knn_edges(
        x,
        k,
        metric=metric,
        include_self=include_self,
        symmetric=symmetric,
        approximate=approximate,
        node_ptr=node_ptr,
        block_size=block_size,
        seed=seed,
    )[0]


def knn_edges(
    x: Any,
    k: int,
    *,
    metric: Metric = "cosine",
    include_self: bool = False,
    symmetric: bool = False,
    approximate: bool = False,
    node_ptr: Tensor | None = None,
    block_size: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """`knn_graph` with the distance of every edge: ``edge_index [2, E]`` and ``distances [E]`` in double precision."""
    points = _points(x)
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise UserError(f"k: expected a whole number, got {k!r}")
    if metric not in ("cosine", "euclidean"):
        raise UserError(f"metric: expected 'cosine' or 'euclidean', got {metric!r}")
    if block_size is not None and block_size < 1:
        raise UserError(f"block_size: expected at least 1, got {block_size}")
    if node_ptr is not None and approximate:
        raise UserError("approximate: a search within many small sets is exact; leave approximate out")
    if node_ptr is not None:
        node_ptr = torch.as_tensor(node_ptr)
        ends = (0, points.shape[0])
        rising = node_ptr.dim() == 1 and node_ptr.numel() > 1 and not node_ptr.is_floating_point()
        if not rising or (int(node_ptr[0]), int(node_ptr[-1])) != ends or bool((node_ptr.diff() < 0).any()):
            raise UserError(f"node_ptr: expected whole numbers that rise from 0 to the {ends[1]} points of x")
    most = points.shape[0] - (0 if include_self else 1)
    if k < 1 or (node_ptr is None and k > most):
        raise UserError(f"k: {points.shape[0]} points have at most {most} neighbours each, got k = {k}")
    node = torch.arange(points.shape[0], device=points.device)
    others = k - 1 if include_self else k
    if others == 0:
        source, distances, target = node[:0], node[:0].double(), node[:0]
    elif node_ptr is not None:
        source, distances, count = nearest_within(points, node_ptr, others, metric=metric, block_size=block_size)
        target = node.repeat_interleave(count)
    else:
        index, length = (
            _approximately(points, others, metric, seed)
            if approximate
            else nearest(points, others, metric=metric, block_size=block_size)
        )
        source, distances, target = index.reshape(-1), length.reshape(-1), node.repeat_interleave(others)
    if include_self:
        order = torch.cat([node, target]).argsort(stable=True)  # of each target itself first
        source, target = torch.cat([node, source])[order], torch.cat([node, target])[order]
        distances = torch.cat([distances.new_zeros(node.numel()), distances])[order]
    edge_index = torch.stack([source, target])
    return _both_directions(edge_index, distances, points.shape[0]) if symmetric else (edge_index, distances)


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


def _both_directions(edge_index: Tensor, distances: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    source, target = edge_index
    code = torch.cat([source * num_nodes + target, target * num_nodes + source])
    code, order = code.sort(stable=True)
    first = torch.ones_like(code, dtype=torch.bool)
    first[1:] = code[1:] != code[:-1]
    code = code[first]
    return torch.stack([code // num_nodes, code % num_nodes]), distances.repeat(2)[order][first]


def _approximately(points: Tensor, k: int, metric: Metric, seed: int) -> tuple[Tensor, Tensor]:
    """Candidates by nearest-neighbour descent; their distances, and their order, are exact."""
    pynndescent = require("pynndescent", extra="neighbours", purpose="an approximate neighbour graph")
    sparse = points.layout == torch.sparse_csr
    data = to_scipy(points) if sparse else points.float().numpy(force=True)
    n = points.shape[0]
    # The descent finds the first of a longer list far more surely than the whole of a short one.
    search = pynndescent.NNDescent(data, metric=metric, n_neighbors=min(k + 1 + max(10, k // 2), n), random_state=seed)
    found = torch.from_numpy(np.asarray(search.neighbor_graph[0], dtype=np.int64))
    row, place = ((found >= 0) & (found != torch.arange(n)[:, None])).nonzero(as_tuple=True)
    if int(torch.bincount(row, minlength=n).min()) < k:
        raise UserError(f"approximate: found fewer than k = {k} neighbours for a point; use the exact search")
    candidate = found[row, place].to(points.device)
    row = row.to(points.device)
    if sparse:
        length = distance_sparse(data.astype(np.float64), row.numpy(), candidate.numpy(), metric)
    else:
        length = distance(points, norms(points), row, candidate, metric)
    neighbours = torch.empty(n, k, dtype=torch.long, device=points.device)
    distances = torch.empty(n, k, dtype=torch.double, device=points.device)
    keep_nearest(row, candidate, length, neighbours, distances)
    return neighbours, distances
