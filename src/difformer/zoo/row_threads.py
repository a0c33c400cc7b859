"""Blocks of rows shared out among threads, each of which does all of a block's operations by itself.

Operations on a block that fits the cache are too short to be shared out one by one: threads would wait for each other
after each of them, and for long where a core is busy with something else. Here they meet once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

MOST_THREADS = 16  # more of them wait for Python itself

T = TypeVar("T")


def share_out(work: Callable[[Sequence[slice]], T], blocks: Sequence[slice]) -> list[T]:
    """`work` of every share of the blocks: as many shares as torch has threads. No gradients.

    How blocks are shared out follows from their number and that of the threads alone.
    """
    threads = torch.get_num_threads()
    count = min(threads, len(blocks), MOST_THREADS)
    inference = torch.is_inference_mode_enabled()

    def alone(share: Sequence[slice]) -> T:
        # Both modes belong to a thread.
        with torch.inference_mode(inference), torch.no_grad():
            return work(share)

    if count <= 1:
        return [alone(blocks)]
    torch.set_num_threads(1)  # of this thread, and of those that are new
    try:
        with ThreadPoolExecutor(count - 1) as pool:
            later = [pool.submit(alone, blocks[k::count]) for k in range(1, count)]
            return [alone(blocks[::count]), *(found.result() for found in later)]
    finally:
        torch.set_num_threads(threads)
