r"""Operators along edges (attention scores, weighted sums) whose backward pass stores nothing of size edges × channels.

For edges e = (j → i), heads h and channels c, two products are each other's derivatives:

.. math::
    \mathrm{scores}(q, k)_{eh} = \sum_c q_{ihc} k_{jhc}, \qquad
    \mathrm{sum}(w, v)_{ihc} = \sum_{e = (j → i)} w_{eh} v_{jhc},

so the backward pass needs the states only; automatic differentiation would store a gathered row per edge and layer. The
same holds for copying a node's value to its incoming edges and summing over them. On a CPU, edges of a reused graph are
sorted once, and all heads form one sparse product without gathering; otherwise rows are gathered in bounded slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from difformer.diffusion.coupling.matrix import edge_chunks
from difformer.graph import Graph
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager
from difformer.zoo.encoder import refuse_beyond_memory

HEAD_ENTRIES = 2**22  # edges × heads up to which all heads form one sparse product
SPREAD = 30.0  # range of scores that may share one maximum: e^-30 is far above the smallest float


class Order(NamedTuple):
    """Edges sorted by one of their ends."""

    crow: Tensor  # int32 [N + 1]: row i has the edges crow[i]:crow[i + 1]
    col: Tensor  # int32 [E]: the other ends
    edge: Tensor  # int64 [E]: the edge at each position

    def matrix(self, values: Tensor, columns: int) -> Tensor:
        """The sparse matrix ``[N, columns]`` with these values, sorted like the edges."""
        shape = (self.crow.numel() - 1, columns)
        return torch.sparse_csr_tensor(self.crow, self.col, values, shape, check_invariants=False)


@dataclass(frozen=True, eq=False)
class Ends:
    """Both ends of the edges; sums run over the edges with the same `into`."""

    nodes: int
    into: Tensor
    out_of: Tensor
    orders: dict[tuple[bool, int], Order] | None = None  # cache by direction and heads; None if nothing is sorted
    backwards: bool = False

    def turned(self) -> Ends:
        return Ends(self.nodes, self.out_of, self.into, self.orders, not self.backwards)

    def order(self, states: Tensor, heads: int) -> Order | None:
        """The order by `into`; None if sparse products do not support these states.

        With several heads it is that of a graph of ``N × heads`` nodes in which each head has its own copy of the
        edges. States ``[N, H, C]`` are the states of these nodes without a copy, and `Order.edge` indexes flattened
        values ``[E, H]``, so one product serves all heads.
        """
        supported = states.device.type == "cpu" and states.dtype in (torch.float32, torch.float64) and states.numel()
        if self.orders is None or not supported:
            return None
        key = (self.backwards, heads)
        if key not in self.orders:
            # Tensors made under inference mode could not be used in training.
            with torch.inference_mode(False), torch.no_grad():
                head = torch.arange(heads)
                row, col = ((end.unsqueeze(1) * heads + head).flatten() for end in (self.into, self.out_of))
                edge = torch.argsort(row, stable=True)
                crow = torch.zeros(self.nodes * heads + 1, dtype=torch.int32)
                crow[1:] = torch.bincount(row, minlength=self.nodes * heads).cumsum(0)
                self.orders[key] = Order(crow, col[edge].int(), edge)
        return self.orders[key]

    def groups(self, states: Tensor) -> list[tuple[slice, Order]]:
        """Slices of heads with their orders, all heads at once unless there are too many edges; empty without order."""
        heads = states.shape[1]
        size = heads if heads * self.into.numel() <= HEAD_ENTRIES else 1
        order = self.order(states, size)
        return [] if order is None else [(slice(h, h + size), order) for h in range(0, heads, size)]


_ends: ResultCache[Ends] = ResultCache()


def ends_of(graph: Graph) -> Ends:
    """The ends of a graph's edges; sorted at first use if the graph is reused and on a CPU."""
    (source, target), nodes = graph.edge_index, graph.num_nodes
    # Sorting depends on values, which a compiled program does not know.
    if not graph.keep or graph.device.type != "cpu" or torch.compiler.is_compiling():
        return Ends(nodes, target, source)
    return _ends.of(graph, (), lambda: Ends(nodes, target, source, {}))


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    out = x.new_empty(matrix.shape[0], x.shape[1])
    # Rows of single heads are too short for the package's own kernels.
    with torch.autocast("cpu", enabled=False):
        return torch.addmm(out, matrix, x.contiguous(), beta=0, out=out)


class _EdgeFunction(torch.autograd.Function):
    """A function of tensors and `Ends`; under vmap the stacked runs become additional heads of one call."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.ends = inputs
        if len(tensors) > 1:
            ctx.save_for_backward(*tensors)

    def __init_subclass__(cls) -> None:
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
            runs = info.batch_size
            beside = (
                (x.unsqueeze(1).expand(-1, runs, *x.shape[1:]) if dim is None else x.movedim(dim, 1)).flatten(1, 2)
                for x, dim in zip(inputs[:-1], in_dims, strict=False)
            )
            return cls.apply(*beside, inputs[-1]).unflatten(1, (runs, -1)), 1

        cls.vmap = staticmethod(vmap)  # type: ignore[method-assign]


class _Scores(_EdgeFunction):
    """``q, k [N, H, C]`` → ``[E, H]``: inner products of targets and sources."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, ends: Ends) -> Tensor:
        left, right, edges = ends.into, ends.out_of, ends.into.numel()
        each = []
        for at, order in ends.groups(q):
            rows, columns = (x[:, at].flatten(0, 1) for x in (q, k))
            pattern = order.matrix(rows.new_zeros(order.edge.numel()), rows.shape[0])
            products = torch.sparse.sampled_addmm(pattern, rows, columns.T, beta=0.0).values()
            each.append(torch.empty_like(products).scatter_(0, order.edge, products).view(edges, -1))
        if each:
            return each[0] if len(each) == 1 else torch.cat(each, 1)
        parts = edge_chunks(edges, q.shape[1] * q.shape[2])
        return torch.cat([(q.index_select(0, left[at]) * k.index_select(0, right[at])).sum(-1) for at in parts])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        return _Sum.apply(grad, k, ctx.ends), _Sum.apply(grad, q, ctx.ends.turned()), None


