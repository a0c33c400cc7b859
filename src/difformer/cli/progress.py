"""The live table of a training: one row per run, with loss, validation and test metric, speed and time left.

On a terminal the table is redrawn in place. Elsewhere (a log, a pipe) plain lines are printed, about ten per run. Both
go to standard error, so that standard output holds results only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from difformer.cli.output import Output, make_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from difformer.training import TrainConfig
    from difformer.training.callbacks import EpochEvent

HEADINGS = ("run", "epoch", "loss", "train", "valid", "test", "best epoch", "its valid", "its test")
REDRAWS_PER_SECOND = 8
DRAWING_SHARE = 0.05  # of the time, at most: a slow terminal must not slow down the training
LINES_PER_RUN = 10
ROWS_SHOWN = 12
WAITS = (30.0, 120.0, 600.0)  # seconds without an evaluation after which a message is printed


@dataclass
class _Row:
    first_seen: int
    first_epoch: int
    last_seen: int
    event: EpochEvent


class Progress:
    """Callback of a training that shows its progress.

    Args:
        output: Where to print.
        metric: Name of the metric, for the heading.
        runs: Number of runs (seeds and splits).
        epochs: Largest number of epochs per run.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        output: Output,
        *,
        metric: str,
        runs: int,
        epochs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.output, self.metric, self.runs, self.epochs = output, metric, runs, max(epochs, 1)
        self.clock = clock
        self.rows: dict[tuple[Any, Any], _Row] = {}
        self.seen = 0
        self.started = self.first_event = clock()
        self._live: Any = None
        self._next_drawing = self.started
        self._begun = threading.Event()

    @staticmethod
    def of(output: Output, config: TrainConfig, metric: str, runs: int) -> Progress:
        """Of a configuration; `metric` is the task's, which the configuration may override."""
        chosen = metric if config.metric == "auto" else config.metric
        return Progress(output, metric=chosen, runs=runs, epochs=config.epochs)

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
        """The first epoch on a large graph can take minutes: says that work is going on."""
        before = 0.0
        for seconds in WAITS:
            if self._begun.wait(seconds - before):
                return
            before = seconds
            self.output.remark(
                f"running for {clock_time(seconds)}, no evaluation yet; speed and time left follow after the first one"
            )

    def on_epoch(self, event: EpochEvent) -> None:
        """Records an evaluated epoch, and redraws if due."""
        self._begun.set()
        self.seen += 1
        self.epochs = event.epochs  # fewer than requested if a model has nothing to train
        key = (event.seed, event.split)
        if not self.rows:
            self.first_event = self.clock()
        # The first epoch of a run counts for the speed only if the run began after all others had ended.
        ended = bool(self.rows) and all(row.event.epoch >= row.event.epochs for row in self.rows.values())
        row = self.rows.setdefault(key, _Row(self.seen, 0 if ended else event.epoch, self.seen, event))
        row.last_seen, row.event = self.seen, event
        if self._live is not None:
            if self.clock() >= self._next_drawing:
                self._draw()
        elif self._line_is_due(event):
            self.output.remark(self.line(event))

    def on_stop_request(self) -> None:
        """Confirms Ctrl-C: the current epoch may take a while."""
        self.output.remark("stopping after this epoch and saving the state; Ctrl-C again stops at once")

    def _draw(self) -> None:
        began = self.clock()
        self._live.update(self.table(), refresh=True)
        now = self.clock()
        self._next_drawing = now + max(1 / REDRAWS_PER_SECOND, (now - began) / DRAWING_SHARE)

    def _line_is_due(self, event: EpochEvent) -> bool:
        stride = max(1, event.epochs // LINES_PER_RUN)
        return event.epoch == 1 or event.epoch % stride == 0 or event.epoch >= event.epochs

    def line(self, event: EpochEvent) -> str:
        """One evaluated epoch as a line of a log."""
        shown = f"seed {event.seed} epoch {event.epoch}/{event.epochs} loss {event.loss:.4f}"
        shown += f" valid {_number(event.valid_metric)} test {_number(event.test_metric)}"
        left = self._speed_and_time_left()
        return f"{shown} | {left}" if left else shown

    def table(self) -> RenderableType:
        """The latest runs, one row each, and the overall progress."""
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
        state = f"{len(self.rows)}/{self.runs} runs, {self.metric}; {clock_time(self.clock() - self.started)} elapsed"
        if left := self._speed_and_time_left():
            state += f", {left}"
        return Group(make_table(HEADINGS, rows), Text(f"{state}"))

    def done(self) -> float:
        """Fraction of all epochs that is done; a run that stopped early is complete once a later one has begun."""
        total = 0.0
        newest = max((row.first_seen for row in self.rows.values()), default=0)
        for row in self.rows.values():
            total += 1.0 if row.last_seen < newest else row.event.epoch / max(row.event.epochs, 1)
        return min(total / max(self.runs, 1), 1.0)

    def speed(self) -> float | None:
        """Epochs per second over all runs, since the first event; None before the second one.

        The first event is left out because it includes the start-up, and because a resumed run does not begin with
        epoch 1.
        """
        now = self.clock()
        made = sum(row.event.epoch - row.first_epoch for row in self.rows.values())
        return made / (now - self.first_event) if made > 0 and now > self.first_event else None

    def time_left(self) -> float | None:
        """Seconds that the remaining epochs take at the current speed, once it is known."""
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


def tensorboard_callbacks(folder: Path, wanted: bool) -> list[Any]:
    """The callback that writes TensorBoard event files, if wanted."""
    if not wanted:
        return []
    from difformer.training.callbacks import TensorBoard

    return [TensorBoard(folder / "tensorboard")]
