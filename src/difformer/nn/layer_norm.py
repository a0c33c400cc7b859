r"""LayerNorm, with a kernel of its own for short rows on a GPU.

.. math::
    y = \frac{x - μ}{\sqrt{σ^2 + ε}} \, w + b, \qquad
    ∂x = \frac{1}{\sqrt{σ^2 + ε}} \left(g - \hat x \, \overline{g \hat x} - \overline{g}\right), \quad g = w \, ∂y,

with means over the channels of a row. torch gives every row to a block of threads of its own; states have few channels
and millions of rows, so there a block takes many rows at once. Everywhere else this is `torch.nn.LayerNorm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention.once import once_differentiated
from difformer.eager import is_eager
from difformer.nn.rows import block_sizes, blocks, by_rows, kernels

PROGRAMS = 1024  # of the backward pass: several for each processor of a large GPU


class _Rows(torch.autograd.Function):
    """``x [N, d]`` → ``[N, d]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x, n = x.contiguous(), x.shape[0]
        out = torch.empty_like(x)
        mean, rstd = (torch.empty(n, dtype=torch.float32, device=x.device) for _ in range(2))
        sizes = block_sizes(x)
        kernels.norm_forward[(blocks(x),)](x, weight, bias, out, mean, rstd, n, x.shape[1], eps, **sizes)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_differentiate(grad, *ctx.saved_tensors), None


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor | None, ...]:
    n, d = x.shape
    programs = min(blocks(x), PROGRAMS)
    x_grad, parts = torch.empty_like(x), torch.empty(2, programs, d, dtype=torch.float32, device=x.device)
    given = (grad.contiguous(), x, weight, mean, rstd)
    kernels.norm_backward[(programs,)](*given, x_grad, parts[0], parts[1], n, d, **block_sizes(x))
    weight_grad, bias_grad = parts.sum(1).to(weight.dtype)
    return x_grad, weight_grad, bias_grad


_differentiate = once_differentiated(_gradients)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        if by_rows(x) and self.weight.dtype == x.dtype and is_eager(self.weight):
            return _Rows.apply(x, self.weight, self.bias, self.eps)
        return super().forward(x)
