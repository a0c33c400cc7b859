"""The training loop: one for every kind of task, every model and every device.

Epoch e steps the parameters θ_{e-1} → θ_e along the gradient of the training loss; the evaluation of epoch e measures
θ_e on all three parts from one forward pass. Where a forward pass in training is the same as in evaluation (no dropout,
no batch statistics; this is tried out once), the pass from which epoch e + 1 takes its gradient *is* the evaluation of
θ_e, and an epoch costs one forward and one backward pass in all.

**What is deterministic.** Initialisation, dropout and the order of batches follow from the seed alone; dropout masks
and batches are functions of seed and epoch, the same on every device. Torch's global generator, from which models are
initialised, is put back afterwards; models that draw from it while they train would disturb each other in threads of
one process. On one CPU, with one number of threads and one version of torch, a seed gives one result to the bit, also
when the run was interrupted and resumed. On CUDA, sums over edges and batches are added in varying order: results agree
to rounding, which many epochs amplify.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.nn.dropout import dropout_key
from difformer.training.building import build_model, hook, learning_rate, make_optimizer
from difformer.training.callbacks import Callback
from difformer.training.captured import LARGEST, Captured, capture
from difformer.training.checkpoint import Due, Snapshot
from difformer.training.config import TrainConfig
from difformer.training.devices import resolve
from difformer.training.feeding import NodesFeed, Step, make_feed
from difformer.training.journal import PARTS, Journal, NonFiniteLossError
from difformer.training.losses import make_loss
from difformer.training.randomness import isolated_rng, rng_state, set_rng_state
from difformer.training.record import Row, RunRecord, Status
from difformer.zoo import find

__all__ = ["NonFiniteLossError", "Trainer", "train_one"]

Log = Callable[[list[Row]], None]
Save = Callable[[Snapshot], None]


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
    stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Train one model from one seed on one split.

    Args:
        task: What is to be learnt.
        split: The split, or its number in the task.
        config: Model and training.
        seed: Of everything that is random.
        device: See `difformer.training.devices.resolve`.
        state: Where an earlier training of the same run stood; it goes on from there.
        callbacks: Told of every evaluated epoch.
        log: Given the rows of new epochs, each row once.
        save: Given a snapshot to go on from, as often as the configuration says.
        stop: Asked after every epoch; once it says True the run ends as ``"interrupted"``, after one last `save`.

    Raises:
        NonFiniteLossError: If the loss becomes NaN or infinite.
        ValueError: If task, model and configuration do not go together.
    """
    chosen = task.splits[split] if isinstance(split, int) else split
    place = resolve(device)
    with isolated_rng(place):
        torch.manual_seed(seed)
        trainer = Trainer(task, chosen, config, seed, place)
        if state is not None:
            state.into(trainer)
        return trainer.run(tuple(callbacks), log, save, stop)


