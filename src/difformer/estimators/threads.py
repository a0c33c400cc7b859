"""One thread for small tables.

Threads that share an operation wait for each other at its end, tens of thousands of times in a fit. Where an operation
takes microseconds they gain nothing by sharing it; where other programs want the cores too, one thread waits until the
other gets its turn, and a fit of 178 rows that takes a fifth of a second takes a dozen seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 1 << 16  # numbers in an operation up to which one thread works by itself


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Within it torch works with one thread if operations have at most `SMALL` numbers; afterwards as before."""
    before = torch.get_num_threads()
    if numbers > SMALL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
