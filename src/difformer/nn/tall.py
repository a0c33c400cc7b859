r"""Products over many rows, Σ_i a_i b_iᵀ, in slices that a GPU works out side by side.

Such a product of two tall matrices has few results and many terms. One of them a GPU's library splits by itself; of a
batch of them, as a stack of runs has it, each is given to one processor. In slices of rows it is

.. math::
    A^\top B = \sum_s A_s^\top B_s .
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SLICES = 64  # at most; the rest of a GPU is filled by runs that are stacked
SMALLEST_SLICE = 128  # rows that are worth a product of their own


def number_of_slices(a: Tensor) -> int:
    """One where the product is best left whole: on a CPU, and where it is no batch of products."""
    stacked = a.is_cuda and not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(a)
    return max(1, min(SLICES, a.shape[0] // SMALLEST_SLICE)) if stacked else 1


def tall_product(a: Tensor, b: Tensor) -> Tensor:
    """Σ_i a_i b_iᵀ of ``[n, d]`` and ``[n, c]``: ``[d, c]``."""
    return a.T @ b if number_of_slices(a) < 2 else _Product.apply(a, b)


def affine(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``z [n, d]`` times ``weight [d, c]`` and ``bias [c]`` added; the weight's gradient in slices where that pays."""
    return functional.linear(z, weight.T, bias) if number_of_slices(z) < 2 else _Times.apply(z, weight) + bias


def _in_slices(a: Tensor, b: Tensor) -> Tensor:
    slices = number_of_slices(a)
    whole = a.shape[0] // slices * slices
    first, second = (x[:whole].unflatten(0, (slices, -1)) for x in (a, b))
    product = torch.bmm(first.mT, second).sum(0)
    return product if whole == a.shape[0] else product + a[whole:].T @ b[whole:]


class _OfTwoFactors(torch.autograd.Function):
    """What is kept for gradients are the factors, not their slices, which are copies."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _Product(_OfTwoFactors):
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return _in_slices(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _alike(grad, *ctx.saved_tensors)
        return b @ grad.T, a @ grad

    @staticmethod
    def jvp(ctx: Any, a_change: Tensor, b_change: Tensor) -> Tensor:
        a, b = ctx.saved_tensors
        return a_change.T @ b + a.T @ b_change


class _Times(_OfTwoFactors):
    @staticmethod
    def forward(z: Tensor, weight: Tensor) -> Tensor:
        return z @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        z, weight = _alike(grad, *ctx.saved_tensors)
        return grad @ weight.T, tall_product(z, grad)

    @staticmethod
    def jvp(ctx: Any, z_change: Tensor, weight_change: Tensor) -> Tensor:
        z, weight = ctx.saved_tensors
        return z_change @ weight + z @ weight_change


def _alike(grad: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
    """Factors in the type of a gradient: in mixed precision they were cast on the way forward, the kept ones not."""
    return tuple(factor.to(grad.dtype) for factor in factors)
