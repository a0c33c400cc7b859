"""What was measured, epoch by epoch, and the best epoch: the earliest one with the best validation score.

`Journal` is that of one run. `StackJournal` is that of runs trained as one, with a leading axis: losses, metrics, the
best epoch of every run, its parameters and the count of epochs are tensors on the device that are changed in place, so
that a recorded epoch reads and writes where it did when it was recorded. A run that is out of patience is marked, and
not changed by what comes after.
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
from difformer.training.callbacks import Callback, EpochEvent
from difformer.training.config import TrainConfig
from difformer.training.early_stopping import improves, out_of_patience
from difformer.training.losses import Loss
from difformer.training.metrics import Metric, chosen_metric
from difformer.training.record import Row, RunRecord, Status, warning_signs
from difformer.training.stack_model import StackModel

PARTS = ("train", "valid", "test")
Measured = dict[str, float]
# Metrics without shapes that depend on data, which `vmap` could not take; others go run by run.
AT_ONCE = ("accuracy", "broadcast-mse")
# Metrics that never wait for a value; with the others an evaluation cannot be recorded, and spoils what tries to.
RECORDABLE = (*AT_ONCE, "rocauc")
LOOK_EVERY = {"cpu": 1, "cuda": 16}  # evaluations between two looks at whether all runs have stopped


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
        metric: Chooses the epoch, on validation.
        task: Whose targets.
        split: Whose parts.
        config: What is trained.
        seed: Of the run.
        epochs: Epochs at most.
        device: Where outputs are.
    """

    def __init__(
        self,
        metric: Metric,
        task: Task,
        split: Split,
        config: TrainConfig,
        seed: int,
        epochs: int,
        device: torch.device,
    ) -> None:
        self.metric, self.split, self.config, self.seed, self.epochs = metric, split, config, seed, epochs
        # Metrics are counted in double precision, which Apple's GPUs do not have.
        self.place = place = torch.device("cpu") if device.type == "mps" else device
        self.parts = {name: (index.to(place), task.y[index].to(place)) for name, index in split.parts().items()}
        self.chooses = self._check(task.num_outputs)
        self.best_epoch = 0
        self.best: Measured | None = None
        self.history: list[Row] = []
        self.pending: list[Tensor] = []  # losses without a row; kept on the device, so that it is not waited for

    def _check(self, num_outputs: int) -> bool:
        """Whether there is a validation part to choose the epoch by; refuses one that no output is measured by."""
        self.metric.check(self.parts["valid"][1], num_outputs)
        return bool(self.split.valid.numel())

    def measure(self, epoch: int, outputs: Tensor) -> Measured:
        """The metric of an epoch's outputs on every part, NaN on one that is empty.

        Raises:
            NonFiniteOutputError: If an output that is measured is NaN or infinite.
        """
        outputs = outputs.float().to(self.place)
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
        if self.chooses and not self.metric.better(measured["valid"], known):
            return False
        self.best_epoch, self.best = epoch, measured
        return True

    def out_of_patience(self, epoch: int) -> bool:
        """Whether `patience` epochs have gone by since the best one; asked and answered at evaluated epochs."""
        asked = epoch % self.config.eval_every == 0
        return asked and bool(out_of_patience(epoch, self.best_epoch, self.config.patience))

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


@dataclass(frozen=True)
class Run:
    """One run of a stack: its seed, the number of its split, and the configuration it would have alone."""

    seed: int
    split: int
    config: TrainConfig


@dataclass(frozen=True)
class Group:
    """Neighbouring runs on one split: which, their loss, and indices and targets of each part."""

    runs: slice
    split: Split
    loss: Loss
    parts: dict[str, tuple[Tensor, Tensor]]


