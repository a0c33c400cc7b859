"""The training loop: one for every kind of task, every model and every device.

Epoch e steps the parameters θ_{e-1} → θ_e along the gradient of the training loss; the evaluation of epoch e measures θ_e
on all three parts from one forward pass. Where a forward pass in training is the same as in evaluation (no dropout, no
batch statistics; this is tried out once), the pass from which epoch e + 1 takes its gradient *is* that evaluation of θ_e,
and an epoch costs one forward and one backward pass in all.

**What is deterministic.** Initialisation, dropout and the order of batches follow from the seed alone; torch's global
generator is put back afterwards, but is in use while a run lasts, so two runs in threads of one process disturb each
other. On one CPU, with one number of threads and one version of torch, a seed gives one result to the bit, also when the
run was interrupted and resumed. On CUDA, sums of graphs and of batches are added in varying order: results agree to
rounding, which many epochs amplify.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.nn import GraphLevel
from difformer.training.callbacks import Callback, EpochEvent
from difformer.training.checkpoint import Snapshot
from difformer.training.config import TrainConfig
from difformer.training.devices import resolve
from difformer.training.feeding import hook, make_feed
from difformer.training.losses import make_loss
from difformer.training.metrics import find_metric
from difformer.training.record import Row, RunRecord, Status

PARTS = ("train", "valid", "test")


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
            f"{config.learning_rate:g}){clip}, warmup=10{half}, and see whether features are finite and of similar scale"
        )


def train_one(
    task: Task,
    split: Split | int,
    config: TrainConfig,
    seed: int = 0,
    device: str | torch.device = "auto",
    *,
    state: Snapshot | None = None,
    callbacks: Iterable[Callback] = (),
    log: Callable[[list[Row]], None] | None = None,
    save: Callable[[Snapshot], None] | None = None,
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
            trainer.restore(state)
        return trainer.run(tuple(callbacks), log, save, stop)


class Trainer:
    """A model, its optimiser and where they stand; made and used inside `isolated_rng`."""

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device) -> None:
        self.task, self.split, self.config, self.seed, self.device = task, split, config, seed, device
        self.metric = find_metric(task.metric if config.metric == "auto" else config.metric, task.problem)
        self.model = build_model(task, config).to(device)
        if (observe := hook(self.model, "observe")) is not None:
            observe(task.y.to(device), split.train.to(device))
        self._penalty = hook(self.model, "penalty")
        self.feed = make_feed(task, split, config, seed, device, self.model)
        self.loss = make_loss(task, split, config, device)
        # Metrics are counted in double precision, which Apple's GPUs do not have.
        judge = torch.device("cpu") if device.type == "mps" else device
        self.parts = {name: (index.to(judge), task.y[index].to(judge)) for name, index in split.parts().items()}
        self.optimizer = make_optimizer(self.model, config)
        # A model that has nothing to train is looked at once.
        self.epochs = config.epochs if self.optimizer is not None else 1
        self.epoch, self.seconds = 0, 0.0
        self.best_epoch = 0
        self.best: dict[str, float] | None = None
        self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.history: list[Row] = []
        self._losses: list[Tensor] = []  # of epochs that have no row yet; on the device, so that it is not waited for
        self._one_pass = self.optimizer is not None and self.feed.whole and self._modes_agree()

    def run(
        self,
        callbacks: tuple[Callback, ...] = (),
        log: Callable[[list[Row]], None] | None = None,
        save: Callable[[Snapshot], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RunRecord:
        """Train to the end, or until stopped; see `train_one`."""
        started = time.perf_counter() - self.seconds
        saved_at, saving_took = time.perf_counter(), 0.0
        status: Status = "finished"
        while True:
            # Here θ_epoch is in the model, and everything up to the epoch before has been evaluated.
            last = self.epoch >= self.epochs
            outputs = self._forward_whole() if self._one_pass and not last else None
            if self._losses and (last or self.epoch % self.config.eval_every == 0):
                measured = self._measure(self._evaluate() if outputs is None else outputs.detach())
                self.seconds = time.perf_counter() - started
                self._write_rows(log, measured)
                for callback in callbacks:
                    callback.on_epoch(self._event(measured))
            if last or self._out_of_patience():
                status = "finished" if last else "stopped early"
                break
            stopping = stop is not None and stop()
            if save is not None and self.epoch:
                # A checkpoint that takes long comes seldom: at most a fiftieth of the time goes into it.
                elapsed = time.perf_counter() - saved_at
                every = self.config.checkpoint_every
                by_count = every is not None and self.epoch % every == 0
                if stopping or by_count or elapsed >= max(self.config.checkpoint_seconds, 50 * saving_took):
                    before = time.perf_counter()
                    self.seconds = before - started
                    self._write_rows(log)
                    save(self.capture())
                    saved_at = time.perf_counter()
                    saving_took = saved_at - before
            if stopping:
                self._write_rows(log)
                status = "interrupted"
                break
            self._train(outputs)
            self.epoch += 1
        self.seconds = time.perf_counter() - started
        return self._record(status)

    def _train(self, whole_outputs: Tensor | None) -> None:
        """Epoch `self.epoch` + 1; `whole_outputs` is its forward pass where that has been made."""
        if self.optimizer is None:
            self._losses.append(torch.zeros((), device=self.device))
            return
        self.model.train()
        rate = learning_rate(self.config, self.epoch + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        recorded = torch.zeros((), device=self.device)
        for step in self.feed.steps(self.epoch + 1):
            if whole_outputs is None:
                with self._precision():
                    outputs = step.inputs.outputs(self.model)
            else:
                outputs = whole_outputs
            loss = self.loss(step.select(outputs).float(), step.targets)
            recorded += step.part * loss.detach()
            if self._penalty is not None:
                loss = loss + self._penalty()
            (loss if step.share == 1.0 else loss * step.share).backward()
            if step.update:
                if self.config.gradient_clip is not None:
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        self._losses.append(recorded)

    def _forward_whole(self) -> Tensor:
        self.model.train()
        with self._precision():
            return next(self.feed.steps(self.epoch + 1)).inputs.outputs(self.model)

    def _evaluate(self) -> Tensor:
        self.model.eval()
        with torch.no_grad(), self._precision():
            return self.feed.outputs(self.model)

    def _measure(self, outputs: Tensor) -> dict[str, float]:
        """The metric on every part; keeps the state if it is the best on validation so far."""
        outputs = outputs.float().to(self.parts["train"][0].device)
        values = [
            self.metric(outputs[index], targets) if index.numel() else outputs.new_tensor(math.nan)
            for index, targets in self.parts.values()
        ]
        numbers = torch.stack([value.to(torch.float64) for value in values]).tolist()
        measured = dict(zip(PARTS, numbers, strict=True))
        if self.optimizer is None:
            index, targets = self.parts["train"]
            self._losses[-1] = self.loss(outputs[index], targets).to(self.device)
        # Without a validation part there is nothing to choose by, and the last epoch is kept.
        unchosen = not self.split.valid.numel()
        if unchosen or self.metric.better(measured["valid"], None if self.best is None else self.best["valid"]):
            self.best_epoch, self.best = self.epoch, measured
            for name, value in self.model.state_dict().items():
                self.best_state[name].copy_(value)
        return measured

    def _out_of_patience(self) -> bool:
        patience = self.config.patience
        if patience is None or self.best is None or self.epoch % self.config.eval_every:
            return False
        return self.epoch - self.best_epoch >= patience

    def _write_rows(self, log: Callable[[list[Row]], None] | None, measured: dict[str, float] | None = None) -> None:
        """One row for every epoch that has none yet; the last of them with what was measured."""
        if not self._losses:
            return
        losses = torch.stack(self._losses).tolist()
        first = self.epoch - len(losses) + 1
        for epoch, loss in enumerate(losses, first):
            if not math.isfinite(loss) and self.optimizer is not None:
                raise NonFiniteLossError(epoch, loss, self.config)
        rows: list[Row] = [{"epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses, first)]
        rows[-1] |= (measured or {}) | {"seconds": round(self.seconds, 4)}
        self._losses.clear()
        self.history.extend(rows)
        if log is not None:
            log(rows)

    def _event(self, measured: dict[str, float]) -> EpochEvent:
        best = self.best or dict.fromkeys(PARTS, math.nan)
        return EpochEvent(
            seed=self.seed,
            split=self.split.name,
            epoch=self.epoch,
            epochs=self.epochs,
            loss=self.history[-1]["loss"],
            train_metric=measured["train"],
            valid_metric=measured["valid"],
            test_metric=measured["test"],
            seconds=self.seconds,
            best_epoch=self.best_epoch,
            best_valid=best["valid"],
            best_test=best["test"],
        )

    def _record(self, status: Status) -> RunRecord:
        self.model.load_state_dict(self.best_state)
        best = self.best or dict.fromkeys(PARTS, math.nan)
        return RunRecord(
            seed=self.seed,
            split=self.split.name,
            metric=self.metric.name,
            best_epoch=self.best_epoch,
            **best,
            loss=self.history[-1]["loss"] if self.history else math.nan,
            history=self.history,
            seconds=self.seconds,
            state={name: value.cpu() for name, value in self.best_state.items()},
            outputs=self._evaluate().float().cpu(),
            status=status,
        )

    def capture(self) -> Snapshot:
        """Everything that a later process needs to go on from here."""
        return Snapshot.of(self)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from where `capture` was called."""
        snapshot.into(self)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def _modes_agree(self) -> bool:
        """Whether a forward pass in training mode is one in evaluation mode: the same numbers, nothing drawn or kept."""
        kept = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        random = rng_state(self.device)
        with torch.no_grad():
            training = self._forward_whole()
            drew = any(not torch.equal(a, b) for a, b in zip(random, rng_state(self.device), strict=True))
            changed = any(not torch.equal(kept[name], value) for name, value in self.model.state_dict().items())
            if not drew and not changed:
                evaluation = self._evaluate()
                # Sums on a GPU are not always added in the same order.
                close = torch.equal if self.device.type == "cpu" else torch.allclose
                return bool(close(training, evaluation))
        set_rng_state(self.device, random)
        self.model.load_state_dict(kept)
        return False


