"""The loop of `difformer.training.loop` for runs trained as one: same epochs, same evaluations, same best epoch.

Nothing is asked of the device while it works: losses, metrics, the best parameters of every run and the count of epochs
stay there until the end; callbacks have to look at every evaluation, early stopping looks now and then, and a run that
had stopped by then is not touched by what came after. So an epoch is a list of kernels that never changes, and a GPU
gets it recorded, as one (`difformer.training.captured`): `vmap` takes longer to write that list than a GPU to work it
off.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.nn.dropout import dropout_keys
from difformer.training.building import build_model, hook, learning_rate
from difformer.training.callbacks import Callback, EpochEvent
from difformer.training.captured import LARGEST, Recorder
from difformer.training.config import TrainConfig
from difformer.training.feeding import NodesFeed, Step, make_feed
from difformer.training.journal import PARTS, NonFiniteLossError
from difformer.training.losses import Loss, make_loss
from difformer.training.metrics import find_metric
from difformer.training.record import Row, RunRecord, Status
from difformer.training.stacked_adam import StackedAdam, clip_gradients
from difformer.training.stacked_memory import PARAMETER_COPIES, saved_bytes
from difformer.training.stacked_model import StackedModel

# Metrics without shapes that depend on data, which `vmap` could not take; others go run by run.
AT_ONCE = ("accuracy", "broadcast-mse")
# Metrics that never wait for a value; with the others an evaluation cannot be recorded, and spoils what tries to.
RECORDABLE = (*AT_ONCE, "rocauc")
LOOK_EVERY = {"cpu": 1, "cuda": 16}  # evaluations between two looks at whether all runs have stopped
LAUNCHED = 2  # epochs that a GPU gets kernel by kernel: they fill caches and make the optimiser


@dataclass(frozen=True)
class Run:
    """One of the runs: its seed, the number of its split, and the configuration it would have alone."""

    seed: int
    split: int
    config: TrainConfig


@dataclass(frozen=True)
class _Group:
    """Neighbouring runs on one split."""

    runs: slice
    split: Split
    loss: Loss
    parts: dict[str, tuple[Tensor, Tensor]]


class StackedTrainer:
    """Runs that share everything but seed, split and the hyper-parameters in `hyper`.

    Args:
        task: What is to be learnt.
        runs: The runs, those on one split next to each other.
        hyper: Names of model options that differ.
        device: Where to train.
    """

    def __init__(self, task: Task, runs: Sequence[Run], hyper: Sequence[str], device: torch.device) -> None:
        self.task, self.runs, self.device = task, runs, device
        self.config = config = runs[0].config
        self.metric = find_metric(task.metric if config.metric == "auto" else config.metric, task.problem)
        models = []
        for run in runs:
            torch.manual_seed(run.seed)
            models.append(build_model(task, run.config))
            if (observe := hook(models[-1], "observe")) is not None:
                observe(task.y, task.splits[run.split].train)
        values = {name: [float(run.config.options[name]) for run in runs] for name in hyper}
        self.model = StackedModel(models, values, device, hook(models[0], "penalty"))
        self.feed = make_feed(task, task.splits[runs[0].split], config, runs[0].seed, device, models[0])
        self.groups = self._groups()
        self.keys = dropout_keys([run.seed for run in runs], range(1, config.epochs + 1)).to(device)
        factors = [learning_rate(config, e) / config.learning_rate for e in range(1, config.epochs + 1)]
        rates = torch.tensor([run.config.learning_rate for run in runs], dtype=torch.float64)
        self.rates = (torch.tensor(factors, dtype=torch.float64).unsqueeze(1) * rates).float().to(device)
        self.decays = torch.tensor([run.config.weight_decay for run in runs], dtype=torch.float32, device=device)
        self.optimizer: StackedAdam | None = None  # made at the first gradient, which says what is trained
        count = len(runs)
        self.epoch = 0
        self.clock = torch.zeros(1, dtype=torch.long, device=device)  # the same number, for the device
        self.losses = torch.full((config.epochs, count), math.nan, device=device)
        self.measured = torch.full((config.epochs, 3, count), math.nan, dtype=torch.float64, device=device)
        self.measured_at: list[int] = []
        self.best = torch.full((3, count), math.nan, dtype=torch.float64, device=device)
        self.best_epoch = torch.zeros(count, dtype=torch.long, device=device)
        self.best_flat = self.model.flat.clone()
        self.best_buffers = {name: value.clone() for name, value in self.model.buffers.items()}
        self.ended = torch.zeros_like(self.best_epoch)  # epoch after which a run stopped early; 0 while it goes on
        self._one_pass = self.feed.whole and self._modes_agree()
        self._recorder = Recorder(device)
        self._recorded: dict[bool, torch.cuda.CUDAGraph] = {}
        self._launched: set[bool] = set()  # kinds of turns that a device has had kernel by kernel
        self._can_record = device.type == "cuda" and isinstance(self.feed, NodesFeed) and task.num_nodes <= LARGEST

    def _groups(self) -> list[_Group]:
        groups, start = [], 0
        for end in range(1, len(self.runs) + 1):
            if end < len(self.runs) and self.runs[end].split == self.runs[start].split:
                continue
            split = self.task.splits[self.runs[start].split]
            parts = {n: (i.to(self.device), self.task.y[i].to(self.device)) for n, i in split.parts().items()}
            self.metric.check(parts["valid"][1], self.task.num_outputs)
            loss = make_loss(self.task, split, self.config, self.device)
            groups.append(_Group(slice(start, end), split, loss, parts))
            start = end
        return groups

    def memory(self) -> int:
        """Bytes of one run, from a pass of this stack in training mode."""
        step = next(iter(self.feed.steps(1)))
        leaves = self.model.leaves()
        saved = saved_bytes(lambda: self._forward(step, leaves))
        return saved // len(self.runs) + PARAMETER_COPIES * self.model.flat[0].nbytes

    def run(self, callbacks: Sequence[Callback] = (), stop: Callable[[], bool] | None = None) -> Status:
        """Train to the end, or until stopped."""
        started = time.perf_counter()
        while True:
            # Here the model holds θ_epoch, and every epoch before has been evaluated where that was due.
            last = self.epoch >= self.config.epochs
            due = self.epoch > 0 and (last or self.epoch % self.config.eval_every == 0)
            if not last:
                self._turn(due)
            elif due:
                self._measure(self._evaluate())
            if due:
                self.measured_at.append(self.epoch)
                if callbacks:
                    self._tell(callbacks, time.perf_counter() - started)
            if last or (due and self._all_stopped()):
                return "finished"
            if stop is not None and stop():
                return "interrupted"
            self.epoch += 1

    def _turn(self, due: bool) -> None:
        """Epoch `self.epoch` + 1, after an evaluation of the last one where that is due; a replay where possible."""
        graph = self._recorded.get(due)
        if graph is None and self._may_record(due):
            graph = self._recorder.record(lambda: self._turn_by_kernels(due))
            self._can_record = graph is not None
        if graph is not None:
            self._recorded[due] = graph
            graph.replay()
        else:
            self._turn_by_kernels(due)
            self._launched.add(due)

    def _may_record(self, due: bool) -> bool:
        """Whether a turn of this kind can be recorded now: what it keeps for later must be there already."""
        waits = due and self.metric.name not in RECORDABLE
        return self._can_record and self.epoch >= LAUNCHED and due in self._launched and not waits

    def _turn_by_kernels(self, due: bool) -> None:
        leaves = self.model.leaves()
        passed = self._first_pass(leaves) if self._one_pass else None
        if due:
            self._measure(self._evaluate() if passed is None else passed[0].detach())
        self._train(leaves, passed)
        self.clock += 1

    def _forward(self, step: Step, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        keys = self.keys.index_select(0, self.clock)[0]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return self.model.outputs(step.inputs.outputs, leaves, keys=keys)

    def _first_pass(self, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        self.model.site = 0
        return self._forward(next(iter(self.feed.steps(self.epoch + 1))), leaves)

    def _train(self, leaves: dict[str, Tensor], passed: tuple[Tensor, Tensor] | None) -> None:
        recorded = torch.zeros(len(self.runs), device=self.device)
        gradient: Tensor | None = None
        self.model.site = 0
        for step in self.feed.steps(self.epoch + 1):
            outputs, penalty = self._forward(step, leaves) if passed is None else passed
            losses = torch.cat([self._loss(group, step, outputs[group.runs]) for group in self.groups])
            recorded += step.part * losses.detach()
            total = ((losses + penalty) * step.share).sum()  # runs share nothing: its gradient is that of each
            parts = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            flat = self._join(leaves, parts)
            gradient = flat if gradient is None else gradient.add_(flat)
            if step.update:
                if self.config.gradient_clip is not None:
                    clip_gradients(gradient, self.config.gradient_clip)
                assert self.optimizer is not None
                self.optimizer.step(gradient, self.rates.index_select(0, self.clock)[0])
                gradient = None
        self.losses.index_copy_(0, self.clock, recorded.unsqueeze(0))

    def _loss(self, group: _Group, step: Step, outputs: Tensor) -> Tensor:
        if len(self.groups) > 1:  # whole graphs alone, see `train_stacked`: each split has its own rows
            index, targets = group.parts["train"]
            step = dataclasses.replace(step, rows=index, targets=targets)
        return torch.vmap(lambda run: group.loss(step.select(run).float(), step.targets))(outputs)

    def _join(self, leaves: dict[str, Tensor], parts: Sequence[Tensor | None]) -> Tensor:
        """Gradients as rows ``[runs, P]``."""
        if self.optimizer is None:
            columns = None
            if any(part is None for part in parts):
                pairs = zip(leaves.values(), parts, strict=True)
                columns = torch.cat([torch.full_like(leaf[0].reshape(-1), part is not None) for leaf, part in pairs])
            decoupled = self.config.decoupled
            self.optimizer = StackedAdam(self.model.flat, self.decays, decoupled=decoupled, columns=columns)
        pairs = zip(leaves.values(), parts, strict=True)
        return torch.cat(
            [(torch.zeros_like(leaf) if part is None else part).reshape(len(self.runs), -1) for leaf, part in pairs], 1
        )

    @torch.no_grad()
    def _evaluate(self, flat: Tensor | None = None, buffers: dict[str, Tensor] | None = None) -> Tensor:
        parameters = self.model.parameters(self.model.flat if flat is None else flat)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return self.model.outputs(self.feed.outputs, parameters, buffers)[0].float()

    @torch.no_grad()
    def _measure(self, outputs: Tensor) -> None:
        """Metrics ``[3, runs]`` of the epoch; keeps the parameters of runs that are best on validation so far."""
        outputs = outputs.float()
        measured = torch.stack(
            [torch.cat([self._metric(*g.parts[name], outputs[g.runs]) for g in self.groups]) for name in PARTS]
        )
        valid, before = measured[1], self.best[1]
        better = valid > before if self.metric.higher_is_better else valid < before
        better |= before.isnan() & ~valid.isnan()
        for group in self.groups:
            if not group.split.valid.numel():  # nothing to choose by: the last epoch is kept
                better[group.runs] = True
        better &= self.ended == 0
        self.measured.index_copy_(0, self.clock - 1, measured.unsqueeze(0))
        # In place, all of it: a recorded epoch reads and writes where it did when it was recorded.
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

    def _all_stopped(self) -> bool:
        """Whether no run goes on; to ask means to wait for the device."""
        if self.config.patience is None or len(self.measured_at) % LOOK_EVERY.get(self.device.type, 1):
            return False
        return bool((self.ended > 0).all())

    def _modes_agree(self) -> bool:
        """Whether a pass in training mode is one in evaluation mode: the same numbers, and nothing kept."""
        if any(run.config.options.get("dropout") for run in self.runs):
            return False
        before = {name: value.clone() for name, value in self.model.buffers.items()}
        with torch.no_grad():
            training = self._first_pass(self.model.leaves())[0].float()
            changed = any(not torch.equal(before[name], value) for name, value in self.model.buffers.items())
            self.model.buffers = before
            return not changed and bool(torch.allclose(training, self._evaluate(), rtol=1e-4, atol=1e-5))

    def _tell(self, callbacks: Sequence[Callback], seconds: float) -> None:
        measured, best = self.measured[self.epoch - 1].tolist(), self.best.tolist()
        epochs, losses, ended = self.best_epoch.tolist(), self.losses[self.epoch - 1].tolist(), self.ended.tolist()
        for i, run in enumerate(self.runs):
            if 0 < ended[i] < self.epoch:
                continue
            event = EpochEvent(
                run.seed, self.task.splits[run.split].name, self.epoch, self.config.epochs, losses[i],
                measured[0][i], measured[1][i], measured[2][i], seconds, epochs[i], best[1][i], best[2][i],
            )  # fmt: skip
            for callback in callbacks:
                callback.on_epoch(event)

    def records(self, status: Status, seconds: float) -> list[RunRecord | NonFiniteLossError]:
        """One a run, in their order; an error in place of a run whose loss did not stay finite."""
        outputs = self._evaluate(self.best_flat, self.best_buffers).cpu()
        losses, ended = self.losses[: self.epoch].tolist(), self.ended.tolist()
        values = self.measured.tolist()
        measured = {epoch: values[epoch - 1] for epoch in self.measured_at}
        best, best_epoch, flat = self.best.tolist(), self.best_epoch.tolist(), self.best_flat.cpu()
        buffers = {name: value.cpu() for name, value in self.best_buffers.items()}
        found: list[RunRecord | NonFiniteLossError] = []
        for i, run in enumerate(self.runs):
            rows: list[Row] = [{"epoch": e, "loss": row[i]} for e, row in enumerate(losses[: ended[i] or None], 1)]
            bad = next((row for row in rows if not math.isfinite(row["loss"])), None)
            if bad is not None:
                found.append(NonFiniteLossError(bad["epoch"], bad["loss"], run.config))
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
                )
            )
        return found
