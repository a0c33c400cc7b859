r"""The k-nearest-neighbour graph of the input features, and the models that use it instead of observed edges.

An edge joins i and j if one is among the k nearest of the other; every node is its own first neighbour. The search is
`difformer.data.knn.knn_graph`, as for ``--set graph=knn:K`` and ``--data knn=K``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from difformer.attention.segments import Segments
from difformer.data.knn import knn_graph
from difformer.data.sparse_features import take_rows
from difformer.graph import Graph
from difformer.nn.protocol import Batch, Edges, Features, Weight
from difformer.result_cache import ResultCache
from difformer.sparse import SparseMatrix
from difformer.zoo.classic import GAT, GCN
from difformer.zoo.encoder import Encoder, Observed, one_of, option

_graphs: ResultCache[Graph] = ResultCache()


def neighbour_graph(x: Features, k: int, metric: str = "cosine", segments: Segments | None = None) -> Graph:
    """The graph of rows ``[N, F]``, searched once per feature matrix; with `segments`, within each graph of a batch.

    k counts the node itself and is capped by the size of the graph.
    """
    key = (k, metric) if segments is None else (k, metric, segments.batch)
    return _graphs.of(x, key, lambda: _search(x, k, metric, segments))


def _search(x: Features, k: int, metric: str, segments: Segments | None) -> Graph:
    count = x.shape[0]
    points: Any = x
    if isinstance(x, SparseMatrix):
        rows = x.rows.to("cpu")
        points = torch.sparse_csr_tensor(rows.crow.long(), rows.col.long(), rows.value, x.shape)
    points = points.detach()
    if points.layout != torch.strided:  # the search takes coalesced CSR matrices on the CPU
        points = points.to_sparse_coo().coalesce().to_sparse_csr().cpu()
    ptr = torch.tensor([0, count])
    if segments is not None:  # the search needs the rows of a graph to be contiguous
        points = take_rows(points, segments.by_graph.to(points.device))
        ptr = torch.cat([segments.sizes.new_zeros(1), segments.sizes.cumsum(0)])
    edges = knn_graph(points, k, metric=metric, include_self=True, symmetric=True, node_ptr=ptr).to(x.device)
    return Graph(edges if segments is None else segments.by_graph[edges], count)


class OnNeighbours(Encoder):
    """A model that sees the graph of nearest neighbours in feature space; observed edges are ignored."""

    k: int = option(5, "Neighbours of a node, including the node itself.")
    knn_metric: str = one_of("cosine", "euclidean", about='Their distance: ``"cosine"`` or ``"euclidean"``.')

    def look(self, x: Features, edge_index: Edges, edge_weight: Weight, batch: Batch) -> Observed:
        observed = Observed.of(x, batch=batch)
        return replace(observed, graph=neighbour_graph(x, self.k, self.knn_metric, observed.segments))


class NeighbourGCN(OnNeighbours, GCN):
    """`difformer.zoo.classic.GCN` on the graph of nearest neighbours."""


class NeighbourGAT(OnNeighbours, GAT):
    """`difformer.zoo.classic.GAT` on the graph of nearest neighbours."""
