r"""Operations on many short rows: unit length and LayerNorm, with kernels of their own on a GPU.

.. math::
    y = x / ‖x‖, \qquad ∂x = (∂y - y \, y^\top ∂y) / ‖x‖,

.. math::
    y = \frac{x - μ}{\sqrt{σ^2 + ε}} \, w + b, \qquad
    ∂x = \frac{1}{\sqrt{σ^2 + ε}} \left(g - \hat x \, \overline{g \hat x} - \overline{g}\right), \quad g = w \, ∂y,

with means over the channels of a row. torch gives every row to a block of threads of its own; states have few channels
and millions of rows, so there a block takes many rows at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.shortcut import is_eager, once_differentiated

kernels: Any = None
try:
    from difformer.kernels import row_kernels

    kernels = row_kernels
except ImportError:  # no Triton where there is no GPU
    pass

LONGEST_ROW = 512
FEWEST_ROWS = 1024  # below it torch's kernels are as quick
ELEMENTS = 4096  # of a block
PROGRAMS = 1024  # of a backward pass: several for each processor of a large GPU
SMALLEST_NORM = 1e-12


def by_rows(x: Tensor) -> bool:
    """Whether ``x [N, d]`` is for the kernels: torch gives every row a block of threads, or makes several passes."""
    return (
        x.is_cuda
        and kernels is not None
        and x.dim() == 2
        and x.shape[0] >= FEWEST_ROWS
        and x.shape[1] <= LONGEST_ROW
        and x.dtype == torch.float32
        and is_eager(x)
        and not torch.is_autocast_enabled("cuda")
    )


def block_sizes(x: Tensor) -> dict[str, int]:
    """ROWS and WIDTH of the kernels."""
    width = max(16, 1 << (x.shape[1] - 1).bit_length())
    return {"ROWS": max(1, ELEMENTS // width), "WIDTH": width}


def blocks(x: Tensor) -> int:
    return -(-x.shape[0] // block_sizes(x)["ROWS"])


class _Unit(torch.autograd.Function):
    """``[…, d]`` → unit rows and their norms; both differentiate, so that second derivatives are right as well."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(SMALLEST_NORM)
        return x / norm, norm

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, norm_grad: Tensor | None) -> Tensor | None:
        unit, norm = ctx.saved_tensors
        if grad is None:
            return None if norm_grad is None else unit * norm_grad
        inner = (grad * unit).sum(-1, keepdim=True)
        if norm_grad is not None:
            inner = inner - norm_grad * norm
        return torch.addcmul(grad, unit, inner, value=-1) / norm

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor]:
        unit, norm = ctx.saved_tensors
        inner = (tangent * unit).sum(-1, keepdim=True)
        return (tangent - unit * inner) / norm, inner

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[tuple[Tensor, Tensor], int]:
        return _Unit.apply(x.movedim(in_dims[0], 0)), 0


def _unit_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    x, n = x.contiguous(), x.shape[0]
    unit, norm = torch.empty_like(x), torch.empty(n, dtype=torch.float32, device=x.device)
    kernels.unit_forward[(blocks(x),)](x, unit, norm, n, x.shape[1], SMALLEST_NORM, **block_sizes(x))
    return unit, norm


class _UnitRows(torch.autograd.Function):
    """The same by kernels that read a row once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        unit, norm = _unit_forward(x)
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _differentiate_unit(grad, *ctx.saved_tensors)[0]


def _unit_gradients(grad: Tensor, unit: Tensor, norm: Tensor) -> tuple[Tensor]:
    out, (n, d) = torch.empty_like(unit), unit.shape
    kernels.unit_backward[(blocks(unit),)](grad.contiguous(), unit, norm, out, n, d, **block_sizes(unit))
    return (out,)


_differentiate_unit = once_differentiated(_unit_gradients)


def unit_and_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows of ``x [N, d]``, which may be overwritten, and the norms ``[N, 1]`` they had; no gradients."""
    if by_rows(x):
        unit, norm = _unit_forward(x)
        return unit, norm.unsqueeze(1)
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(SMALLEST_NORM)
    return x.div_(norm), norm


def pull_unit(grad: Tensor, unit: Tensor, norm: Tensor) -> Tensor:
    """The gradient of rows from that of their unit rows, which may be overwritten."""
    if by_rows(unit):
        return _unit_gradients(grad, unit, norm.squeeze(1))[0]
    inner = (grad * unit).sum(1, keepdim=True)
    return grad.addcmul_(unit, inner, value=-1).div_(norm)


def unit_rows(x: Tensor) -> Tensor:
    """``x / ‖x‖`` along the last axis; rows shorter than `SMALLEST_NORM` are divided by that instead."""
    if torch.compiler.is_compiling():  # a compiler fuses the plain formula by itself
        return functional.normalize(x, dim=-1, eps=SMALLEST_NORM)
    if x.is_cuda and x.dim() > 1 and by_rows(x.flatten(0, -2)):
        return _UnitRows.apply(x.flatten(0, -2)).view(x.shape)
    return _Unit.apply(x)[0]


class _Norm(torch.autograd.Function):
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
        return *_differentiate_norm(grad, *ctx.saved_tensors), None


def _norm_gradients(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor | None, ...]:
    n, d = x.shape
    programs = min(blocks(x), PROGRAMS)
    x_grad, parts = torch.empty_like(x), torch.empty(2, programs, d, dtype=torch.float32, device=x.device)
    given = (grad.contiguous(), x, weight, mean, rstd)
    kernels.norm_backward[(programs,)](*given, x_grad, parts[0], parts[1], n, d, **block_sizes(x))
    weight_grad, bias_grad = parts.sum(1).to(weight.dtype)
    return x_grad, weight_grad, bias_grad


_differentiate_norm = once_differentiated(_norm_gradients)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        if by_rows(x) and self.weight.dtype == x.dtype and is_eager(self.weight):
            return _Norm.apply(x, self.weight, self.bias, self.eps)
        return super().forward(x)
