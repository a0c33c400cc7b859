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
        runs: How many are trained as one, and have as many times as long.
    """

    def __init__(self, stop: Callable[[], bool], seconds: float = math.inf, runs: int = 1) -> None:
        self.stop, self.allowed = stop, seconds * runs
        self.too_long = False
        self.begin()

    def begin(self) -> None:
        """The next run has its time from here on."""
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run at hand was begun."""
        return time.monotonic() - self.began

    def __call__(self) -> bool:
        if self.stop():
            return True
        self.too_long = self.seconds > self.allowed
        return self.too_long

    def reason(self, epochs: int, of: int, where: str) -> str:
        """What a table says in place of a score."""
        return f"too long: {self.seconds:.0f} s for {epochs} of up to {of} epochs on {where}"
