"""Many small graphs side by side: all pairs of each, dense, with nothing kept for the backward pass.

A graph of n rows has n² pairs. Where n is of the order of the channels, its whole n×n matrix is smaller than its rows,
so everything that can be done on pairs is done there: with P = g(x) / r row by row,

    o = P v,   ∂v = Pᵀ ∂o,   W = ∂o vᵀ,   D_i = Σ_j P_ij W_ij,   ∂x = g'(x) (W - D) / r,   ∂q = ∂x k,   ∂k = ∂xᵀ q.

Tensors are ``[graphs, n, channels]``; `padding` ``[graphs, n]`` is True at rows that do not exist.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.attention.reference import safe_total, smallest_total
from difformer.attention.scores import Pullback, Score


def _weights(
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


def forward(
    score: Score, q: Tensor, k: Tensor, v: Tensor, out: Tensor, padding: Tensor | None, count: Tensor | int
) -> None:
    """Writes the propagated values to `out` ``[graphs, n, c]``."""
    torch.bmm(_weights(score, torch.bmm(q, k.mT), padding, count, pull=False)[0], v, out=out)


def backward(
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
    p, total, pull = _weights(score, torch.bmm(q, k.mT), padding, count, pull=True)
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
