"""Stacked training: runs that share shapes are trained as one model with a leading axis.

Seeds, splits, learning rates, weight decays, dropout rates, step sizes, graph and source weights may differ between
runs; whatever changes a shape or the order of operations may not. Each run has the initialisation, the dropout masks
and the steps of its own single run, so its result is that of `train_one` up to rounding. A small model leaves a GPU
idle between kernels; a stack of many fills it. On a CPU only tiny states gain (`faster`).

`torch.vmap` runs the model's own code on all runs at once, with hyper-parameters that differ as tensors of one value
per run. Only callbacks and early stopping read from the device, so an epoch is a fixed list of kernels, which a GPU
records (`difformer.training.cuda_graph`): launching it takes longer than executing it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.nn.dropout import dropout_key, dropout_keys
from difformer.training.callbacks import Callback, EpochEvent
from difformer.training.checkpoint import CheckpointError, Due, Snapshot, same_shapes
from difformer.training.config import TrainConfig
from difformer.training.cuda_graph import LARGEST, NotRecordableError, Recorder
from difformer.training.devices import precision, resolve
from difformer.training.early_stopping import improves, out_of_patience
from difformer.training.feeds import ADDED, NodesFeed, Step, make_feed
from difformer.training.journal import AT_ONCE, PARTS, RECORDABLE, Ended, Run, divergence, parts_of
from difformer.training.loop import Save, Stop
from difformer.training.losses import Loss, make_loss
from difformer.training.metrics import chosen_metric
from difformer.training.model import acts_alike, hook, prepared_model
from difformer.training.optimizer import StackedAdam, clip_gradients, learning_rate
from difformer.training.randomness import isolated_rng
from difformer.training.record import Row, RunRecord, Status, warning_signs
from difformer.zoo import find, options_of

# Options of models that a stack may hold several values of: plain attributes that enter a pass as numbers.
HYPER = ("dropout", "step_size", "graph_weight", "source_weight")
RATES = ("learning_rate", "weight_decay")
# Numbers in one run's states, and in its pairs, above which a single run keeps the device busy.
FULL = {"cpu": (2**16, 2**18), "cuda": (2**24, 2**24)}
FEWEST = {"cpu": 8, "cuda": 2}  # runs from which a stack is quicker than one run after the other
LOOK_EVERY = {"cpu": 1, "cuda": 16}  # evaluations between two checks whether all runs have stopped
Tensors = Mapping[str, Tensor]
LAUNCHED = 2  # epochs that a GPU gets kernel by kernel: they fill caches


def train_stacked(
    task: Task,
    runs: Sequence[Run],
    device: str | torch.device = "auto",
    *,
    callbacks: Iterable[Callback] = (),
    stop: Stop | None = None,
    state: Snapshot | None = None,
    save: Save | None = None,
) -> list[Any]:
    """Train runs as one; in halves, quarters, … if a GPU does not have the memory for all of them.

    Args:
        task: What is to be learnt: nodes of one graph, all in every pass, or a series of snapshots.
        runs: Seed, split and configuration of each run; configurations differ only in `RATES` and `HYPER`.
        device, callbacks, stop, state, save: As in `train_one`. Parts that were not started when `stop` returned True
            are not in the result; `save` is called only while all runs are trained together.

    Returns:
        One `RunRecord` per run, in their order; a `NonFiniteLossError` in place of one whose loss did not stay finite.

    Raises:
        CheckpointError: If `state` belongs to other runs.
        UserError: If the runs cannot be stacked, naming what differs.
    """
    place, listeners = resolve(device), tuple(callbacks)
    if not runs:
        return []
    runs, hyper = _checked(task, runs)
    order = sorted(range(len(runs)), key=lambda i: runs[i].split)
    found: dict[int, Ended] = {}

    def train(part: list[int]) -> Status:
        """Trains some of the runs, whose tensors are freed before the next part."""
        trainer, whole = StackTrainer(task, [runs[i] for i in part], hyper, place), part == order
        if state is not None and whole:  # halves start from the first epoch
            trainer.restore(state)
        status = trainer.run(listeners, stop, save if whole else None)
        found.update(zip(part, trainer.records(status), strict=True))
        return status

    with isolated_rng(place):
        waiting, status = [order], "finished"
        while waiting and status == "finished":
            torch.cuda.empty_cache()  # not in the handler, which holds the tensors of the failed attempt
            part = waiting.pop(0)
            try:
                status = train(part)
            except torch.cuda.OutOfMemoryError:
                if len(part) == 1:
                    raise
                waiting[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
    return [found[i] for i in range(len(runs)) if i in found]


def _checked(task: Task, runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Runs with all of `HYPER` in their options, and the names of those options that differ between them."""
    if wrong := [run.split for run in runs if not 0 <= run.split < len(task.splits)]:
        raise UserError(f"split {wrong[0]} of a run: task {task.name!r} has {len(task.splits)} splits")
    config = runs[0].config
    reason = unstackable(task, config, {run.split for run in runs})
    common, *others = ({**one.to_dict(), **one.options, "options": None} for one in (apart(r.config) for r in runs))
    differ = ((name, other.get(name)) for other in others for name in common if other.get(name) != common[name])
    if not reason and (found := next(differ, None)):
        reason = f"{found[0]} is {common[found[0]]!r} in one of them and {found[1]!r} in another"
    if reason:
        raise UserError(f"runs of {config.model!r} on {task.name!r} cannot be trained as one: {reason}")
    known = {name: value for name, value in options_of(config.model).items() if name in HYPER}
    configs = [run.config.replace(options={**known, **run.config.options}) for run in runs]
    names = [name for name in HYPER if len({one.options.get(name) for one in configs}) > 1]
    return [dataclasses.replace(run, config=one) for run, one in zip(runs, configs, strict=True)], names


