r"""Training on a table, and the choices made on held-out labels: graph, number of steps, temperature, linear part.

With `ENOUGH` labelled rows or more, or a `validation_fraction`, a share is held out once; it ends every run and chooses
graph and temperature. With `FEWEST_FOR_FOLDS` or more, `FOLDS` folds choose graph, steps and temperature, and then the
models are trained on all labelled rows. With fewer, nothing is held out. The graph with the smaller held-out loss wins.

Probabilities are softmax(o / T) with the T that minimises the held-out log loss, drawn towards `CAUTIOUS` as `PRIOR`
observations would draw it. A regression has a linear part, beside which the models learn the rest: for each target t,

    ŷ_t = w_tᵀx + b_t + γ_t · (mean output of the models),    γ_t in [0, 1].

w and b are those of scikit-learn's `Ridge` on standardised columns, with its default penalty. The models are trained on
its residuals, and γ is the share of their outputs that predicts held-out rows best, zero unless the gain is more than
three standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from difformer.data import Split, Task, index_split
from difformer.estimators.population import Array
from difformer.estimators.recipe import ENOUGH, Recipe
from difformer.nn import DIFFormer
from difformer.training import EpochEvent, RunRecord
from difformer.training.devices import resolve
from difformer.training.feeds import BatchesFeed, NodesFeed, inputs_of
from difformer.training.loop import Trainer
from difformer.training.metrics import Metric
from difformer.training.randomness import private_rng

Side = str | None  # "knn", "given", or None for no graph
EdgeList = tuple[Tensor | None, Tensor | None]  # edge_index and edge_weight
NO_EDGES: EdgeList = (None, None)
HELD_OUT = "held out"
HELD_OUT_SHARE = 0.1  # of `ENOUGH` labelled rows or more
FEWEST_FOR_FOLDS = 10  # fewest labelled rows for a cross-validation
FEWEST_FOR_WARNING = 20  # fewest held-out rows for a warning about a useless model
FOLDS = 3
FEWEST_STEPS = 20
CAUTIOUS, PRIOR = 2.0, 4.0
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 5.0)
GRID = np.exp(np.linspace(np.log(0.25), np.log(20.0), 200))
NAMES = {"knn": "with the neighbour graph", "given": "with the given graph", None: "without a graph"}
NO_BETTER = (
    "the model is no better than the {}: {} {:.3f} on {} held-out labelled rows, where a constant prediction has "
    "{:.3f}; the features may say nothing about the targets, or there are too few labels"
)
LINES = 10  # printed per model, about
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class LinearPart:
    """Coefficients ``[F, T]`` and intercepts ``[T]`` for scaled features and scaled targets, and γ ``[T]``."""

    coefficients: Tensor
    intercepts: Tensor
    share: Tensor

    @staticmethod
    def of(table: Any, target: Tensor, rows: Tensor, weight: Tensor | None) -> LinearPart:
        """Fitted to some rows of a table of scaled features ``[n, F]`` and targets ``[n, T]``, NaN where unknown."""
        y, dense = target[rows].double().numpy(), not sparse.issparse(table)
        w = np.ones(len(y)) if weight is None else weight[rows].double().numpy()
        coefficients, intercepts = np.zeros((table.shape[1], y.shape[1])), np.zeros(y.shape[1])
        for t in range(y.shape[1]):
            if not (known := ~np.isnan(y[:, t]) & (w > 0)).any():
                continue
            scaler = StandardScaler(with_mean=dense, with_std=dense)
            x = scaler.fit_transform(table[rows.numpy()[known]], sample_weight=w[known])
            ridge = Ridge().fit(x, y[known, t], sample_weight=w[known])
            coefficients[:, t] = ridge.coef_ / (scaler.scale_ if dense else 1.0)
            intercepts[t] = ridge.intercept_ - (scaler.mean_ @ coefficients[:, t] if dense else 0.0)
        return LinearPart(*(torch.from_numpy(part) for part in (coefficients, intercepts, np.ones(y.shape[1]))))

    def predict(self, table: Any) -> Tensor:
        """``[n, T]`` of the rows of a table."""
        return torch.from_numpy(np.asarray(table @ self.coefficients.numpy())) + self.intercepts


@dataclass(frozen=True)
class TableProblem:
    """What the models learn from."""

    x: Tensor  # [n, F] scaled features, float32, dense or CSR
    y: Tensor  # [n] int64 classes (-1 unknown), or [n, T] float32 values (NaN unknown)
    labelled: Array  # [l] rows with a target
    mass: Tensor | None = None  # [n] weights of the rows in the exchange; None if all are equal
    weight: Tensor | None = None  # [n] weights of the rows in the loss; None if all are equal
    table: Any = None  # the scaled features in double precision, if a linear part is to be fitted

    @property
    def classes(self) -> bool:
        """Whether targets are classes rather than values."""
        return not self.y.is_floating_point()


@dataclass(frozen=True)
class Run:
    """A trained model, on the CPU, and the linear part beside which it was trained."""

    model: DIFFormer
    record: RunRecord
    linear: LinearPart | None = None
    in_batches: bool = False  # if so, all rows counted equally in the exchange


def train(
    problem: TableProblem, recipe: Recipe, edges: EdgeList, split: Split, seed: int, steps: int, *, label: str = ""
) -> Run:
    """Train one model; rows held out by `split` choose its epoch, and `label` is printed with its progress."""
    y, linear = problem.y, None
    if problem.table is not None:
        linear = LinearPart.of(problem.table, y, split.train, problem.weight)
        y = (y - linear.predict(problem.table)).float()
    (rows, columns), device = problem.x.shape, resolve(recipe.options.device)
    outputs = int(y.max()) + 1 if problem.classes else y.shape[1]
    kind, metric = ("multiclass", "accuracy") if problem.classes else ("regression", "mse")
    task = Task("estimator", "nodes", kind, metric, "rows of a table", problem.x, y, (split,), outputs, *edges)  # type: ignore[arg-type]
    fed, loss = task, None
    if problem.weight is not None:  # one more column of the targets, so that any batch has it
        packed = torch.cat([y.double().reshape(rows, -1), problem.weight.double().unsqueeze(1)], 1)
        fed = replace(task, y=packed, problem="regression", metric="mse", num_outputs=packed.shape[1])
        loss = partial(weighted_loss, classes=problem.classes)
    held_out = split.valid.numel() > 0 and split.name == HELD_OUT
    batch = recipe.batch(rows, held_out=held_out, edges=edges[0] is not None)
    config = recipe.config(rows, split.train.numel(), steps, batch, held_out=held_out)
    with private_rng(seed):
        model = DIFFormer(columns, out_channels=outputs, **recipe.model)
    model.to(device)
    mass = None if problem.mass is None else (problem.mass / problem.mass.mean()).float()
    feed = PartsFeed(fed, split, config, seed, device) if batch else NodesFeed(fed, split, device, mass)
    chosen = LOG_LOSS if problem.classes and split.valid.numel() else None
    trainer = Trainer(task, split, config, seed, device, model=model, feed=feed, loss=loss, metric=chosen)
    shown = [Progress(recipe, f"{label}, {'step' if batch is None else 'epoch'}")] if label else []
    record = trainer.run(shown)
    return Run(model.cpu(), record, linear, batch is not None)


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits ``[n, C]`` at the best of a few temperatures, since one is fitted afterwards."""
    logits = outputs.to(torch.float64)
    return torch.stack([functional.cross_entropy(logits / t, targets) for t in TEMPERATURES]).min()


