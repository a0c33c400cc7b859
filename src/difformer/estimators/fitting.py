"""From a population to trained models: the graph, what is held out, and the runs.

**What is held out.** With fewer than `ENOUGH` labelled rows every one of them is trained on, for a fixed number of
steps: a handful of held-out rows cannot tell one epoch from another. From `ENOUGH` on a share of them is held out,
training may go on `LONGER` times as long, and the epoch that is best on the held-out rows is kept (by accuracy, then by
likelihood: `difformer.estimators.judging`).

**Which graph.** ``"auto"`` asks the labelled rows: where a share is held out anyway, it decides between the neighbour
graph and none; with fewer labelled rows a cross-validation of `FOLDS` folds does, with runs half as long; with fewer
than `JUDGES`, or in a tie, it is the neighbour graph. Below `FEWEST` rows there is no neighbourhood worth the name,
above `MOST` the search is left to who asks for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.attention.linear import LINEAR
from difformer.attention.scores import form_of, score_key
from difformer.data import Split, Task
from difformer.estimators.mass import train_weighted
from difformer.estimators.progress import LINES, Progress, say
from difformer.nn import DIFFormer
from difformer.training import RunRecord, TrainConfig, train_one
from difformer.training.randomness import isolated_rng
from difformer.training.stacked import StackedSetting, faster, train_stacked

Array = np.ndarray[Any, Any]

ENOUGH = 1000  # labelled rows from which a share is held out
LONGER, LOOKS = 3, 60
FOLDS = 3
JUDGES = 20  # labelled rows that may choose the graph
FEWEST, MOST = 32, 20_000
WHOLE = 20_000  # rows that are trained on at once where pairs are looked at one by one
BATCH = 4096


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Args:
        options: Of `DIFFormer`.
        steps: Gradient steps.
        learning_rate: Of Adam.
        weight_decay: λ.
        n_models: Runs whose outputs are averaged.
        validation_fraction: Share of the labelled rows that is held out where there are enough.
        batch_size: Rows of a mini-batch; None takes all, or `BATCH` of more than `WHOLE` where pairs are looked at.
        device: Where to train.
        seed: Of everything that is random.
        speaker: Name under which progress is printed; None prints nothing.
    """

    options: Mapping[str, Any]
    steps: int
    learning_rate: float
    weight_decay: float
    n_models: int
    validation_fraction: float
    batch_size: int | None
    device: str
    seed: int
    speaker: str | None = None

    def batch(self, rows: int) -> int | None:
        """Rows of a mini-batch for a population of `rows`; None for all."""
        if self.batch_size is not None:
            return self.batch_size if self.batch_size < rows else None
        return BATCH if self.pairs and rows > WHOLE else None

    @property
    def pairs(self) -> bool:
        """Whether rows are looked at pair by pair."""
        form = form_of(score_key(self.options["diffusivity"], int(self.options["hidden_channels"])))
        return form not in LINEAR and self.options.get("backend") != "polynomial"

    def numbers(self, rows: int, features: float) -> int:
        """In the largest operation of a step, features that are zero not counted."""
        together = self.batch(rows) or rows
        return int(together * max(int(self.options["hidden_channels"]), features, together if self.pairs else 0))

    def config(self, rows: int, *, longer: bool, looks: int = 1) -> TrainConfig:
        """The training configuration.

        Args:
            rows: Of the population.
            longer: Whether the best epoch is chosen on held-out rows.
            looks: How often a run is looked at where it is not.
        """
        batch = self.batch(rows)
        steps = self.steps * (LONGER if longer else 1)
        epochs = steps if batch is None else max(1, math.ceil(steps * batch / rows))
        return TrainConfig(
            model="difformer",
            options=dict(self.options),
            epochs=epochs,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            batch_size=batch,
            # Looking at every epoch costs as much as training; only held-out rows ask for it.
            eval_every=max(1, epochs // (LOOKS if longer else looks)),
            patience=max(1, epochs // 4) if longer else None,
        )


@dataclass(frozen=True)
class Problem:
    """What is to be learnt.

    Args:
        x: ``[n, F]`` scaled features, float32, dense or CSR.
        y: ``[n]`` int64 classes (-1 unknown), or ``[n, T]`` float32 values (NaN unknown).
        num_outputs: Classes or targets.
        labelled: ``[l]`` rows with a target.
        weight: ``[n]`` of the rows, None where all are alike.
    """

    x: Tensor
    y: Tensor
    num_outputs: int
    labelled: Array
    weight: Tensor | None

    def task(self, edge_index: Tensor | None, splits: tuple[Split, ...], edge_weight: Tensor | None = None) -> Task:
        classes = not self.y.is_floating_point()
        return Task(
            name="estimator",
            kind="nodes",
            problem="multiclass" if classes else "regression",
            metric="accuracy" if classes else "mse",
            protocol="rows of a table, some of them labelled",
            x=self.x,
            y=self.y,
            splits=splits,
            num_outputs=self.num_outputs,
            edge_index=edge_index,
            edge_weight=edge_weight,
        )


def fit_models(
    problem: Problem, recipe: Recipe, edge_index: Tensor | None, edge_weight: Tensor | None = None
) -> tuple[list[DIFFormer], list[RunRecord]]:
    """Trained models on the CPU, and their records."""
    split = hold_out(problem, recipe)
    seeds = [recipe.seed + i for i in range(recipe.n_models)]
    records = train(problem, recipe, edge_index, edge_weight, (split,), [(seed, 0) for seed in seeds])
    features = problem.x.shape[1]
    models = []
    for record in records:
        options = dict(recipe.options)
        with isolated_rng(torch.device("cpu")):  # initial weights are drawn, and thrown away
            model = DIFFormer(features, options.pop("hidden_channels"), problem.num_outputs, **options)
        model.load_state_dict(record.state)
        models.append(model)
    return models, records


def neighbours_help(problem: Problem, recipe: Recipe, edge_index: Tensor) -> bool:
    """Whether held-out labelled rows are predicted at least as well with the neighbour graph as without."""
    if len(problem.labelled) < JUDGES:
        return True
    held = hold_out(problem, recipe)
    if held.valid.numel():
        splits: tuple[Split, ...] = (held,)
    else:
        splits = cross_validation(problem, recipe.seed)
        # Which of the two is better shows long before either is at its best.
        recipe = dataclasses.replace(recipe, steps=max(1, recipe.steps // 2))
    runs = [(recipe.seed, number) for number in range(len(splits))]
    quiet = dataclasses.replace(recipe, speaker=None)
    measured = []
    for edges, what in ((edge_index, "with the neighbour graph"), (None, "without")):
        records = train(problem, quiet, edges, None, splits, runs)
        measured.append(float(np.mean([record.valid for record in records])))
        kind = "squared error" if problem.y.is_floating_point() else "accuracy"
        seconds = sum(record.seconds for record in records)
        say(recipe.speaker, f'graph="auto", {what}: {kind} {measured[-1]:.4f} on held-out rows, {seconds:.1f} s')
    with_graph, without = measured
    return with_graph <= without if problem.y.is_floating_point() else with_graph >= without


def train(
    problem: Problem,
    recipe: Recipe,
    edge_index: Tensor | None,
    edge_weight: Tensor | None,
    splits: tuple[Split, ...],
    runs: list[tuple[int, int]],
) -> list[RunRecord]:
    """One record for each ``(seed, number of split)``."""
    task = problem.task(edge_index, splits, edge_weight)
    rows = problem.x.shape[0]
    longer = len(splits) == 1 and splits[0].valid.numel() > 0
    config = recipe.config(rows, longer=longer, looks=1 if recipe.speaker is None else LINES)
    callbacks: tuple[Progress, ...] = ()
    if recipe.speaker is not None:
        unit = "step" if config.batch_size is None else "epoch"
        callbacks = (Progress(recipe.speaker, [seed for seed, _ in runs], unit),)
    if problem.weight is not None or config.batch_size is not None or longer:
        mass = problem.weight if config.batch_size is None else None
        return [
            train_weighted(task, splits[number], config, seed, recipe.device, problem.weight, mass, callbacks)
            for seed, number in runs
        ]
    if faster(task, config, len(runs), recipe.device):
        settings = [StackedSetting(seed, number) for seed, number in runs]
        return train_stacked(task, settings, config, recipe.device, callbacks=callbacks)
    return [train_one(task, number, config, seed, recipe.device, callbacks=callbacks) for seed, number in runs]


def hold_out(problem: Problem, recipe: Recipe) -> Split:
    """All labelled rows to train on or, where there are enough, all but a share that is held out."""
    nobody = np.empty(0, dtype=np.int64)
    if len(problem.labelled) < ENOUGH or not recipe.validation_fraction:
        return make_split("all", problem.labelled, nobody)
    folds = max(2, round(1 / recipe.validation_fraction))
    fold = assign_folds(problem, folds, recipe.seed)
    return make_split("held out", problem.labelled[fold != 0], problem.labelled[fold == 0])


def cross_validation(problem: Problem, seed: int) -> tuple[Split, ...]:
    fold = assign_folds(problem, FOLDS, seed)
    rows = problem.labelled
    return tuple(make_split(f"fold {i}", rows[fold != i], rows[fold == i]) for i in range(FOLDS))


def assign_folds(problem: Problem, folds: int, seed: int) -> Array:
    """``[l]``: the fold of every labelled row, classes spread evenly; -1, trained on always, for a class of one row."""
    rng = np.random.RandomState(seed % 2**32)
    target = problem.y[torch.from_numpy(problem.labelled)]
    classes = np.zeros(len(problem.labelled), dtype=np.int64) if target.is_floating_point() else target.numpy()
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    fold = np.empty(len(classes), dtype=np.int64)
    fold[order] = np.arange(len(classes)) % folds
    alone = np.bincount(classes) == 1
    return np.where(alone[classes], -1, fold)


def make_split(name: str, train_rows: Array, valid_rows: Array) -> Split:
    nobody = torch.empty(0, dtype=torch.long)
    return Split(name, torch.from_numpy(np.asarray(train_rows)), torch.from_numpy(np.asarray(valid_rows)), nobody)
