"""The live table of a training: one row a run, with loss, validation and test metric, speed and time left.

On a terminal the table is redrawn in place. Elsewhere (a log, a pipe) a plain line is printed a few times a run. Both
go to standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from difformer.cli.output import Output, make_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from difformer.training.callbacks import EpochEvent

HEADINGS = ("run", "epoch", "loss", "train", "valid", "test", "best epoch", "its valid", "its test")
REDRAWS_A_SECOND = 8
DRAWING_SHARE = 0.05  # of the time at most: a slow terminal must not slow the training down
LINES_A_RUN = 10
ROWS_SHOWN = 12
WAITS = (30.0, 120.0, 600.0)  # seconds without a first evaluation after which that is said


@dataclass
class _Row:
    first_seen: int
    first_epoch: int
    last_seen: int
    event: EpochEvent


class Progress:
    """Callback of a training that shows where it stands.

    Args:
        output: Where to.
        metric: Name of the metric, for the heading.
        runs: How many runs (seeds and splits) there will be.
        epochs: Epochs of each at most.
        title: What stands before each line.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        output: Output,
        *,
        metric: str,
        runs: int,
        epochs: int,
        title: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.output, self.metric, self.runs, self.epochs, self.title = output, metric, runs, max(epochs, 1), title
        self.clock = clock
        self.rows: dict[tuple[Any, Any], _Row] = {}
        self.seen = 0
        self.started = self.first_event = clock()
        self._live: Any = None
        self._next_drawing = self.started
        self._begun = threading.Event()

    def __enter__(self) -> Progress:
        threading.Thread(target=self._while_nothing_is_seen, daemon=True).start()
        if self.output.err.is_terminal:
            from rich.live import Live

            self._live = Live(console=self.output.err, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._begun.set()
        if self._live is not None:
            self._draw()
            self._live.stop()

    def _while_nothing_is_seen(self) -> None:
        """All pairs of a large graph take minutes: whoever waits for the first evaluation is told that work goes on."""
        before = 0.0
        for seconds in WAITS:
            if self._begun.wait(seconds - before):
                return
            before = seconds
            self.output.remark(
                f"{self.title}at work for {clock_time(seconds)}, nothing evaluated yet; speed and time left "
                "follow soon after the first evaluation"
            )

    def on_epoch(self, event: EpochEvent) -> None:
        """Takes note of an evaluated epoch, and redraws if that is due."""
        self._begun.set()
        self.seen += 1
        self.epochs = event.epochs  # fewer than were asked for where a model has nothing to train
        key = (event.seed, event.split)
        if not self.rows:
            self.first_event = self.clock()
        # A run that begins where all before it are whole has its first epoch made since; one trained along with others,
        # or resumed, has not.
        ended = bool(self.rows) and all(row.event.epoch >= row.event.epochs for row in self.rows.values())
        row = self.rows.setdefault(key, _Row(self.seen, 0 if ended else event.epoch, self.seen, event))
        row.last_seen, row.event = self.seen, event
        if self._live is not None:
            if self.clock() >= self._next_drawing:
                self._draw()
        elif self._line_is_due(event):
            self.output.remark(self.line(event))

    def on_stop_request(self) -> None:
        """An epoch of a large graph takes a while: whoever pressed Ctrl-C is told that it was heard."""
        self.output.remark("stopping after this epoch, with what there is saved; Ctrl-C again stops at once")

    def _draw(self) -> None:
        began = self.clock()
        self._live.update(self.table(), refresh=True)
        now = self.clock()
        self._next_drawing = now + max(1 / REDRAWS_A_SECOND, (now - began) / DRAWING_SHARE)

    def _line_is_due(self, event: EpochEvent) -> bool:
        stride = max(1, event.epochs // LINES_A_RUN)
        return event.epoch == 1 or event.epoch % stride == 0 or event.epoch >= event.epochs

    def line(self, event: EpochEvent) -> str:
        """One evaluated epoch as a line of a log."""
        shown = f"{self.title}seed {event.seed} epoch {event.epoch}/{event.epochs} loss {event.loss:.4f}"
        shown += f" valid {_number(event.valid_metric)} test {_number(event.test_metric)}"
        left = self._speed_and_time_left()
        return f"{shown} | {left}" if left else shown

    def table(self) -> RenderableType:
        """The last runs, one row each, and where the whole stands."""
        from rich.console import Group
        from rich.text import Text

        newest = sorted(self.rows.values(), key=lambda row: row.first_seen)[-ROWS_SHOWN:]
        rows = [
            [
                f"seed {row.event.seed}",
                f"{row.event.epoch}/{row.event.epochs}",
                f"{row.event.loss:.4f}",
                *(_number(v) for v in (row.event.train_metric, row.event.valid_metric, row.event.test_metric)),
                row.event.best_epoch,
                _number(row.event.best_valid),
                _number(row.event.best_test),
            ]
            for row in newest
        ]
        state = f"{len(self.rows)}/{self.runs} runs, {self.metric}; {clock_time(self.clock() - self.started)} gone"
        if left := self._speed_and_time_left():
            state += f", {left}"
        return Group(make_table(HEADINGS, rows, right=HEADINGS[1:]), Text(f"{self.title}{state}"))

    def done(self) -> float:
        """Share of all epochs that is behind us; a run that stopped early counts as whole once a later one began."""
        total = 0.0
        newest = max((row.first_seen for row in self.rows.values()), default=0)
        for row in self.rows.values():
            total += 1.0 if row.last_seen < newest else row.event.epoch / max(row.event.epochs, 1)
        return min(total / max(self.runs, 1), 1.0)

    def speed(self) -> float | None:
        """Epochs a second over all runs, since the first that was seen; None before there is a second.

        The first is left out because starting up takes longer than it does, and because a resumed run does not begin
        with epoch 1.
        """
        now = self.clock()
        made = sum(row.event.epoch - row.first_epoch for row in self.rows.values())
        return made / (now - self.first_event) if made > 0 and now > self.first_event else None

    def time_left(self) -> float | None:
        """Seconds that the remaining epochs take at the present speed; None before there is one."""
        speed = self.speed()
        return None if speed is None else self.runs * self.epochs * (1 - self.done()) / speed

    def _speed_and_time_left(self) -> str:
        speed = self.speed()
        return "" if speed is None else f"{speed:.1f} epochs/s, {clock_time(self.time_left())} left"


def clock_time(seconds: float | None) -> str:
    """Seconds as 12s, 3m04s or 2h05m."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
