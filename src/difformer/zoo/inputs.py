"""What models share about their inputs: sparse features and graphs with self-loops."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.structure import as_structure
from difformer.sparse import SparseMatrix


def linear(layer: nn.Linear, x: Tensor | SparseMatrix) -> Tensor:
    """A linear layer whose input may be sparse."""
    if isinstance(x, Tensor) and x.layout != torch.strided:
        x = SparseMatrix.from_tensor(x)
    if isinstance(x, SparseMatrix):
        product = x @ layer.weight.T
        return product if layer.bias is None else product + layer.bias
    return layer(x)


def observed_graph(
    num_nodes: int,
    edge_index: Tensor | Graph | None,
    edge_weight: Tensor | None = None,
    batch: Tensor | Segments | None = None,
    *,
    self_loops: bool = False,
    device: torch.device | None = None,
) -> Graph | None:
    """The graph of a forward pass, checked; None where there are no edges and no self-loops were asked for."""
    graph = as_structure(num_nodes, edge_index, edge_weight, batch).graph
    if not self_loops:
        return graph
    if graph is None:
        graph = Graph(torch.empty(2, 0, dtype=torch.long, device=device), num_nodes)
    return graph.with_self_loops()
