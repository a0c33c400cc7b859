"""How good the predictions are: by class or as residuals, calibration, simple models, columns that matter, and errors.

For class c with TP, FP and FN: precision TP / (TP + FP), recall TP / (TP + FN), F1 2TP / (2TP + FP + FN); each the mean
over the seeds that have it, with the sample standard deviation. The confusion matrix adds up the seeds. The expected
calibration error over bins b of the predicted probability is Σ_b n_b/n |accuracy_b - confidence_b|.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.attention.summary import LINEAR
from difformer.data import Task
from difformer.data.sparse_features import to_scipy
from difformer.nn import DIFFormer
from difformer.report import gather
from difformer.report.gather import Material
from difformer.training.metrics import class_counts, column_aucs, find_metric
from difformer.training.record import Predictions, spread

SHOWN_CLASSES = 30
SCATTER_POINTS = 2_000
BINS, CONFIDENCE_BINS = 60, 10
ERRORS, ERROR_COLUMNS = 300, 12
MOSTLY_ZERO = 0.8  # share of zeros from which on features are treated as counts, with rows scaled to unit length
# Limits of linear models: rows × features × classes, least number of rows, splits, target columns.
FIT_WORK, LEAST_ROWS, FIT_SPLITS, FIT_COLUMNS = 50_000_000, 200, 5, 16
# Of permutation importance: columns and shufflings of each at most, and numbers that all shufflings together may touch.
TRIED_COLUMNS, LEAST_COLUMNS, REPEATS, SHUFFLED = 64, 4, 3, 500_000_000
Array = np.ndarray[Any, Any]
Spread = tuple[float, float | None]


def quality(task: Task, seeds: Sequence[Predictions], part: str) -> dict[str, Any]:
    """Facts about the predictions of all seeds on one part."""
    return (_residuals if task.problem == "regression" else _classes)(task, [_on(one, part) for one in seeds])


def _on(predictions: Predictions, part: str) -> tuple[Array, Tensor, Tensor]:
    """Instances of a part, their outputs and their targets."""
    targets: Any = predictions.targets
    rows = np.flatnonzero(np.array(predictions.part) == part)
    return rows, predictions.outputs[rows], targets[rows]


def _classes(task: Task, seeds: Sequence[tuple[Array, Tensor, Tensor]]) -> dict[str, Any]:
    columns, size = task.problem == "multilabel", 2 if task.problem == "multilabel" else task.num_outputs
    counts, areas, cells = [], [], np.zeros((size, size), dtype=int)
    for _, outputs, targets in seeds:
        o = outputs.reshape(-1, task.num_outputs)
        y = targets.reshape(o.shape if columns else -1)
        known, truth, claim = (~y.isnan(), y > 0.5, o > 0) if columns else (y >= 0, y, o.argmax(-1))
        places = size * truth[known].long() + claim[known].long()
        cells += torch.bincount(places, minlength=size**2).reshape(size, size).numpy(force=True)
        counts.append(class_counts(o, y)[:3].numpy(force=True))
        areas += [column_aucs(o, y).numpy(force=True)] if columns else []
    hits, predicted, actual = np.array(counts).swapaxes(0, 1)  # [seeds, C] each
    with np.errstate(invalid="ignore"):
        scores = {"precision": hits / predicted, "recall": hits / actual, "f1": 2 * hits / (predicted + actual)}
    scores |= {"auc": np.array(areas)} if columns else {}
    table = []
    for c, name in enumerate(gather.column_names(task)):
        row = {"name": name, "number": actual[:, c].mean(), "predicted_in": int((predicted[:, c] > 0).sum())}
        table.append(row | {key: _mean(values[:, c]) for key, values in scores.items()})
    names = ["no", "yes"] if columns else gather.column_names(task)
    shown = np.sort(np.argsort(-cells.sum(1), kind="stable")[:SHOWN_CLASSES])
    return {
        "kind": "classes", "table": table, "confusion": cells[np.ix_(shown, shown)].tolist(),
        "names": [names[c] for c in shown], "hidden": size - len(shown), "seeds": len(seeds),
    }  # fmt: skip


def _mean(values: Sequence[float] | Array) -> Spread | None:
    """Mean and sample deviation of known values; a single value has no deviation."""
    known = [float(value) for value in values if value == value]
    return (float(np.mean(known)), spread(known) if len(known) > 1 else None) if known else None


def _residuals(task: Task, seeds: Sequence[tuple[Array, Tensor, Tensor]]) -> dict[str, Any]:
    """Target against prediction of the first seed, and the errors of all."""
    pairs = [(y.double(), o.double().reshape(y.shape)) for _, o, y in seeds]
    flat = torch.cat([(o - y)[~y.isnan()] for y, o in pairs])
    if not flat.numel():
        return {"kind": "residuals", "seeds": len(seeds), "scatter": None, "table": []}
    y, o = pairs[0]
    known = (~y.isnan()).flatten().nonzero().squeeze(1)
    some = known[gather.draw(known.numel(), SCATTER_POINTS)]
    heights, edges = np.histogram(flat.numpy(), bins=BINS)
    series, columns = task.kind == "series", range(y.shape[1] if y.dim() > 1 else 1)
    groups: list[tuple[str, Any]] = [("all", ...)]
    if len(columns) > 1:
        names = [gather.name_of(task, c) for c in columns] if series else gather.column_names(task)
        groups += [(name, (slice(None), c)) for c, name in enumerate(names)]
    table = []
    for name, where in groups:
        scores = np.array([_value_scores(y[where], o[where]) for y, o in pairs])
        table.append({"name": name} | {key: _mean(scores[:, i]) for i, key in enumerate(("mse", "mae", "r2"))})
    gaps = (o - y).square().flatten(1).nanmean(1).tolist() if series else []
    return {
        "kind": "residuals", "seeds": len(seeds), "mean": float(flat.mean()), "table": table,
        "scatter": {name: [gather.rounded(v) for v in one.flatten()[some].tolist()]
                    for name, one in (("target", y), ("prediction", o))},
        "histogram": {"left": edges[:-1].tolist(), "width": float(edges[1] - edges[0]), "height": heights.tolist()},
        "over_time": {"time": seeds[0][0].tolist(), "mse": [gather.rounded(v) for v in gaps]} if series else None,
    }  # fmt: skip


def _value_scores(target: Tensor, value: Tensor) -> tuple[float, float, float]:
    """MSE, MAE and R² of known targets; NaN without known targets, or without variance for R² to explain."""
    target, value = target[~target.isnan()], value[~target.isnan()]
    error, variance = value - target, target.var(unbiased=False) if target.numel() else torch.tensor(math.nan)
    mse = error.square().mean()
    return float(mse), float(error.abs().mean()), float(1 - mse / variance) if variance > 0 else math.nan


@dataclass(frozen=True)
class Calibration:
    """Predicted probabilities against how often they are right, in bins that are not empty."""

    confidence: list[float]  # mean predicted probability of each bin
    accuracy: list[float]  # share that is right
    count: list[int]  # predictions in the bin
    error: float  # expected calibration error


def calibration(task: Task, seeds: Sequence[Predictions], part: str) -> Calibration | None:
    """Calibration of the predicted class, or of the likelier answer of each column; None for a regression."""
    sure, right = [torch.empty(0)], [torch.empty(0, dtype=torch.bool)]
    for predictions in seeds if task.problem != "regression" else ():
        rows, _, y = _on(predictions, part)
        p = predictions.probabilities()[rows]
        if task.problem == "multiclass":
            (chance, claim), known = p.max(-1), y >= 0
            hits = claim == y
        else:
            y, chance = y.reshape(p.shape), torch.maximum(p, 1 - p)
            known, hits = ~y.isnan(), (p > 0.5) == (y > 0.5)
        sure.append(chance[known])
        right.append(hits[known])
    c, hit = torch.cat(sure).double().numpy(), torch.cat(right).double().numpy()
    if not c.size:
        return None
    which = np.minimum((c * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    _, place, count = np.unique(which, return_inverse=True, return_counts=True)
    confidence, accuracy = (np.bincount(place, values) / count for values in (c, hit))
    error = float(np.average(np.abs(accuracy - confidence), weights=count))
    return Calibration(confidence.tolist(), accuracy.tolist(), count.tolist(), error)


@dataclass(frozen=True)
class Baseline:
    """A simple model on the same split."""

    name: str  # what it is, as in "… gives 0.56"
    values: list[float]  # the run's metric, one per split

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else float("nan")


def baselines(material: Material) -> tuple[Baseline, Baseline]:
    """A constant prediction and a linear model on the features alone, fitted on the training part of the run's splits.

    The linear model is a logistic regression (ridge for values and for many columns) on standardised features, or on
    rows of unit length where most entries are zero; of graphs on the mean of their nodes. At most `FIT_SPLITS` splits
    are used; a large training part is sampled, and the name says so.
    """
    task, metric = material.task, find_metric(material.folder.summary().metric)
    splits = {r["split"]: material.folder.split_of(task, r["seed"]) for r in material.folder.results()}
    each = task.num_features * task.num_outputs * (task.num_nodes if task.kind == "series" else 1)
    limit, sampled = max(LEAST_ROWS, FIT_WORK // each), False
    found: tuple[list[float], list[float]] = ([], [])
    for split in list(splits.values())[:FIT_SPLITS]:
        part, train = split.parts()[material.part], split.train[gather.draw(split.train.numel(), limit)]
        sampled |= train.numel() < split.train.numel()
        y = task.y[part]
        shape = (*y.shape[: 2 if task.kind == "series" else 1], task.num_outputs)
        for linear, values in enumerate(found):
            outputs = torch.from_numpy(_simple(task, train, part, bool(linear))).float().reshape(shape)
            values.append(float(metric(outputs, y)))
    names = {
        "multiclass": ("always predicting the most frequent class", "a logistic regression"),
        "multilabel": ("always predicting the base rate", "a linear model"),
        "regression": ("always predicting the training mean", "a ridge regression"),
    }[task.problem]
    of = f" on {limit:,} of the training instances" if sampled else ""
    return Baseline(names[0], found[0]), Baseline(names[1] + of, found[1])


def _table(task: Task, rows: Tensor) -> Any:
    """Features of instances, dense or in scipy's CSR; means over the nodes of graphs, one row per node of series."""
    if task.kind == "series":
        return task.x[rows].flatten(0, 1).numpy()
    if task.kind == "graphs":
        assert task.node_ptr is not None
        ends = zip(task.node_ptr[rows].tolist(), task.node_ptr[rows + 1].tolist(), strict=True)
        return torch.stack([gather.dense_rows(task, torch.arange(*two)).mean(0) for two in ends]).numpy()
    return task.x[rows].float().numpy() if task.x.layout == torch.strided else to_scipy(task.x)[rows.numpy()]


