"""What is learnt and how: the problem, the recipe, and the training of one model.

Training is that of `difformer.training.loop.Trainer`; weights of rows enter its loss, held-out rows choose the epoch.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.scores import form_of, score_key
from difformer.attention.summary import LINEAR
from difformer.data import Split, Task
from difformer.estimators.ridge import LinearPart
from difformer.nn import DIFFormer
from difformer.nn.structure import as_structure
from difformer.training import EpochEvent, RunRecord, TrainConfig
from difformer.training.devices import resolve
from difformer.training.feeds import BatchesFeed, Feed, Inputs, NodesFeed, features, graph_of
from difformer.training.loop import Trainer
from difformer.training.metrics import Metric
from difformer.training.randomness import private_rng

Array = np.ndarray[Any, Any]

LONGER = 3  # times as many steps where held-out rows choose the epoch
LOOKS = 20  # evaluations of a run
WHOLE = 20_000  # rows that are trained on at once where pairs are compared one by one
BATCH, SMALL_BATCH = 4096, 1024  # rows of a mini-batch: of pairs, and of large tables with many labels
MOST_WHOLE = 4096  # rows with many labels that are trained on at once; mini-batches learn faster from more
EPOCH = 8  # steps that an epoch of many mini-batches counts as, at most
DECAY = 0.02  # largest weight decay by default
LINES = 10  # about so many lines are printed per model
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True)
class Problem:
    """What is to be learnt."""

    x: Tensor  # [n, F] scaled features, float32, dense or CSR
    y: Tensor  # [n] int64 classes (-1 unknown), or [n, T] float32 values (NaN unknown)
    num_outputs: int
    labelled: Array  # [l] rows with a target
    mass: Tensor | None = None  # [n] weights of the rows in the exchange; None if all are equal
    weight: Tensor | None = None  # [n] weights of the rows in the loss; None if all are equal
    table: Any = None  # the scaled features in double precision, if a linear part is to be fitted

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def classes(self) -> bool:
        """Whether targets are classes rather than values."""
        return not self.y.is_floating_point()

    def linear_part(self, rows: Tensor) -> LinearPart | None:
        """Fitted to some rows; None if there is to be none."""
        return None if self.table is None else LinearPart.of(self.table, self.y, rows, self.weight)

    def without(self, linear: LinearPart | None) -> Problem:
        """What a linear part leaves over."""
        if linear is None:
            return self
        return dataclasses.replace(self, y=(self.y - linear.predict(self.table)).float())

    def task(self, edges: Edges, split: Split) -> Task:
        edge_index, edge_weight = edges
        return Task(
            name="estimator",
            kind="nodes",
            problem="multiclass" if self.classes else "regression",
            metric="accuracy" if self.classes else "mse",
            protocol="rows of a table, some of them labelled",
            x=self.x,
            y=self.y,
            splits=(split,),
            num_outputs=self.num_outputs,
            edge_index=edge_index,
            edge_weight=edge_weight,
        )


Edges = tuple[Tensor | None, Tensor | None]
NO_EDGES: Edges = (None, None)


@dataclass(frozen=True)
class Recipe:
    """How to train; what is not said here is as in `DIFFormerEstimator`."""

    options: Mapping[str, Any]  # of `DIFFormer`
    steps: int
    learning_rate: float
    weight_decay: float | None
    n_models: int
    validation_fraction: float | None
    batch_size: int | None
    device: str
    seed: int
    speaker: str | None = None  # the name under which progress is printed; None prints nothing

    def batch(self, rows: int, *, held_out: bool = False, edges: bool = False) -> int | None:
        """Rows of a mini-batch for a population of `rows`; None for all at once.

        Large tables go in mini-batches where all pairs of rows are compared, and where many rows are labelled and there
        are no edges, which mini-batches would cut.
        """
        if self.batch_size is not None:
            return self.batch_size if self.batch_size < rows else None
        if self.pairs and rows > WHOLE:
            return BATCH
        return SMALL_BATCH if held_out and not edges and rows > MOST_WHOLE else None

    @property
    def pairs(self) -> bool:
        """Whether rows are compared pair by pair."""
        form = form_of(score_key(self.options["diffusivity"], int(self.options["hidden_channels"])))
        return form not in LINEAR and self.options.get("backend") != "polynomial"

    def numbers(self, rows: int, columns: float) -> int:
        """Numbers in the largest operation of a step, features that are zero not counted."""
        together = self.batch(rows) or rows
        return int(together * max(int(self.options["hidden_channels"]), columns, together if self.pairs else 0))

    def config(self, rows: int, labels: int, steps: int, batch: int | None, *, held_out: bool) -> TrainConfig:
        """The configuration of a run of `steps` steps, more where held-out rows end it."""
        steps = steps * (LONGER if held_out else 1)
        epochs = steps if batch is None else max(1, math.ceil(steps * max(batch / rows, 1 / EPOCH)))
        return TrainConfig(
            model="difformer",
            options=dict(self.options),
            epochs=epochs,
            learning_rate=self.learning_rate,
            weight_decay=min(DECAY, 1 / max(1, labels)) if self.weight_decay is None else self.weight_decay,
            batch_size=batch,
            # An evaluation costs about half as much as a step.
            eval_every=max(1, epochs // LOOKS),
            patience=max(1, epochs // 4) if held_out else None,
        )


@dataclass(frozen=True)
class Run:
    """A trained model, on the CPU, and the linear part beside which it was trained."""

    model: DIFFormer
    record: RunRecord
    linear: LinearPart | None = None
    in_batches: bool = False  # in whose exchange all rows count equally


def train(
    problem: Problem, recipe: Recipe, edges: Edges, split: Split, seed: int, steps: int, *, label: str | None = None
) -> Run:
    """Train one model; rows held out by `split` choose its epoch, and `label` is printed with its progress."""
    linear = problem.linear_part(split.train)
    problem = problem.without(linear)
    place = resolve(recipe.device)
    held_out = split.valid.numel() > 0 and split.name == HELD_OUT
    batch = recipe.batch(problem.rows, held_out=held_out, edges=edges[0] is not None)
    config = recipe.config(problem.rows, split.train.numel(), steps, batch, held_out=held_out)
    task = problem.task(edges, split)
    options = dict(recipe.options)
    with private_rng(seed):
        model = DIFFormer(problem.x.shape[1], options.pop("hidden_channels"), problem.num_outputs, **options)
    model.to(place)
    fed = task if problem.weight is None else _packed(task, problem.weight)
    feed: Feed = PopulationFeed(fed, split, place, problem.mass)
    if batch is not None:
        feed = PartsFeed(fed, split, config, seed, place)
    loss = None
    if problem.weight is not None:
        loss = _cross_entropy if problem.classes else _squared_error
    metric = LOG_LOSS if problem.classes and split.valid.numel() else None
    trainer = Trainer(task, split, config, seed, place, model=model, feed=feed, loss=loss, metric=metric)
    callbacks: tuple[Progress, ...] = ()
    if recipe.speaker is not None and label is not None:
        callbacks = (Progress(recipe.speaker, label, "step" if batch is None else "epoch"),)
    record = trainer.run(callbacks)
    return Run(model.cpu(), record, linear, batch is not None)


HELD_OUT = "held out"


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits ``[n, C]`` at the best of a few temperatures.

    The temperature is fitted afterwards, so an epoch is not to be blamed for being too sure of itself.
    """
    logits = outputs.to(torch.float64)
    return torch.stack([functional.cross_entropy(logits / t, targets) for t in TEMPERATURES]).min()


