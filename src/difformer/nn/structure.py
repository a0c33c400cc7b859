"""Observed structure of one forward pass: the graph, which rows form a graph of their own, and where edges are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.attention.segments import Segments, as_segments
from difformer.graph import Graph


@dataclass(frozen=True)
class Structure:
    """What all layers of a forward pass share.

    Args:
        graph: Observed edges; None where there are none at all.
        segments: The graphs of a batch; None for a single graph.
        has_edges: ``[N, 1]`` bool, whether the row's own graph has an edge; None where that holds for all rows alike.
            A graph without edges must not feel that its batch mates have some.
    """

    graph: Graph | None = None
    segments: Segments | None = None
    has_edges: Tensor | None = None


def as_structure(
    num_nodes: int,
    edge_index: Tensor | Graph | None = None,
    edge_weight: Tensor | None = None,
    batch: Tensor | Segments | None = None,
) -> Structure:
    """Arguments of a forward pass, checked and brought into one form.

    Raises:
        ValueError: If edges, weights or batch do not fit `num_nodes` rows.
    """
    if isinstance(batch, Tensor) and torch.compiler.is_compiling():
        raise ValueError(
            "inside torch.compile and torch.export the graphs of a batch must be known beforehand: "
            "pass batch=difformer.attention.Segments(batch), made outside"
        )
    segments = as_segments(batch)
    if segments is not None and segments.batch.numel() != num_nodes:
        raise ValueError(f"batch must name a graph for each of the {num_nodes} rows of x, got {segments.batch.numel()}")
    if edge_index is None:
        if edge_weight is not None:
            raise ValueError("edge_weight was given without edge_index")
        return Structure(None, segments)
    if isinstance(edge_index, Graph):
        graph = edge_index
        if edge_weight is not None:
            raise ValueError("edge_weight was given beside a Graph, which carries its weights itself")
        if graph.num_nodes != num_nodes:
            raise ValueError(f"the graph has {graph.num_nodes} nodes, but x has {num_nodes} rows")
    else:
        graph = Graph(edge_index, num_nodes, edge_weight, keep=False)
    if graph.num_edges == 0:
        return Structure(None, segments)
    if segments is None or segments.num_graphs == 1:
        return Structure(graph, segments)
    if not torch.compiler.is_compiling():
        source, target = graph.edge_index
        across = segments.batch[source] != segments.batch[target]
        if across.any():
            i, j = graph.edge_index[:, across.nonzero()[0, 0]].tolist()
            raise ValueError(f"edge_index joins nodes {i} and {j}, which batch puts into different graphs")
    return Structure(graph, segments, segments.has_edges(graph.edge_index).unsqueeze(1))
