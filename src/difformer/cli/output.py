"""Results go to standard output, progress and remarks to standard error; with ``--json`` one document replaces both.

The progress of a training is one row per run with loss, metrics, speed and time left: a table that is redrawn in place
on a terminal, and elsewhere (a log, a pipe) about ten plain lines per run.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from difformer import training
from difformer.cli.command import member
from difformer.distributed import rank
from difformer.errors import counted as counted
from difformer.files import UNSAFE, finite
from difformer.files import printable as printable

_NUMBER = re.compile(r"|–|input|[|+-]?[\d.]([\d.,:/%±…e +-]|[hms]\b)*")  # also 7/60, 0.7 ± 0.1, 1e-07, 3m04s
PARTS = ("train", "valid", "test")
HEADINGS = ("run", "epoch", "loss", *PARTS, "best epoch", "its valid", "its test")
REDRAWS_PER_SECOND = 4  # by a thread of their own: a slow terminal does not slow down the training
LINES_PER_RUN = 10
ROWS_SHOWN = 12
WAITS = (30.0, 120.0, 600.0)  # seconds without an evaluation after which a message is printed


@dataclass
class Output:
    """Standard output for results, standard error for everything else."""

    as_json: bool = member("Print one JSON document; progress goes to stderr.", False, "--json")

    def __post_init__(self) -> None:
        self.out = Console(highlight=False, emoji=False, width=_width())
        self.err = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        if rank() > 0:  # the first rank speaks for all
            self.as_json, self.out.quiet, self.err.quiet = False, True, True

    def say(self, text: str = "") -> None:
        """A sentence for people; nothing with ``--json``."""
        if not self.as_json:
            self.out.print(printable(text), markup=False, soft_wrap=True)

    def remark(self, text: str) -> None:
        """A sentence on standard error."""
        self.err.print(printable(text), markup=False)

    def show(self, what: Table | str) -> None:
        """A table or a paragraph, in lines that fit; nothing with ``--json``."""
        if not self.as_json:
            self.out.print(printable(what) if isinstance(what, str) else what, markup=False)

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self.show(make_table(headings, rows))

    def facts(self, facts: Mapping[str, object]) -> None:
        """A table of two columns, without what is empty."""
        self.table(["", ""], [fact for fact in facts.items() if fact[1]])

    def open(self, page: Path) -> None:
        """A page in the browser, or a remark if none could be started."""
        if not webbrowser.open(page.resolve().as_uri()):
            self.remark(f"no browser could be started; open {page} yourself")

    def json(self, document: Any) -> None:
        """The document; nothing without ``--json``."""
        if self.as_json:
            text = json.dumps(finite(document), indent=2, ensure_ascii=False, default=str)
            print(UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _width() -> int | None:
    """Columns of a table that goes into a pipe: as many as the terminal has, 160 in a log."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return None
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return 160


def check_new(path: Path, force: bool) -> None:
    """Refuses to write over a file, before anything is computed."""
    if path.exists() and not force:
        raise FileExistsError(f"--out: {path} already exists; nothing was changed. Choose another name, or add --force")


def make_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, whole: bool = False) -> Table:
    """A table with one rule under its headings; numbers are aligned at the right, names at the left stay whole.

    Other cells are folded where the terminal is narrow; `whole` folds headings only.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    for place, heading in enumerate(headings):
        numbers = all(_NUMBER.fullmatch(row[place]) for row in texts)
        look: dict[str, Any] = {"justify": "right" if numbers else "left", "overflow": "fold", "no_wrap": place == 0}
        look["min_width"] = max((len(row[place]) for row in texts), default=0) if whole else None
        table.add_column(Text(printable(heading)), **look)
    for row in texts:
        table.add_row(*map(Text, row))
    return table


def count(value: int | None) -> str:
    """1234567 as 1,234,567; a dash where there is nothing."""
    return "–" if value is None else f"{value:,}"


def listed(settings: Mapping[str, object]) -> str:
    """``epochs=5, dropout=0.5``."""
    return ", ".join(f"{key}={shown(value)}" for key, value in settings.items())


def shown(value: object) -> str:
    """A setting as it is typed on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def score(value: float | None, sign: str = "") -> str:
    """A metric with four digits; a dash if it is missing."""
    return "–" if value is None or value != value else f"{value:{sign}.4f}"


def mean_and_deviation(mean: float, deviation: float, count: int, sign: str = "") -> str:
    """Mean ± deviation; a single value has no deviation, and ± 0 would claim one."""
    return f"{score(mean, sign)} ± {score(deviation)}" if count > 1 else score(mean, sign)


