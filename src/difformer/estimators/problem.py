r"""What is learnt from a table, and the training of one model.

Training is that of `difformer.training.loop.Trainer`; weights of rows enter its loss, held-out rows choose the epoch.

A regression has a linear part, beside which the models learn the rest: for each target t,

    ŷ_t = w_tᵀx + b_t + γ_t · (mean output of the models),    γ_t in [0, 1].

w and b are those of scikit-learn's `Ridge` on standardised columns, with its default penalty; the models are trained on
what it leaves over, and γ is the share of their outputs that predicts held-out rows best, zero unless that is a gain of
more than three standard errors. Where a target is linear in the features, γ is near zero and the regressor is a ridge
regression; where it is not, the models add what a line cannot say.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.nn import functional

from difformer.data import Split, Task
from difformer.estimators.recipe import Recipe
from difformer.nn import DIFFormer
from difformer.nn.context import as_structure
from difformer.training import EpochEvent, RunRecord
from difformer.training.devices import resolve
from difformer.training.feeds import BatchesFeed, Feed, Inputs, NodesFeed, features, graph_of
from difformer.training.loop import Trainer
from difformer.training.metrics import Metric
from difformer.training.randomness import private_rng

Array = np.ndarray[Any, Any]
Edges = tuple[Tensor | None, Tensor | None]  # edge_index and edge_weight
NO_EDGES: Edges = (None, None)

HELD_OUT = "held out"
LINES = 10  # about so many lines are printed per model
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 5.0)
SMALL = 1 << 16  # numbers in an operation up to which one thread works alone


@dataclass(frozen=True)
class LinearPart:
    """Coefficients ``[F, T]`` and intercepts ``[T]`` for scaled features and scaled targets, and γ ``[T]``."""

    coefficients: Tensor
    intercepts: Tensor
    share: Tensor

    @staticmethod
    def of(table: Any, target: Tensor, rows: Tensor, weight: Tensor | None) -> LinearPart:
        """Fitted to some rows of a table of scaled features ``[n, F]`` and targets ``[n, T]``, NaN where unknown."""
        columns, chosen = table.shape[1], rows.numpy()
        y = target[rows].double().numpy()
        w = np.ones(len(chosen)) if weight is None else weight[rows].double().numpy()
        coefficients, intercepts = np.zeros((columns, y.shape[1])), np.zeros(y.shape[1])
        for t in range(y.shape[1]):
            known = ~np.isnan(y[:, t]) & (w > 0)
            if not known.any():
                continue
            x, share = table[chosen[known]], w[known] / w[known].sum()
            mean, deviation = np.zeros(columns), np.ones(columns)
            if not sparse.issparse(x):
                mean = share @ x
                deviation = np.sqrt(share @ np.square(x - mean))
                deviation[deviation <= 1e-12 * np.maximum(np.abs(mean), 1.0)] = np.inf  # constant among these rows
                x = (x - mean) / deviation
            ridge = Ridge().fit(x, y[known, t], sample_weight=w[known])
            coefficients[:, t] = ridge.coef_ / deviation
            intercepts[t] = ridge.intercept_ - mean @ coefficients[:, t]
        return LinearPart(*(torch.from_numpy(part) for part in (coefficients, intercepts, np.ones(y.shape[1]))))

    def predict(self, table: Any) -> Tensor:
        """``[n, T]`` of the rows of a table."""
        return torch.from_numpy(np.asarray(table @ self.coefficients.numpy())) + self.intercepts


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
    def classes(self) -> bool:
        """Whether targets are classes rather than values."""
        return not self.y.is_floating_point()

    def task(self, edges: Edges, split: Split) -> Task:
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
            edge_index=edges[0],
            edge_weight=edges[1],
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
    linear = None
    if problem.table is not None:
        linear = LinearPart.of(problem.table, problem.y, split.train, problem.weight)
        problem = dataclasses.replace(problem, y=(problem.y - linear.predict(problem.table)).float())
    place, (rows, columns) = resolve(recipe.options.device), problem.x.shape
    held_out = split.valid.numel() > 0 and split.name == HELD_OUT
    batch = recipe.batch(rows, held_out=held_out, edges=edges[0] is not None)
    config = recipe.config(rows, split.train.numel(), steps, batch, held_out=held_out)
    task = fed = problem.task(edges, split)
    options, loss = dict(recipe.model), None
    with private_rng(seed):
        model = DIFFormer(columns, options.pop("hidden_channels"), problem.num_outputs, **options)
    model.to(place)
    if problem.weight is not None:
        fed, loss = _packed(task, problem.weight), _cross_entropy if problem.classes else _squared_error
    feed: Feed = PopulationFeed(fed, split, place, problem.mass)
    if batch is not None:
        feed = PartsFeed(fed, split, config, seed, place)
    metric = LOG_LOSS if problem.classes and split.valid.numel() else None
    trainer = Trainer(task, split, config, seed, place, model=model, feed=feed, loss=loss, metric=metric)
    shown = () if label is None else (Progress(recipe, f"{label}, {'step' if batch is None else 'epoch'}"),)
    return Run(model.cpu(), trainer.run(shown), linear, batch is not None)


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
    y, columns = torch.cat([targets, weight.double().unsqueeze(1)], 1), targets.shape[1] + 1
    return dataclasses.replace(task, y=y, problem="regression", metric="mse", num_outputs=columns, class_names=())


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _mean(functional.cross_entropy(outputs, targets[:, 0].long(), reduction="none"), targets[:, -1])


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    wanted = targets[:, :-1].to(outputs.dtype)
    known = ~wanted.isnan()
    return _mean(torch.where(known, outputs - wanted, 0.0).square(), targets[:, -1:] * known)


def _mean(each: Tensor, weight: Tensor) -> Tensor:
    weight = weight.to(each.dtype)
    # A mini-batch may hold rows of weight zero only; its loss is then zero.
    return (each * weight).sum() / weight.sum().clamp_min(torch.finfo(each.dtype).tiny)


@dataclass
class Progress:
    """Prints the first evaluated epoch of every tenth of a run."""

    recipe: Recipe
    label: str
    printed: int = 0

    def on_epoch(self, event: EpochEvent) -> None:
        """Called after every evaluation."""
        if (tenth := event.epoch * LINES // event.epochs) > self.printed:
            self.printed = tenth
            held_out = "" if event.valid_metric != event.valid_metric else f", held out {event.valid_metric:.4f}"
            where = f"{self.label} {event.epoch} of {event.epochs}"
            self.recipe.say(f"{where}, loss {event.loss:.4f}{held_out}, {event.seconds:.1f} s")


_lock = threading.Lock()
_outside: list[int] = []  # the number of threads before any fit, once per fit under way


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Within it torch uses one thread if operations have at most `SMALL` numbers; afterwards as many as before.

    Threads that share an operation wait for each other at its end, tens of thousands of times per fit: where other
    programs use the cores too, a fit of a fifth of a second then takes a dozen seconds. A Python thread inherits the
    number that another set last, so the number to return to is that of the first of several fits under way.
    """
    with _lock:
        before = _outside[0] if _outside else torch.get_num_threads()
        _outside.append(before)
    try:
        _use_threads(1 if numbers <= SMALL else before)
        yield
    finally:
        with _lock:
            _outside.pop()
        _use_threads(before)


def _use_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
