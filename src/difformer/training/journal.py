"""What was measured, epoch by epoch, and the best epoch: the earliest one with the best validation score.

`Journal` is for one run. `StackJournal` is for runs trained as one: losses, metrics, the best epoch of every run, its
parameters and the count of epochs are tensors on the device, which are changed in place, so that a recorded epoch reads
and writes where it did when it was recorded. A run that is out of patience is marked and no longer changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.training.callbacks import Callback, EpochEvent
from difformer.training.config import TrainConfig
from difformer.training.early_stopping import improves, out_of_patience
from difformer.training.losses import Loss
from difformer.training.metrics import ONE_PROCESS, Metric, chosen_metric
from difformer.training.record import Row, RunRecord, Status, warning_signs

if TYPE_CHECKING:
    from difformer.training.loop import Trainer
    from difformer.training.stack import StackModel

PARTS = ("train", "valid", "test")
Measured = dict[str, float]
NOTHING: Measured = dict.fromkeys(PARTS, math.nan)
AT_ONCE = ("accuracy", "broadcast-mse")  # metrics that `vmap` can take: no shape depends on data
RECORDABLE = (*AT_ONCE, "rocauc")  # metrics that never wait for a value, so that an evaluation can be recorded
LOOK_EVERY = {"cpu": 1, "cuda": 16}  # evaluations between two checks whether all runs have stopped


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
    """Losses, metrics and the best epoch of one run; `metric` chooses that epoch on validation."""

    def __init__(self, trainer: Trainer, metric: Metric) -> None:
        self.metric, self.split, self.config = metric, trainer.split, trainer.config
        self.seed, self.epochs = trainer.seed, trainer.epochs  # the trainer itself would never be freed
        # Metrics are counted in double precision, which Apple's GPUs do not have.
        self.place = torch.device("cpu") if trainer.device.type == "mps" else trainer.device
        self.parts = parts_of(trainer.task, self.split, self.place)
        self.losses_of, self.rows_of = trainer.ranks, trainer.ranks if trainer.spread else ONE_PROCESS
        self.chooses = metric.check(self.parts["valid"][1], trainer.task.num_outputs, self.rows_of)
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
        return EpochEvent(self.seed, self.split.name, epoch, self.epochs, self.history[-1]["loss"], *numbers)

    def record(self, **more: Any) -> RunRecord:
        """The run as a record."""
        return _record(self.seed, self.split, self.metric, self.best_epoch, self.best, self.history, **more)


def _record(
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


@dataclass(frozen=True)
class Group:
    """Adjacent runs on one split: which, their loss, and indices and targets of each part."""

    runs: slice
    split: Split
    loss: Loss
    parts: dict[str, tuple[Tensor, Tensor]]


class StackJournal:
    """Losses, metrics and best epochs of runs trained as one, on the device."""

    def __init__(
        self, task: Task, runs: Sequence[Run], groups: Sequence[Group], model: StackModel, device: torch.device
    ) -> None:
        self.task, self.runs, self.groups, self.model, self.device = task, runs, groups, model, device
        self.config = config = runs[0].config
        self.metric = chosen_metric(config, task)
        self.notes: list[str] = []  # about all runs
        for group in groups:
            self.metric.check(group.parts["valid"][1], task.num_outputs)
        count = len(runs)
        self.clock = torch.zeros(1, dtype=torch.long, device=device)  # epochs that are finished
        self.losses = torch.full((config.epochs, count), math.nan, device=device)
        self.measured = torch.full((config.epochs, 3, count), math.nan, dtype=torch.float64, device=device)
        self.measured_at: list[int] = []
        self.best = torch.full((3, count), math.nan, dtype=torch.float64, device=device)
        self.best_epoch = torch.zeros(count, dtype=torch.long, device=device)
        self.best_flat = model.flat.clone()  # [runs, P] parameters of every run's best epoch
        self.best_buffers = {name: value.clone() for name, value in model.buffers.items()}
        self.ended = torch.zeros_like(self.best_epoch)  # epoch after which a run stopped early; 0 while it trains
        self.broken = torch.zeros_like(self.best_epoch)  # first epoch with outputs that are not finite; 0 if none

    @torch.no_grad()
    def measure(self, outputs: Tensor) -> None:
        """Measures the outputs of an epoch; keeps the parameters of runs that are best on validation so far."""
        metrics, whole = [], []
        for group in self.groups:
            own, parts = outputs[group.runs].float(), group.parts.values()
            metrics.append(torch.stack([self._metric(*part, own) for part in parts]))
            whole.append(torch.stack([own[:, index].flatten(1).isfinite().all(1) for index, _ in parts]).all(0))
        measured, finite = torch.cat(metrics, 1), torch.cat(whole)
        self.broken.copy_(torch.where(~finite & (self.broken == 0) & (self.ended == 0), self.clock, self.broken))
        better = improves(measured[1], self.best[1], self.metric.higher_is_better)
        for group in self.groups:
            if not group.split.valid.numel():  # nothing to choose by: the last epoch is kept
                better[group.runs] = True
        better &= self.ended == 0
        self.measured.index_copy_(0, self.clock - 1, measured.unsqueeze(0))
        self.best.copy_(torch.where(better, measured, self.best))
        self.best_epoch.copy_(torch.where(better, self.clock, self.best_epoch))
        torch.where(better.unsqueeze(1), self.model.flat, self.best_flat, out=self.best_flat)
        for name, value in self.model.buffers.items():
            keep = better.view(-1, *[1] * (value.dim() - 1))
            self.best_buffers[name].copy_(torch.where(keep, value, self.best_buffers[name]))
        if self.config.patience is not None:
            out = out_of_patience(self.clock, self.best_epoch, self.config.patience) & (self.ended == 0)
            self.ended.copy_(torch.where(out, self.clock, self.ended))

    def _metric(self, index: Tensor, targets: Tensor, outputs: Tensor) -> Tensor:
        chosen = outputs[:, index]
        if self.metric.name in AT_ONCE and index.numel():
            return torch.vmap(lambda run: self.metric(run, targets))(chosen).double()
        return torch.stack([self.metric(run, targets).double() for run in chosen])

    def all_stopped(self) -> bool:
        """Whether all runs have stopped; this waits for the device."""
        if self.config.patience is None or len(self.measured_at) % LOOK_EVERY.get(self.device.type, 1):
            return False
        return bool((self.ended > 0).all())

    def tell(self, callbacks: Sequence[Callback], epoch: int, seconds: float) -> None:
        """Calls callbacks with an evaluated epoch of every run that has not stopped."""
        measured, best = self.measured[epoch - 1].T.tolist(), self.best.T.tolist()
        epochs, losses, ended = self.best_epoch.tolist(), self.losses[epoch - 1].tolist(), self.ended.tolist()
        for i, run in enumerate(self.runs):
            if 0 < ended[i] < epoch:
                continue
            numbers = (losses[i], *measured[i], seconds, epochs[i], *best[i][1:])
            event = EpochEvent(run.seed, self.task.splits[run.split].name, epoch, self.config.epochs, *numbers)
            for callback in callbacks:
                callback.on_epoch(event)

    def records(self, outputs: Tensor, epoch: int, status: Status, seconds: float) -> list[Ended]:
        """One per run, in their order; an error in place of a run whose loss did not stay finite.

        ``outputs [runs, …]`` are those of every run's best epoch, on the CPU; `status` is that of runs that did not
        stop early, `seconds` what all runs took together.
        """
        losses, ended, broken = self.losses[:epoch].tolist(), self.ended.tolist(), self.broken.tolist()
        values, best, best_epoch = self.measured.tolist(), self.best.T.tolist(), self.best_epoch.tolist()
        flat, buffers = self.best_flat.cpu(), {name: value.cpu() for name, value in self.best_buffers.items()}
        found: list[Ended] = []
        for i, run in enumerate(self.runs):
            rows: list[Row] = [{"epoch": e, "loss": row[i]} for e, row in enumerate(losses[: ended[i] or None], 1)]
            if (error := divergence(rows, broken[i], run.config)) is not None:
                found.append(error)
                continue
            for at in self.measured_at:
                if at <= len(rows):
                    rows[at - 1] |= {name: values[at - 1][p][i] for p, name in enumerate(PARTS)}
            split, scores = self.task.splits[run.split], dict(zip(PARTS, best[i], strict=True))
            more: dict[str, Any] = {
                "seconds": seconds / len(self.runs),
                "state": self.model.state_of(i, flat, buffers),
                "outputs": outputs[i].clone(),
                "status": "stopped early" if 0 < ended[i] < self.config.epochs else status,
                "notes": (*self.notes, *warning_signs(self.task, split, outputs[i].float(), self.metric.name)),
            }
            found.append(_record(run.seed, split, self.metric, best_epoch[i], scores, rows, **more))
        return found
