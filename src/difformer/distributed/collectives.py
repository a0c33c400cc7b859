r"""A sum over ranks that differentiates.

Each rank r holds a share of the loss, L = Σ_r L_r, and of a sum, S = Σ_r s_r. Every rank uses S, so

.. math::
    \frac{∂L}{∂s_r} = \sum_{r'} \frac{∂L_{r'}}{∂S}:

the gradient of an all-reduce is the all-reduce of the gradient, the same on every rank. Gradients of parameters, which
every rank holds a copy of, are sums over ranks for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from difformer.distributed.ranks import Ranks


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, kind: str) -> Tensor:
        ctx.ranks, ctx.kind = ranks, kind
        return ranks.sum_(x.clone(memory_format=torch.contiguous_format), kind)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.ranks.sum_(grad.clone(memory_format=torch.contiguous_format), ctx.kind), None, None


def all_reduce(x: Tensor, ranks: Ranks, kind: str = "sums") -> Tensor:
    """Σ over ranks of `x`, on every rank; every rank must differentiate it, or none."""
    return _AllReduce.apply(x, ranks, kind)


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Gradients of replicated parameters become those of the whole loss, in one message."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads or ranks.size == 1:
        return
    flat = ranks.sum_(torch.cat([grad.reshape(-1) for grad in grads]), "gradients")
    for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(summed.view_as(grad))