def clock_time(seconds: float | None) -> str:
    """Seconds as 12s, 3m04s or 2h05m."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress:
    """Callback of a training that shows its progress over so many runs of at most so many epochs."""

    def __init__(
        self, output: Output, *, metric: str, runs: int, epochs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.output, self.metric, self.runs, self.epochs, self.clock = output, metric, max(runs, 1), epochs, clock
        self.events: dict[tuple[Any, Any], training.EpochEvent] = {}  # the last of every run
        self.first_epoch: dict[tuple[Any, Any], int] = {}  # from which the speed of a run is counted
        self.ended: set[tuple[Any, Any]] = set()
        self.started = self.first_event = clock()
        self._live: Any = None
        self._evaluated = threading.Event()

    def __enter__(self) -> Progress:
        threading.Thread(target=self._report_long_waits, daemon=True).start()
        if self.output.err.is_terminal:
            from rich.live import Live

            self._live = Live(console=self.output.err, get_renderable=self.table, refresh_per_second=REDRAWS_PER_SECOND)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._evaluated.set()
        if self._live is not None:
            self._live.stop()  # draws once more

    def _report_long_waits(self) -> None:
        """The first epoch on a large graph can take minutes: says that the run is still going."""
        for before, seconds in pairwise((0.0, *WAITS)):
            if self._evaluated.wait(seconds - before):
                return
            said = "no evaluation yet; speed and time left follow after the first one"
            self.output.remark(f"running for {clock_time(seconds)}, {said}")

    def on_epoch(self, event: training.EpochEvent) -> None:
        """Records an evaluated epoch, and prints its line where there is no live table."""
        self._evaluated.set()
        self.epochs, run = event.epochs, (event.seed, event.split)  # fewer epochs than requested if nothing is trained
        if not self.events:
            self.first_event = self.clock()
        if run not in self.events:
            # The first epoch of a run counts for the speed only if the run began after all others had ended.
            after = bool(self.events) and all(one.epoch >= one.epochs for one in self.events.values())
            self.first_epoch[run] = 0 if after else event.epoch
            self.ended = set(self.events)  # unless they report again
        self.ended.discard(run)
        self.events = {**self.events, run: event}  # a new dictionary, as the thread that draws may read the old one
        due = event.epoch in (1, event.epochs) or event.epoch % max(1, event.epochs // LINES_PER_RUN) == 0
        if due and self._live is None:
            said = f"seed {event.seed} epoch {event.epoch}/{event.epochs} loss {event.loss:.4f}"
            said += f" valid {score(event.valid_metric)} test {score(event.test_metric)}"
            self.output.remark(" | ".join(filter(None, (said, self._speed_and_time_left()))))

    def on_stop_request(self) -> None:
        self.output.remark("stopping after this epoch and saving the state; Ctrl-C again stops at once")

    def table(self) -> Group:
        """The latest runs, one row each, and the overall progress."""
        rows = []
        for event in list(self.events.values())[-ROWS_SHOWN:]:
            metrics = map(score, (event.train_metric, event.valid_metric, event.test_metric))
            best = [event.best_epoch, score(event.best_valid), score(event.best_test)]
            epoch = f"{event.epoch}/{event.epochs}"
            rows.append([f"seed {event.seed}", epoch, f"{event.loss:.4f}", *metrics, *best])
        state = f"{len(self.events)}/{self.runs} runs, {self.metric}; {clock_time(self.clock() - self.started)} elapsed"
        said = ", ".join(filter(None, (state, self._speed_and_time_left())))
        return Group(make_table(HEADINGS, rows, whole=True), Text(said))

    def done(self) -> float:
        """Fraction of all epochs that is done; a run that stopped early is complete once a later one has begun."""
        events = self.events.items()
        shares = (1.0 if run in self.ended else event.epoch / max(event.epochs, 1) for run, event in events)
        return min(sum(shares) / self.runs, 1.0)

    def speed(self) -> float | None:
        """Epochs per second since the first event, which includes the start-up; None before the second one."""
        taken = self.clock() - self.first_event
        made = sum(event.epoch - self.first_epoch[run] for run, event in self.events.items())
        return made / taken if made > 0 and taken > 0 else None

    def time_left(self) -> float | None:
        """Seconds that the remaining epochs take at the current speed, once it is known."""
        speed = self.speed()
        return None if speed is None else self.runs * self.epochs * (1 - self.done()) / speed

    def _speed_and_time_left(self) -> str:
        speed = self.speed()
        return "" if speed is None else f"{speed:.1f} epochs/s, {clock_time(self.time_left())} left"
