"""The training loop: one for every kind of task, every model and every device.

Epoch e steps the parameters θ_{e-1} → θ_e along the gradient of the training loss; the evaluation of epoch e measures
θ_e on all three parts from one forward pass. If a forward pass in training is the same as in evaluation (no dropout, no
batch statistics, see `acts_alike`), the pass from which epoch e + 1 takes its gradient is the evaluation of θ_e, and an
epoch costs one forward and one backward pass in all.

Initialisation, dropout and batches follow from seed and epoch (`difformer.training.randomness`): on one CPU, with one
number of threads and one version of torch, results of a seed are bit-identical, also when the run is resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.data.split import current_name
from difformer.nn.dropout import dropout_key
from difformer.training.callbacks import Callback, EpochEvent
from difformer.training.checkpoint import CheckpointError, Due, Snapshot, same_shapes
from difformer.training.config import TrainConfig
from difformer.training.cuda_graph import LARGEST, NotRecordableError, RecordedEpoch
from difformer.training.devices import precision, resolve
from difformer.training.early_stopping import improves, out_of_patience
from difformer.training.feeds import Feed, NodesFeed, Step, make_feed
from difformer.training.journal import NOTHING, PARTS, Measured, NonFiniteLossError, divergence, parts_of
from difformer.training.losses import Loss, make_loss
from difformer.training.metrics import ONE_PROCESS, Metric, chosen_metric
from difformer.training.model import acts_alike, hook, prepared_model
from difformer.training.optimizer import learning_rate, make_optimizer
from difformer.training.randomness import isolated_rng, rng_state, set_rng_state
from difformer.training.record import Row, RunRecord, Status, warning_signs
from difformer.zoo import find

Log = Callable[[list[Row]], None]
Save = Callable[[Snapshot], None]
Stop = Callable[[], bool]


def train_one(
    task: Task,
    split: Split | int,
    config: TrainConfig,
    seed: int = 0,
    device: str | torch.device = "auto",
    *,
    state: Snapshot | None = None,
    callbacks: Iterable[Callback] = (),
    log: Log | None = None,
    save: Save | None = None,
    stop: Stop | None = None,
) -> RunRecord:
    """Train one model from one seed on one split.

    Args:
        task: What is to be learnt.
        split: The split, or its number in the task.
        config: Model and training.
        seed: Seed of all random choices.
        device: See `difformer.training.devices.resolve`.
        state: A snapshot to resume from.
        callbacks: Called after every evaluated epoch.
        log: Called with the rows of new epochs, each row once.
        save: Called with a snapshot to resume from, as often as configured.
        stop: Called after every epoch; once it returns True the run ends as ``"interrupted"``, after one last `save`.

    Raises:
        NonFiniteLossError: If the loss, or an output in an evaluation, becomes NaN or infinite.
        UserError: If task, model and configuration are incompatible.
    """
    chosen, place = task.splits[split] if isinstance(split, int) else split, resolve(device)
    make = partial(Trainer, task, chosen, config, seed, place)
    return train(make, seed, place, state=state, callbacks=tuple(callbacks), log=log, save=save, stop=stop)


def train(
    make: Callable[[], Trainer], seed: int, device: torch.device, *, state: Snapshot | None = None, **given: Any
) -> RunRecord:
    """Make a trainer, and run it from a state or from its beginning; nothing outside is disturbed."""
    with isolated_rng(device, seed):
        trainer = make()
        if state is not None:
            trainer.restore(state)
        return trainer.run(**given)


class Journal:
    """Losses, metrics and the best epoch of one run: the earliest with the best validation score by `metric`."""

    def __init__(self, trainer: Trainer, metric: Metric) -> None:
        self.metric, self.split, self.config, self.seed = metric, trainer.split, trainer.config, trainer.seed
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
            raise divergence(self._new_rows(epoch), epoch, self.config) or NonFiniteLossError(epoch, None, self.config)
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

    def write(self, epoch: int, seconds: float, measured: Measured | None = None) -> list[Row]:
        """Adds the missing rows up to `epoch`; the last one holds the measurements."""
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


class Trainer:
    """A model, its optimiser, and the state of their training.

    Args:
        task, split, config, seed, device: As in `train_one`.
        model: Trained in place of the configuration's model; already on the device.
        feed: Used in place of the task's own feed.
        loss: Used in place of the configuration's loss: ``(outputs, targets) -> scalar``.
        metric: Chooses the epoch in place of the configuration's metric.
        ranks: The processes that share the work, each with its share of the loss; they use the trainer together.
        spread: Whether each rank has the outputs and targets of its own rows only.
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        config: TrainConfig,
        seed: int,
        device: torch.device,
        *,
        model: nn.Module | None = None,
        feed: Feed | None = None,
        loss: Loss | None = None,
        metric: Metric | None = None,
        ranks: Any = ONE_PROCESS,
        spread: bool = False,
    ) -> None:
        self.task, self.split, self.config, self.seed, self.device = task, split, config, seed, device
        self.ranks, self.spread = ranks, spread
        self.model = prepared_model(task, split, config, seed, device) if model is None else model
        self.penalty = hook(self.model, "penalty")
        self.feed = make_feed(task, split, config, seed, device, self.model) if feed is None else feed
        self.loss = make_loss(task, split, config, device) if loss is None else loss
        self.optimizer = make_optimizer(self.model, config)
        if self.optimizer is None:  # evaluated once
            self.config = config = config.replace(epochs=1)
        self.journal = Journal(self, metric or chosen_metric(config, task))
        self.epoch, self.seconds = 0, 0.0
        self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.notes: list[str] = []  # what the user should know, such as why epochs could not be recorded
        self._recorded: RecordedEpoch | None = None
        self._recorded_from: tuple[object, ...] = ()

    @property
    def one_pass(self) -> bool:
        """Whether the pass of an epoch's gradient also serves as the evaluation of the epoch before."""
        return self.optimizer is not None and self.feed.whole and acts_alike(self.model)

    def run(
        self,
        callbacks: Sequence[Callback] = (),
        log: Log | None = None,
        save: Save | None = None,
        stop: Stop | None = None,
    ) -> RunRecord:
        """Train to the end, or until stopped; see `train_one`."""
        started, journal = time.perf_counter() - self.seconds, self.journal
        checkpoint, one_pass = Due(self.config), self.one_pass

        def write(measured: dict[str, float] | None = None) -> None:
            self.seconds = time.perf_counter() - started
            rows = journal.write(self.epoch, self.seconds, measured)
            if log is not None and rows:
                log(rows)

        while True:
            # Here the model holds θ_epoch, and every epoch before has been evaluated if that was due.
            last = self.epoch >= self.config.epochs
            due = last or self.epoch % self.config.eval_every == 0
            outputs = self._forward_whole() if one_pass and not last else None
            if journal.pending and due:
                found = self.evaluate() if outputs is None else outputs.detach()
                measured = journal.measure(self.epoch, found)
                if self.optimizer is None:  # nothing was trained, so no loss is known yet
                    index, targets = parts_of(self.task, self.split, found.device)["train"]
                    journal.pending[-1] += self.loss(found.float()[index], targets)
                if journal.judge(self.epoch, measured):
                    for name, value in self.model.state_dict().items():
                        self.best_state[name].copy_(value)
                write(measured)
                for callback in callbacks:
                    callback.on_epoch(journal.event(self.epoch, self.seconds, measured))
            if last or (due and out_of_patience(self.epoch, journal.best_epoch, self.config.patience)):
                status: Status = "finished" if last else "stopped early"
                break
            # Of several ranks only the first saves, so that its clock decides for all.
            stopping = self.ranks.any(stop is not None and stop())
            if self.epoch and (stopping or self.ranks.any(save is not None and checkpoint(self.epoch))):
                write()
                if save is not None:
                    save(self.snapshot())
                checkpoint.done()
            if stopping:
                status = "interrupted"
                break
            self.train_epoch(outputs)
        self.seconds = time.perf_counter() - started
        self.model.load_state_dict(self.best_state)
        found = self.evaluate().float().cpu()
        state = {name: value.cpu() for name, value in self.best_state.items()}
        notes = list(self.notes)
        if self.ranks is ONE_PROCESS:  # a rank may see only its own rows
            notes += warning_signs(self.task, self.split, found, journal.metric.name)
        more: dict[str, Any] = {"state": state, "outputs": found, "status": status, "notes": tuple(notes)}
        more |= {**journal.best, "history": journal.history, "seconds": self.seconds}
        return RunRecord(self.seed, self.split.name, journal.metric.name, journal.best_epoch, **more)

    def train_epoch(self, whole_outputs: Tensor | None = None) -> None:
        """One more epoch, without evaluation; `whole_outputs` is its forward pass if that has been made."""
        recorded = torch.zeros((), device=self.device)
        self.journal.pending.append(recorded)
        self.epoch += 1
        if self.optimizer is None:
            return
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.epoch)
        if (recording := self._recording()) is not None:
            if whole_outputs is None:
                recording.train(self.epoch)
            recorded += recording.loss
            self._update(self.optimizer)
            return
        with dropout_key(self.seed, self.epoch) as masks:
            for step in self.feed.steps(self.epoch):
                masks.rows = step.numbers
                outputs = self._forward(step) if whole_outputs is None else whole_outputs
                loss = self.loss(step.select(outputs).float(), step.targets)
                recorded += step.part * loss.detach()
                if self.penalty is not None:
                    loss = loss + self.penalty()
                (loss * step.share).backward()
                if step.update:
                    self._update(self.optimizer)
                    self.optimizer.zero_grad(set_to_none=True)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        self.ranks.sum_gradients(self.model.parameters())
        if self.config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
        optimizer.step()

    def _forward(self, step: Step) -> Tensor:
        with precision(self.device, self.config.precision):
            return step.inputs.outputs(self.model)

    def _forward_whole(self) -> Tensor:
        if (recording := self._recording()) is not None:
            return recording.train(self.epoch + 1)
        self.model.train()
        return self._forward(next(self.feed.steps(self.epoch + 1)))  # without dropout, see `acts_alike`

    def evaluate(self) -> Tensor:
        """Outputs of all instances, in evaluation mode; to be used before the next pass."""
        if (recording := self._recording()) is not None:
            return recording.evaluate()
        self.model.eval()
        with torch.no_grad(), precision(self.device, self.config.precision):
            return self.feed.outputs(self.model)

    def snapshot(self) -> Snapshot:
        """Everything that changes during training."""
        tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best_state.items()}
        tensors |= {f"rng.{i}": value for i, value in enumerate(rng_state(self.device))}
        if self.optimizer is not None:
            for i, moments in self.optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{i}.{name}": value for name, value in moments.items()}
        facts: dict[str, Any] = {name: getattr(self.journal, name) for name in ("best_epoch", "best", "history")}
        facts |= {"seed": self.seed, "split": self.split.name, "device": self.device.type}
        return Snapshot.copied(tensors, **facts, epoch=self.epoch, seconds=self.seconds)

    def restore(self, snapshot: Snapshot) -> None:
        """Continues from a snapshot of the same run."""
        facts, journal = snapshot.facts, self.journal
        for name, here in (("seed", self.seed), ("split", self.split.name)):
            if current_name(str(facts.get(name))) != current_name(str(here)):
                raise CheckpointError(f"the checkpoint is of {name} {facts.get(name)!r}, this run has {here!r}")
        try:
            self.model.load_state_dict(snapshot.part("model"))
            for name, value in same_shapes(snapshot.part("best"), self.best_state).items():
                self.best_state[name].copy_(value)
            if self.optimizer is not None:
                moments, step = {}, torch.zeros(())
                for i, p in enumerate(self.optimizer.param_groups[0]["params"]):
                    if found := snapshot.part(f"optimizer.{i}"):  # none before its first gradient
                        moments[i] = same_shapes(found, {"step": step, "exp_avg": p, "exp_avg_sq": p})
                groups = self.optimizer.state_dict()["param_groups"]
                self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
            if facts["device"] == self.device.type:
                set_rng_state(self.device, list(snapshot.part("rng").values()))
            self.epoch, self.seconds = snapshot.epoch, float(facts["seconds"])
            journal.best_epoch, known = int(facts["best_epoch"]), facts["best"] or NOTHING
            journal.best = {part: float(known[part]) for part in PARTS}
            rows = facts["history"]
            journal.history = [{**row, "epoch": int(row["epoch"]), "loss": float(row["loss"])} for row in rows]
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error

    def _recording(self) -> RecordedEpoch | None:
        """The epoch as a CUDA graph, recorded again when model, feed or loss were replaced; None if that cannot be."""
        if not isinstance(self.feed, NodesFeed) or self.task.num_nodes > LARGEST:
            return None
        # Models that cannot be stacked, and penalties, may read a value from the device.
        simple = self.optimizer is not None and self.penalty is None and find(self.config.model).stackable
        if self.device.type != "cuda" or not simple:
            return None
        parts = (self.model, self.feed, self.loss)
        if not self._recorded_from or any(a is not b for a, b in zip(parts, self._recorded_from, strict=True)):
            self._recorded, self._recorded_from = None, parts
            try:
                self._recorded = RecordedEpoch(self.model, self.feed, self.loss, self.seed, self.config)
            except NotRecordableError as error:
                self.notes.append(str(error))
        return self._recorded