LOG_LOSS = Metric("log loss", False, ("multiclass",), log_loss)


class PartsFeed(BatchesFeed):
    """Training and evaluation in parts of the rows: choosing an epoch does not need all O(N²) pairs."""

    def outputs(self, model: nn.Module) -> Tensor:
        """``[N, C]``, always in the partition of epoch 0; training begins with epoch 1."""
        parts, places = [], []
        for batch in self.partitions.epoch(0):
            parts.append(inputs_of(batch, self.device).outputs(model))
            places.append(batch.nodes.to(self.device))
        return torch.cat(parts)[torch.cat(places).argsort()]


def weighted_loss(outputs: Tensor, targets: Tensor, *, classes: bool) -> Tensor:
    """Cross-entropy or squared error; the last column of its targets holds the weights of the rows."""
    wanted, weight = targets[:, :-1].to(outputs.dtype), targets[:, -1:].to(outputs.dtype)
    if classes:
        each = functional.cross_entropy(outputs, wanted[:, 0].long(), reduction="none").unsqueeze(1)
    else:
        known = ~wanted.isnan()
        each, weight = torch.where(known, outputs - wanted, 0.0).square(), weight * known
    # The rows of a mini-batch may all have weight zero; its loss is then zero.
    return (each * weight).sum() / weight.sum().clamp_min(torch.finfo(each.dtype).tiny)


