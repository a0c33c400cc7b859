"""One thread for small tables.

Threads that share an operation wait for each other at its end, tens of thousands of times per fit. Where an operation
takes microseconds, sharing gains nothing; where other programs use the cores too, one thread waits until the other gets
its turn, and a fit of 178 rows that takes a fifth of a second takes a dozen seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 1 << 16  # numbers in an operation up to which one thread works alone

_lock = threading.Lock()
_outside: list[int] = []  # the number of threads before any fit, once per fit under way


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Within it torch uses one thread if operations have at most `SMALL` numbers; afterwards as many as before.

    A Python thread inherits the number that another set last. So the number outside is that of the first of several
    fits under way: a fit in a thread computes with as many threads as it would alone, and none of them leaves behind
    the number of another.
    """
    with _lock:
        before = _outside[0] if _outside else torch.get_num_threads()
        _outside.append(before)
    wanted = 1 if numbers <= SMALL else before
    try:
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)
        yield
    finally:
        with _lock:
            _outside.pop()
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
