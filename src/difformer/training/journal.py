"""What was measured, epoch by epoch, and which epoch is best: the first that no earlier one reaches on validation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.training.callbacks import EpochEvent
from difformer.training.config import TrainConfig
from difformer.training.metrics import find_metric
from difformer.training.record import Row

PARTS = ("train", "valid", "test")
Measured = dict[str, float]


class NonFiniteLossError(ArithmeticError):
    """The training loss became NaN or infinite.

    Args:
        epoch: The first epoch with such a loss.
        loss: What it was.
        config: What was trained.
    """

    def __init__(self, epoch: int, loss: float, config: TrainConfig) -> None:
        self.epoch, self.loss = epoch, loss
        clip = "" if config.gradient_clip else ", gradient_clip=1"
        half = "" if config.precision == "float32" else ", precision=float32"
        super().__init__(
            f"the training loss is {loss} at epoch {epoch}; try a smaller learning_rate (it is "
            f"{config.learning_rate:g}){clip}, warmup=10{half}, and see whether the features are finite and of similar "
            f"scale"
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
    """

    def __init__(
        self, task: Task, split: Split, config: TrainConfig, seed: int, epochs: int, device: torch.device
    ) -> None:
        self.split, self.config, self.seed, self.epochs = split, config, seed, epochs
        self.metric = find_metric(task.metric if config.metric == "auto" else config.metric, task.problem)
        # Metrics are counted in double precision, which Apple's GPUs do not have.
        judge = torch.device("cpu") if device.type == "mps" else device
        self.parts = {name: (index.to(judge), task.y[index].to(judge)) for name, index in split.parts().items()}
        self.metric.check(self.parts["valid"][1], task.num_outputs)
        self.best_epoch = 0
        self.best: Measured | None = None
        self.history: list[Row] = []
        self.pending: list[Tensor] = []  # losses without a row; kept on the device, so that it is not waited for

    def measure(self, outputs: Tensor) -> Measured:
        """The metric of outputs on every part, NaN on one that is empty."""
        outputs = outputs.float().to(self.parts["train"][0].device)
        values = [
            self.metric(outputs[index], targets) if index.numel() else outputs.new_tensor(math.nan)
            for index, targets in self.parts.values()
        ]
        numbers: list[float] = torch.stack([value.to(torch.float64) for value in values]).tolist()
        return dict(zip(PARTS, numbers, strict=True))

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
        for number, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                raise NonFiniteLossError(number, loss, self.config)
        rows: list[Row] = [{"epoch": number, "loss": loss} for number, loss in enumerate(losses, first)]
        rows[-1] |= (measured or {}) | {"seconds": round(seconds, 4)}
        self.pending.clear()
        self.history.extend(rows)
        return rows

    def event(self, epoch: int, seconds: float, measured: Measured) -> EpochEvent:
        """The epoch, as callbacks are told of it."""
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
