r"""Attention along edges, with a backward pass that keeps nothing of the size of edges × channels.

For edges e = (j → i), heads h and channels c there are two products, each the other's derivative:

.. math::
    \mathrm{scores}(q, k)_{eh} = \sum_c q_{ihc} k_{jhc}, \qquad
    \mathrm{sum}(w, v)_{ihc} = \sum_{e = (j → i)} w_{eh} v_{jhc},

so a backward pass needs the states alone. Automatic differentiation would keep every gathered row, once an edge, for
every layer. On a CPU edges that are used again are sorted once, and each head is a sparse product that gathers nothing;
elsewhere rows are gathered in slices of bounded size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.diffusion.coupling.base import EDGE_ENTRIES
from difformer.graph import Graph
from difformer.zoo.edge_order import Ends, ends_of

MOST_HEADS = 8  # that are worked out one after the other; more are gathered together


def _slices(edges: int, columns: int) -> list[slice]:
    size = max(1, EDGE_ENTRIES // max(1, columns))
    return [slice(start, start + size) for start in range(0, max(1, edges), size)]


def _by_head(states: Tensor, ends: Ends) -> bool:
    known = ends.order is not None and states.device.type == "cpu" and states.shape[1] <= MOST_HEADS
    return known and states.dtype in (torch.float32, torch.float64) and states.numel() > 0


class _Scores(torch.autograd.Function):
    """``q, k [N, H, C]`` → ``[E, H]``: products of what edges end in with what they come from."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, ends: Ends) -> Tensor:
        if _by_head(q, ends):
            pattern = ends.matrix(q.new_zeros(ends.into.numel()))
            each = [
                torch.sparse.sampled_addmm(pattern, q[:, h].contiguous(), k[:, h].contiguous().T, beta=0.0).values()
                for h in range(q.shape[1])
            ]
            return ends.from_sorted(torch.stack(each, 1))
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

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _over_runs(_Scores, info.batch_size, in_dims, inputs), 1


class _Sum(torch.autograd.Function):
    """``w [E, H]``, ``v [N, H, C]`` → ``[N, H, C]``: what edges end in receives from what they come from."""

    @staticmethod
    def forward(w: Tensor, v: Tensor, ends: Ends) -> Tensor:
        if _by_head(v, ends):
            total = v.new_empty(v.shape[1], v.shape[0], v.shape[2])
            for out, values, states in zip(total, ends.to_sorted(w).T, v.unbind(1), strict=True):
                torch.addmm(out, ends.matrix(values.contiguous()), states.contiguous(), beta=0, out=out)
            return total.transpose(0, 1)
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

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _over_runs(_Sum, info.batch_size, in_dims, inputs), 1


def _over_runs(function: Any, runs: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> Tensor:
    """Runs of a stack stand beside each other like heads: all pass through one call, in slices that count them."""
    first, second = (
        (x.unsqueeze(1).expand(-1, runs, *x.shape[1:]) if dim is None else x.movedim(dim, 1)).flatten(1, 2)
        for x, dim in zip(inputs[:2], in_dims[:2], strict=True)
    )
    return function.apply(first, second, inputs[2]).unflatten(1, (runs, -1))


def edge_scores(q: Tensor, k: Tensor, graph: Graph) -> Tensor:
    """``[E, H]``: the inner product of each edge's target in `q` with its source in `k`, both ``[N, H, C]``."""
    return _Scores.apply(q, k, ends_of(graph))


def edge_sum(weight: Tensor, v: Tensor, graph: Graph) -> Tensor:
    """``[N, H, C]``: values ``[N, H, C]`` summed into targets with weights ``[E, H]``."""
    return _Sum.apply(weight.to(v.dtype), v, ends_of(graph))


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    r"""Weights ``[E, H]`` of the edges into a node, :math:`a_{ij} e^{s_{ij}} / \sum_l a_{il} e^{s_{il}}`.

    An edge's own weight a_ij multiplies its exponential; an edge of weight zero is as good as none.
    """
    target = graph.edge_index[1]
    shape = (graph.num_nodes, scores.shape[1])
    # Relative to each node's largest, so that no exponential overflows; the factor cancels.
    index = target.unsqueeze(1).expand(-1, scores.shape[1])
    largest = scores.new_full(shape, -torch.inf).scatter_reduce(0, index, scores.detach(), "amax")
    each = torch.exp(scores - largest.index_select(0, target))
    if graph.edge_weight is not None:
        each = each * graph.weights(each.dtype).unsqueeze(1)
    total = each.new_zeros(shape).index_add(0, target, each)
    return each / torch.where(total > 0, total, 1.0).index_select(0, target)


def attention_bytes(graph: Graph, heads: int, channels: int, layers: int) -> float:
    """Bytes that training keeps for attention along edges: a few numbers an edge and head, a few a state."""
    return 4.0 * layers * (6 * graph.num_edges * heads + 8 * graph.num_nodes * channels)
