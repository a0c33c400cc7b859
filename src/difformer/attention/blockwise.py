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
from difformer.attention.reference import safe_total, smallest_total
from difformer.attention.scores import Pullback, Score, find_score, working_dtype
from difformer.attention.segments import Block, Segments, blocks, by_head
from difformer.attention.tiles import Sums, add_gradients, add_keys, row_terms, tile_budget
from difformer.shortcut import row_operator

EXPORTED_ROWS = 4096  # of the scores, where an exported program computes them


def _results(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    dtype = working_dtype(q.dtype)
    return q.new_empty((*q.shape[:3], v.shape[-1]), dtype=dtype), q.new_empty((*q.shape[:3], 1), dtype=dtype)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, layout: Tensor | None, shapes: Sequence[int], key: str
) -> tuple[Tensor, Tensor]:
    """``q, k [runs, N, H, d]``, ``v [runs, N, H or 1, c]`` → output, and what backward needs of each row."""
    score, (out, total) = find_score(key), _results(q, k, v)
    q, k, v = _wide(score, q, k, v)
    for block in blocks(layout, shapes, q.shape[0]):
        inputs = tuple(block.take(x) for x in (q, k, v))
        padding, room = block.padding, block.room(out)
        if _is_small(block):  # works everything out again in backward, and so keeps no totals
            for queries, keys, values, o in by_head(*inputs, room):
                p = _small_weights(score, torch.bmm(queries, keys.mT), padding, block.count(keys), pull=False)[0]
                torch.bmm(p, values, out=o)
        else:
            room_total = block.room(total)
            for queries, keys, values, o, r in by_head(*inputs, room, room_total):
                sums = Sums.start(score, o)
                add_keys(score, queries, keys, values, sums, padding)
                r.copy_(sums.finish(block.count(keys), score.least)[1])
            block.put(total, room_total)
        block.put(out, room)
    return out, total


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    layout: Tensor | None,
    shapes: Sequence[int],
    key: str,
) -> tuple[Tensor, Tensor, Tensor]:
    score, types = find_score(key), (q.dtype, k.dtype, v.dtype)
    grads = [torch.empty(x.shape, dtype=out.dtype, device=x.device) for x in (q, k, v)]
    (q, k, v), grad = _wide(score, q, k, v), grad.to(out.dtype)
    for block in blocks(layout, shapes, q.shape[0]):
        inputs = tuple(block.take(x) for x in (q, k, v, grad))
        padding, room = block.padding, [block.room(g) for g in grads]
        if _is_small(block):
            for head, (queries, keys, values, given, *to) in enumerate(by_head(*inputs, *room)):
                add = head > 0 and v.shape[2] == 1
                _small_backward(score, queries, keys, values, given, to, padding, block.count(keys), add)
        else:
            for g in room:
                g.zero_()
            for queries, keys, values, given, o, r, *to in by_head(*inputs, block.take(out), block.take(total), *room):
                a, inner = row_terms(score, given, o, r, padding, block.count(keys))
                log_total = r if score.exponential else None
                add_gradients(score, queries, keys, values, a, inner, log_total, (to[0], to[1], to[2]), padding)
        for g, result in zip(grads, room, strict=True):
            block.put(g, result)
    if score.exponential:
        grads[0].mul_(score.slope)
    return grads[0].to(types[0]), grads[1].to(types[1]), grads[2].to(types[2])


_propagate = row_operator(
    "blockwise", _forward, _backward, _results, inputs=3, hold=lambda shapes, key: find_score(key)
)


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


def _small_backward(
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    to: Sequence[Tensor],
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


def _is_small(block: Block) -> bool:
    """Whether a block holds graphs of a batch, each of whose n×n pairs is no larger than a tile."""
    return block.rows is not None and block.rows.shape[1] ** 2 <= tile_budget(block.rows.device)


def _wide(score: Score, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In the working precision, queries of exponentials scaled."""
    dtype = working_dtype(q.dtype)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return (q * score.slope if score.exponential else q), k, v


def propagate(q: Tensor, k: Tensor, v: Tensor, key: str, segments: Segments | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``, exact, in memory linear in N; `key` is of a score."""
    if torch.compiler.is_exporting():  # an exported program must run where this package is not installed
        rows = q.shape[0]
        parts = q.split(EXPORTED_ROWS) if isinstance(rows, int) and rows > EXPORTED_ROWS else (q,)
        return torch.cat([reference.propagate(part, k, v, key) for part in parts])
    layout = (None, []) if segments is None else segments.packed
    return _propagate(*(x.unsqueeze(0) for x in (q, k, v)), *layout, key).squeeze(0).to(q.dtype)