class _Sum(_EdgeFunction):
    """``w [E, H]``, ``v [N, H, C]`` → ``[N, H, C]``: the weighted sum over the sources of each target."""

    @staticmethod
    def forward(w: Tensor, v: Tensor, ends: Ends) -> Tensor:
        each = []
        for at, order in ends.groups(v):
            rows, values = v[:, at].flatten(0, 1), w[:, at].flatten().index_select(0, order.edge)
            each.append(_product(order.matrix(values, rows.shape[0]), rows).view(v.shape[0], -1, v.shape[2]))
        if each:
            return each[0] if len(each) == 1 else torch.cat(each, 1)
        total = torch.zeros_like(v)
        for at in edge_chunks(ends.into.numel(), v.shape[1] * v.shape[2]):
            total = total.index_add(0, ends.into[at], w[at].unsqueeze(-1) * v.index_select(0, ends.out_of[at]))
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w, v = ctx.saved_tensors
        return _Scores.apply(grad, v, ctx.ends), _Sum.apply(w, grad, ctx.ends.turned()), None


class _Spread(_EdgeFunction):
    """``x [N, H]`` → ``[E, H]``: the value of each edge's target."""

    @staticmethod
    def forward(x: Tensor, ends: Ends) -> Tensor:
        return x.index_select(0, ends.into)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Collect.apply(grad, ctx.ends), None


class _Collect(_EdgeFunction):
    """``y [E, H]`` → ``[N, H]``: the sum over the incoming edges of each node."""

    @staticmethod
    def forward(y: Tensor, ends: Ends) -> Tensor:
        if order := ends.order(y, 1):
            incidence = order._replace(col=order.edge.int())  # several times as fast as a segmented sum
            return _product(incidence.matrix(y.new_ones(y.shape[0]), y.shape[0]), y)
        return y.new_zeros(ends.nodes, y.shape[1]).index_add(0, ends.into, y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Spread.apply(grad, ctx.ends), None


def edge_scores(q: Tensor, k: Tensor, graph: Graph) -> Tensor:
    """``[E, H]``: the inner product of each edge's target in `q` with its source in `k`, both ``[N, H, C]``."""
    dtype = torch.promote_types(q.dtype, k.dtype)  # under autocast they may differ
    return _Scores.apply(q.to(dtype), k.to(dtype), ends_of(graph))


def edge_sum(weight: Tensor, v: Tensor, graph: Graph) -> Tensor:
    """``[N, H, C]``: values ``[N, H, C]`` summed into targets with weights ``[E, H]``."""
    return _Sum.apply(weight.to(v.dtype), v, ends_of(graph))


def from_targets(x: Tensor, graph: Graph) -> Tensor:
    """``[E, H]``: the values ``[N, H]`` of each edge's target."""
    return _Spread.apply(x, ends_of(graph))


def from_sources(x: Tensor, graph: Graph) -> Tensor:
    """``[E, H]``: the values ``[N, H]`` of each edge's source."""
    return _Spread.apply(x, ends_of(graph).turned())


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    r"""Weights ``[E, H]`` of the edges into a node, :math:`a_{ij} e^{s_{ij}} / \sum_l a_{il} e^{s_{il}}`."""
    # The factor that prevents overflow cancels.
    each = torch.exp(scores - _largest(scores.detach(), graph))
    if graph.edge_weight is not None:
        each = each * graph.weights(each.dtype).unsqueeze(1)
    total = _Collect.apply(each, ends_of(graph))
    return each * from_targets(torch.where(total > 0, total, 1.0).reciprocal(), graph)


def _largest(scores: Tensor, graph: Graph) -> Tensor:
    """The maximum to subtract: one for all scores if their range is below `SPREAD`, else one per target."""
    if scores.device.type == "cpu" and scores.numel() and is_eager(scores):
        low, high = scores.aminmax()
        if float(high - low) < SPREAD:
            return high
    target = graph.edge_index[1]
    index = target.unsqueeze(1).expand(-1, scores.shape[1])
    largest = scores.new_full((graph.num_nodes, scores.shape[1]), -torch.inf)
    return largest.scatter_reduce(0, index, scores, "amax").index_select(0, target)


def attention_bytes(graph: Graph, heads: int, channels: int, layers: int) -> float:
    """Bytes that training stores for attention along edges: four numbers per edge and head, four per state."""
    return 16.0 * layers * (graph.num_edges * heads + graph.num_nodes * channels)


def check_attention_memory(
    what: str, graphs: Sequence[Graph], heads: int, channels: int, layers: int, remedy: str
) -> None:
    """Raises a `WouldNotFitError` if training with attention on these edges needs more memory than is free."""
    edges = sum(graph.num_edges for graph in graphs)
    needed = sum(attention_bytes(graph, heads, channels, layers) for graph in graphs)
    refuse_beyond_memory(needed, graphs[0].device, what + " on {:,} edges", remedy, count=edges, training=True)