LOG_LOSS = Metric("log loss", False, ("multiclass",), log_loss)


@dataclass(frozen=True)
class WeightedRows(Inputs):
    """All rows, as senders that count with their mass."""

    mass: Tensor | None = None

    def outputs(self, model: nn.Module) -> Tensor:
        if self.mass is None:
            return super().outputs(model)
        return model(self.x, context=as_structure(self.x.shape[0], self.graph, weight=self.mass))


class PopulationFeed(NodesFeed):
    """All rows in every pass; `mass` says how often each counts in the exchange, None for once."""

    def __init__(self, task: Task, split: Split, device: torch.device, mass: Tensor | None) -> None:
        super().__init__(task, split, device)
        if mass is not None:
            scaled = (mass / mass.mean()).float().to(device)
            self.inputs = WeightedRows(self.inputs.x, self.inputs.graph, mass=scaled)
            self._step = dataclasses.replace(self._step, inputs=self.inputs)


class PartsFeed(BatchesFeed):
    """Training and evaluation in parts of the rows, with the edges inside each part.

    `BatchesFeed` evaluates exactly, every row against every other. An evaluation that only chooses an epoch does not
    need O(N²) pairs: here rows exchange within the same fixed partition at every evaluation.
    """

    def outputs(self, model: nn.Module) -> Tensor:
        """``[N, C]``; training begins with epoch 1, so the partition of epoch 0 is never trained on."""
        parts, places = [], []
        for batch in self.partitions.epoch(0):
            graph = graph_of(batch.edge_index, batch.edge_weight, batch.nodes.numel(), self.device)
            parts.append(Inputs(features(batch.x, self.device), graph).outputs(model))
            places.append(batch.nodes.to(self.device))
        return torch.cat(parts)[torch.cat(places).argsort()]


