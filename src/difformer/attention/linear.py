"""All-pair propagation in linear time, for diffusivities that are sums: simple (g = 1 + x) and constant (g = 1).

With M = Σ_j k_j v_jᵀ, κ = Σ_j k_j and ν = Σ_j v_j, each worked out once,

    P_i = (ν + Mᵀq_i) / r_i,   r_i = N + κᵀq_i.

Time O(N d c), state O(d c). Backward, with a_i = ∂P_i / r_i and D_i = a_iᵀP_i:

    ∂q_i = M a_i - D_i κ,   ∂M = Σ_i q_i a_iᵀ,   ∂κ = -Σ_i D_i q_i,   ∂ν = Σ_i a_i,
    ∂k_j = ∂M v_j + ∂κ,     ∂v_j = ∂Mᵀk_j + ∂ν,

so that nothing of size N×d is kept but the inputs: one pass over keys and one over queries, either way. Every pass goes
through the rows in parts: on a CPU a part stays in the cache from the first operation to the last, and rows of low
precision are converted part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from difformer.attention import blockwise
from difformer.attention.layout import Piece, by_head, pack, pieces, serve_runs, working_dtype
from difformer.attention.reference import safe_total, smallest_total
from difformer.attention.scores import diffusivity_of, form_of
from difformer.attention.segments import Segments
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.shortcut import direct, once_differentiated

LINEAR = frozenset({"simple", "constant"})  # forms that are sums
CPU_PART = 1 << 20  # elements of q that are worked on at a time
GPU_PART = 1 << 26
GPU_SLICES = 512  # products side by side that fill a GPU
SMALLEST_SLICE = 128  # rows of a slice that are worth a product of their own


def parts(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Problems × rows of ``x [P, n, d]`` in parts of about the elements that a cache holds."""
    problems, n, d = x.shape
    budget = CPU_PART if x.device.type == "cpu" else GPU_PART
    if problems * n * d <= budget:
        yield slice(0, problems), slice(0, n)
        return
    step, rows = max(budget // max(n * d, 1), 1), max(budget // max(d, 1), 64)
    for p in range(0, problems, step):
        for i in range(0, n, rows):
            yield slice(p, p + step), slice(i, i + rows)


def add_outer(to: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds Σ_i a_i b_iᵀ of ``a [P, n, d]`` and ``b [P, n, c]`` to ``to [P, d, c]``.

    On a GPU a product of two tall matrices would be left to one of its processors for each problem: the rows are cut
    into slices, whose products are worked out side by side.
    """
    problems, n, _ = a.shape
    slices = min(GPU_SLICES // max(problems, 1), n // SMALLEST_SLICE) if a.is_cuda else 1
    if slices < 2:
        to.baddbmm_(a.mT, b)
        return
    whole = n // slices * slices
    first, second = (x[:, :whole].unflatten(1, (slices, -1)).flatten(0, 1) for x in (a, b))
    to.add_(torch.bmm(first.mT, second).unflatten(0, (problems, slices)).sum(1))
    if whole < n:
        to.baddbmm_(a[:, whole:].mT, b[:, whole:])


def _of(count: Tensor | int, p: slice) -> Tensor | int:
    return count[p] if isinstance(count, Tensor) else count


def sum_keys(k: Tensor, v: Tensor, outer: Tensor, keys: Tensor, values: Tensor) -> None:
    """Writes M to `outer` ``[P, d, c]``, κ to `keys` ``[P, 1, d]`` and ν to `values` ``[P, 1, c]``."""
    dtype = outer.dtype
    for state in (outer, keys, values):
        state.zero_()
    for p, i in parts(k):
        part_k, part_v = k[p, i].to(dtype), v[p, i].to(dtype)
        add_outer(outer[p], part_k, part_v)
        keys[p].add_(part_k.sum(1, keepdim=True))
        values[p].add_(part_v.sum(1, keepdim=True))


def answer_queries(
    q: Tensor, outer: Tensor, keys: Tensor, values: Tensor, count: Tensor | int, out: Tensor, total: Tensor
) -> None:
    """Writes P_i to `out` ``[P, n, c]`` and r_i to `total` ``[P, n, 1]``."""
    for p, i in parts(q):
        part = q[p, i].to(out.dtype)
        r = safe_total(torch.bmm(part, keys[p].mT).add_(_of(count, p)), _of(count, p))
        total[p, i] = r
        torch.baddbmm(values[p], part, outer[p], out=out[p, i]).div_(r)


def query_gradients(
    grad: Tensor,
    q: Tensor,
    total: Tensor,
    count: Tensor | int,
    outer: Tensor,
    keys: Tensor,
    values: Tensor,
    to: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes ∂q to `to` ``[P, n, d]``; returns ∂M, ∂κ and ∂ν.

    D_i = a_iᵀP_i = (q_iᵀM a_i + νᵀa_i) / r_i comes from M a_i, which ∂q needs anyhow: the output need not be kept.
    """
    dtype = total.dtype
    outer_grad, keys_grad = outer.new_zeros(outer.shape), keys.new_zeros(keys.shape)
    values_grad = values.new_zeros(values.shape)
    for p, i in parts(q):
        r, part = total[p, i], q[p, i].to(dtype)
        a = grad[p, i].to(dtype) / r
        mapped = torch.bmm(a, outer[p].mT, out=to[p, i])
        inner = (mapped * part).sum(-1, keepdim=True).baddbmm_(a, values[p].mT).div_(r)
        # A total that was clamped does not depend on q and k.
        inner.masked_fill_(r == smallest_total(_of(count, p), r), 0)
        mapped.addcmul_(inner, keys[p], value=-1)
        add_outer(outer_grad[p], part, a)
        add_outer(keys_grad[p], -inner, part)
        values_grad[p].add_(a.sum(1, keepdim=True))
    return outer_grad, keys_grad, values_grad


def key_gradients(
    k: Tensor, v: Tensor, sums: tuple[Tensor, Tensor, Tensor], k_grad: Tensor, v_grad: Tensor, *, add: bool
) -> None:
    """Writes ∂k to `k_grad` and ∂v to `v_grad`, or adds ∂v where heads share their values."""
    outer_grad, keys_grad, values_grad = sums
    for p, i in parts(k):
        part_k, part_v = k[p, i].to(k_grad.dtype), v[p, i].to(v_grad.dtype)
        torch.baddbmm(keys_grad[p], part_v, outer_grad[p].mT, out=k_grad[p, i])
        if add:
            v_grad[p, i].baddbmm_(part_k, outer_grad[p]).add_(values_grad[p])
        else:
            torch.baddbmm(values_grad[p], part_k, outer_grad[p], out=v_grad[p, i])


def reference_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """P of `simple` by its sums, in plain tensor operations."""
    wide = working_dtype(q.dtype)
    queries, keys, values = (x.to(wide).expand(-1, q.shape[1], -1).transpose(0, 1) for x in (q, k, v))
    total = safe_total(q.shape[0] + queries @ keys.sum(1).unsqueeze(-1), q.shape[0])
    answer = values.sum(1, keepdim=True) + queries @ (keys.mT @ values)
    return (answer / total).transpose(0, 1).to(q.dtype)


def _rows_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor | None,
    order: Tensor | None,
    place: Tensor | None,
    lengths: Tensor | None,
    shapes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``q, k [runs, N, H, d]``, ``v [runs, N, H or 1, c]`` → P, r; and, of a whole graph, M, κ and ν."""
    out, total, *state = _results(q, v, rows is None)
    for piece in pieces(rows, order, place, lengths, shapes, runs=q.shape[0]):
        block_out, block_total = piece.room(out), piece.room(total)
        if rows is not None:
            state = _state(q, v, q.shape[0] * piece.graphs)
        inputs = (piece.take(q), _alone(piece, k), _alone(piece, v), block_out, block_total, *state)
        for q_h, k_h, v_h, out_h, total_h, outer_h, keys_h, values_h in by_head(*inputs):
            sum_keys(k_h, v_h, outer_h, keys_h, values_h)
            answer_queries(q_h, outer_h, keys_h, values_h, _count(piece, q_h), out_h, total_h)
        piece.put(out, block_out)
        piece.put(total, block_total)
    outer, keys, values = state if rows is None else _state(q, v, 0)
    return out, total, outer, keys, values


def _rows_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor,
    outer: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor | None,
    order: Tensor | None,
    place: Tensor | None,
    lengths: Tensor | None,
    shapes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    q_grad, k_grad, v_grad = grads = tuple(torch.empty(x.shape, dtype=total.dtype, device=x.device) for x in (q, k, v))
    state = [outer, keys, values]
    for piece in pieces(rows, order, place, lengths, shapes, runs=q.shape[0]):
        room = piece.room(q_grad), piece.room(k_grad), piece.room(v_grad)
        if rows is not None:
            state = _state(q, v, q.shape[0] * piece.graphs)
        inputs = (_alone(piece, grad), piece.take(q), piece.take(total), _alone(piece, k), _alone(piece, v))
        heads = by_head(*inputs, *state, *room)
        for head, (g_h, q_h, total_h, k_h, v_h, outer_h, keys_h, values_h, *to) in enumerate(heads):
            if rows is not None:
                sum_keys(k_h, v_h, outer_h, keys_h, values_h)
            sums = query_gradients(g_h, q_h, total_h, _count(piece, q_h), outer_h, keys_h, values_h, to[0])
            key_gradients(k_h, v_h, sums, to[1], to[2], add=head > 0 and v.shape[2] == 1)
        for g, result in zip(grads, room, strict=True):
            piece.put(g, result)
    return q_grad, k_grad, v_grad


_forward = torch.library.custom_op("difformer::linear", mutates_args=())(_rows_forward)
_backward = torch.library.custom_op("difformer::linear_backward", mutates_args=())(_rows_backward)


def _state(q: Tensor, v: Tensor, problems: int) -> list[Tensor]:
    """Room for M ``[problems, d, H, c]``, κ ``[problems, 1, H, d]`` and ν ``[problems, 1, H, c]``."""
    heads, d, c, dtype = q.shape[2], q.shape[3], v.shape[-1], working_dtype(q.dtype)
    shapes = ((problems, d, heads, c), (problems, 1, heads, d), (problems, 1, heads, c))
    return [q.new_empty(shape, dtype=dtype) for shape in shapes]


def _results(q: Tensor, v: Tensor, whole: bool) -> tuple[Tensor, ...]:
    dtype = working_dtype(q.dtype)
    out = q.new_empty((*q.shape[:3], v.shape[-1]), dtype=dtype)
    return out, q.new_empty((*q.shape[:3], 1), dtype=dtype), *_state(q, v, q.shape[0] if whole else 0)


def _alone(piece: Piece, x: Tensor) -> Tensor:
    """The rows of a piece, zero at padding, so that they may be summed."""
    taken, padding = piece.take(x), piece.padding()
    return taken if padding is None else taken.masked_fill_(padding.view(*padding.shape, 1, 1), 0)


def _count(piece: Piece, x: Tensor) -> Tensor | int:
    # A traced program has sizes that are tensors.
    return int(x.shape[1]) if piece.lengths is None else piece.lengths.view(-1, 1, 1)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _results(q, v, rows is None)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape, dtype=total.dtype) for x in (q, k, v))


serve_runs(_forward, 3)
serve_runs(_backward, 8)


_run_forward = direct(_rows_forward, _forward)
_differentiate = once_differentiated(direct(_rows_backward, _backward))


class _Simple(torch.autograd.Function):
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` and a packed layout."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: Tensor | None,
        order: Tensor | None,
        place: Tensor | None,
        lengths: Tensor | None,
        shapes: list[int],
    ) -> tuple[Tensor, ...]:
        inputs = (q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
        return tuple(x.squeeze(0) for x in _run_forward(*inputs, rows, order, place, lengths, shapes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, rows, order, place, lengths, ctx.shapes = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(q, k, v, *output[1:], rows, order, place, lengths)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        grads = _differentiate(*(x.unsqueeze(0) for x in (grad, *tensors[:7])), *tensors[7:], ctx.shapes)
        return (*(g.squeeze(0).to(x.dtype) for g, x in zip(grads, tensors[:3], strict=True)), *(None,) * 5)


def _constant(v: Tensor, segments: Segments | None) -> Tensor:
    """Each row gets the mean of its graph."""
    if segments is None:
        return v.mean(0, keepdim=True).expand_as(v)
    wide = v.to(working_dtype(v.dtype))
    total = wide.new_zeros(segments.num_graphs, *v.shape[1:]).index_add(0, segments.batch, wide)
    return (total / segments.sizes.to(wide.dtype).clamp_min(1).view(-1, 1, 1)).to(v.dtype)[segments.batch]


def pairs_are_cheaper(q: Tensor, v: Tensor, segments: Segments) -> bool:
    """2 n² (d + c) operations for the pairs of each graph against 4 n d c for its sums: small graphs have few pairs."""
    d, c = q.shape[-1], v.shape[-1]
    pairs = sum(graphs * nodes * nodes for graphs, nodes, _ in segments.shapes)
    rows = sum(graphs * nodes for graphs, nodes, _ in segments.shapes)
    return pairs * (d + c) < 2 * rows * d * c


def propagate(
    q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, segments: Segments | None = None
) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]`` in time linear in N."""
    form = form_of(diffusivity)
    if form not in LINEAR:
        name = diffusivity_of(diffusivity).name
        raise UserError(f"backend 'linear' serves {' and '.join(sorted(LINEAR))}, not {name!r}; try backend='auto'")
    if form == "constant":
        return _constant(v, segments).expand(-1, q.shape[1], -1)
    if torch.compiler.is_exporting():  # an exported program must run where this package is not installed
        return reference_sums(q, k, v)
    if segments is not None and pairs_are_cheaper(q, v, segments):
        return blockwise.propagate(q, k, v, diffusivity, segments)
    out, *_ = _Simple.apply(q, k, v, *pack(segments))
    return out.to(q.dtype)
