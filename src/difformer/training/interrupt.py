"""Ctrl-C: the first asks a training to stop after its epoch, the second stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.training.record import Summary


class TrainingInterrupted(KeyboardInterrupt):
    """A training that was stopped by Ctrl-C, after everything was saved.

    Args:
        summary: What there is; None where no epoch had been evaluated yet.
        folder: The run folder to resume, as text; empty without one.
    """

    def __init__(self, summary: Summary | None, folder: str) -> None:
        self.summary, self.folder = summary, folder
        saved = f"; what there is was saved, continue with resume: {folder}" if folder else ""
        super().__init__(f"training was interrupted{saved}")


@contextmanager
def stop_requests(callbacks: Iterable[object] = ()) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C has been pressed.

    Callbacks that have ``on_stop_request()`` hear of it at once.

    A signal can come in the middle of a step of the optimiser; a run that is to be resumed may only stop between
    epochs. Outside the main thread, where Python delivers no signals, nobody ever asks to stop.
    """
    asked = False
    listeners = [told for callback in callbacks if callable(told := getattr(callback, "on_stop_request", None))]

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        for told in listeners:
            told()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before: Any = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
