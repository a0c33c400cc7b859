"""A bar that counts epochs and shows the loss."""

from __future__ import annotations

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class EpochBar:
    """Use as a context manager; ``advance`` after each epoch.

    Args:
        title: What is trained.
        total: Epochs in all.
        done: Epochs that a checkpoint brought.
        shown: False shows nothing.
    """

    def __init__(self, title: str, *, total: int, done: int, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            disable=not shown,
        )
        self._task = self._progress.add_task(title, total=total, completed=done, loss="")

    def advance(self, loss: float) -> None:
        self._progress.update(self._task, advance=1, loss=f"loss {loss:.4f}")

    def __enter__(self) -> EpochBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
