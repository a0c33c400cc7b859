"""Products of float32 matrices that were made from less precise numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

LOW = (torch.bfloat16, torch.float16)


@contextmanager
def precision_of(x: Tensor) -> Iterator[None]:
    """Within it, a GPU multiplies float32 matrices with 10 bits of fraction where `x` has no more itself.

    bfloat16 has 7 bits: rounding factors to 10 is lost in what it was rounded to already, and the products are several
    times as quick. Sums keep all 23 bits.
    """
    if not (x.is_cuda and x.dtype in LOW) or torch.compiler.is_compiling():
        yield
        return
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the program has set precisions backend by backend: they are the user's to choose
        yield
        return
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
