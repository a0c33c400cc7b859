r"""Attention along edges, with a backward pass that keeps nothing of the size of edges × channels.

For edges e = (j → i), heads h and channels c there are two products, each the other's derivative:

.. math::
    \mathrm{scores}(q, k)_{eh} = \sum_c q_{ihc} k_{jhc}, \qquad
    \mathrm{sum}(w, v)_{ihc} = \sum_{e = (j → i)} w_{eh} v_{jhc},

so a backward pass needs the states alone. Automatic differentiation would keep every gathered row, one per edge, for
every layer. Likewise what a node gives to all edges that end in it, and the sum of what edges bring to a node, are each
the other's derivative. On a CPU edges that are used again are sorted once, and all heads together are one sparse
product that gathers nothing; elsewhere rows are gathered in slices of bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from difformer.diffusion.coupling.interface import EDGE_ENTRIES
from difformer.zoo.encoder import CSR, Graph, is_eager

HEAD_ENTRIES = 2**22  # numbers of edges times heads in one sparse product: its index is kept, 12 bytes per number
SPREAD = 30.0  # of scores that share one largest: e^-30 is far above the smallest number there is


@dataclass(frozen=True, eq=False)
class Order:
    """Edges sorted by one of their ends.

    Args:
        crow: ``[N + 1]`` int32: the edges of row i are ``crow[i]:crow[i + 1]``.
        col: ``[E]`` int32, the other ends in that order.
        order: ``[E]`` int64, the edge at each place.
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
        """A matrix ``[N, E]`` of ones: row i marks its edges among all edges as they were given; kept."""
        if dtype not in self._collecting:
            self._collecting[dtype] = CSR(self.crow, self.order.int(), torch.ones_like(self.order, dtype=dtype))
        return self._collecting[dtype]

    def heads(self, count: int) -> Order:
        """The order of a graph of ``N × count`` nodes in which each head has its own copy of the edges; kept.

        States ``[N, H, C]`` are states of its nodes as they lie in memory, so that one product serves all heads.
        Its `order` says which of the ``[E, H]`` numbers of edges is at each place.
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


def _slices(edges: int, columns: int) -> list[slice]:
    if torch.compiler.is_compiling():  # how many there are would be a question of values
        return [slice(None)]
    size = max(1, EDGE_ENTRIES // max(1, columns))
    return [slice(start, start + size) for start in range(0, max(1, edges), size)]


def _sorted(states: Tensor, ends: Ends) -> bool:
    known = ends.order is not None and states.device.type == "cpu"
    return known and states.dtype in (torch.float32, torch.float64) and states.numel() > 0


def _head_slices(heads: int, edges: int) -> list[slice]:
    size = min(heads, max(1, HEAD_ENTRIES // max(1, edges)))
    return [slice(start, min(heads, start + size)) for start in range(0, heads, size)]


def _product(matrix: CSR, x: Tensor) -> Tensor:
    out = x.new_empty(matrix.crow.numel() - 1, x.shape[1])
    # The vendor's product: rows of single heads are too short for kernels that are made for whole states.
    with torch.autocast("cpu", enabled=False):
        size = (out.shape[0], x.shape[0])
        csr = torch.sparse_csr_tensor(matrix.crow, matrix.col, matrix.value, size, check_invariants=False)
        return torch.addmm(out, csr, x.contiguous(), beta=0, out=out)


def _stackable(function: Any) -> Any:
    """A function of edges whose runs of a stack lie side by side like heads: one call serves all of them."""

    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        runs = info.batch_size
        beside = (
            (x.unsqueeze(1).expand(-1, runs, *x.shape[1:]) if dim is None else x.movedim(dim, 1)).flatten(1, 2)
            if isinstance(x, Tensor)
            else x
            for x, dim in zip(inputs, in_dims, strict=True)
        )
        return function.apply(*beside).unflatten(1, (runs, -1)), 1

    function.vmap = staticmethod(vmap)
    return function


@_stackable
class _Scores(torch.autograd.Function):
    """``q, k [N, H, C]`` → ``[E, H]``: products of what edges end in with what they come from."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, ends: Ends) -> Tensor:
        if _sorted(q, ends):
            edges = ends.into.numel()
            each = []
            for at in _head_slices(q.shape[1], edges):
                left, right = q[:, at].flatten(0, 1), k[:, at].flatten(0, 1)
                heads, nodes = at.stop - at.start, left.shape[0]
                pattern = ends.matrix(q.new_zeros(edges * heads), heads)
                pairs = torch.sparse_csr_tensor(
                    pattern.crow, pattern.col, pattern.value, (nodes, nodes), check_invariants=False
                )
                products = torch.sparse.sampled_addmm(pairs, left, right.T, beta=0.0).values()
                each.append(ends.from_sorted(products, heads))
            return each[0] if len(each) == 1 else torch.cat(each, 1)
        parts = _slices(ends.into.numel(), q.shape[1] * q.shape[2])
        left, right = ends.into, ends.out_of
        return torch.cat([(q.index_select(0, left[at]) * k.index_select(0, right[at])).sum(-1) for at in parts])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.ends = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        return _Sum.apply(grad, k, ctx.ends), _Sum.apply(grad, q, ctx.ends.turned()), None


