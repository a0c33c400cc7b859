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


def tall_product(a: Tensor, b: Tensor) -> Tensor:
    """Σ_i a_i b_iᵀ of ``[n, d]`` and ``[n, c]``: ``[d, c]``."""
    slices = number_of_slices(a)
    if slices < 2:
        return a.T @ b
    whole = a.shape[0] // slices * slices
    first, second = (x[:whole].unflatten(0, (slices, -1)) for x in (a, b))
    product = torch.bmm(first.mT, second).sum(0)
    return product if whole == a.shape[0] else product + a[whole:].T @ b[whole:]


def number_of_slices(a: Tensor) -> int:
    """One where the product is best left whole, as on a CPU."""
    return min(SLICES, a.shape[0] // SMALLEST_SLICE) if a.is_cuda else 1


class _Times(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, weight: Tensor) -> Tensor:
        return z @ weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        z, weight = ctx.saved_tensors
        return grad @ weight.T, tall_product(z, grad)


def affine(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``z [n, d]`` times ``weight [d, c]`` and ``bias [c]`` added; the weight's gradient in slices where that pays."""
    if number_of_slices(z) < 2:
        return functional.linear(z, weight.T, bias)
    return _Times.apply(z, weight) + bias
