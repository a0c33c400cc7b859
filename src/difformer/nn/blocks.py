"""Rows in blocks that stay in a CPU's cache from the first operation on them to the last."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CACHED = 1 << 16  # elements of a block for each thread: several arrays of them fit the second level of cache


def row_blocks(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of ``x [N, d]``; all of them at once on other devices."""
    n, d = x.shape
    step = n
    if x.device.type == "cpu":
        step = max(CACHED * torch.get_num_threads() // max(d, 1), 64)
    for i in range(0, n, max(step, 1)):
        yield slice(i, i + step)
