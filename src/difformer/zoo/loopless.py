"""Observed graphs without their self-loops, for systems that keep a node apart from its neighbours."""

from __future__ import annotations

from difformer.graph import Graph
from difformer.kept import Kept


class Loopless:
    """Graphs without self-loops, each worked out once."""

    def __init__(self) -> None:
        self._kept: Kept[Graph] = Kept()

    def __call__(self, graph: Graph | None) -> Graph | None:
        """The other edges, with their weights; None where there are no edges at all."""
        if graph is None:
            return None
        if graph.edge_weight is not None and graph.edge_weight.requires_grad:
            return _others(graph)
        return self._kept.of(graph, (), lambda: _others(graph))


def _others(graph: Graph) -> Graph:
    other = graph.edge_index[0] != graph.edge_index[1]
    weight = None if graph.edge_weight is None else graph.edge_weight[other]
    return Graph(graph.edge_index[:, other], graph.num_nodes, weight, keep=graph.keep)
