"""What was measured, epoch by epoch, and the best epoch: the earliest one with the best validation score."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.training.callbacks import EpochEvent
from difformer.training.config import TrainConfig
from difformer.training.metrics import Metric, chosen_metric
from difformer.training.record import Row

PARTS = ("train", "valid", "test")
Measured = dict[str, float]


class NonFiniteLossError(UserError, ArithmeticError):
    """The training loss became NaN or infinite.

    Args:
        epoch: The first epoch with such a loss.
        loss: Its value.
        config: What was trained.
    """

    def __init__(self, epoch: int, loss: float, config: TrainConfig) -> None:
        self.epoch, self.loss, self.config = epoch, loss, config
        super().__init__(f"the training loss is {loss} at epoch {epoch}; {_advice(config)}", argument="learning_rate")

    def __reduce__(self) -> tuple[Any, ...]:  # errors travel between processes
        return type(self), (self.epoch, self.loss, self.config)


class NonFiniteOutputError(NonFiniteLossError):
    """Outputs were NaN or infinite when an epoch was evaluated, although its training loss was finite.

    Args:
        epoch: The first evaluated epoch with such outputs.
        config: What was trained.
    """

    def __init__(self, epoch: int, config: TrainConfig) -> None:
        UserError.__init__(
            self,
            f"the outputs of an evaluation are not finite at epoch {epoch}; {_advice(config)}",
            argument="learning_rate",
        )
        self.epoch, self.loss, self.config = epoch, math.nan, config

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.epoch, self.config)


def _advice(config: TrainConfig) -> str:
    clip = "" if config.gradient_clip else ", gradient_clip=1"
    half = "" if config.precision == "float32" else ", precision=float32"
    return (
        f"try a smaller learning_rate (it is {config.learning_rate:g}){clip}, warmup=10{half}, and check that the "
        f"features are finite and of similar scale"
    )


class Journal:
    """Losses, metrics and the best epoch of one run.

    Args:
        task: Whose metric, unless the configuration names another.
        split: Whose parts.
        config: What is trained.
        seed: Of the run.
        epochs: Epochs at most.
        device: Where outputs are.
        metric: Chooses the epoch instead of the configuration's metric.
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        config: TrainConfig,
        seed: int,
        epochs: int,
        device: torch.device,
        metric: Metric | None = None,
    ) -> None:
        self.split, self.config, self.seed, self.epochs = split, config, seed, epochs
        self.metric = metric or chosen_metric(config, task)
        # Metrics are counted in double precision, which Apple's GPUs do not have.
        judge = torch.device("cpu") if device.type == "mps" else device
        self.parts = {name: (index.to(judge), task.y[index].to(judge)) for name, index in split.parts().items()}
        self.metric.check(self.parts["valid"][1], task.num_outputs)
        self.best_epoch = 0
        self.best: Measured | None = None
        self.history: list[Row] = []
        self.pending: list[Tensor] = []  # losses without a row; kept on the device, so that it is not waited for

    def measure(self, epoch: int, outputs: Tensor) -> Measured:
        """The metric of an epoch's outputs on every part, NaN on one that is empty.

        Raises:
            NonFiniteOutputError: If an output that is measured is NaN or infinite.
        """
        outputs = outputs.float().to(self.parts["train"][0].device)
        values, finite = [], []
        for index, targets in self.parts.values():
            chosen = outputs[index]
            finite.append(chosen.isfinite().all())
            values.append(self.metric(chosen, targets) if index.numel() else outputs.new_tensor(math.nan))
        # One transfer for everything: a device is waited for once.
        numbers: list[float] = torch.stack([value.to(torch.float64) for value in (*values, *finite)]).tolist()
        if not all(numbers[len(PARTS) :]):
            raise self.diverged(epoch)
        return dict(zip(PARTS, numbers[: len(PARTS)], strict=True))

    def diverged(self, epoch: int) -> NonFiniteLossError:
        """What to raise when a loss, or an output at `epoch`, is not finite: the first such loss comes first."""
        losses: list[float] = torch.stack(self.pending).tolist() if self.pending else []
        for number, loss in enumerate(losses, epoch - len(losses) + 1):
            if not math.isfinite(loss):
                return NonFiniteLossError(number, loss, self.config)
        return NonFiniteOutputError(epoch, self.config)

    def judge(self, epoch: int, measured: Measured) -> bool:
        """Whether the epoch is the best so far; without a validation part the last one is."""
        known = None if self.best is None else self.best["valid"]
        if self.split.valid.numel() and not self.metric.better(measured["valid"], known):
            return False
        self.best_epoch, self.best = epoch, measured
        return True

    def out_of_patience(self, epoch: int) -> bool:
        """Whether `patience` epochs have gone by since the best one; asked and answered at evaluated epochs."""
        patience = self.config.patience
        if patience is None or self.best is None or epoch % self.config.eval_every:
            return False
        return epoch - self.best_epoch >= patience

    def write(self, epoch: int, seconds: float, measured: Measured | None = None) -> list[Row]:
        """Rows of all epochs up to `epoch` that have none, the last of them with what was measured.

        Raises:
            NonFiniteLossError: If one of their losses is not finite.
        """
        if not self.pending:
            return []
        losses: list[float] = torch.stack(self.pending).tolist()
        first = epoch - len(losses) + 1
        if not all(map(math.isfinite, losses)):
            raise self.diverged(epoch)
        rows: list[Row] = [{"epoch": number, "loss": loss} for number, loss in enumerate(losses, first)]
        rows[-1] |= (measured or {}) | {"seconds": round(seconds, 4)}
        self.pending.clear()
        self.history.extend(rows)
        return rows

    def event(self, epoch: int, seconds: float, measured: Measured) -> EpochEvent:
        """The epoch as an event for callbacks."""
        best = self.best or dict.fromkeys(PARTS, math.nan)
        return EpochEvent(
            seed=self.seed,
            split=self.split.name,
            epoch=epoch,
            epochs=self.epochs,
            loss=self.history[-1]["loss"],
            train_metric=measured["train"],
            valid_metric=measured["valid"],
            test_metric=measured["test"],
            seconds=seconds,
            best_epoch=self.best_epoch,
            best_valid=best["valid"],
            best_test=best["test"],
        )
