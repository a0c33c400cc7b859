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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from difformer.data import Split
from difformer.estimators.problem import HELD_OUT, Edges, Problem, Run, train
from difformer.estimators.recipe import ENOUGH, Recipe

Array = np.ndarray[Any, Any]

SHARE = 0.1  # of many labelled rows that is held out
JUDGES = 10  # labelled rows from which a cross-validation chooses
WITNESSES = 20  # held-out rows from which a useless model is warned about
FOLDS = 3
FEWEST_STEPS = 20
CAUTIOUS, PRIOR = 2.0, 4.0
NAMES = {"knn": "with the neighbour graph", "given": "with the given graph", None: "without a graph"}
GRID = np.exp(np.linspace(np.log(0.25), np.log(20.0), 200))
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Judged:
    """How well held-out rows were predicted, and what makes the outputs best on them."""

    loss: float | None  # log loss at the best temperature, or squared error of scaled targets; None if not judged
    temperature: float = 1.0  # of probabilities
    words: str = ""  # the same for a reader
    warning: str | None = None  # if a constant would have done as well
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
            return _judge_classes(logits, target, weight, mass)
        linear = torch.zeros_like(target, dtype=torch.float64)
        if problem.table is not None:
            each = [run.linear.predict(problem.table[s.valid.numpy()]) for run, s in zip(runs, splits, strict=True)]  # type: ignore[union-attr]
            linear = each[0] if together else torch.cat(each)
        return _judge_values(logits.mean(0), target.double(), weight, linear)


def _judge_classes(logits: Tensor, target: Tensor, weight: Tensor, mass: Tensor) -> Judged:
    temperature, loss = fit_temperature(logits, target, weight)
    share = float((mass * (logits.softmax(-1).mean(0).argmax(1) == target)).sum() / mass.sum())
    counts = torch.zeros(logits.shape[-1], dtype=torch.float64).index_add(0, target, mass)
    majority, warning = float(counts.max() / mass.sum()), None
    # With class weights rare classes are preferred on purpose.
    if share <= majority and len(target) >= WITNESSES and torch.equal(weight, mass):
        warning = (
            f"the model is no better than the most frequent class: accuracy {share:.3f} on {len(target)} held-out "
            f"labelled rows, of which the most frequent class has {majority:.3f}; the features may not tell the "
            f"classes apart, or there are too few labels"
        )
    words = f"log loss {loss:.4f}, accuracy {share:.4f} on {len(target)} held-out rows"
    return Judged(loss, temperature, words, warning)


def _judge_values(outputs: Tensor, target: Tensor, weight: Tensor, linear: Tensor) -> Judged:
    share = best_share(outputs, target - linear, weight)
    known, wanted = (~target.isnan()) * weight.unsqueeze(1), target.nan_to_num()
    mean = (wanted * known).sum(0) / known.sum(0).clamp_min(TINY)
    loss, constant = (
        float(((found - wanted).square() * known).sum() / known.sum().clamp_min(TINY))
        for found in (linear + share * outputs, mean)
    )
    warning = None
    if loss >= constant and len(target) >= WITNESSES:
        warning = (
            f"the model is no better than the mean: squared error {loss:.3f} on {len(target)} held-out labelled "
            f"rows (targets scaled to variance one), where their mean has {constant:.3f}; the features may say "
            f"nothing about the targets, or there are too few labels"
        )
    return Judged(loss, 1.0, f"squared error {loss:.4f} on {len(target)} held-out rows", warning, share)


