r"""Rows of unit length, with a backward pass of half as many operations as automatic differentiation makes.

.. math::
    y = x / ‖x‖, \qquad ∂x = (∂y - y \, y^\top ∂y) / ‖x‖.

Queries and keys of every layer pass through it, and nothing else of a layer is as expensive backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.once import once_differentiated
from difformer.nn.rows import block_sizes, blocks, by_rows, kernels

SMALLEST_NORM = 1e-12


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


class _UnitRows(torch.autograd.Function):
    """The same by kernels that read a row once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x, n = x.contiguous(), x.shape[0]
        unit, norm = torch.empty_like(x), torch.empty(n, dtype=torch.float32, device=x.device)
        kernels.unit_forward[(blocks(x),)](x, unit, norm, n, x.shape[1], SMALLEST_NORM, **block_sizes(x))
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _differentiate(grad, *ctx.saved_tensors)[0]


def _gradients(grad: Tensor, unit: Tensor, norm: Tensor) -> tuple[Tensor]:
    out, (n, d) = torch.empty_like(unit), unit.shape
    kernels.unit_backward[(blocks(unit),)](grad.contiguous(), unit, norm, out, n, d, **block_sizes(unit))
    return (out,)


_differentiate = once_differentiated(_gradients)


def unit_rows(x: Tensor) -> Tensor:
    """``x / ‖x‖`` along the last axis; rows shorter than `SMALLEST_NORM` are divided by that instead."""
    if torch.compiler.is_compiling():  # a compiler fuses the plain formula by itself
        return functional.normalize(x, dim=-1, eps=SMALLEST_NORM)
    if x.is_cuda and x.dim() > 1 and by_rows(x.flatten(0, -2)):
        return _UnitRows.apply(x.flatten(0, -2)).view(x.shape)
    return _Unit.apply(x)[0]
