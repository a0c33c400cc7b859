"""All-pair propagation with any diffusivity: exact, in O(N) memory, on any device.

The sums of `difformer.attention.tiles` forward; backward works the scores out again, tile by tile, from the inputs, the
output and one number per row. Time O(N² d), memory O(N d) and one tile. Batches go graph by graph, those of like size
together.

Many small graphs side by side are worked out densely, with nothing kept for the backward pass. Where a graph's n rows
are of the order of the channels, its n×n matrix is smaller than its rows: with P = g(x) / r row by row,

    o = P v,   ∂v = Pᵀ ∂o,   W = ∂o vᵀ,   D_i = Σ_j P_ij W_ij,   ∂x = g'(x) (W - D) / r,   ∂q = ∂x k,   ∂k = ∂xᵀ q.

Sums are kept in float32 (float64 for float64), whatever the inputs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from difformer.attention import reference
from difformer.attention.layout import Piece, by_head, pack, pieces, serve_runs, working_dtype
from difformer.attention.reference import safe_total, smallest_total
from difformer.attention.scores import Pullback, Score, find_score, score_key
from difformer.attention.segments import Segments
from difformer.attention.tiles import Sums, add_gradients, add_keys, tile_budget
from difformer.diffusivity import Diffusivity
from difformer.shortcut import direct, once_differentiated

EXPORTED_ROWS = 4096  # of the scores, where an exported program computes them


def _tiles_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor | None,
    order: Tensor | None,
    place: Tensor | None,
    lengths: Tensor | None,
    shapes: Sequence[int],
    key: str,
) -> tuple[Tensor, Tensor]:
    """``q, k [runs, N, H, d]``, ``v [runs, N, H or 1, c]`` → output, and what backward needs of each row."""
    score, dtype = find_score(key), working_dtype(q.dtype)
    out = q.new_empty((*q.shape[:3], v.shape[-1]), dtype=dtype)
    total = q.new_empty((*q.shape[:3], 1), dtype=dtype)
    q, k, v = _scaled(q.to(dtype), score), k.to(dtype), v.to(dtype)
    for piece in pieces(rows, order, place, lengths, shapes, runs=q.shape[0]):
        inputs = tuple(piece.take(x) for x in (q, k, v))
        padding, room = piece.padding(), piece.room(out)
        if _is_small(piece):  # works everything out again in backward, and so keeps no totals
            for queries, keys, values, o in by_head(*inputs, room):
                small_forward(score, queries, keys, values, o, padding, _count(piece.lengths, keys))
        else:
            room_total = piece.room(total)
            for queries, keys, values, o, r in by_head(*inputs, room, room_total):
                sums = Sums.start(score, o)
                add_keys(score, queries, keys, values, sums, padding)
                r.copy_(sums.finish(_count(piece.lengths, keys), score.least)[1])
            piece.put(total, room_total)
        piece.put(out, room)
    return out, total


def _tiles_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    rows: Tensor | None,
    order: Tensor | None,
    place: Tensor | None,
    lengths: Tensor | None,
    shapes: Sequence[int],
    key: str,
) -> tuple[Tensor, Tensor, Tensor]:
    score, dtype = find_score(key), out.dtype
    grads = tuple(torch.empty(x.shape, dtype=dtype, device=x.device) for x in (q, k, v))
    q, k, v, grad = _scaled(q.to(dtype), score), k.to(dtype), v.to(dtype), grad.to(dtype)
    for piece in pieces(rows, order, place, lengths, shapes, runs=q.shape[0]):
        inputs = tuple(piece.take(x) for x in (q, k, v, grad))
        padding, room = piece.padding(), tuple(piece.room(g) for g in grads)
        if _is_small(piece):
            for head, (queries, keys, values, given, *to) in enumerate(by_head(*inputs, *room)):
                count, shared = _count(piece.lengths, keys), head > 0 and v.shape[2] == 1
                small_backward(score, queries, keys, values, given, (to[0], to[1], to[2]), padding, count, shared)
        else:
            for g in room:
                g.zero_()
            for queries, keys, values, given, o, r, *to in by_head(*inputs, piece.take(out), piece.take(total), *room):
                a, inner = row_terms(score, given, o, r, padding, _count(piece.lengths, keys))
                log_total = r if score.exponential else None
                add_gradients(score, queries, keys, values, a, inner, log_total, (to[0], to[1], to[2]), padding)
        for g, result in zip(grads, room, strict=True):
            piece.put(g, result)
    if score.exponential:
        grads[0].mul_(score.slope)
    return grads  # type: ignore[return-value]


_forward = torch.library.custom_op("difformer::blockwise", mutates_args=())(_tiles_forward)
_backward = torch.library.custom_op("difformer::blockwise_backward", mutates_args=())(_tiles_backward)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    dtype = working_dtype(q.dtype)
    return q.new_empty((*q.shape[:3], v.shape[-1]), dtype=dtype), q.new_empty((*q.shape[:3], 1), dtype=dtype)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape, dtype=out.dtype) for x in (q, k, v))


serve_runs(_forward, 3)
serve_runs(_backward, 6)


_run_forward = direct(_tiles_forward, _forward)
_differentiate = once_differentiated(direct(_tiles_backward, _backward))


class _Blockwise(torch.autograd.Function):
    """``q, k [N, H, d]``, ``v [N, H or 1, c]``, a packed layout and the key of a score."""

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
        key: str,
    ) -> tuple[Tensor, Tensor]:
        inputs = (q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
        out, total = _run_forward(*inputs, rows, order, place, lengths, shapes, key)
        return out.squeeze(0), total.squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, rows, order, place, lengths, ctx.shapes, ctx.key = inputs
        if not torch.compiler.is_compiling():
            ctx.score = find_score(ctx.key)  # lives until the backward pass is done
        out, total = output
        ctx.mark_non_differentiable(total)
        ctx.save_for_backward(q, k, v, out, total, rows, order, place, lengths)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, total, *layout = ctx.saved_tensors
        grads = _differentiate(*(x.unsqueeze(0) for x in (grad, q, k, v, out, total)), *layout, ctx.shapes, ctx.key)
        results = (g.squeeze(0).to(x.dtype) for g, x in zip(grads, (q, k, v), strict=True))
        return (*results, None, None, None, None, None, None)


def row_terms(
    score: Score, grad: Tensor, out: Tensor, total: Tensor, padding: Tensor | None, count: Tensor | int
) -> tuple[Tensor, Tensor]:
    """a_i and D_i of `difformer.attention.tiles`."""
    a = grad if score.exponential else grad / total
    if padding is not None:
        a = a.masked_fill(padding.unsqueeze(-1), 0)
    inner = (a * out).sum(-1, keepdim=True)
    if not score.exponential:
        # A total that was clamped does not depend on q and k.
        inner.masked_fill_(total == smallest_total(count, total, score.least), 0)
    return a, inner


def _small_weights(
    score: Score, x: Tensor, padding: Tensor | None, count: Tensor | int, pull: bool
) -> tuple[Tensor, Tensor | None, Pullback | None]:
    """P, then r and the pullback of g (neither for exponentials); overwrites `x`."""
    missing = None if padding is None else padding.unsqueeze(1)
    if score.exponential:
        return torch.softmax(x if missing is None else x.masked_fill_(missing, -torch.inf), dim=-1), None, None
    g, pullback = score.value_and_pullback(x) if pull else (score.value(x), None)
    if missing is not None:
        g = g.masked_fill(missing, 0) if pull else g.masked_fill_(missing, 0)
    total = safe_total(g.sum(-1, keepdim=True), count, score.least)
    return (g / total if pull else g.div_(total)), total, pullback


def small_forward(
    score: Score, q: Tensor, k: Tensor, v: Tensor, out: Tensor, padding: Tensor | None, count: Tensor | int
) -> None:
    """Writes the propagated values to `out` ``[graphs, n, c]``."""
    torch.bmm(_small_weights(score, torch.bmm(q, k.mT), padding, count, pull=False)[0], v, out=out)


def small_backward(
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    to: tuple[Tensor, Tensor, Tensor],
    padding: Tensor | None,
    count: Tensor | int,
    add: bool,
) -> None:
    """Writes the gradients of q, k and v to `to`; that of v is added where heads share their values."""
    p, total, pull = _small_weights(score, torch.bmm(q, k.mT), padding, count, pull=True)
    w = torch.bmm(grad, v.mT)
    inner = (p * w).sum(-1, keepdim=True)
    if total is None or pull is None:
        w.sub_(inner).mul_(p)
    else:
        # A total that was clamped does not depend on q and k.
        inner.masked_fill_(total == smallest_total(count, total, score.least), 0)
        w = pull(w.sub_(inner).div_(total))
    if padding is not None:
        missing = padding.unsqueeze(1) | padding.unsqueeze(2)
        p.masked_fill_(missing, 0)
        w = w.masked_fill_(missing, 0)
    torch.bmm(w, k, out=to[0])
    torch.bmm(w.mT, q, out=to[1])
    if add:
        to[2].baddbmm_(p.mT, grad)
    else:
        torch.bmm(p.mT, grad, out=to[2])


def _is_small(piece: Piece) -> bool:
    """Whether a piece holds graphs of a batch, each of whose n×n pairs is no larger than a tile."""
    return piece.rows is not None and piece.nodes**2 <= tile_budget(piece.rows.device)


def _scaled(q: Tensor, score: Score) -> Tensor:
    return q * score.slope if score.exponential else q


def _count(lengths: Tensor | None, keys: Tensor) -> Tensor | int:
    """Keys that each row sums over, to go with ``[problems, n, 1]``."""
    return keys.shape[1] if lengths is None else lengths.view(-1, 1, 1)


def propagate(
    q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, segments: Segments | None = None
) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``, exact, in memory linear in N."""
    key = score_key(diffusivity, q.shape[-1])
    if torch.compiler.is_exporting():  # an exported program must run where this package is not installed
        return _plain(q, k, v, key)
    out, _ = _Blockwise.apply(q, k, v, *pack(segments), key)
    return out.to(q.dtype)


def _plain(q: Tensor, k: Tensor, v: Tensor, key: str) -> Tensor:
    """One graph in plain tensor operations, rows in parts where N is known."""
    rows = q.shape[0]
    if not isinstance(rows, int) or rows <= EXPORTED_ROWS:
        return reference.propagate(q, k, v, key)
    return torch.cat([reference.propagate(part, k, v, key) for part in q.split(EXPORTED_ROWS)])
