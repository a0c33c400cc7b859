"""Edges sorted by what they end in, once a graph, so that values on them become a sparse matrix without a copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from difformer.graph import Graph
from difformer.sparse import CSR


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
    _by_heads: dict[int, Order] = field(default_factory=dict)
    _collecting: dict[torch.dtype, CSR] = field(default_factory=dict)

    @staticmethod
    def of(row: Tensor, col: Tensor, num_nodes: int) -> Order:
        order = torch.argsort(row, stable=True)
        crow = torch.zeros(num_nodes + 1, dtype=torch.int32, device=row.device)
        crow[1:] = torch.bincount(row, minlength=num_nodes).cumsum(0)
        return Order(crow, col[order].int(), order)

    def collecting(self, dtype: torch.dtype) -> CSR:
        """A matrix ``[N, E]`` of ones: at row i where edges of row i stand among all edges as they were given; kept."""
        if dtype not in self._collecting:
            self._collecting[dtype] = CSR(self.crow, self.order.int(), torch.ones_like(self.order, dtype=dtype))
        return self._collecting[dtype]

    def heads(self, count: int) -> Order:
        """The order of a graph of ``N × count`` nodes in which each head has the edges to itself; kept.

        States ``[N, H, C]`` are states of its nodes as they stand in memory, so that one product serves all heads.
        Its `order` says which of the ``[E, H]`` numbers of edges stands at each place.
        """
        if count == 1:
            return self
        if count not in self._by_heads:
            size = (self.crow[1:] - self.crow[:-1]).long().repeat_interleave(count)
            crow = torch.zeros(size.numel() + 1, dtype=torch.int32, device=size.device)
            crow[1:] = size.cumsum(0)
            row = torch.arange(size.numel(), device=size.device).repeat_interleave(size)
            head = row % count
            place = torch.arange(row.numel(), device=row.device) - crow[row] + self.crow[row // count]
            col = self.col[place] * count + head.int()
            self._by_heads[count] = Order(crow, col, self.order[place] * count + head)
        return self._by_heads[count]


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

    def matrix(self, sorted_values: Tensor, heads: int = 1) -> CSR:
        """A sparse matrix ``[N × heads, N × heads]`` that receives at `into`."""
        assert self.order is not None
        order = self.order.heads(heads)
        return CSR(order.crow, order.col, sorted_values)

    def collecting(self, like: Tensor) -> CSR:
        """A sparse matrix ``[N, E]`` of ones that sums numbers of edges into what they end in."""
        assert self.order is not None
        return self.order.collecting(like.dtype)

    def to_sorted(self, values: Tensor) -> Tensor:
        """Values ``[E, H]`` as ``[E × H]`` in the order of `matrix`."""
        assert self.order is not None
        return values.reshape(-1).index_select(0, self.order.heads(values.shape[1]).order)

    def from_sorted(self, values: Tensor, heads: int = 1) -> Tensor:
        """The reverse of `to_sorted`."""
        assert self.order is not None
        return torch.empty_like(values).scatter_(0, self.order.heads(heads).order, values).view(-1, heads)


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