def best_share(outputs: Tensor, left: Tensor, weight: Tensor) -> Tensor:
    """γ ``[T]``: least squares on held-out rows, clipped to [0, 1]; zero if the gain is within three standard errors.

    `outputs` are those of the models, and `left` is what the linear part leaves over, NaN where unknown.
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
    weight = weight / weight.mean()
    losses = []
    for temperature in GRID:
        chances = (logits / temperature).softmax(-1).mean(0)
        each = functional.nll_loss(chances.clamp_min(1e-300).log(), target, reduction="none")
        losses.append(float((weight * each).sum()))
    penalised = np.array(losses) + PRIOR * (np.log(GRID) - np.log(CAUTIOUS)) ** 2
    best = int(penalised.argmin())
    return float(GRID[best]), losses[best] / len(target)


def train_and_choose(
    problem: Problem, recipe: Recipe, sides: Mapping[str | None, Edges]
) -> tuple[list[Run], str | None, Judged]:
    """Train `n_models` models on the best of several graphs; if none can be said to be better, on the first."""
    count, share, rows = int(recipe.options.n_models), recipe.options.validation_fraction, problem.labelled
    if share is None and len(rows) >= ENOUGH:
        share = SHARE
    split = hold_out(problem, share, recipe.seed) if share else None
    once = split is not None and split.valid.numel() > 0
    if split is None or not once:
        split = make_split("all", rows, rows[:0])

    def model(number: int, side: str | None, steps: int, more: str = "") -> Run:
        label = f"model {number + 1} of {count}{more}"
        return train(problem, recipe, sides[side], split, recipe.seed + number, steps, label=label)

    side, steps = next(iter(sides)), int(recipe.options.steps)
    judged = Judged(None, CAUTIOUS if problem.classes else 1.0)
    if once:
        first = {side: model(0, side, steps, f" {NAMES[side]}") for side in sides}
        side = _best(recipe, {side: Judged.of(problem, [run], [split]) for side, run in first.items()})
        runs = [first[side], *(model(i, side, steps) for i in range(1, count))]
        return runs, side, Judged.of(problem, runs, [split] * count, together=True)
    if (assign_folds(problem, FOLDS, 0) >= 0).sum() >= JUDGES:
        side, steps, judged = _cross_validated(problem, recipe, sides)
    return [model(i, side, steps) for i in range(count)], side, judged


def _cross_validated(
    problem: Problem, recipe: Recipe, sides: Mapping[str | None, Edges]
) -> tuple[str | None, int, Judged]:
    """The best graph, the best number of steps with it, and how good it is."""
    fold, rows, most = assign_folds(problem, FOLDS, recipe.seed), problem.labelled, int(recipe.options.steps)
    splits = [make_split(f"fold {i}", rows[fold != i], rows[fold == i]) for i in range(FOLDS)]
    judged, steps = {}, {}
    for side, edges in sides.items():
        runs = [train(problem, recipe, edges, split, recipe.seed, most) for split in splits]
        judged[side] = Judged.of(problem, runs, splits)
        curves = [{row["epoch"]: row["valid"] for row in run.record.history if "valid" in row} for run in runs]
        sizes = [split.valid.numel() for split in splits]
        mean = {epoch: np.average([curve[epoch] for curve in curves], weights=sizes) for epoch in curves[0]}
        steps[side] = max(min(FEWEST_STEPS, most), min(mean, key=lambda epoch: mean[epoch]))
    side = _best(recipe, judged)
    return side, steps[side], judged[side]


def _best(recipe: Recipe, judged: Mapping[str | None, Judged]) -> str | None:
    for side, found in judged.items():
        recipe.say(f"{NAMES[side]}: {found.words}")
    return min(judged, key=lambda side: judged[side].loss or 0.0)


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


def assign_folds(problem: Problem, folds: int, seed: int) -> Array:
    """``[l]``: the fold of every labelled row, stratified; -1, always trained on, for the only row of a class."""
    classes, order = _shuffled(problem, seed)
    fold = np.empty(len(classes), dtype=np.int64)
    fold[order] = np.arange(len(classes)) % folds
    return np.where((np.bincount(classes) == 1)[classes], -1, fold)


def _shuffled(problem: Problem, seed: int) -> tuple[Array, Array]:
    """Class of every labelled row (zero for values), and a random order of the rows, sorted by class."""
    classes = np.zeros(len(problem.labelled), dtype=np.int64)
    if problem.classes:
        classes = problem.y[torch.from_numpy(problem.labelled)].numpy()
    order = np.random.RandomState(seed % 2**32).permutation(len(classes))
    return classes, order[np.argsort(classes[order], kind="stable")]


def make_split(name: str, train_rows: Array, valid_rows: Array) -> Split:
    nothing = torch.empty(0, dtype=torch.long)
    return Split(name, torch.from_numpy(np.asarray(train_rows)), torch.from_numpy(np.asarray(valid_rows)), nothing)
