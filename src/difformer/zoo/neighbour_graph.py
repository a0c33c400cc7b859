r"""The k-nearest-neighbour graph of the input features, cached per feature matrix.

An edge joins i and j if one is among the k nearest of the other; every node is its own first neighbour. The search is
`difformer.data.knn.knn_graph`, as for ``--set graph=knn:K`` and ``--data knn=K``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

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
    """Neighbour graphs of feature matrices, cached; k counts the node itself and is capped by the size of the graph."""

    def __init__(self, k: int, metric: str = "cosine") -> None:
        check_count("k", k, 1)
        check_choice("knn_metric", metric, METRICS)
        self.k, self.metric = k, metric
        self._kept: ResultCache[Graph] = ResultCache()

    def __call__(self, x: Features, segments: Segments | None = None) -> Graph:
        """The graph of rows ``[N, F]``; with `segments`, within each graph of a batch."""
        key = () if segments is None else (segments.batch,)
        return self._kept.of(x, key, lambda: self._search(x, segments))

    def looped(self, x: Features, observed: Observed) -> Graph:
        """The neighbour graph of a forward pass, with self-loops."""
        return self(x, observed.segments).with_self_loops()

    def _search(self, x: Features, segments: Segments | None) -> Graph:
        count = x.shape[0]
        points: Any = x
        if isinstance(x, SparseMatrix):
            rows = x.rows.to("cpu")
            points = torch.sparse_csr_tensor(rows.crow.long(), rows.col.long(), rows.value, x.shape)
        points = points.detach()
        if points.layout != torch.strided:  # the search takes coalesced CSR matrices on the CPU
            points = points.to_sparse_coo().coalesce().to_sparse_csr().cpu()
        search = partial(knn_graph, metric=self.metric, include_self=True, symmetric=True)
        if count == 0:
            edges = torch.empty(2, 0, dtype=torch.long)
        elif segments is None:
            edges = search(points, min(self.k, count))
        else:
            # The search needs the rows of a graph to be contiguous.
            order = segments.by_graph
            ptr = torch.cat([segments.sizes.new_zeros(1), segments.sizes.cumsum(0)])
            edges = order[search(take_rows(points, order.to(points.device)), self.k, node_ptr=ptr).to(order.device)]
        return Graph(edges.to(x.device), count)
