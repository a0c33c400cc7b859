"""Edges sorted by what they end in, once a graph, so that values on them become a sparse matrix without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from difformer.graph import Graph


@dataclass(frozen=True, eq=False)
class Order:
    """Edges sorted by one of their ends.

    Args:
        crow: ``[N + 1]`` int32: the edges of row i are ``crow[i]:crow[i + 1]``.
        col: ``[E]`` int32, the other ends in that order.
        order: ``[E]`` int64, which edge stands at each place.
    """

    crow: Tensor
    col: Tensor
    order: Tensor

    @staticmethod
    def of(row: Tensor, col: Tensor, num_nodes: int) -> Order:
        order = torch.argsort(row, stable=True)
        crow = torch.zeros(num_nodes + 1, dtype=torch.int32, device=row.device)
        crow[1:] = torch.bincount(row, minlength=num_nodes).cumsum(0)
        return Order(crow, col[order].int(), order)


@dataclass(frozen=True, eq=False)
class Ends:
    """Both ends of the edges, and their orders where they are kept: `order` by `into`, `other` by `out_of`."""

    into: Tensor
    out_of: Tensor
    order: Order | None = None
    other: Order | None = None

    def turned(self) -> Ends:
        """The edges the other way round."""
        return Ends(self.out_of, self.into, self.other, self.order)

    def matrix(self, sorted_values: Tensor) -> Tensor:
        """A sparse matrix ``[N, N]`` that receives at `into`."""
        assert self.order is not None
        size = self.order.crow.numel() - 1
        return torch.sparse_csr_tensor(
            self.order.crow, self.order.col, sorted_values, (size, size), check_invariants=False
        )

    def to_sorted(self, values: Tensor) -> Tensor:
        """Values ``[E, …]`` in the order of `matrix`."""
        assert self.order is not None
        return values.index_select(0, self.order.order)

    def from_sorted(self, values: Tensor) -> Tensor:
        """The reverse of `to_sorted`."""
        assert self.order is not None
        return torch.empty_like(values).index_copy(0, self.order.order, values)


_known: WeakKeyDictionary[Graph, Ends] = WeakKeyDictionary()


def ends_of(graph: Graph) -> Ends:
    """The ends of a graph's edges; sorted at first use where the graph is kept, on a CPU."""
    source, target = graph.edge_index
    # Sorting looks at values, which a compiled program cannot.
    if not graph.keep or graph.device.type != "cpu" or torch.compiler.is_compiling():
        return Ends(target, source)
    if graph not in _known:
        # Made under inference mode it could never be trained on.
        with torch.inference_mode(False), torch.no_grad():
            nodes = graph.num_nodes
            _known[graph] = Ends(target, source, Order.of(target, source, nodes), Order.of(source, target, nodes))
    return _known[graph]
