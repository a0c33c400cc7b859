r"""Exact all-pair sums tile by tile: the scores of a tile exist, those of all pairs never do.

For queries i and keys j, with x_ij = q_iᵀk_j,

    r_i = Σ_j g(x_ij),   o_i = Σ_j g(x_ij) v_j / r_i,

and backwards, with a_i = ∂o_i / r_i and D_i = a_iᵀo_i,

    ∂v_j = Σ_i g(x_ij) a_i,   ∂x_ij = g'(x_ij) (a_iᵀv_j - D_i),   ∂q_i = Σ_j ∂x_ij k_j,   ∂k_j = Σ_i ∂x_ij q_i.

Both directions only ever add, so keys may come in parts, in any order: the tiles of one device, or the shards of a
ring of them. Exponentials keep the largest score of each row, and rescale when a larger one comes; backwards they use
e^(x_ij - log r_i), which is the normalised weight itself, in place of g and of r_i = 1.

All tensors are ``[problems, rows, channels]``, in the working precision; queries of exponentials are already scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.attention.reference import safe_total, smallest_total
from difformer.attention.scores import SMALLEST_MEAN_EXCHANGE, Score
from difformer.free_memory import elements_at_a_time

CPU_TILE = 1 << 18  # pairs for each thread: scores and their gradient stay in its cache
GPU_TILE = 1 << 26
COLUMNS = 1024  # keys of a tile, where the keys do not fit as a whole


def tile_budget(device: torch.device) -> int:
    """Pairs of a tile of scores."""
    return elements_at_a_time(device, CPU_TILE * min(torch.get_num_threads(), 16), GPU_TILE)


@dataclass
class Sums:
    """Sums over the keys seen so far.

    Args:
        weighted: ``[P, n, c]``: Σ_j g_ij v_j.
        total: ``[P, n, 1]``: Σ_j g_ij.
        largest: ``[P, n, 1]``: the largest score, for exponentials; both sums above are then relative to it.
        empty: Whether no key has been seen.
    """

    weighted: Tensor
    total: Tensor
    largest: Tensor | None
    empty: bool = True

    @staticmethod
    def start(score: Score, out: Tensor) -> Sums:
        """No key seen; `out` ``[P, n, c]`` is where the weighted values are summed."""
        largest = out.new_full((*out.shape[:2], 1), -torch.inf) if score.exponential else None
        return Sums(out.zero_(), out.new_zeros((*out.shape[:2], 1)), largest)

    def finish(self, count: Tensor | int, least: float = SMALLEST_MEAN_EXCHANGE) -> tuple[Tensor, Tensor]:
        """The row-normalised values, in place, and what backward needs of each row: r_i, or log r_i."""
        if self.largest is not None:
            return self.weighted.div_(self.total), self.total.log_().add_(self.largest)
        total = safe_total(self.total, count, least)
        return self.weighted.div_(total), total


def _balanced(length: int, most: int) -> int:
    """The step that cuts `length` into equal parts of at most `most`."""
    return -(-length // -(-length // max(most, 1))) if length else 1


def _tiles(problems: int, n: int, m: int, budget: int) -> Iterator[tuple[slice, slice, slice]]:
    """Problems × queries × keys in tiles of at most about `budget` pairs."""
    if n * m <= budget:
        step = _balanced(problems, budget // max(n * m, 1))
        for p in range(0, problems, step):
            yield slice(p, p + step), slice(0, n), slice(0, m)
        return
    columns = _balanced(m, max(COLUMNS, budget // max(n, 1)))
    rows = _balanced(n, budget // columns)
    for p in range(problems):
        for i in range(0, n, rows):
            for j in range(0, m, columns):
                yield slice(p, p + 1), slice(i, i + rows), slice(j, j + columns)


class _Scratch:
    """One buffer that serves every tile, so that a tile's memory is taken from the system once."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None

    def like(self, left: Tensor, right: Tensor) -> Tensor:
        """Room for the products of all rows of `left` with all rows of `right`."""
        shape = (left.shape[0], left.shape[1], right.shape[1])
        size = shape[0] * shape[1] * shape[2]
        if self.buffer is None or self.buffer.numel() < size:
            self.buffer = left.new_empty(size)
        return self.buffer[:size].view(shape)


