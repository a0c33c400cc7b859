"""Blocks of rows shared out among threads, each of which does all of a block's operations by itself.

Operations on a block that fits the cache are too short to be shared out one by one: threads would wait for each other
after each of them, and for long where a core is busy with something else. Here they meet once, at the end.

A thread of ours gives torch no others to work with. That cannot be said to torch for one thread alone: every thread
that begins to use torch at that moment keeps it for good. So it is said once, and the threads stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Barrier, Lock
from typing import TypeVar

import torch

MOST_THREADS = 16  # more of them wait for Python itself

T = TypeVar("T")


class _Workers:
    """Threads in which torch works by itself; as many as were ever asked for."""

    def __init__(self) -> None:
        self._lock, self._pool, self._count = Lock(), ThreadPoolExecutor(1), 0

    def each(self, function: Callable[[Sequence[slice]], T], shares: Sequence[Sequence[slice]]) -> list[Future[T]]:
        """A thread for every share."""
        with self._lock:
            if len(shares) > self._count:
                larger = _started(len(shares))
                self._pool.shutdown(wait=False)  # what it has been given is still done
                self._pool, self._count = larger, len(shares)
            return [self._pool.submit(function, share) for share in shares]


def _started(count: int) -> ThreadPoolExecutor:
    pool, ready, threads = ThreadPoolExecutor(count, "difformer-rows"), Barrier(count + 1), torch.get_num_threads()

    def begin() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # the first time that a thread asks it takes the number which is then set
        ready.wait()

    try:
        for _ in range(count):
            pool.submit(begin)
        ready.wait()
    except BaseException:  # none must wait for those that never came
        ready.abort()
        pool.shutdown(wait=False)
        raise
    finally:
        torch.set_num_threads(threads)
    return pool


_workers = _Workers()


def _begin_anew() -> None:
    """Threads do not come along into a process that was forked."""
    global _workers
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def share_out(work: Callable[[Sequence[slice]], T], blocks: Sequence[slice]) -> list[T]:
    """`work` of every share of the blocks: as many shares as torch has threads. No gradients.

    How blocks are shared out follows from their number and that of the threads alone.
    """
    count = min(torch.get_num_threads(), len(blocks), MOST_THREADS)
    inference = torch.is_inference_mode_enabled()

    def alone(share: Sequence[slice]) -> T:
        # Both modes belong to a thread.
        with torch.inference_mode(inference), torch.no_grad():
            return work(share)

    if count <= 1:
        return [alone(blocks)]
    later = _workers.each(alone, [blocks[k::count] for k in range(count)])
    wait(later)  # an error must not leave others at work on what it gives up
    return [found.result() for found in later]
