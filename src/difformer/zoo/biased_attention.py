r"""Softmax attention with a bias from a small table for every pair, as it stands in the formula.

.. math::
    P_i = \sum_j \frac{e^{s_{ij}}}{\sum_l e^{s_{il}}} v_j, \qquad s_{ij} = \frac{q_i^\top k_j}{\sqrt c} + b_{φ(i, j)}.

`difformer.zoo.biased_blocks` computes the same on a CPU without an N × N matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attend(mask: Tensor | None, hops: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """One head of graphs side by side: ``q, k, v [G, n, c]``, ``hops [G, n, n]``, ``table [distances]``."""
    scores = torch.baddbmm(biases(table, hops), q, k.mT, alpha=q.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return torch.softmax(scores, -1) @ v


class _Biases(torch.autograd.Function):
    """Entries of a small table; the gradient adds up what belongs to an entry in one pass, without an index a pair."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, hops: Tensor) -> Tensor:
        ctx.save_for_backward(hops)
        ctx.size = table.numel()
        return table.index_select(0, hops.reshape(-1).int()).view(hops.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (hops,) = ctx.saved_tensors
        return torch.bincount(hops.reshape(-1), grad.reshape(-1), minlength=ctx.size).to(grad.dtype), None


def biases(table: Tensor, hops: Tensor) -> Tensor:
    """``table[hops]``."""
    return _Biases.apply(table, hops)