def _simple(task: Task, train: Tensor, part: Tensor, linear: bool) -> Array:
    """Outputs of a constant or a linear model, fitted column by column: logits of classes, or values."""
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer, StandardScaler

    x, asked, multiclass = _table(task, train), _table(task, part), task.problem == "multiclass"
    y = task.y[train].reshape(-1, 1 if multiclass else task.num_outputs).double().numpy()
    y = np.where(y < 0, np.nan, y) if multiclass else y  # columns, NaN if unknown
    outputs = np.zeros((asked.shape[0], task.num_outputs))
    scale = Normalizer if hasattr(x, "tocsr") or (x == 0).mean() > MOSTLY_ZERO else StandardScaler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model that has not converged is good enough for comparison
        for c in np.flatnonzero(~np.isnan(y).all(0)):
            known = ~np.isnan(y[:, c])
            values = y[known, c]
            if task.problem == "regression" or (linear and y.shape[1] > FIT_COLUMNS):
                fitted = make_pipeline(scale(), Ridge() if linear else DummyRegressor()).fit(x[known], values)
                outputs[:, c] = fitted.predict(asked) - (0.5 if task.problem == "multilabel" else 0)
                continue
            able = linear and len(np.unique(values)) > 1
            model = make_pipeline(scale(), LogisticRegression(max_iter=200) if able else DummyClassifier())
            fitted = model.fit(x[known], values.astype(int))
            logits = np.full((asked.shape[0], max(2, task.num_outputs)), np.log(1e-12))
            logits[:, fitted[-1].classes_] = np.log(fitted.predict_proba(asked).clip(1e-12))
            if task.problem == "multilabel":
                outputs[:, c] = logits[:, 1] - logits[:, 0]
            else:
                outputs = logits[:, : task.num_outputs]
    return outputs


