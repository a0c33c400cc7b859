r"""Exact all-pair propagation tile by tile: any diffusivity, any device, the scores of one tile in memory.

For queries i and keys j, with x_ij = q_iᵀk_j,

    r_i = Σ_j g(x_ij),   o_i = Σ_j g(x_ij) v_j / r_i,

and backwards, with a_i = ∂o_i / r_i and D_i = a_iᵀo_i,

    ∂v_j = Σ_i g(x_ij) a_i,   ∂x_ij = g'(x_ij) (a_iᵀv_j - D_i),   ∂q_i = Σ_j ∂x_ij k_j,   ∂k_j = Σ_i ∂x_ij q_i.

Both directions only add, so keys may come in parts, in any order: tiles on one device, or shards on a ring of devices.
The backward pass computes the scores again from the inputs, the output and one number per row. Time is O(N² d), memory
O(N d) and one tile. For exponentials the largest score of each row is kept, and sums are rescaled when a larger one
comes; backwards they use e^(x_ij - log r_i), the normalised weight, in place of g and of r_i = 1.

In a batch, small graphs of similar size form one block. They are computed densely and keep nothing for the backward
pass: with P = g(x) / r row by row,

    o = P v,   ∂v = Pᵀ ∂o,   W = ∂o vᵀ,   D_i = Σ_j P_ij W_ij,   ∂x = g'(x) (W - D) / r,   ∂q = ∂x k,   ∂k = ∂xᵀ q.

Tensors of tiles are ``[problems, rows, channels]`` in float32 (float64 for float64), whatever the inputs are; queries
of exponentials are already scaled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer._compat import is_exporting
from difformer.attention import reference
from difformer.attention.scores import Pullback, Score, find_score, working_dtype
from difformer.attention.segments import Block, Layout, Segments, Shapes, blocks, packed
from difformer.diffusivity import SMALLEST_MEAN_EXCHANGE, safe_total, smallest_total
from difformer.free_memory import elements_at_a_time
from difformer.kernels.cpu import passes
from difformer.shortcut import row_operator

CPU_TILE = 1 << 18  # pairs per thread: scores and their gradient stay in its cache
GPU_TILE = 1 << 26
COLUMNS = 1024  # keys of a tile, if the keys do not fit as a whole


def tile_budget(device: torch.device) -> int:
    """Pairs of a tile of scores."""
    return elements_at_a_time(device, CPU_TILE * min(torch.get_num_threads(), 16), GPU_TILE)


@dataclass
class Sums:
    """Sums over the keys seen so far."""

    weighted: Tensor  # [P, n, c]: Σ_j g_ij v_j
    total: Tensor  # [P, n, 1]: Σ_j g_ij
    largest: Tensor | None  # [P, n, 1]: the largest score, for exponentials; both sums are then relative to it

    @staticmethod
    def start(score: Score, out: Tensor) -> Sums:
        """No key seen; `out` ``[P, n, c]`` is where the weighted values are summed."""
        largest = out.new_full((*out.shape[:2], 1), -torch.inf) if score.exponential else None
        return Sums(out.zero_(), out.new_zeros((*out.shape[:2], 1)), largest)

    def finish(self, count: int, least: float = SMALLEST_MEAN_EXCHANGE) -> tuple[Tensor, Tensor]:
        """The row-normalised values, in place, and what backward needs of each row: r_i, or log r_i."""
        if self.largest is not None:
            return self.weighted.div_(self.total), self.total.log_().add_(self.largest)
        total = safe_total(self.total, count, least)
        return self.weighted.div_(total), total


def _tiles(problems: int, n: int, m: int, budget: int) -> Iterator[tuple[slice, slice, slice]]:
    """Problems × queries × keys in tiles of at most about `budget` pairs."""
    step = max(budget // max(n * m, 1), 1)  # pairs of several problems in one tile
    columns = max(m, 1) if n * m <= budget else max(COLUMNS, budget // n)
    rows = max(n, 1) if n * m <= budget else max(budget // columns, 1)
    for p, i, j in itertools.product(range(0, problems, step), range(0, n, rows), range(0, m, columns)):
        yield slice(p, p + step), slice(i, i + rows), slice(j, j + columns)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Products of all rows ``[P, n, m]``; with `out`, autocast leaves them in the precision of the inputs."""
    return torch.bmm(left, right.mT, out=left.new_empty(left.shape[0], left.shape[1], right.shape[1]))