def _packed(task: Task, weight: Tensor) -> Task:
    """The task with the weights of its rows as one more column of the targets, so that any batch has them."""
    targets = task.y.double().reshape(task.num_instances, -1)
    return dataclasses.replace(
        task,
        y=torch.cat([targets, weight.double().unsqueeze(1)], 1),
        problem="regression",
        metric="mse",
        num_outputs=targets.shape[1] + 1,
        class_names=(),
    )


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    each = functional.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
    return _mean(each, targets[:, -1])


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    wanted = targets[:, :-1].to(outputs.dtype)
    known = ~wanted.isnan()
    each = torch.where(known, outputs - wanted, 0.0).square()
    return _mean(each, targets[:, -1:] * known)


def _mean(each: Tensor, weight: Tensor) -> Tensor:
    weight = weight.to(each.dtype)
    # A mini-batch may hold rows of weight zero only; its loss is then zero.
    return (each * weight).sum() / weight.sum().clamp_min(torch.finfo(each.dtype).tiny)


class Progress:
    """Prints about ten of the epochs it is told of; a `unit` is a step, or a pass over all mini-batches."""

    def __init__(self, speaker: str, label: str, unit: str) -> None:
        self.speaker, self.label, self.unit = speaker, label, unit
        self.printed = 0

    def on_epoch(self, event: EpochEvent) -> None:
        """Prints the first evaluated epoch of every tenth of a run."""
        tenth = event.epoch * LINES // event.epochs
        if tenth <= self.printed:
            return
        self.printed = tenth
        held_out = "" if event.valid_metric != event.valid_metric else f", held out {event.valid_metric:.4f}"
        say(
            self.speaker,
            f"{self.label}, {self.unit} {event.epoch} of {event.epochs}, loss {event.loss:.4f}{held_out}, "
            f"{event.seconds:.1f} s",
        )


def say(speaker: str | None, line: str) -> None:
    """Prints a line under an estimator's name; without a name it prints nothing."""
    if speaker is not None:
        print(f"[{speaker}] {line}", flush=True)


SMALL = 1 << 16  # numbers in an operation up to which one thread works alone

_lock = threading.Lock()
_outside: list[int] = []  # the number of threads before any fit, once per fit under way


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Within it torch uses one thread if operations have at most `SMALL` numbers; afterwards as many as before.

    Threads that share an operation wait for each other at its end, tens of thousands of times per fit. Where other
    programs use the cores too, a fit of 178 rows that takes a fifth of a second then takes a dozen seconds.

    A Python thread inherits the number that another set last. So the number outside is that of the first of several
    fits under way: a fit in a thread computes with as many threads as it would alone, and none of them leaves behind
    the number of another.
    """
    with _lock:
        before = _outside[0] if _outside else torch.get_num_threads()
        _outside.append(before)
    wanted = 1 if numbers <= SMALL else before
    try:
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)
        yield
    finally:
        with _lock:
            _outside.pop()
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
