"""The first linear map of a model: features may be sparse, or of a length that a GPU's products do not like."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.sparse import SparseMatrix

# Rows that do not begin on a multiple of 16 bytes are read four bytes at a time: a product then takes tens of times as
# long as its data take to be copied.
ALIGNED_CHANNELS = 8
FEWEST_ROWS = 4096


def linear(layer: nn.Linear, x: Tensor | SparseMatrix) -> Tensor:
    """``x Wᵀ + b`` for features ``[N, d]``, dense, a torch sparse tensor or a `SparseMatrix`."""
    if isinstance(x, Tensor) and x.layout != torch.strided:
        x = SparseMatrix.from_tensor(x)
    if isinstance(x, SparseMatrix):
        product = x @ layer.weight.T
        return product if layer.bias is None else product + layer.bias
    missing = -x.shape[-1] % ALIGNED_CHANNELS
    if missing and x.is_cuda and x.shape[0] >= FEWEST_ROWS:
        padded, weight = (functional.pad(matrix, (0, missing)) for matrix in (x, layer.weight))
        return functional.linear(padded, weight, layer.bias)
    return layer(x)