def add_keys(score: Score, q: Tensor, k: Tensor, v: Tensor, sums: Sums) -> None:
    """Adds the keys `k` ``[P, m, d]`` and their values to the sums of the queries `q` ``[P, n, d]``, in place."""
    for p, i, j in _tiles(q.shape[0], q.shape[1], k.shape[1], tile_budget(q.device)):
        x = _products(q[p, i], k[p, j])
        weighted, total = sums.weighted[p, i], sums.total[p, i]
        if sums.largest is not None:
            before = sums.largest[p, i]
            after = torch.maximum(before, x.amax(-1, keepdim=True))
            x.sub_(after)
            shrink = before.sub(after).exp_()
            weighted.mul_(shrink)
            total.mul_(shrink)
            before.copy_(after)
        g = score.value(x)
        total.add_(g.sum(-1, keepdim=True))
        weighted.baddbmm_(g, v[p, j])


def add_gradients(
    score: Score, q: Tensor, k: Tensor, v: Tensor, a: Tensor, inner: Tensor, log_r: Tensor | None,
    grads: Sequence[Tensor],
) -> None:  # fmt: skip
    """Adds to `grads`, those of q, k and v, in place, what the keys `k` ``[P, m, d]`` and their values contribute.

    `a` and `inner` are those of `row_terms`; `log_r` is log r_i, for exponentials.
    """
    q_grad, k_grad, v_grad = grads
    # Constants of a row are one more channel, against ones: this saves a pass over each tile.
    left, right = _with_constant(a, -inner), _with_constant(v, None)
    queries_and, keys_and = (q, k) if log_r is None else (_with_constant(q, -log_r), _with_constant(k, None))
    # Sums over queries are products whose long side runs along the keys: as rows, they are faster.
    k_rows, v_rows = k_grad.new_zeros(k_grad.mT.shape), v_grad.new_zeros(v_grad.mT.shape)
    for p, i, j in _tiles(q.shape[0], q.shape[1], k.shape[1], tile_budget(q.device)):
        g, pull = score.value_and_pullback(_products(queries_and[p, i], keys_and[p, j]))
        v_rows[p, :, j].baddbmm_(a[p, i].mT, g)
        w = pull(_products(left[p, i], right[p, j]))
        q_grad[p, i].baddbmm_(w, k[p, j])
        k_rows[p, :, j].baddbmm_(q[p, i].mT, w)
    k_grad.add_(k_rows.mT)
    v_grad.add_(v_rows.mT)