def add_keys(
    score: Score, q: Tensor, k: Tensor, v: Tensor, sums: Sums, padding: Tensor | None = None, budget: int | None = None
) -> None:
    """Adds the keys `k` ``[P, m, d]`` and their values to the sums of the queries `q` ``[P, n, d]``, in place.

    `padding` ``[P, m]`` is True at keys that do not exist.
    """
    scratch = _Scratch()
    for p, i, j in _tiles(q.shape[0], q.shape[1], k.shape[1], budget or tile_budget(q.device)):
        queries, keys, values = q[p, i], k[p, j], v[p, j]
        missing = None if padding is None else padding[p, j].unsqueeze(1)
        x = torch.bmm(queries, keys.mT, out=scratch.like(queries, keys))
        weighted, total = sums.weighted[p, i], sums.total[p, i]
        if sums.largest is not None:
            if missing is not None:
                x.masked_fill_(missing, -torch.inf)
            before = sums.largest[p, i]
            after = torch.maximum(before, x.amax(-1, keepdim=True))
            x.sub_(after)
            if j.start > 0 or not sums.empty:
                shrink = before.sub(after).exp_()
                weighted.mul_(shrink)
                total.mul_(shrink)
            before.copy_(after)
        g = score.value(x)
        if missing is not None and sums.largest is None:
            g.masked_fill_(missing, 0)
        total.add_(g.sum(-1, keepdim=True))
        weighted.baddbmm_(g, values)
    sums.empty = False


def add_gradients(
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    inner: Tensor,
    log_total: Tensor | None,
    grads: tuple[Tensor, Tensor, Tensor],
    padding: Tensor | None = None,
    budget: int | None = None,
) -> None:
    """Adds to `grads`, those of q, k and v, in place, what the keys `k` ``[P, m, d]`` and their values contribute.

    `a` ``[P, n, c]`` is ∂o_i / r_i (∂o_i for exponentials), zero in rows that do not exist; `inner` ``[P, n, 1]`` is
    D_i, zero where r_i was clamped; `log_total` is log r_i, for exponentials; `padding` ``[P, m]`` is True at keys that
    do not exist; `budget` are the pairs of a tile.
    """
    q_grad, k_grad, v_grad = grads
    # Constants of a row ride along as one more channel, against ones: a pass over each tile less.
    left, right = _with_constant(a, -inner), _with_constant(v, None)
    queries_and, keys_and = (q, k) if log_total is None else (_with_constant(q, -log_total), _with_constant(k, None))
    # Sums over queries are products whose long side runs along the keys: as rows, they are quicker.
    k_rows, v_rows = k_grad.new_zeros(k_grad.mT.shape), v_grad.new_zeros(v_grad.mT.shape)
    first, second = _Scratch(), _Scratch()
    for p, i, j in _tiles(q.shape[0], q.shape[1], k.shape[1], budget or tile_budget(q.device)):
        missing = None if padding is None else padding[p, j].unsqueeze(1)
        x = first.like(queries_and[p, i], keys_and[p, j])
        g, pull = score.value_and_pullback(torch.bmm(queries_and[p, i], keys_and[p, j].mT, out=x))
        if missing is not None:
            g = g.masked_fill(missing, 0)  # a copy: the pullback may still need g as it was
        v_rows[p, :, j].baddbmm_(a[p, i].mT, g)
        w = pull(torch.bmm(left[p, i], right[p, j].mT, out=second.like(left[p, i], right[p, j])))
        if missing is not None:
            w = w.masked_fill_(missing, 0)
        q_grad[p, i].baddbmm_(w, k[p, j])
        k_rows[p, :, j].baddbmm_(q[p, i].mT, w)
    k_grad.add_(k_rows.mT)
    v_grad.add_(v_rows.mT)


def row_terms(
    score: Score, grad: Tensor, out: Tensor, total: Tensor, padding: Tensor | None, count: Tensor | int
) -> tuple[Tensor, Tensor]:
    """a_i and D_i of the equations above."""
    a = grad if score.exponential else grad / total
    if padding is not None:
        a = a.masked_fill(padding.unsqueeze(-1), 0)
    inner = (a * out).sum(-1, keepdim=True)
    if not score.exponential:
        # A total that was clamped does not depend on q and k.
        inner.masked_fill_(total == smallest_total(count, total, score.least), 0)
    return a, inner


def _with_constant(x: Tensor, constant: Tensor | None) -> Tensor:
    """``[P, n, d]`` with one more channel: one number per row, or ones."""
    return torch.cat([x, x.new_ones((*x.shape[:2], 1)) if constant is None else constant], dim=-1)