class Trainer:
    """A model, its optimiser, and where they stand; to be made and used inside `isolated_rng`."""

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device) -> None:
        self.task, self.split, self.config, self.seed, self.device = task, split, config, seed, device
        self.model = build_model(task, config).to(device)
        if (observe := hook(self.model, "observe")) is not None:
            observe(task.y.to(device), split.train.to(device))
        self.penalty = hook(self.model, "penalty")
        self.feed = make_feed(task, split, config, seed, device, self.model)
        self.loss = make_loss(task, split, config, device)
        self.optimizer = make_optimizer(self.model, config)
        # A model that has nothing to train is looked at once.
        self.epochs = config.epochs if self.optimizer is not None else 1
        self.journal = Journal(task, split, config, seed, self.epochs, device)
        self.epoch, self.seconds = 0, 0.0
        self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.captured: Captured | None = None
        self.one_pass = self.optimizer is not None and self.feed.whole and self._modes_agree()
        if self._can_capture():
            assert isinstance(self.feed, NodesFeed)
            self.captured = capture(self.model, self.feed, self.loss, seed, self._precision)

    def run(
        self,
        callbacks: tuple[Callback, ...] = (),
        log: Log | None = None,
        save: Save | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RunRecord:
        """Train to the end, or until stopped; see `train_one`."""
        started = time.perf_counter() - self.seconds
        due = self._due()
        status: Status = "finished"
        while True:
            # Here the model holds θ_epoch, and every epoch before has been evaluated where that was due.
            last = self.epoch >= self.epochs
            outputs = self._forward_whole() if self.one_pass and not last else None
            if self.journal.pending and (last or self.epoch % self.config.eval_every == 0):
                measured = self._judge(self.evaluate() if outputs is None else outputs.detach())
                self.seconds = time.perf_counter() - started
                self._write(log, measured)
                for callback in callbacks:
                    callback.on_epoch(self.journal.event(self.epoch, self.seconds, measured))
            if last or self.journal.out_of_patience(self.epoch):
                status = "finished" if last else "stopped early"
                break
            stopping = stop is not None and stop()
            if self.epoch and (stopping or (save is not None and due(self.epoch))):
                self.seconds = time.perf_counter() - started
                self._write(log)
                if save is not None:
                    save(Snapshot.of(self))
                due.done()
            if stopping:
                status = "interrupted"
                break
            self.train_epoch(outputs)
        self.seconds = time.perf_counter() - started
        return self._record(status)

    def train_epoch(self, whole_outputs: Tensor | None = None) -> None:
        """One epoch more, without evaluation; `whole_outputs` is its forward pass where that has been made."""
        self._train(whole_outputs)
        self.epoch += 1

    def _train(self, whole_outputs: Tensor | None) -> None:
        recorded = torch.zeros((), device=self.device)
        self.journal.pending.append(recorded)
        if self.optimizer is None:
            return
        self.model.train()
        rate = learning_rate(self.config, self.epoch + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.captured is not None:
            if whole_outputs is None:
                self.captured.train(self.epoch + 1)
            recorded += self.captured.loss
            self._update()
            return
        with self._masks(self.epoch + 1):
            for step in self.feed.steps(self.epoch + 1):
                outputs = self._forward(step) if whole_outputs is None else whole_outputs
                loss = self.loss(step.select(outputs).float(), step.targets)
                recorded += step.part * loss.detach()
                if self.penalty is not None:
                    loss = loss + self.penalty()
                (loss if step.share == 1.0 else loss * step.share).backward()
                if step.update:
                    self._update()
                    self.optimizer.zero_grad(set_to_none=True)

    def _update(self) -> None:
        """One step of the optimiser along the gradients that are there."""
        assert self.optimizer is not None
        if self.config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
        self.optimizer.step()

    def _forward(self, step: Step) -> Tensor:
        with self._precision():
            return step.inputs.outputs(self.model)

    def _forward_whole(self) -> Tensor:
        if self.captured is not None:
            return self.captured.train(self.epoch + 1)
        self.model.train()
        with self._masks(self.epoch + 1):
            return self._forward(next(self.feed.steps(self.epoch + 1)))

    def evaluate(self) -> Tensor:
        """Outputs of all instances, in evaluation mode; to be used before the next pass."""
        if self.captured is not None:
            return self.captured.evaluate()
        self.model.eval()
        with torch.no_grad(), self._precision():
            return self.feed.outputs(self.model)

    def _judge(self, outputs: Tensor) -> dict[str, float]:
        """The metric on every part; keeps the state if it is the best on validation so far."""
        measured = self.journal.measure(outputs)
        if self.optimizer is None:
            outputs = outputs.float()[self.split.train.to(outputs.device)]
            self.journal.pending[-1] += self.loss(outputs, self.task.y[self.split.train].to(outputs.device))
        if self.journal.judge(self.epoch, measured):
            for name, value in self.model.state_dict().items():
                self.best_state[name].copy_(value)
        return measured

    def _write(self, log: Log | None, measured: dict[str, float] | None = None) -> None:
        rows = self.journal.write(self.epoch, self.seconds, measured)
        if log is not None and rows:
            log(rows)

    def _record(self, status: Status) -> RunRecord:
        self.model.load_state_dict(self.best_state)
        history = self.journal.history
        best = self.journal.best or dict.fromkeys(PARTS, math.nan)
        return RunRecord(
            seed=self.seed,
            split=self.split.name,
            metric=self.journal.metric.name,
            best_epoch=self.journal.best_epoch,
            train=best["train"],
            valid=best["valid"],
            test=best["test"],
            loss=history[-1]["loss"] if history else math.nan,
            history=history,
            seconds=self.seconds,
            state={name: value.cpu() for name, value in self.best_state.items()},
            outputs=self.evaluate().float().cpu(),
            status=status,
        )

    def _due(self) -> Due:
        """Says when the next checkpoint is due."""
        return Due(self.config)

    def _masks(self, epoch: int) -> AbstractContextManager[Any]:
        """Within it, dropout masks are those of an epoch."""
        return dropout_key(self.seed, epoch)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def _can_capture(self) -> bool:
        """Whether epochs may be recorded as CUDA graphs; models that can be stacked never look at a value."""
        return (
            self.device.type == "cuda"
            and self.optimizer is not None
            and self.penalty is None
            and isinstance(self.feed, NodesFeed)
            and self.task.num_nodes <= LARGEST
            and find(self.config.model).stackable
        )

    def _modes_agree(self) -> bool:
        """Whether a pass in training mode is one in evaluation mode: the same numbers, nothing drawn, nothing kept."""
        kept = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        random = rng_state(self.device)
        with torch.no_grad():
            training = self._forward_whole()
            drew = any(not torch.equal(a, b) for a, b in zip(random, rng_state(self.device), strict=True))
            changed = any(not torch.equal(kept[name], value) for name, value in self.model.state_dict().items())
            if not drew and not changed:
                # Sums on a GPU are not always added in the same order.
                close = torch.equal if self.device.type == "cpu" else torch.allclose
                return bool(close(training, self.evaluate()))
        set_rng_state(self.device, random)
        self.model.load_state_dict(kept)
        return False
