"""A limit on how long a run may take: what is over it is broken off, and its cell says so instead of holding up others.

A system that looks at all pairs of a large graph may need hours for what others do in a minute. That is a result too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Watch:
    """Asked whether to stop: yes where `stop` says so, or where the runs at hand have had their time.

    Args:
        stop: Whether somebody asked for an end.
        seconds: What one run may take.
    """

    def __init__(self, stop: Callable[[], bool], seconds: float = math.inf) -> None:
        self.stop, self.limit = stop, seconds
        self.too_long = 0.0
        self.begin()

    def begin(self, runs: int = 1) -> None:
        """From here on the next has its time: as many times as long where several runs are trained as one."""
        self._began, self._allowed = time.monotonic(), runs * self.limit

    def __call__(self) -> bool:
        if self.stop():
            return True
        taken = time.monotonic() - self._began
        if taken > self._allowed:
            self.too_long = taken
        return bool(self.too_long)

    def reason(self, epochs: int, where: str) -> str:
        """What a table says in place of a score, of a run that was broken off."""
        had = "its first epoch" if epochs == 0 else "one epoch" if epochs == 1 else f"{epochs} epochs"
        return f"too long: {self.too_long:.{0 if self.too_long >= 10 else 1}f} s for {had} on {where}"