def unstackable(task: Task, config: TrainConfig, splits: Iterable[int] = (0,)) -> str:
    """Why runs cannot be stacked; empty if they can."""
    batches = task.kind == "nodes" and (config.batch_size or task.num_nodes) < task.num_nodes
    reasons = {
        "the model is not one that can be stacked": not find(config.model).stackable,
        "an adaptive solver takes a different number of steps for each run": config.options.get("method") == "dopri5",
        "batches of graphs differ from seed to seed": task.kind == "graphs",
        "mini-batches differ from seed to seed": batches,
        "runs on a series must share their split": task.kind == "series" and len(set(splits)) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def faster(task: Task, config: TrainConfig, runs: int, device: str | torch.device = "auto") -> bool:
    """Whether a stack of `runs` is likely to be faster than one run after the other; False if it is not possible."""
    kind = resolve(device).type  # mps is not in `FULL`: it has no float64 for the scores
    if kind not in FULL or runs < FEWEST[kind] or unstackable(task, config):
        return False
    info = find(config.model)
    options = {**options_of(config.model), **info.fixed, **config.options}
    pairwise = "N²" in info.cost and options.get("diffusivity") not in ADDED
    rows = task.num_nodes * (task.num_instances if task.kind == "series" else 1)
    states, pairs = FULL[kind]
    return rows * int(options["hidden_channels"]) <= states and (not pairwise or rows * task.num_nodes <= pairs)


def apart(config: TrainConfig) -> TrainConfig:
    """`config` with all that may differ within a stack set to one value: equal for runs that can be stacked.

    A run that mixes the graph in and one that adds it cannot.
    """
    complete: dict[str, Any] = {**options_of(config.model), **config.options}
    options = {name: value for name, value in complete.items() if name not in HYPER}
    if "graph_weight" in complete:
        options["graph_weight"] = None if complete["graph_weight"] is None else 0.5
    return config.replace(options=options, learning_rate=1.0, weight_decay=0.0)


class _WithPenalty(nn.Module):
    """A model that also returns its penalty, so that both see the parameters of their run."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.penalty = model, hook(model, "penalty")

    def forward(self, inputs: Callable[[nn.Module], Tensor]) -> tuple[Tensor, Tensor]:
        outputs = inputs(self.model)
        if self.penalty is None or not torch.is_grad_enabled():  # an evaluation does not use it
            return outputs, outputs.new_zeros(())
        return outputs, self.penalty()


class StackModel:
    """Models of one shape, trained as one; they differ in parameters and in `hyper`, which has one value per run."""

    def __init__(self, models: Sequence[nn.Module], hyper: Mapping[str, Sequence[float]], device: torch.device) -> None:
        parameters, buffers = stack_module_state(list(models))
        trained = {name: value.detach() for name, value in parameters.items() if value.requires_grad}
        self.names = tuple(models[0].state_dict())
        self.shapes = {name: value.shape[1:] for name, value in trained.items()}
        # One row per run: the optimiser, the best epoch and the norm of a gradient are then operations on one matrix.
        self.flat = torch.cat([value.reshape(len(models), -1) for value in trained.values()], 1).to(device)
        others = {n: value.detach().to(device) for n, value in (parameters | buffers).items() if n not in trained}
        self.buffers = {name: value for name, value in others.items() if name in self.names}
        # Not saved and not trained, such as which nodes are labelled: every run has its own, and none is changed.
        self._fixed = {name: value for name, value in others.items() if name not in self.names}
        self._hyper = {name: torch.tensor(values, device=device) for name, values in hyper.items()}
        self._module = _WithPenalty(models[0].to(device))
        self.site = 0  # dropouts since the keys changed: the passes of an epoch share their keys
        # Modules with a plain attribute of a name that differs; during a pass it is a tensor.
        every = [(m, name, vars(m).get(name)) for name in hyper for m in models[0].modules()]
        self._holders = [one for one in every if isinstance(one[2], float | int)]
        if missing := hyper.keys() - {name for _, name, _ in self._holders}:
            raise UserError(f"{min(missing)} differs between the runs, but {type(models[0]).__name__} does not have it")

    def parameters(self, flat: Tensor) -> dict[str, Tensor]:
        """Views ``[runs, …]`` into the rows of ``flat [runs, P]``."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], dim=1)
        return {n: part.view(-1, *shape) for (n, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def outputs(
        self, inputs: Any, parameters: Tensors, buffers: Tensors, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[runs, N, C]`` and penalties ``[runs]`` of one pass; `inputs` calls a model, as `Inputs.outputs`.

        With ``keys [runs, 2]`` of `dropout_keys` it is a pass of training, which may change `buffers`.
        """
        self._module.train(keys is not None)
        whole = {**parameters, **buffers, **self._fixed}
        state = {f"model.{name}": value for name, value in whole.items()}

        def one(state: dict[str, Tensor], hyper: dict[str, Tensor], key: Tensor | None) -> tuple[Tensor, Tensor]:
            for module, name, _ in self._holders:
                setattr(module, name, hyper[name])
            if key is None:
                return functional_call(self._module, state, (inputs,))
            with dropout_key(key, site=self.site) as place:
                found = functional_call(self._module, state, (inputs,))
            self.site = place.site
            return found

        dims = (0, 0, None if keys is None else 0)
        try:
            return torch.vmap(one, in_dims=dims, randomness="different")(state, self._hyper, keys)
        finally:
            for module, name, value in self._holders:
                setattr(module, name, value)


@dataclasses.dataclass(frozen=True)
class Group:
    """Adjacent runs on one split: which, their loss, and indices and targets of each part."""

    runs: slice
    split: Split
    loss: Loss
    parts: dict[str, tuple[Tensor, Tensor]]


class StackJournal:
    """Losses, metrics, best epochs and their parameters of runs trained as one: tensors on the device.

    They are changed in place, so that a recorded epoch reads and writes where it did when it was recorded. A run that
    is out of patience is marked and no longer changes.
    """

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
        state = self.model.parameters(self.best_flat.cpu())
        state |= {name: value.cpu() for name, value in self.best_buffers.items()}
        found: list[Ended] = []
        for i, run in enumerate(self.runs):
            rows: list[Row] = [{"epoch": e, "loss": row[i]} for e, row in enumerate(losses[: ended[i] or None], 1)]
            if (error := divergence(rows, broken[i], run.config)) is not None:
                found.append(error)
                continue
            for at in self.measured_at:
                if at <= len(rows):
                    rows[at - 1] |= {name: values[at - 1][p][i] for p, name in enumerate(PARTS)}
            split = self.task.splits[run.split]
            more: dict[str, Any] = {
                **dict(zip(PARTS, best[i], strict=True)),
                "history": rows,
                "seconds": seconds / len(self.runs),
                "state": {name: state[name][i].clone() for name in self.model.names},
                "outputs": outputs[i].clone(),
                "status": "stopped early" if 0 < ended[i] < self.config.epochs else status,
                "notes": (*self.notes, *warning_signs(self.task, split, outputs[i].float(), self.metric.name)),
            }
            found.append(RunRecord(run.seed, split.name, self.metric.name, best_epoch[i], **more))
        return found


class StackTrainer:
    """Trains runs that differ in seed, split and the hyper-parameters in `hyper`; runs on one split are adjacent."""

    def __init__(self, task: Task, runs: Sequence[Run], hyper: Sequence[str], device: torch.device) -> None:
        self.task, self.runs, self.device = task, runs, device
        self.config = config = runs[0].config
        self._names = [[run.seed, run.split] for run in runs]
        cpu = torch.device("cpu")
        models = [prepared_model(task, task.splits[run.split], run.config, run.seed, cpu) for run in runs]
        alike = all(acts_alike(model) for model in models)
        values = {name: [float(run.config.options[name]) for run in runs] for name in hyper}
        self.model = StackModel(models, values, device)
        self.feed = make_feed(task, task.splits[runs[0].split], config, runs[0].seed, device, models[0])
        self._one_pass = self.feed.whole and alike
        self.groups: list[Group] = []
        for number, members in groupby(range(len(runs)), key=lambda run: runs[run].split):
            own, split = list(members), task.splits[number]
            loss, parts = make_loss(task, split, config, device), parts_of(task, split, device)
            self.groups.append(Group(slice(own[0], own[-1] + 1), split, loss, parts))
        self.keys = dropout_keys([run.seed for run in runs], range(1, config.epochs + 1)).to(device)
        factors = [learning_rate(config, e) / config.learning_rate for e in range(1, config.epochs + 1)]
        rates = torch.tensor([run.config.learning_rate for run in runs], dtype=torch.float64)
        self.rates = (torch.tensor(factors, dtype=torch.float64).unsqueeze(1) * rates).float().to(device)
        self.decays = torch.tensor([run.config.weight_decay for run in runs], dtype=torch.float32, device=device)
        self.optimizer = StackedAdam(self.model.flat, self.decays, config.decoupled)
        self.epoch, self.seconds = 0, 0.0
        self.journal = StackJournal(task, runs, self.groups, self.model, device)
        self._recorder = Recorder(device)
        self._recorded: dict[bool, torch.cuda.CUDAGraph] = {}
        self._launched: set[bool] = set()  # kinds of turns that were launched kernel by kernel
        self._can_record = device.type == "cuda" and isinstance(self.feed, NodesFeed) and task.num_nodes <= LARGEST

    def run(self, callbacks: Sequence[Callback] = (), stop: Stop | None = None, save: Save | None = None) -> Status:
        """Train to the end, or until stopped; `save` gets snapshots to resume from, as often as configured."""
        started, checkpoint = time.perf_counter() - self.seconds, Due(self.config)
        while True:
            # Here the model holds θ_epoch, and every epoch before has been evaluated if that was due.
            last = self.epoch >= self.config.epochs
            due = self.epoch > 0 and (last or self.epoch % self.config.eval_every == 0)
            if not last:
                self._turn(due)
            elif due:
                self.journal.measure(self._evaluate())
            self.seconds = time.perf_counter() - started
            if due:
                self.journal.measured_at.append(self.epoch)
                if callbacks:
                    self.journal.tell(callbacks, self.epoch, self.seconds)
            if last or (due and self.journal.all_stopped()):
                return "finished"
            stopping = stop is not None and stop()
            if save is not None and (stopping or checkpoint(self.epoch + 1)):
                save(self.snapshot(self.epoch + 1))
                checkpoint.done()
            if stopping:
                return "interrupted"
            self.epoch += 1

    def snapshot(self, epoch: int) -> Snapshot:
        """The state of the stack after `epoch` epochs, the last of them not evaluated yet."""
        facts = {"measured_at": self.journal.measured_at, "seconds": self.seconds}
        return Snapshot.copied(self._state(), runs=self._names, epoch=epoch, **facts)

    def restore(self, snapshot: Snapshot) -> None:
        """Continues from a snapshot of the same stack."""
        if snapshot.facts.get("runs") != self._names:
            raise CheckpointError("the checkpoint is of a stack of other runs")
        try:
            state = self._state()
            for name, value in same_shapes(snapshot.tensors, state).items():
                state[name].copy_(value)
            if not 0 <= int(self.journal.clock) <= self.config.epochs:
                raise UserError(f"it is of epoch {int(self.journal.clock)}")
            self.journal.measured_at = [int(epoch) for epoch in snapshot.facts["measured_at"]]
            self.epoch, self.seconds = snapshot.epoch, float(snapshot.facts["seconds"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error

    def _state(self) -> dict[str, Tensor]:
        kept = ("clock", "losses", "measured", "best", "best_epoch", "best_flat", "ended", "broken")
        found = {"flat": self.model.flat} | {f"journal.{name}": getattr(self.journal, name) for name in kept}
        found |= {f"optimizer.{name}": getattr(self.optimizer, name) for name in ("mean", "square", "steps")}
        found |= {f"buffer.{name}": value for name, value in self.model.buffers.items()}
        return found | {f"best_buffer.{name}": value for name, value in self.journal.best_buffers.items()}

    def _turn(self, due: bool) -> None:
        """Epoch `self.epoch` + 1, after an evaluation of the last one if that is due; replayed if possible."""
        graph = self._recorded.get(due)
        # What a recorded turn keeps for later must be there already.
        waits = due and self.journal.metric.name not in RECORDABLE
        if graph is None and self._can_record and self.epoch >= LAUNCHED and due in self._launched and not waits:
            try:
                graph = self._recorded[due] = self._recorder.record(lambda: self._turn_by_kernels(due))
            except NotRecordableError as error:
                self._can_record = False
                self.journal.notes.append(str(error))
        if graph is not None:
            return graph.replay()
        self._turn_by_kernels(due)
        self._launched.add(due)

    def _turn_by_kernels(self, due: bool) -> None:
        known, passed = self.model.parameters(self.model.flat), None
        leaves = {name: value.detach().requires_grad_() for name, value in known.items()}  # in the same memory
        if self._one_pass:
            self.model.site = 0
            passed = self._forward(next(iter(self.feed.steps(self.epoch + 1))), leaves)
        if due:
            self.journal.measure(self._evaluate() if passed is None else passed[0].detach())
        self._train(leaves, passed)
        self.journal.clock += 1

    def _forward(self, step: Step, leaves: Tensors) -> tuple[Tensor, Tensor]:
        keys = self.keys.index_select(0, self.journal.clock)[0]
        with precision(self.device, self.config.precision):
            return self.model.outputs(step.inputs.outputs, leaves, self.model.buffers, keys)

    def _train(self, leaves: Tensors, passed: tuple[Tensor, Tensor] | None) -> None:
        recorded, every = torch.zeros(len(self.runs), device=self.device), list(leaves.values())
        gradients: list[Tensor | None] = [None] * len(every)
        self.model.site = 0
        for step in self.feed.steps(self.epoch + 1):
            outputs, penalty = self._forward(step, leaves) if passed is None else passed
            losses = torch.cat([self._loss(group, step, outputs[group.runs]) for group in self.groups])
            recorded += step.part * losses.detach()
            total = ((losses + penalty) * step.share).sum()  # runs share nothing: its gradient is that of each
            found = torch.autograd.grad(total, every, allow_unused=True)
            gradients = [a if b is None else b if a is None else a + b for a, b in zip(gradients, found, strict=True)]
            if step.update:
                self._update(every, gradients)
                gradients = [None] * len(every)
        self.journal.losses.index_copy_(0, self.journal.clock, recorded.unsqueeze(0))

    def _update(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """One step; parameters that no pass has used, which have no gradient, stay as they are."""
        each = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]
        gradient, used = torch.cat([one.reshape(len(self.runs), -1) for one in each], 1), None
        if any(g is None for g in gradients):
            known = zip(leaves, gradients, strict=True)
            used = torch.cat([torch.full_like(leaf[0], g is not None).reshape(-1) for leaf, g in known])
        if self.config.gradient_clip is not None:
            clip_gradients(gradient, self.config.gradient_clip)
        self.optimizer.step(gradient, self.rates.index_select(0, self.journal.clock)[0], used)

    def _loss(self, group: Group, step: Step, outputs: Tensor) -> Tensor:
        if len(self.groups) > 1:  # only whole graphs, see `unstackable`: each split has its own rows
            index, targets = group.parts["train"]
            step = dataclasses.replace(step, rows=index, targets=targets)
        return torch.vmap(lambda run: group.loss(step.select(run).float(), step.targets))(outputs)

    @torch.no_grad()
    def _evaluate(self, flat: Tensor | None = None, buffers: Tensors | None = None) -> Tensor:
        known = self.model.parameters(self.model.flat if flat is None else flat)
        with precision(self.device, self.config.precision):
            return self.model.outputs(self.feed.outputs, known, buffers or self.model.buffers)[0].float()

    def records(self, status: Status) -> list[Ended]:
        """One per run, in their order."""
        outputs = self._evaluate(self.journal.best_flat, self.journal.best_buffers).cpu()
        return self.journal.records(outputs, self.epoch, status, self.seconds)
