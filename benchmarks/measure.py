"""Time and memory of a piece of work: the median after a warm-up, and the peak above what was held before."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

Work = Callable[[], Any]


@dataclass(frozen=True)
class Cost:
    """What one call takes.

    Args:
        seconds: Median of the repeats.
        fastest: The fastest of them: on a machine with other work it tells most.
        peak: Bytes above what was held before; None where they cannot be read.
    """

    seconds: float
    fastest: float
    peak: int | None


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Args:
        group: Which table.
        work: What was done.
        ours: What it took.
        against: What is compared with, in words; empty where nothing is.
        theirs: What that took; None where it was not run.
        target: What is to be reached, in words.
        reached: Whether it was; None where the machine does not tell (another device than the target's).
    """

    group: str
    work: str
    ours: Cost
    against: str = ""
    theirs: Cost | None = None
    target: str = ""
    reached: bool | None = None

    @property
    def speedup(self) -> float | None:
        return None if self.theirs is None else self.theirs.seconds / self.ours.seconds

    @property
    def memory_ratio(self) -> float | None:
        """Our peak against theirs."""
        if self.theirs is None or not self.theirs.peak or self.ours.peak is None:
            return None
        return self.ours.peak / self.theirs.peak

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "speedup": self.speedup, "memory_ratio": self.memory_ratio}


def resident(what: str) -> int | None:
    """Bytes of a line of the process's status (``VmRSS``, ``VmHWM``); None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith(what)).split()[1])


def _forget_peak() -> None:
    gc.collect()
    if sys.platform.startswith("linux"):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free goes back, or it would not count when it is taken again
        with open("/proc/self/clear_refs", "w") as control:
            control.write("5")


def _once(work: Work, gpu: bool) -> tuple[float, int | None]:
    if not gpu:
        _forget_peak()
        before, start = resident("VmRSS"), time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        after = resident("VmHWM")
        return seconds, None if before is None or after is None else max(after - before, 0)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, begin, end = torch.cuda.memory_allocated(), torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000, torch.cuda.max_memory_allocated() - held


def measure(*works: Work, repeats: int = 10, gpu: bool = False, warm_up: bool = True) -> list[Cost]:
    """The cost of each piece of work, taken in turns, so that other work on the machine slows all alike."""
    if warm_up:
        for work in works:
            work()
    taken: list[list[tuple[float, int | None]]] = [[] for _ in works]
    for _ in range(repeats):
        for work, found in zip(works, taken, strict=True):
            found.append(_once(work, gpu))
    costs = []
    for found in taken:
        seconds, peaks = [s for s, _ in found], [p for _, p in found if p is not None]
        costs.append(Cost(statistics.median(seconds), min(seconds), max(peaks) if peaks else None))
    return costs