class StackJournal:
    """Scores of runs that share everything but seed, split and some hyper-parameters.

    Args:
        task: What is to be learnt.
        runs: The runs.
        groups: The same runs by split.
        model: Whose parameters are kept where a run is best.
        device: Where all of it lives.

    Attributes:
        clock: ``[1]`` epochs that are finished, for the device.
        best_flat: ``[runs, P]`` parameters of every run's best epoch.
        best_buffers: The buffers of that epoch.
        ended: ``[runs]`` epoch after which a run stopped early; 0 while it is training.
        broken: ``[runs]`` first epoch with outputs that are not finite; 0 where there is none.
        notes: What holds for all runs of the stack.
    """

    def __init__(
        self, task: Task, runs: Sequence[Run], groups: Sequence[Group], model: StackModel, device: torch.device
    ) -> None:
        self.task, self.runs, self.groups, self.model, self.device = task, runs, groups, model, device
        self.config = config = runs[0].config
        self.metric = chosen_metric(config, task)
        self.notes: list[str] = []
        for group in groups:
            self.metric.check(group.parts["valid"][1], task.num_outputs)
        count = len(runs)
        self.clock = torch.zeros(1, dtype=torch.long, device=device)
        self.losses = torch.full((config.epochs, count), math.nan, device=device)
        self.measured = torch.full((config.epochs, 3, count), math.nan, dtype=torch.float64, device=device)
        self.measured_at: list[int] = []
        self.best = torch.full((3, count), math.nan, dtype=torch.float64, device=device)
        self.best_epoch = torch.zeros(count, dtype=torch.long, device=device)
        self.best_flat = model.flat.clone()
        self.best_buffers = {name: value.clone() for name, value in model.buffers.items()}
        self.ended = torch.zeros_like(self.best_epoch)
        self.broken = torch.zeros_like(self.best_epoch)

    @torch.no_grad()
    def measure(self, outputs: Tensor) -> None:
        """Metrics ``[3, runs]`` of the epoch; keeps the parameters of runs that are best on validation so far."""
        outputs = outputs.float()
        measured = torch.stack(
            [torch.cat([self._metric(*g.parts[name], outputs[g.runs]) for g in self.groups]) for name in PARTS]
        )
        finite = torch.cat(
            [
                torch.stack([outputs[g.runs][:, index].flatten(1).isfinite().all(1) for index, _ in g.parts.values()])
                for g in self.groups
            ],
            1,
        ).all(0)
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
        if not index.numel():
            return outputs.new_full((outputs.shape[0],), math.nan, dtype=torch.float64)
        chosen = outputs[:, index]
        if self.metric.name in AT_ONCE:
            return torch.vmap(lambda run: self.metric(run, targets))(chosen).double()
        return torch.stack([self.metric(run, targets).double() for run in chosen])

    def all_stopped(self) -> bool:
        """Whether all runs have stopped; asking waits for the device."""
        if self.config.patience is None or len(self.measured_at) % LOOK_EVERY.get(self.device.type, 1):
            return False
        return bool((self.ended > 0).all())

    def tell(self, callbacks: Sequence[Callback], epoch: int, seconds: float) -> None:
        """Calls callbacks with an evaluated epoch of every run that has not stopped."""
        measured, best = self.measured[epoch - 1].tolist(), self.best.tolist()
        epochs, losses, ended = self.best_epoch.tolist(), self.losses[epoch - 1].tolist(), self.ended.tolist()
        for i, run in enumerate(self.runs):
            if 0 < ended[i] < epoch:
                continue
            event = EpochEvent(
                run.seed, self.task.splits[run.split].name, epoch, self.config.epochs, losses[i],
                measured[0][i], measured[1][i], measured[2][i], seconds, epochs[i], best[1][i], best[2][i],
            )  # fmt: skip
            for callback in callbacks:
                callback.on_epoch(event)

    def records(
        self, outputs: Tensor, epoch: int, status: Status, seconds: float
    ) -> list[RunRecord | NonFiniteLossError]:
        """One per run, in their order; an error in place of a run whose loss did not stay finite.

        Args:
            outputs: ``[runs, …]`` of every run's best epoch, on the CPU.
            epoch: Epochs that were trained.
            status: Of runs that did not stop early.
            seconds: That all runs took together.
        """
        losses, ended, broken = self.losses[:epoch].tolist(), self.ended.tolist(), self.broken.tolist()
        values = self.measured.tolist()
        measured = {at: values[at - 1] for at in self.measured_at}
        best, best_epoch, flat = self.best.tolist(), self.best_epoch.tolist(), self.best_flat.cpu()
        buffers = {name: value.cpu() for name, value in self.best_buffers.items()}
        found: list[RunRecord | NonFiniteLossError] = []
        for i, run in enumerate(self.runs):
            rows: list[Row] = [{"epoch": e, "loss": row[i]} for e, row in enumerate(losses[: ended[i] or None], 1)]
            bad = next((row for row in rows if not math.isfinite(row["loss"])), None)
            if bad is not None and not 0 < broken[i] < bad["epoch"]:
                found.append(NonFiniteLossError(bad["epoch"], bad["loss"], run.config))
                continue
            if broken[i]:
                found.append(NonFiniteOutputError(broken[i], run.config))
                continue
            for row in rows:
                if row["epoch"] in measured:
                    row |= {name: measured[row["epoch"]][p][i] for p, name in enumerate(PARTS)}
            found.append(
                RunRecord(
                    seed=run.seed,
                    split=self.task.splits[run.split].name,
                    metric=self.metric.name,
                    best_epoch=best_epoch[i],
                    train=best[0][i],
                    valid=best[1][i],
                    test=best[2][i],
                    loss=rows[-1]["loss"] if rows else math.nan,
                    history=rows,
                    seconds=seconds / len(self.runs),
                    state=self.model.state_of(i, flat, buffers),
                    outputs=outputs[i].clone(),
                    status="stopped early" if 0 < ended[i] < self.config.epochs else status,
                    notes=(*self.notes, *self._warnings(run.split, outputs[i].float())),
                )
            )
        return found

    def _warnings(self, split: int, outputs: Tensor) -> list[str]:
        return warning_signs(self.task, self.task.splits[split], outputs, self.metric.name)
