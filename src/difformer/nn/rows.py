"""When kernels for short rows are used, and how they are cut into blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.eager import is_eager

kernels: Any = None
try:
    from difformer.nn import row_kernels

    kernels = row_kernels
except ImportError:  # no Triton where there is no GPU
    pass

LONGEST_ROW = 512
FEWEST_ROWS = 1024  # below it torch's kernels are as quick
ELEMENTS = 4096  # of a block


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
