"""The first linear map of a model: features may be sparse, or of a length that a GPU's products do not like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.kernels.fused import is_touched
from difformer.shortcut import is_eager
from difformer.sparse import SparseMatrix

# Rows that do not begin on a multiple of 16 bytes are read four bytes at a time: a product then takes tens of times as
# long as its data take to be copied.
ALIGNED_CHANNELS = 8
FEWEST_ROWS = 4096


def linear(layer: nn.Linear, x: Tensor | SparseMatrix) -> Tensor:
    """``x Wᵀ + b`` for features ``[N, d]``, dense, a torch sparse tensor or a `SparseMatrix`."""
    if isinstance(x, Tensor) and x.layout != torch.strided:
        x = SparseMatrix.of(x)
    plain = type(layer) is nn.Linear and not is_touched(layer)
    if isinstance(x, SparseMatrix):
        if not plain:  # what was replaced, hooked or wrapped is called, with what it expects
            return layer(x.to_dense())
        product = x @ layer.weight.T
        return product if layer.bias is None else product + layer.bias
    missing = -x.shape[-1] % ALIGNED_CHANNELS
    if missing and x.is_cuda and x.shape[0] >= FEWEST_ROWS and plain and _serves(x, layer):
        return _Padded.apply(x, layer.weight, layer.bias, missing)
    return layer(x)


def _serves(x: Tensor, layer: nn.Linear) -> bool:
    """Plain matrices of one type; mixed precision and compilers choose for themselves."""
    same = x.dim() == 2 and x.dtype == layer.weight.dtype
    return same and is_eager(x, layer.weight) and not torch.is_autocast_enabled("cuda")


class _Padded(torch.autograd.Function):
    """The map with `missing` channels of zeros appended; features are padded again backward, not kept twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, missing: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.missing, ctx.bias = missing, bias is not None
        return functional.linear(functional.pad(x, (0, missing)), functional.pad(weight, (0, missing)), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_grad = grad @ weight if ctx.needs_input_grad[0] else None
        weight_grad = (grad.T @ functional.pad(x, (0, ctx.missing)))[:, : x.shape[1]]
        return x_grad, weight_grad, grad.sum(0) if ctx.bias else None, None
