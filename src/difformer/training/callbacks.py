"""Callbacks: anything with ``on_epoch(event)`` is called after every evaluated epoch.

A callback that also has ``close()`` is closed when the last run has ended; one that has ``on_stop_request()`` is called
when Ctrl-C is pressed, which ends the training after the current epoch. One that raises ends the training with its
exception; the run folder stays as it is and can be resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class EpochEvent:
    """One evaluated epoch of one run.

    Args:
        seed: Of the run.
        split: Name of its split.
        epoch: The epoch, counted from 1.
        epochs: Epochs at most.
        loss: Training loss of the epoch.
        train_metric: On the training part.
        valid_metric: On validation.
        test_metric: On test.
        seconds: Since the run began, time before an interruption included.
        best_epoch: The best epoch so far.
        best_valid: Its metric on validation.
        best_test: Its metric on test.
    """

    seed: int
    split: str
    epoch: int
    epochs: int
    loss: float
    train_metric: float
    valid_metric: float
    test_metric: float
    seconds: float
    best_epoch: int
    best_valid: float
    best_test: float


@runtime_checkable
class Callback(Protocol):
    """What `fit` and `train_one` take as callbacks."""

    def on_epoch(self, event: EpochEvent) -> None:
        """Called after every evaluation."""


class TensorBoard:
    """Writes loss and metrics of every run as TensorBoard scalars; needs the ``tensorboard`` extra.

    Args:
        folder: Where event files go, one subfolder per seed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard event files need the tensorboard package: pip install 'difformer[tensorboard]'"
            ) from error
        self._new_writer = SummaryWriter
        self.folder = Path(folder)
        self._writers: dict[int, Any] = {}

    def on_epoch(self, event: EpochEvent) -> None:
        writer = self._writers.get(event.seed)
        if writer is None:
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
