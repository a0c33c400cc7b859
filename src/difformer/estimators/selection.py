"""Choices made on held-out labels: the graph, the number of steps, and the temperature of the probabilities.

=====================  ======================================================================================
labelled rows          held out
=====================  ======================================================================================
`ENOUGH` or more       a tenth of them, once; they end every run, choose the graph and the temperature
`JUDGES` or more       each in one of `FOLDS` folds; the folds choose graph, steps and temperature, and then
                       the models are trained on all labelled rows
fewer                  none: `steps` steps, the neighbour graph (if asked for), and a cautious temperature
=====================  ======================================================================================

A `validation_fraction` that is given is held out once, whatever the number of labelled rows.

A graph is kept only if the held-out rows are predicted at least as well with it as without, measured by the log loss of
calibrated probabilities, or by the squared error. Probabilities are softmax(o / T) with the temperature T that
minimises the held-out log loss, drawn towards `CAUTIOUS` as `PRIOR` observations would draw it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from difformer.data import Split
from difformer.estimators.problem import HELD_OUT, Edges, Problem, Recipe, Run, say, train
from difformer.estimators.ridge import LinearPart, best_share

Array = np.ndarray[Any, Any]

ENOUGH = 500  # labelled rows from which a share is held out once
SHARE = 0.1  # of them
JUDGES = 10  # labelled rows from which a cross-validation chooses
WITNESSES = 20  # held-out rows from which a useless model is warned about
FOLDS = 3
FEWEST_STEPS = 20
CAUTIOUS, PRIOR = 2.0, 4.0
NAMES = {"knn": "with the neighbour graph", "given": "with the given graph", None: "without a graph"}
GRID = np.exp(np.linspace(np.log(0.25), np.log(20.0), 200))


@dataclass(frozen=True)
class Trained:
    """Models and the choices that were made for them."""

    runs: list[Run]
    graph: str | None  # name of the chosen edges
    temperature: float  # of the probabilities; 1 for a regression
    held_out: float | None  # log loss or squared error; None where nothing was held out
    warning: str | None  # why the result may be useless
    share: Tensor | None = None  # [T] of the models' outputs beside the linear part of a regression

    @property
    def linear(self) -> LinearPart | None:
        """The linear part, all models having the same."""
        linear = self.runs[0].linear
        return linear if linear is None or self.share is None else replace(linear, share=self.share)


def train_and_choose(problem: Problem, recipe: Recipe, sides: Mapping[str | None, Edges]) -> Trained:
    """Train `n_models` models on the best of several graphs; if none can be said to be better, on the first."""
    judges = foldable(problem)
    share = recipe.validation_fraction
    if share is None and len(problem.labelled) >= ENOUGH:
        share = SHARE
    if share and (split := hold_out(problem, share, recipe.seed)).valid.numel():
        return _with_held_out_rows(problem, recipe, sides, split)
    everything = make_split("all", problem.labelled, np.empty(0, dtype=np.int64))
    side, steps, judged = next(iter(sides)), recipe.steps, None
    if judges >= JUDGES:
        side, steps, judged = _cross_validated(problem, recipe, sides)
    runs = [
        train(problem, recipe, sides[side], everything, recipe.seed + i, steps, label=_label(i, recipe.n_models))
        for i in range(recipe.n_models)
    ]
    if judged is None:
        return Trained(runs, side, CAUTIOUS if problem.classes else 1.0, None, None)
    return Trained(runs, side, judged.temperature, judged.loss, judged.warning, judged.share)


def _with_held_out_rows(problem: Problem, recipe: Recipe, sides: Mapping[str | None, Edges], split: Split) -> Trained:
    label = _label(0, recipe.n_models)
    first = {
        side: train(problem, recipe, edges, split, recipe.seed, recipe.steps, label=f"{label} {NAMES[side]}")
        for side, edges in sides.items()
    }
    side = _best(recipe, {side: Judged.of(problem, [run], [split]) for side, run in first.items()})
    runs = [first[side]]
    for i in range(1, recipe.n_models):
        label = _label(i, recipe.n_models)
        runs.append(train(problem, recipe, sides[side], split, recipe.seed + i, recipe.steps, label=label))
    judged = Judged.of(problem, runs, [split] * len(runs), together=True)
    return Trained(runs, side, judged.temperature, judged.loss, judged.warning, judged.share)


def _cross_validated(
    problem: Problem, recipe: Recipe, sides: Mapping[str | None, Edges]
) -> tuple[str | None, int, Judged]:
    splits = cross_validation(problem, recipe.seed)
    judged, steps = {}, {}
    for side, edges in sides.items():
        runs = [train(problem, recipe, edges, split, recipe.seed, recipe.steps) for split in splits]
        judged[side] = Judged.of(problem, runs, splits)
        curves = [{row["epoch"]: row["valid"] for row in run.record.history if "valid" in row} for run in runs]
        sizes = [split.valid.numel() for split in splits]
        mean = {epoch: np.average([curve[epoch] for curve in curves], weights=sizes) for epoch in curves[0]}
        steps[side] = max(min(FEWEST_STEPS, recipe.steps), min(mean, key=lambda epoch: mean[epoch]))
    side = _best(recipe, judged)
    return side, steps[side], judged[side]


def _best(recipe: Recipe, judged: Mapping[str | None, Judged]) -> str | None:
    for side, found in judged.items():
        say(recipe.speaker, f"{NAMES[side]}: {found.words}")
    return min(judged, key=lambda side: judged[side].loss)


def _label(number: int, count: int) -> str:
    return f"model {number + 1} of {count}"


@dataclass(frozen=True)
class Judged:
    """How well held-out rows were predicted."""

    loss: float  # log loss at the best temperature, or squared error of scaled targets
    temperature: float
    words: str  # the same for a reader
    warning: str | None  # if a constant would have done as well
    share: Tensor | None = None  # [T] the best share of the models' outputs beside a linear part

    @staticmethod
    def of(problem: Problem, runs: list[Run], splits: list[Split], *, together: bool = False) -> Judged:
        """Of runs and their held-out rows; `together` averages the runs, which then share their held-out rows."""
        outputs = [run.record.outputs[split.valid].double() for run, split in zip(runs, splits, strict=True)]
        rows = splits[0].valid if together else torch.cat([split.valid for split in splits])
        logits = torch.stack(outputs) if together else torch.cat(outputs).unsqueeze(0)
        weight = torch.ones(len(rows), dtype=torch.float64) if problem.weight is None else problem.weight[rows].double()
        target = problem.y[rows]
        if problem.classes:
            mass = torch.ones_like(weight) if problem.mass is None else problem.mass[rows].double()
            return Judged._of_classes(logits, target, weight, mass)
        linear = torch.zeros_like(target, dtype=torch.float64)
        if problem.table is not None:
            each = [run.linear.predict(problem.table[s.valid.numpy()]) for run, s in zip(runs, splits, strict=True)]  # type: ignore[union-attr]
            linear = each[0] if together else torch.cat(each)
        return Judged._of_values(logits.mean(0), target.double(), weight, linear)

    @staticmethod
    def _of_classes(logits: Tensor, target: Tensor, weight: Tensor, mass: Tensor) -> Judged:
        temperature, loss = fit_temperature(logits, target, weight)
        share = float((mass * (logits.softmax(-1).mean(0).argmax(1) == target)).sum() / mass.sum())
        counts = torch.zeros(logits.shape[-1], dtype=torch.float64).index_add(0, target, mass)
        majority = float(counts.max() / mass.sum())
        warning = None
        # With class weights rare classes are preferred on purpose.
        if share <= majority and len(target) >= WITNESSES and torch.equal(weight, mass):
            warning = (
                f"the model is no better than the most frequent class: accuracy {share:.3f} on {len(target)} held-out "
                f"labelled rows, of which the most frequent class has {majority:.3f}; the features may not tell the "
                f"classes apart, or there are too few labels"
            )
        words = f"log loss {loss:.4f}, accuracy {share:.4f} on {len(target)} held-out rows"
        return Judged(loss, temperature, words, warning)

    @staticmethod
    def _of_values(outputs: Tensor, target: Tensor, weight: Tensor, linear: Tensor) -> Judged:
        share = best_share(outputs, target - linear, weight)
        outputs = linear + share * outputs
        known = (~target.isnan()) * weight.unsqueeze(1)
        total = known.sum().clamp_min(torch.finfo(torch.float64).tiny)
        wanted = target.nan_to_num()
        loss = float(((outputs - wanted).square() * known).sum() / total)
        mean = (wanted * known).sum(0) / known.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
        constant = float(((mean - wanted).square() * known).sum() / total)
        warning = None
        if loss >= constant and len(target) >= WITNESSES:
            warning = (
                f"the model is no better than the mean: squared error {loss:.3f} on {len(target)} held-out labelled "
                f"rows (targets scaled to variance one), where their mean has {constant:.3f}; the features may say "
                f"nothing about the targets, or there are too few labels"
            )
        return Judged(loss, 1.0, f"squared error {loss:.4f} on {len(target)} held-out rows", warning, share)


def fit_temperature(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[float, float]:
    """The temperature of ``logits [models, n, C]``, and the log loss of the mean probabilities at it.

    Minimises Σ_i w_i loss_i(T) + `PRIOR` (log T - log `CAUTIOUS`)² over a grid, the weights scaled to mean one.
    """
    weight = weight / weight.mean()
    losses = []
    for temperature in GRID:
        chances = (logits / temperature).softmax(-1).mean(0)
        each = functional.nll_loss(chances.clamp_min(1e-300).log(), target, reduction="none")
        losses.append(float((weight * each).sum()))
    penalised = np.array(losses) + PRIOR * (np.log(GRID) - np.log(CAUTIOUS)) ** 2
    best = int(penalised.argmin())
    return float(GRID[best]), losses[best] / len(target)


def foldable(problem: Problem) -> int:
    """How many labelled rows can be held out: those of classes with at least two rows."""
    return int((assign_folds(problem, FOLDS, 0) >= 0).sum())


def hold_out(problem: Problem, fraction: float, seed: int) -> Split:
    """A share of the labelled rows held out, of every class the same share; one row of each class is always kept."""
    classes, order = _shuffled(problem, seed)
    counts = np.bincount(classes)
    quota = np.minimum(np.floor(fraction * counts + 1e-9), np.maximum(counts - 1, 0)).astype(np.int64)
    # What rounding leaves goes to the classes with the largest remainders.
    remainder = np.where(quota < counts - 1, fraction * counts - quota, -np.inf)
    missing = max(1, round(fraction * len(order))) - quota.sum()
    for label in np.argsort(-remainder, kind="stable")[: max(0, missing)]:
        quota[label] += np.isfinite(remainder[label])
    place = np.arange(len(order)) - np.searchsorted(classes[order], classes[order])  # within the class
    held = place < quota[classes[order]]
    rows = problem.labelled[order]
    return make_split(HELD_OUT, np.sort(rows[~held]), np.sort(rows[held]))


def cross_validation(problem: Problem, seed: int) -> list[Split]:
    fold = assign_folds(problem, FOLDS, seed)
    rows = problem.labelled
    return [make_split(f"fold {i}", rows[fold != i], rows[fold == i]) for i in range(FOLDS)]


def assign_folds(problem: Problem, folds: int, seed: int) -> Array:
    """``[l]``: the fold of every labelled row, stratified; -1, always trained on, for the only row of a class."""
    classes, order = _shuffled(problem, seed)
    fold = np.empty(len(classes), dtype=np.int64)
    fold[order] = np.arange(len(classes)) % folds
    alone = np.bincount(classes) == 1
    return np.where(alone[classes], -1, fold)


def _shuffled(problem: Problem, seed: int) -> tuple[Array, Array]:
    """Class of every labelled row (zero for values), and a random order of the rows, sorted by class."""
    rng = np.random.RandomState(seed % 2**32)
    target = problem.y[torch.from_numpy(problem.labelled)]
    classes = target.numpy() if problem.classes else np.zeros(len(problem.labelled), dtype=np.int64)
    order = rng.permutation(len(classes))
    return classes, order[np.argsort(classes[order], kind="stable")]


def make_split(name: str, train_rows: Array, valid_rows: Array) -> Split:
    nothing = torch.empty(0, dtype=torch.long)
    return Split(name, torch.from_numpy(np.asarray(train_rows)), torch.from_numpy(np.asarray(valid_rows)), nothing)
