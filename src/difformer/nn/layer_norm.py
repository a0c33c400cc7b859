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

try:
    from difformer.nn import layer_norm_kernels as kernels
except ImportError:  # no Triton where there is no GPU
    kernels = None  # type: ignore[assignment]

LONGEST_ROW = 512
FEWEST_ROWS = 1024  # below it torch's kernel is as quick
ELEMENTS = 4096  # of a block
PROGRAMS = 1024  # of the backward pass: several for each processor of a large GPU


def _sizes(x: Tensor) -> dict[str, int]:
    width = max(16, 1 << (x.shape[1] - 1).bit_length())
    return {"ROWS": max(1, ELEMENTS // width), "WIDTH": width}


class _Rows(torch.autograd.Function):
    """``x [N, d]`` → ``[N, d]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x, sizes, n = x.contiguous(), _sizes(x), x.shape[0]
        out = torch.empty_like(x)
        mean, rstd = (torch.empty(n, dtype=torch.float32, device=x.device) for _ in range(2))
        grid = (-(-n // sizes["ROWS"]),)
        kernels.forward[grid](x, weight, bias, out, mean, rstd, n, x.shape[1], eps, **sizes)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_differentiate(grad, *ctx.saved_tensors), None


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor | None, ...]:
    (n, d), sizes = x.shape, _sizes(x)
    programs = min(-(-n // sizes["ROWS"]), PROGRAMS)
    x_grad = torch.empty_like(x)
    parts = torch.empty(2, programs, d, dtype=torch.float32, device=x.device)
    kernels.backward[(programs,)](grad.contiguous(), x, weight, mean, rstd, x_grad, parts[0], parts[1], n, d, **sizes)
    weight_grad, bias_grad = parts.sum(1).to(weight.dtype)
    return x_grad, weight_grad, bias_grad


_differentiate = once_differentiated(_gradients)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        if self._by_rows(x):
            return _Rows.apply(x, self.weight, self.bias, self.eps)
        return super().forward(x)

    def _by_rows(self, x: Tensor) -> bool:
        return (
            x.is_cuda
            and kernels is not None
            and x.dim() == 2
            and x.shape[0] >= FEWEST_ROWS
            and x.shape[1] <= LONGEST_ROW
            and x.dtype == self.weight.dtype == torch.float32
            and is_eager(x, self.weight)
            and not torch.is_autocast_enabled("cuda")
        )
