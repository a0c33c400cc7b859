"""Callbacks, and what Ctrl-C does.

A callback is anything with ``on_epoch(event)``, which is called after every evaluated epoch. If it has ``close()``,
that is called when the last run has ended; if it has ``on_stop_request()``, that is called when Ctrl-C is pressed.
The first press ends the training after the current epoch, the second at once. A callback that raises an exception ends
the training with it; the run folder can be resumed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from difformer.errors import require

if TYPE_CHECKING:
    from difformer.training.record import Summary


@dataclass(frozen=True)
class EpochEvent:
    """One evaluated epoch of one run."""

    seed: int  #: Of the run.
    split: str  #: Name of its split.
    epoch: int  #: The epoch, counted from 1.
    epochs: int  #: Maximum number of epochs.
    loss: float  #: Training loss of the epoch.
    train_metric: float  #: Metric on the training part.
    valid_metric: float  #: On validation.
    test_metric: float  #: On test.
    seconds: float  #: Since the run began, including the time before an interruption.
    best_epoch: int  #: The best epoch so far.
    best_valid: float  #: Its metric on validation.
    best_test: float  #: Its metric on test.


@runtime_checkable
class Callback(Protocol):
    """What `fit` and `train_one` take as callbacks."""

    def on_epoch(self, event: EpochEvent) -> None:
        """Called after every evaluation."""


class TensorBoard:
    """Writes loss and metrics of every run below `folder`, one subfolder per seed; needs the ``tensorboard`` extra."""

    def __init__(self, folder: str | Path) -> None:
        found = require("torch.utils.tensorboard", extra="tensorboard", purpose="writing TensorBoard event files")
        self._new_writer, self.folder = found.SummaryWriter, Path(folder)
        self._writers: dict[int, Any] = {}

    def on_epoch(self, event: EpochEvent) -> None:
        if (writer := self._writers.get(event.seed)) is None:
            # When a killed run is resumed, later points of the earlier process are removed.
            folder = str(self.folder / f"seed-{event.seed}")
            writer = self._writers[event.seed] = self._new_writer(folder, purge_step=event.epoch)
        for name in ("loss", "train_metric", "valid_metric", "test_metric"):
            writer.add_scalar(name.removesuffix("_metric"), getattr(event, name), event.epoch)

    def close(self) -> None:
        """Flushes everything to disk."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class TrainingInterrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C, and everything that could be saved was saved.

    `summary` has the results so far, None if no epoch had been evaluated yet; `folder` is the run folder to resume,
    empty without one. A stack that did not fit into memory as a whole has no checkpoint and starts `again`.
    """

    def __init__(self, summary: Summary | None, folder: str, again: bool = False) -> None:
        self.summary, self.folder, self.again = summary, folder, again
        unsaved = "the results so far were saved; unfinished seeds have no checkpoint and start again on resuming"
        saved = f"; {unsaved if again else 'the state was saved, resume it from'} {folder}" if folder else ""
        super().__init__(f"training was interrupted{saved}")


@contextmanager
def stop_requests(callbacks: Iterable[object] = ()) -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether Ctrl-C has been pressed; callbacks are closed at the end.

    A signal can arrive in the middle of an optimiser step, but a run can only be resumed at the end of an epoch.
    Outside the main thread, where Python delivers no signals, the answer is always False.
    """
    asked, listeners = False, tuple(callbacks)

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        _call(listeners, "on_stop_request")

    main = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGINT, ask) if main else None
    try:
        yield lambda: asked
    finally:
        if main:
            signal.signal(signal.SIGINT, before)
        _call(listeners, "close")


def _call(callbacks: Iterable[object], method: str) -> None:
    for callback in callbacks:
        if callable(told := getattr(callback, method, None)):
            told()
