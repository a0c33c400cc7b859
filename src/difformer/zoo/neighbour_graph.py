r"""The k-nearest-neighbour graph of the features a model is given, computed once per feature matrix.

An edge joins i and j if one is among the k nearest of the other by the cosine of their features; every node is its own
first neighbour. The search is that of ``--set graph=knn:K`` and ``--data knn=K``: `difformer.data.knn.knn_graph`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.data.knn import knn_graph
from difformer.data.sparse_features import take_rows
from difformer.graph import Graph
from difformer.nn.protocol import Features, check_count
from difformer.result_cache import ResultCache
from difformer.sparse import SparseMatrix
from difformer.zoo.encoder import Observed, check_choice

METRICS = ("cosine", "euclidean")


class NeighbourGraph:
    """Neighbour graphs of feature matrices, each kept as long as its matrix.

    A node has k neighbours, itself counted; where a graph has fewer nodes, all of them.
    """

    def __init__(self, k: int, metric: str = "cosine") -> None:
        check_count("k", k, 1)
        check_choice("knn_metric", metric, METRICS)
        self.k, self.metric = k, metric
        self._kept: ResultCache[Graph] = ResultCache()

    def __call__(self, x: Features, segments: Segments | None = None) -> Graph:
        """The graph of rows ``[N, F]``; with `segments` neighbours are looked for within each graph of a batch."""
        key = () if segments is None else (segments.batch,)
        return self._kept.of(x, key, lambda: self._search(x, segments))

    def looped(self, x: Features, observed: Observed) -> Graph:
        """The graph of the rows of a pass, with self-loops."""
        return self(x, observed.segments).with_self_loops()

    def _search(self, x: Features, segments: Segments | None) -> Graph:
        points, count = _points(x), x.shape[0]
        search = partial(knn_graph, metric=self.metric, include_self=True, symmetric=True)
        if count == 0:
            edges = torch.empty(2, 0, dtype=torch.long)
        elif segments is None:
            edges = search(points, min(self.k, count))
        else:
            # The search takes sets that lie one behind the other.
            order = segments.by_graph
            ptr = torch.cat([segments.sizes.new_zeros(1), segments.sizes.cumsum(0)])
            edges = order[search(take_rows(points, order.to(points.device)), self.k, node_ptr=ptr).to(order.device)]
        return Graph(edges.to(x.device), count)


def _points(x: Features) -> Tensor:
    """What the search takes: dense, or compressed rows on the CPU."""
    if isinstance(x, SparseMatrix):
        rows = x.rows.to("cpu")
        parts = rows.crow.long(), rows.col.long(), rows.value
        # Sorted by columns within rows, and each entry once, as scipy's products want it.
        return torch.sparse_csr_tensor(*parts, x.shape).to_sparse_coo().coalesce().to_sparse_csr()
    return x.detach() if x.layout == torch.strided else x.detach().to_sparse_coo().coalesce().to_sparse_csr().cpu()