@_stackable
class _Sum(torch.autograd.Function):
    """``w [E, H]``, ``v [N, H, C]`` → ``[N, H, C]``: what edges end in receives from what they come from."""

    @staticmethod
    def forward(w: Tensor, v: Tensor, ends: Ends) -> Tensor:
        if _sorted(v, ends):
            each = [
                _product(ends.matrix(ends.to_sorted(w[:, at]), at.stop - at.start), v[:, at].flatten(0, 1))
                for at in _head_slices(v.shape[1], ends.into.numel())
            ]
            parts = [states.view(v.shape[0], -1, v.shape[2]) for states in each]
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        total = torch.zeros_like(v)
        for at in _slices(ends.into.numel(), v.shape[1] * v.shape[2]):
            total = total.index_add(0, ends.into[at], w[at].unsqueeze(-1) * v.index_select(0, ends.out_of[at]))
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.ends = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w, v = ctx.saved_tensors
        return _Scores.apply(grad, v, ctx.ends), _Sum.apply(w, grad, ctx.ends.turned()), None


@_stackable
class _Spread(torch.autograd.Function):
    """``x [N, H]`` → ``[E, H]``: at every edge the number of what it ends in."""

    @staticmethod
    def forward(x: Tensor, ends: Ends) -> Tensor:
        return x.index_select(0, ends.into)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.ends = inputs[1]
        ctx.nodes = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Collect.apply(grad, ctx.ends, ctx.nodes), None


@_stackable
class _Collect(torch.autograd.Function):
    """``y [E, H]`` → ``[N, H]``: at every node the sum over the edges that end in it."""

    @staticmethod
    def forward(y: Tensor, ends: Ends, nodes: int) -> Tensor:
        if _sorted(y, ends):
            return _product(ends.collecting(y), y)
        return y.new_zeros(nodes, y.shape[1]).index_add(0, ends.into, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.ends = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Spread.apply(grad, ctx.ends), None, None


def edge_scores(q: Tensor, k: Tensor, graph: Graph) -> Tensor:
    """``[E, H]``: the inner product of each edge's target in `q` with its source in `k`, both ``[N, H, C]``."""
    dtype = torch.promote_types(q.dtype, k.dtype)  # under autocast they may differ
    return _Scores.apply(q.to(dtype), k.to(dtype), ends_of(graph))


def edge_sum(weight: Tensor, v: Tensor, graph: Graph) -> Tensor:
    """``[N, H, C]``: values ``[N, H, C]`` summed into targets with weights ``[E, H]``."""
    return _Sum.apply(weight.to(v.dtype), v, ends_of(graph))


def from_targets(x: Tensor, graph: Graph) -> Tensor:
    """``[E, H]``: at each edge the numbers ``[N, H]`` of its target."""
    return _Spread.apply(x, ends_of(graph))


def from_sources(x: Tensor, graph: Graph) -> Tensor:
    """``[E, H]``: at each edge the numbers ``[N, H]`` of its source."""
    return _Spread.apply(x, ends_of(graph).turned())


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    r"""Weights ``[E, H]`` of the edges into a node, :math:`a_{ij} e^{s_{ij}} / \sum_l a_{il} e^{s_{il}}`.

    An edge's own weight a_ij multiplies its exponential; an edge of weight zero has no effect.
    """
    # The factor that keeps exponentials from overflowing cancels.
    each = torch.exp(scores - _largest(scores.detach(), graph))
    if graph.edge_weight is not None:
        each = each * graph.weights(each.dtype).unsqueeze(1)
    total = _Collect.apply(each, ends_of(graph), graph.num_nodes)
    return each * from_targets(torch.where(total > 0, total, 1.0).reciprocal(), graph)


def _largest(scores: Tensor, graph: Graph) -> Tensor:
    """What scores are taken relative to: the largest of all where none is far below, else that of each target."""
    if scores.device.type == "cpu" and scores.numel() and is_eager(scores):
        low, high = scores.aminmax()
        if float(high - low) < SPREAD:
            return high
    target = graph.edge_index[1]
    index = target.unsqueeze(1).expand(-1, scores.shape[1])
    largest = scores.new_full((graph.num_nodes, scores.shape[1]), -torch.inf)
    return largest.scatter_reduce(0, index, scores, "amax").index_select(0, target)


def attention_bytes(graph: Graph, heads: int, channels: int, layers: int) -> float:
    """Bytes that training keeps for attention along edges: four numbers per edge and head, four per state."""
    return 16.0 * layers * (graph.num_edges * heads + graph.num_nodes * channels)
