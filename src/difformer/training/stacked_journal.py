"""What is known of runs trained as one: `difformer.training.journal` with a leading axis, on the device until the end.

Losses, metrics, the best epoch of every run, its parameters and the count of epochs are tensors that are changed in
place: an epoch that was recorded reads and writes where it did then. A run that is out of patience is marked, and not
touched by what comes after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.training.callbacks import Callback, EpochEvent
from difformer.training.config import TrainConfig
from difformer.training.journal import PARTS, NonFiniteLossError, NonFiniteOutputError
from difformer.training.losses import Loss
from difformer.training.metrics import chosen_metric
from difformer.training.record import Row, RunRecord, Status, warning_signs
from difformer.training.stacked_model import StackedModel

# Metrics without shapes that depend on data, which `vmap` could not take; others go run by run.
AT_ONCE = ("accuracy", "broadcast-mse")
# Metrics that never wait for a value; with the others an evaluation cannot be recorded, and spoils what tries to.
RECORDABLE = (*AT_ONCE, "rocauc")
LOOK_EVERY = {"cpu": 1, "cuda": 16}  # evaluations between two looks at whether all runs have stopped


@dataclass(frozen=True)
class Run:
    """One of the runs: its seed, the number of its split, and the configuration it would have alone."""

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


class StackedJournal:
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
        self, task: Task, runs: Sequence[Run], groups: Sequence[Group], model: StackedModel, device: torch.device
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
        valid, before = measured[1], self.best[1]
        better = valid > before if self.metric.higher_is_better else valid < before
        better |= before.isnan() & ~valid.isnan()
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
            # A run whose validation metric was never a number has no best epoch to count from.
            out = (self.clock - self.best_epoch >= self.config.patience) & (self.best_epoch > 0) & (self.ended == 0)
            self.ended.copy_(torch.where(out, self.clock, self.ended))

    def _metric(self, index: Tensor, targets: Tensor, outputs: Tensor) -> Tensor:
        if not index.numel():
            return outputs.new_full((outputs.shape[0],), math.nan, dtype=torch.float64)
        chosen = outputs[:, index]
        if self.metric.name in AT_ONCE:
            return torch.vmap(lambda run: self.metric(run, targets))(chosen).double()
        return torch.stack([self.metric(run, targets).double() for run in chosen])

    def all_stopped(self) -> bool:
        """Whether no run goes on; to ask means to wait for the device."""
        if self.config.patience is None or len(self.measured_at) % LOOK_EVERY.get(self.device.type, 1):
            return False
        return bool((self.ended > 0).all())

    def tell(self, callbacks: Sequence[Callback], epoch: int, seconds: float) -> None:
        """Tells callbacks of an evaluated epoch of every run that goes on."""
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
        """One a run, in their order; an error in place of a run whose loss did not stay finite.

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
                    notes=(*self.notes, *warning_signs(self.task, self.task.splits[run.split], outputs[i].float())),
                )
            )
        return found
