"""What was measured, epoch by epoch, and the best epoch: the earliest one with the best validation score.

`Journal` is for one run; runs trained as one have `difformer.training.stack.StackJournal`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.training.callbacks import EpochEvent
from difformer.training.config import TrainConfig
from difformer.training.early_stopping import improves, out_of_patience
from difformer.training.metrics import ONE_PROCESS, Metric
from difformer.training.record import Row, RunRecord

PARTS = ("train", "valid", "test")
Measured = dict[str, float]
NOTHING: Measured = dict.fromkeys(PARTS, math.nan)
AT_ONCE = ("accuracy", "broadcast-mse")  # metrics that `vmap` can take: no shape depends on data
RECORDABLE = (*AT_ONCE, "rocauc")  # metrics that never wait for a value, so that an evaluation can be recorded


class NonFiniteLossError(UserError, ArithmeticError):
    """The training loss, or an output in an evaluation, became NaN or infinite.

    Args:
        epoch: The first epoch with such a loss or output.
        loss: The loss; None if it was finite and the outputs were not.
        config: What was trained.
    """

    def __init__(self, epoch: int, loss: float | None, config: TrainConfig) -> None:
        self.epoch, self.loss, self.config = epoch, loss, config
        what = "the outputs of an evaluation are not finite" if loss is None else f"the training loss is {loss}"
        clip = "" if config.gradient_clip else ", gradient_clip=1"
        half = "" if config.precision == "float32" else ", precision=float32"
        super().__init__(
            f"{what} at epoch {epoch}; try a smaller learning_rate (it is {config.learning_rate:g}){clip}, "
            f"warmup=10{half}, and check that the features are finite and of similar scale",
            argument="learning_rate",
        )

    def __reduce__(self) -> tuple[Any, ...]:  # errors travel between processes
        return type(self), (self.epoch, self.loss, self.config)


def divergence(rows: Sequence[Row], broken: int, config: TrainConfig) -> NonFiniteLossError | None:
    """The error of the first loss that is not finite, or of outputs that are not, first in epoch `broken` (0: none)."""
    for row in rows:
        if not math.isfinite(row["loss"]) and (not broken or row["epoch"] <= broken):
            return NonFiniteLossError(row["epoch"], row["loss"], config)
    return NonFiniteLossError(broken, None, config) if broken else None


def parts_of(task: Task, split: Split, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Indices and targets of training, validation and test part, on a device."""
    return {name: (index.to(device), task.y[index].to(device)) for name, index in split.parts().items()}


class Journal:
    """Losses, metrics and the best epoch of one run; `metric` chooses that epoch on validation.

    `ranks` and `spread` are those of `difformer.training.loop.Trainer`.
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        config: TrainConfig,
        seed: int,
        device: torch.device,
        *,
        metric: Metric,
        ranks: Any,
        spread: bool,
    ) -> None:
        self.split, self.config, self.seed, self.metric = split, config, seed, metric
        # Metrics are counted in double precision, which Apple's GPUs do not have.
        self.place = torch.device("cpu") if device.type == "mps" else device
        self.parts = parts_of(task, split, self.place)
        self.losses_of, self.rows_of = ranks, ranks if spread else ONE_PROCESS
        self.chooses = metric.check(self.parts["valid"][1], task.num_outputs, self.rows_of)
        self.best_epoch = 0
        self.best = NOTHING
        self.history: list[Row] = []
        self.pending: list[Tensor] = []  # losses without a row; kept on the device, so that it is not waited for

    def measure(self, epoch: int, outputs: Tensor) -> Measured:
        """The metric of an epoch's outputs on every part, NaN on an empty one."""
        outputs = outputs.float().to(self.place)
        values, finite = [], []
        for index, targets in self.parts.values():
            chosen = outputs[index]
            finite.append(chosen.isfinite().all())
            values.append(self.rows_of.score(self.metric, chosen, targets))
        # One transfer for everything: the device is waited for once.
        numbers: list[float] = torch.stack([value.to(torch.float64) for value in (*values, *finite)]).tolist()
        if self.rows_of.any(not all(numbers[len(PARTS) :])):
            error = divergence(self._new_rows(epoch), epoch, self.config)
            assert error is not None
            raise error
        return dict(zip(PARTS, numbers, strict=False))

    def _new_rows(self, epoch: int) -> list[Row]:
        """Rows of the pending losses, the last of which is that of `epoch`; ranks hold a share of each loss."""
        if not self.pending:
            return []
        losses = self.losses_of.sum_(torch.stack(self.pending).to(self.place).double(), "metrics").tolist()
        return [{"epoch": number, "loss": loss} for number, loss in enumerate(losses, epoch - len(losses) + 1)]

    def judge(self, epoch: int, measured: Measured) -> bool:
        """Whether the epoch is the best so far; without a validation part the last one is."""
        if self.chooses and not improves(measured["valid"], self.best["valid"], self.metric.higher_is_better):
            return False
        self.best_epoch, self.best = epoch, measured
        return True

    def out_of_patience(self, epoch: int) -> bool:
        """Whether to stop after an epoch, if it was evaluated."""
        evaluated = epoch % self.config.eval_every == 0
        return evaluated and bool(out_of_patience(epoch, self.best_epoch, self.config.patience))

    def write(self, epoch: int, seconds: float, measured: Measured | None = None) -> list[Row]:
        """Makes the missing rows up to `epoch`, the last of them with what was measured."""
        if not (rows := self._new_rows(epoch)):
            return []
        if (error := divergence(rows, 0, self.config)) is not None:
            raise error
        rows[-1] |= (measured or {}) | {"seconds": round(seconds, 4)}
        self.pending.clear()
        self.history.extend(rows)
        return rows

    def event(self, epoch: int, seconds: float, measured: Measured) -> EpochEvent:
        """The epoch as an event for callbacks."""
        numbers: list[Any] = [*measured.values(), seconds, self.best_epoch, self.best["valid"], self.best["test"]]
        return EpochEvent(self.seed, self.split.name, epoch, self.config.epochs, self.history[-1]["loss"], *numbers)

    def record(self, **more: Any) -> RunRecord:
        """The run as a record."""
        return record_of(self.seed, self.split, self.metric, self.best_epoch, self.best, self.history, **more)


def record_of(
    seed: int, split: Split, metric: Metric, epoch: int, best: Measured, history: list[Row], **more: Any
) -> RunRecord:
    more |= {**best, "loss": history[-1]["loss"] if history else math.nan, "history": history}
    return RunRecord(seed, split.name, metric.name, epoch, **more)


Ended = RunRecord | NonFiniteLossError  # how a run of a stack ends


@dataclass(frozen=True)
class Run:
    """One run of a stack: its seed, the number of its split, and its configuration."""

    seed: int
    split: int
    config: TrainConfig