def build_model(task: Task, config: TrainConfig) -> nn.Module:
    """The model of a configuration, with the sizes of the task and from torch's global generator.

    Raises:
        ValueError: If the model is unknown, does not serve this kind of task, or lacks an option.
    """
    from difformer.zoo import build, find

    info = find(config.model)
    if task.kind not in info.kinds:
        raise ValueError(f"model {config.model!r} serves {', '.join(info.kinds)}; task {task.name!r} is {task.kind!r}")
    model = build(config.model, task.num_features, task.num_outputs, **config.options)
    return GraphLevel(model, config.readout) if task.kind == "graphs" else model  # type: ignore[arg-type]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer | None:
    """Adam with the decay inside the gradient, or AdamW; None for a model without parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    kind = torch.optim.AdamW if config.decoupled else torch.optim.Adam
    # One kernel for all parameters: three times as fast as one after the other, on the CPU too.
    fused = parameters[0].device.type in ("cpu", "cuda")
    return kind(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused)


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """Of an epoch, counted from 1; a function of the epoch alone, so that nothing of a schedule has to be saved."""
    if epoch <= config.warmup:
        return config.learning_rate * epoch / (config.warmup + 1)
    left = (config.epochs - epoch + 1) / max(1, config.epochs - config.warmup)  # from 1 down, never 0 in an epoch
    factor = {"constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left)}[config.schedule]
    return config.learning_rate * factor


@contextmanager
def isolated_rng(device: torch.device) -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves torch's global generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def rng_state(device: torch.device) -> list[Tensor]:
    """States of the generators that a model on `device` may draw from."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def set_rng_state(device: torch.device, states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
