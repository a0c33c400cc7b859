"""The product of a sparse matrix with dense rows in C, offered to `difformer.sparse`.

On one thread of a CPU, against torch's product with a CSR tensor: 12 ms against 44 at 100,000 rows, 1 M entries and 64
channels; 45 against 87 at 128 channels; 0.07 against 0.11 at 2,708 rows and 10,556 entries. Below 64 channels torch's
is faster, six times at 8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer import sparse
from difformer.kernels.cpu.passes import run, serves
from difformer.sparse import CSR

FEWEST_CHANNELS = 64


def multiply(matrix: CSR, x: Tensor, out: Tensor, beta: float, alpha: float) -> bool:
    """``out ← β out + α S X``; False where the kernel does not serve, and nothing was done."""
    rows, channels = matrix.crow.numel() - 1, x.shape[1]
    if channels < FEWEST_CHANNELS or matrix.crow.dtype != torch.int32 or not out.is_contiguous():
        return False
    if not serves(rows, channels, x, out, matrix.value):
        return False
    given: dict[str, Any] = {"z": x.contiguous(), "crow": matrix.crow, "col": matrix.col, "entry": matrix.value}
    run("multiply_rows", rows, channels, channels, out=out, state=beta, observed=alpha, **given)
    return True


sparse.fast_product = multiply
