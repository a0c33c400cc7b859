"""Ctrl-C: the first press stops training after the current epoch, the second stops it at once."""

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
    """Training was stopped by Ctrl-C, after everything that can be saved was saved.

    Args:
        summary: Results so far; None where no epoch had been evaluated yet.
        folder: The run folder to resume, as text; empty without one.
        again: Whether results were saved but no checkpoint, as for a stack that did not fit into memory as a whole.

    Attributes:
        kept: What was saved, what was not, and how to resume; empty without a folder.
    """

    def __init__(self, summary: Summary | None, folder: str, again: bool = False) -> None:
        self.summary, self.folder = summary, folder
        self.kept = ""
        if folder and again:
            self.kept = (
                f"the results so far were saved, but these stacked seeds have no checkpoints: continue with resume, "
                f"which trains them again from their first epoch: {folder}"
            )
        elif folder:
            self.kept = f"what there is was saved, continue with resume: {folder}"
        super().__init__("training was interrupted" + (f"; {self.kept}" if self.kept else ""))


@contextmanager
def stop_requests(callbacks: Iterable[object] = ()) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C has been pressed.

    Callbacks that have ``on_stop_request()`` are called at once. A signal can come in the middle of a step of the
    optimiser, but a run that is to be resumed may only stop between epochs. Outside the main thread, where Python
    delivers no signals, the answer is always False.
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