@dataclass
class Progress:
    """Prints the first evaluated epoch of every tenth of a run."""

    recipe: Recipe
    label: str
    printed: int = 0

    def on_epoch(self, event: EpochEvent) -> None:
        if (tenth := event.epoch * LINES // event.epochs) > self.printed:
            self.printed = tenth
            held_out = "" if event.valid_metric != event.valid_metric else f", held out {event.valid_metric:.4f}"
            where = f"{self.label} {event.epoch} of {event.epochs}"
            self.recipe.say(f"{where}, loss {event.loss:.4f}{held_out}, {event.seconds:.1f} s")


@dataclass(frozen=True)
class Judged:
    """How well held-out rows were predicted, and the temperature or share that predicts them best."""

    loss: float | None  # log loss at the best temperature, or squared error of scaled targets; None if not judged
    temperature: float = 1.0  # of probabilities
    words: str = ""  # the same as text
    warning: str = ""  # if a constant predicts as well
    share: Tensor | None = None  # [T] the best share of the models' outputs beside a linear part


def judge(problem: TableProblem, tried: list[tuple[Split, list[Run]]]) -> Judged:
    """Judge runs on their held-out rows; every split has the same number of runs, whose outputs are averaged."""
    rows = torch.cat([split.valid for split, _ in tried])
    each = [torch.stack([run.record.outputs[split.valid].double() for run in runs]) for split, runs in tried]
    outputs, target, count = torch.cat(each, 1), problem.y[rows], len(rows)
    ones = torch.ones(count, dtype=torch.float64)
    mass, weight = (ones if w is None else w[rows].double() for w in (problem.mass, problem.weight))
    if problem.classes:
        temperature, loss = fit_temperature(outputs, target, weight)
        right = float((mass * (outputs.softmax(-1).mean(0).argmax(1) == target)).sum() / mass.sum())
        majority = float(torch.bincount(target, mass).max() / mass.sum())
        # Class weights prefer rare classes on purpose.
        poor = right <= majority and count >= FEWEST_FOR_WARNING and torch.equal(weight, mass)
        warning = NO_BETTER.format("most frequent class", "accuracy", right, count, majority) if poor else ""
        return Judged(loss, temperature, f"log loss {loss:.4f}, accuracy {right:.4f} on {count} held-out rows", warning)
    outputs, target = outputs.mean(0), target.double()
    linear = torch.zeros_like(target)
    if problem.table is not None:  # all runs on a split have the same linear part
        linear = torch.cat([runs[0].linear.predict(problem.table[split.valid.numpy()]) for split, runs in tried])  # type: ignore[union-attr]
    share = best_share(outputs, target - linear, weight)
    known, wanted = (~target.isnan()) * weight.unsqueeze(1), target.nan_to_num()
    mean = (wanted * known).sum(0) / known.sum(0).clamp_min(TINY)
    loss, constant = (
        float(((found - wanted).square() * known).sum() / known.sum().clamp_min(TINY))
        for found in (linear + share * outputs, mean)
    )
    poor = loss >= constant and count >= FEWEST_FOR_WARNING
    warning = NO_BETTER.format("mean", "squared error", loss, count, constant) if poor else ""
    return Judged(loss, 1.0, f"squared error {loss:.4f} on {count} held-out rows", warning, share)


def best_share(outputs: Tensor, left: Tensor, weight: Tensor) -> Tensor:
    """γ ``[T]``: least squares on held-out rows, clipped to [0, 1]; zero if the gain is within three standard errors.

    `left` is what the linear part leaves over, NaN where unknown.
    """
    known, left = (~left.isnan()) * weight.unsqueeze(1), left.nan_to_num()
    share = (outputs * left * known).sum(0) / (outputs.square() * known).sum(0).clamp_min(TINY)
    share = share.clamp(0, 1)
    gain = (left.square() - (left - share * outputs).square()) * known
    error = gain.std(0, correction=0) * len(gain) ** 0.5
    return torch.where(gain.sum(0) > 3 * error, share, 0.0)


def fit_temperature(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[float, float]:
    """The temperature of ``logits [models, n, C]``, and the log loss of the mean probabilities at it.

    Minimises Σ_i w_i loss_i(T) + `PRIOR` (log T - log `CAUTIOUS`)² over a grid, the weights scaled to mean one.
    """
    weight, losses = weight / weight.mean(), []
    for temperature in GRID:
        chances = (logits / temperature).softmax(-1).mean(0)
        each = functional.nll_loss(chances.clamp_min(1e-300).log(), target, reduction="none")
        losses.append(float((weight * each).sum()))
    penalised = np.array(losses) + PRIOR * (np.log(GRID) - np.log(CAUTIOUS)) ** 2
    best = int(penalised.argmin())
    return float(GRID[best]), losses[best] / len(target)


def train_and_choose(
    problem: TableProblem, recipe: Recipe, sides: Mapping[Side, EdgeList]
) -> tuple[list[Run], Side, Judged]:
    """Train `n_models` models on the graph that predicts held-out rows best, or on the first if none are held out."""
    count, steps, share = int(recipe.options.n_models), int(recipe.options.steps), recipe.options.validation_fraction
    if share is None:
        share = HELD_OUT_SHARE if len(problem.labelled) >= ENOUGH else 0.0
    held_out = hold_out(problem, share, recipe.seed)
    once = held_out.valid.numel() > 0
    splits = [held_out] if once else make_folds(problem, recipe.seed)
    side, runs, found = next(iter(sides)), list[Run](), Judged(None, CAUTIOUS if problem.classes else 1.0)
    if splits:
        tried: dict[Side, tuple[Judged, list[Run]]] = {}
        for side, edges in sides.items():
            label = f"model 1 of {count} {NAMES[side]}" if once else ""
            runs = [train(problem, recipe, edges, split, recipe.seed, steps, label=label) for split in splits]
            found = judge(problem, [(split, [run]) for split, run in zip(splits, runs, strict=True)])
            recipe.say(f"{NAMES[side]}: {found.words}")
            tried[side] = found, runs
        side = min(tried, key=lambda side: tried[side][0].loss or 0.0)
        found, runs = tried[side]
        if not once:
            runs, steps = [], best_steps(runs, splits, steps)
    for i in range(len(runs), count):
        label = f"model {i + 1} of {count}"
        runs.append(train(problem, recipe, sides[side], held_out, recipe.seed + i, steps, label=label))
    return runs, side, judge(problem, [(held_out, runs)]) if once else found


def best_steps(runs: list[Run], splits: list[Split], most: int) -> int:
    """The number of steps with the best mean score over folds; at least `FEWEST_STEPS`, at most `most`."""
    curves = [{row["epoch"]: row["valid"] for row in run.record.history if "valid" in row} for run in runs]
    sizes = [split.valid.numel() for split in splits]
    mean = {epoch: np.average([curve[epoch] for curve in curves], weights=sizes) for epoch in curves[0]}
    return max(min(FEWEST_STEPS, most), min(mean, key=lambda epoch: mean[epoch]))


def hold_out(problem: TableProblem, fraction: float, seed: int) -> Split:
    """Hold out the same fraction of the labelled rows of every class; at least one row per class is trained on."""
    classes, order = _shuffled(problem, seed)
    counts = np.bincount(classes)
    quota = np.minimum(np.floor(fraction * counts + 1e-9), np.maximum(counts - 1, 0)).astype(np.int64)
    # What rounding leaves goes to the classes with the largest remainders.
    remainder = np.where(quota < counts - 1, fraction * counts - quota, -np.inf)
    missing = max(int(fraction > 0), round(fraction * len(order))) - quota.sum()
    for label in np.argsort(-remainder, kind="stable")[: max(0, missing)]:
        quota[label] += np.isfinite(remainder[label])
    place = np.arange(len(order)) - np.searchsorted(classes[order], classes[order])  # within the class
    held = place < quota[classes[order]]
    rows = problem.labelled[order]
    return index_split(HELD_OUT, np.sort(rows[~held]), np.sort(rows[held]), [])


def make_folds(problem: TableProblem, seed: int) -> list[Split]:
    """`FOLDS` stratified folds of the labelled rows; none if fewer than `FEWEST_FOR_FOLDS` rows could be held out."""
    (classes, order), rows = _shuffled(problem, seed), problem.labelled
    fold = np.empty(len(classes), dtype=np.int64)
    fold[order] = np.arange(len(classes)) % FOLDS
    fold[(np.bincount(classes) == 1)[classes]] = -1  # the only row of a class is always trained on
    if (fold >= 0).sum() < FEWEST_FOR_FOLDS:
        return []
    return [index_split(f"fold {i}", rows[fold != i], rows[fold == i], []) for i in range(FOLDS)]


def _shuffled(problem: TableProblem, seed: int) -> tuple[Array, Array]:
    """Class of every labelled row (zero for values), and a random order of the rows, sorted by class."""
    classes = np.zeros(len(problem.labelled), dtype=np.int64)
    if problem.classes:
        classes = problem.y[torch.from_numpy(problem.labelled)].numpy()
    order = np.random.RandomState(seed % 2**32).permutation(len(classes))
    return classes, order[np.argsort(classes[order], kind="stable")]