def row_terms(score: Score, grad: Tensor, out: Tensor, total: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """a_i ``[P, n, c]`` (∂o_i for exponentials) and D_i ``[P, n, 1]``, zero where r_i was clamped; `count` keys."""
    a = grad if score.exponential else grad / total
    inner = (a * out).sum(-1, keepdim=True)
    if not score.exponential:  # a total that was clamped does not depend on q and k
        inner.masked_fill_(total == smallest_total(count, total, score.least), 0)
    return a, inner


def _with_constant(x: Tensor, constant: Tensor | None) -> Tensor:
    """``[P, n, d]`` with one more channel: one number per row, or ones."""
    return torch.cat([x, x.new_ones((*x.shape[:2], 1)) if constant is None else constant], dim=-1)


def _results(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    dtype = working_dtype(q.dtype)
    return q.new_empty((*q.shape[:3], v.shape[-1]), dtype=dtype), q.new_empty((*q.shape[:3], 1), dtype=dtype)


def _forward(q: Tensor, k: Tensor, v: Tensor, layout: Layout, shapes: Shapes, key: str) -> tuple[Tensor, Tensor]:
    """``q, k [runs, N, H, d]``, ``v [runs, N, H or 1, c]`` → output, and what backward needs of each row."""
    score, (out, total) = find_score(key), _results(q, k, v)
    q, k, v = _wide(score, q, k, v)
    for block in blocks(layout, shapes, q.shape[0]):
        small = _is_small(block)
        for _, (queries, keys, values, o, *r) in block.pieces((q, k, v), (out,) if small else (out, total)):
            if small:  # computes everything again in backward, and so keeps no totals
                torch.bmm(_small_weights(score, block, torch.bmm(queries, keys.mT), pull=False)[0], values, out=o)
                continue
            sums = Sums.start(score, o)
            if passes.takes_pairs(score.form, queries, keys, values):
                passes.sum_pairs(queries, keys, values, sums.weighted, sums.total)
            else:
                add_keys(score, queries, keys, values, sums)
            r[0].copy_(sums.finish(keys.shape[1], score.least)[1])
    return out, total


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, layout: Layout, shapes: Shapes, key: str
) -> tuple[Tensor, Tensor, Tensor]:
    score, types = find_score(key), (q.dtype, k.dtype, v.dtype)
    grads = [torch.empty(x.shape, dtype=out.dtype, device=x.device) for x in (q, k, v)]
    (q, k, v), grad = _wide(score, q, k, v), grad.to(out.dtype)
    for block in blocks(layout, shapes, q.shape[0]):
        small = _is_small(block)
        inputs = (q, k, v, grad) if small else (q, k, v, grad, out, total)
        for head, (queries, keys, values, given, *rest) in block.pieces(inputs, grads):
            rows, to = (queries, keys, values), rest[-3:]
            add = head > 0 and v.shape[2] == 1  # heads share the gradient of their values
            if small:
                _small_backward(score, block, *rows, given, to, add)
                continue
            for g in to[:2] if add else to:
                g.zero_()
            o, r, *_ = rest
            a, inner = row_terms(score, given, o, r, keys.shape[1])
            if passes.takes_pairs(score.form, *rows):
                passes.pull_pairs(*rows, a, inner, to)
            else:
                add_gradients(score, *rows, a, inner, r if score.exponential else None, to)
    if score.exponential:
        grads[0].mul_(score.slope)
    return grads[0].to(types[0]), grads[1].to(types[1]), grads[2].to(types[2])


_propagate = row_operator(
    "blockwise", _forward, _backward, _results, inputs=3, hold=lambda shapes, key: find_score(key)
)


def _small_weights(score: Score, block: Block, x: Tensor, pull: bool) -> tuple[Tensor, Tensor | None, Pullback | None]:
    """P, then r and the pullback of g (neither for exponentials); overwrites `x`."""
    missing = None if block.padding is None else block.padding.unsqueeze(1)
    if score.exponential:
        return torch.softmax(x if missing is None else x.masked_fill_(missing, -torch.inf), dim=-1), None, None
    g, pullback = score.value_and_pullback(x) if pull else (score.value(x), None)
    if missing is not None:
        g = g.masked_fill(missing, 0) if pull else g.masked_fill_(missing, 0)
    total = safe_total(g.sum(-1, keepdim=True), block.count(x), score.least)
    return (g / total if pull else g.div_(total)), total, pullback


def _small_backward(
    score: Score, block: Block, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, to: Sequence[Tensor], add: bool
) -> None:
    """Writes the gradients of q, k and v to `to`; that of v is added where heads share their values."""
    p, total, pull = _small_weights(score, block, torch.bmm(q, k.mT), pull=True)
    w = torch.bmm(grad, v.mT)
    inner = (p * w).sum(-1, keepdim=True)
    if total is None or pull is None:
        w.sub_(inner).mul_(p)
    else:  # a total that was clamped does not depend on q and k
        inner.masked_fill_(total == smallest_total(block.count(w), total, score.least), 0)
        w = pull(w.sub_(inner).div_(total))
    if block.padding is not None:
        missing = block.padding.unsqueeze(1) | block.padding.unsqueeze(2)
        p.masked_fill_(missing, 0)
        w = w.masked_fill_(missing, 0)
    torch.bmm(w, k, out=to[0])
    torch.bmm(w.mT, q, out=to[1])
    if add:
        to[2].baddbmm_(p.mT, grad)
    else:
        torch.bmm(p.mT, grad, out=to[2])


def _is_small(block: Block) -> bool:
    """Whether a block holds several graphs of a batch, or one whose n×n pairs are no more than a tile."""
    if block.rows is None:
        return False
    return block.rows.shape[0] > 1 or block.rows.shape[1] ** 2 <= tile_budget(block.rows.device)


def _wide(score: Score, *rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in the working precision, queries of exponentials scaled."""
    q, k, v = (x.to(working_dtype(rows[0].dtype)) for x in rows)
    return (q * score.slope if score.exponential else q), k, v


def propagate(q: Tensor, k: Tensor, v: Tensor, key: str, segments: Segments | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``, exact, in memory linear in N; `key` is of a score."""
    if is_exporting():  # an exported program must run where this package is not installed
        return reference.propagate(q, k, v, key)
    return _propagate(*(x.unsqueeze(0) for x in (q, k, v)), *packed(segments), key).squeeze(0).to(q.dtype)