@dataclass(frozen=True)
class Importance:
    """What happens to the metric when a column is shuffled."""

    names: list[str]  # of the columns, the most important first
    losses: list[float]  # by how much the metric gets worse, mean over shufflings
    note: str = ""  # what was left out, or why nothing was measured


@torch.no_grad()
def column_importance(material: Material) -> Importance:
    """Permutation importance on the reported part, for the shown seed.

    Encoded columns of one column of the table are shuffled together. At most `TRIED_COLUMNS` columns are tried, fewer
    of large tasks: those with the largest gradient times deviation. How many depends only on sizes, not on the clock.
    """
    loaded, task, rows = material.loaded, material.task, material.rows
    passes, model = loaded.feed.passes(), loaded.model
    if not rows.numel() or passes[0].x.shape[1] != task.num_features:
        return Importance([], [], "Not measured: the model makes features of its own from the columns.")
    if sum(one.x.shape[0] * one.x.shape[1] for one in passes) > gather.DENSE_ENTRIES:
        return Importance([], [], "Not measured: there are too many rows and columns to shuffle one after the other.")
    dense = [one.x.to_dense() for one in passes]
    metric, targets = find_metric(material.folder.summary().metric), task.y[rows]
    sign = 1.0 if metric.higher_is_better else -1.0

    def score(features: Sequence[Tensor]) -> float:
        made = [replace(one, x=x).outputs(model).float().cpu() for one, x in zip(passes, features, strict=True)]
        return sign * float(metric(torch.cat(made).reshape(material.outputs.shape)[rows], targets))

    base = score(dense)
    expected = sign * float(metric(material.outputs[rows], targets))
    if not abs(base - expected) <= 0.02 * max(1.0, abs(expected)):
        return Importance([], [], "Not measured: this run is evaluated in batches that cannot be put together again.")
    # A DIFFormer may compare all rows pair by pair.
    encoder, groups, note = gather.encoder_of(model), gather.source_columns(task), ""
    forms = {layer.form for layer in encoder.layers} if isinstance(encoder, DIFFormer) else set()
    pairs = bool(forms - {*LINEAR, "identity", None})
    touched = REPEATS * sum(x.numel() + pairs * x.shape[0] ** 2 for x in dense)
    limit = min(TRIED_COLUMNS, max(LEAST_COLUMNS, SHUFFLED // touched))
    if len(groups) > limit:
        note = f"{limit} of {len(groups):,} columns were tried, those with the largest gradients."
        steep = _steepness(material, dense)
        groups = dict(sorted(groups.items(), key=lambda one: -float(steep[one[1]].sum()))[:limit])
    generator = torch.Generator().manual_seed(0)
    losses = dict.fromkeys(groups, 0.0)
    for name, together in groups.items():
        for _ in range(REPEATS):
            shuffled = [x.clone() for x in dense]
            for x in shuffled:
                x[:, together] = x[torch.randperm(x.shape[0], generator=generator).to(x.device)][:, together]
            losses[name] += (base - score(shuffled)) / REPEATS
    order = sorted(losses, key=lambda name: -losses[name])
    return Importance(order, [losses[name] for name in order], note)


def _steepness(material: Material, dense: Sequence[Tensor]) -> Tensor:
    """Σ_i |∂L/∂x_ic| times the deviation of each column c, with L the sum of squared outputs."""
    total = torch.zeros(dense[0].shape[1])
    for one, x in zip(material.loaded.feed.passes(), dense, strict=True):
        with torch.enable_grad():
            at = x.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(replace(one, x=at).outputs(material.loaded.model).square().sum(), at)
        total += (slope.abs().mean(0) * x.std(0)).float().cpu().nan_to_num()
    return total


@dataclass(frozen=True)
class ErrorList:
    """Wrong or far predictions of the part, the worst first."""

    headings: list[str]  # of the columns
    rows: list[list[Any]]  # one per error
    right: list[int]  # numbers of the columns that hold numbers
    places: list[Any]  # the instance of each row; snapshot and node for a series
    count: int  # how many there are, listed or not
    total: int  # how many predictions were looked at


def errors(material: Material, important: Sequence[str]) -> ErrorList:
    """Errors of the shown seed, with the columns of their instances in original units."""
    task, part = material.task, material.rows
    y, o, series, classes = task.y[part], material.outputs[part], task.kind == "series", task.problem == "multiclass"
    outputs, nodes = gather.column_names(task), task.num_nodes if series else task.num_instances
    names = task.instance_names if len(task.instance_names) == nodes else range(nodes)
    shares = task.problem == "multilabel"
    if classes:
        value, claim = o.softmax(-1).max(-1)
        known, least = y >= 0, 0.0
        badness = torch.where(known & (claim != y), value, -1.0)
    else:
        value, known = (o.sigmoid() if shares else o).reshape(y.shape), ~y.isnan()
        badness, least = torch.where(known, (value - y).abs(), -1.0), 0.5 if shares else -0.5
    count = int((badness > least).sum())
    order = badness.flatten().argsort(descending=True, stable=True)[: min(ERRORS, count)]
    several = not classes and not series and y.dim() > 1 and y.shape[1] > 1
    table, places = [], []
    for at in zip(*(place.tolist() for place in np.unravel_index(order.numpy(), tuple(y.shape))), strict=True):
        number = int(part[at[0]])
        row: list[Any] = [number, names[at[1]]] if series else [names[number]]
        if classes:
            row += [outputs[int(y[at])], outputs[int(claim[at])], round(float(value[at]), 4)]
        else:
            row += [outputs[at[1]]] if several else []
            row += [gather.rounded(float(v)) for v in (y[at], value[at], value[at] - y[at])]
        table.append(row)
        places.append((number, at[1]) if series else number)
    columns = list(important)[:ERROR_COLUMNS] if task.kind == "nodes" and task.feature_names else []
    if columns and places:
        held = gather.original_cells(task, torch.tensor(places), [columns] * len(places))
        table = [[*row, *cells] for row, cells in zip(table, held, strict=True)]
    heads = ["prediction", "probability"] if classes else ["probability" if shares else "prediction", "error"]
    headings = [*["snapshot"] * series, gather.WHAT[task.kind], *["column"] * several, "target", *heads, *columns]
    right = [c for c in range(len(headings)) if table and all(is_number(row[c]) for row in table)]
    return ErrorList(headings, table, right, places, count, int(known.sum()))


def is_number(cell: Any) -> bool:
    """Whether a cell holds a finite number, or nothing."""
    try:
        return cell in (None, "") or math.isfinite(float(cell))
    except ValueError:
        return False
