"""How good the predictions are: by class or as residuals, how well calibrated, against simple models, and where wrong.

For class c with TP, FP and FN: precision TP / (TP + FP), recall TP / (TP + FN), F1 2TP / (2TP + FP + FN); each the mean
over the seeds that have it, with the sample standard deviation. The confusion matrix adds up the seeds. The expected
calibration error over bins b of the predicted probability is Σ_b n_b/n |accuracy_b - confidence_b|.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.data.sparse import to_scipy
from difformer.report.gather import (
    DENSE_ENTRIES,
    Material,
    column_names,
    dense_rows,
    draw,
    original_cells,
    rounded,
    source_columns,
)
from difformer.training.metrics import find_metric, rocauc
from difformer.training.record import Predictions, spread

SHOWN_CLASSES = 30
SCATTER_POINTS = 2_000
BINS, CONFIDENCE_BINS = 60, 10
ERRORS, ERROR_COLUMNS = 300, 12
# Of linear models: rows times features times classes, the least number of rows, splits, target columns.
MOSTLY_ZERO = 0.8  # such features are counts of words and the like, whose rows are brought to unit length
FIT_WORK, LEAST_ROWS, FIT_SPLITS, FIT_COLUMNS = 50_000_000, 200, 5, 16
TRIED_COLUMNS, REPEATS, SECONDS = 64, 3, 10.0
Array = np.ndarray[Any, Any]
Spread = tuple[float, float | None]


def quality(task: Task, seeds: Sequence[Predictions], part: str) -> dict[str, Any]:
    """What is shown of the predictions of all seeds on one part."""
    if task.problem == "multiclass":
        return _classes(task, seeds, part)
    return _columns(task, seeds, part) if task.problem == "multilabel" else _residuals(task, seeds, part)


def _rows(predictions: Predictions, part: str) -> Array:
    return np.flatnonzero(np.array(predictions.part) == part)


def _classes(task: Task, seeds: Sequence[Predictions], part: str) -> dict[str, Any]:
    count, matrices = task.num_outputs, []
    for predictions in seeds:
        assert predictions.targets is not None
        rows = _rows(predictions, part)
        y = predictions.targets.numpy(force=True)[rows].reshape(-1)
        p = predictions.labels().numpy(force=True)[rows].reshape(-1)
        known = y >= 0
        matrices.append(np.bincount(y[known] * count + p[known], minlength=count**2).reshape(count, count))
    names = column_names(task)
    total = np.sum(matrices, axis=0)
    order = np.sort(np.argsort(-total.sum(1), kind="stable")[:SHOWN_CLASSES])
    return {
        "kind": "classes",
        "table": _scores(names, [(m.diagonal(), m.sum(0), m.sum(1)) for m in matrices]),
        "confusion": total[np.ix_(order, order)].tolist(),
        "names": [names[c] for c in order],
        "hidden": max(0, count - SHOWN_CLASSES),
        "seeds": len(matrices),
    }


def _columns(task: Task, seeds: Sequence[Predictions], part: str) -> dict[str, Any]:
    counts, areas, cells = [], [], np.zeros((2, 2), dtype=int)
    for predictions in seeds:
        assert predictions.targets is not None
        rows = _rows(predictions, part)
        outputs = predictions.outputs[rows].reshape(-1, task.num_outputs)
        targets = predictions.targets[rows].reshape(-1, task.num_outputs)
        known, truth, claim = ~targets.isnan(), targets > 0.5, outputs > 0
        counts.append(tuple((known & which).sum(0).numpy(force=True) for which in (truth & claim, claim, truth)))
        for i, wanted in enumerate((~truth, truth)):
            for j, given in enumerate((~claim, claim)):
                cells[i, j] += int((known & wanted & given).sum())
        areas.append([float(rocauc(outputs[:, [c]], targets[:, [c]])) for c in range(task.num_outputs)])
    table = _scores(column_names(task), counts)  # type: ignore[arg-type]
    for c, row in enumerate(table):
        row["auc"] = _mean([seed[c] for seed in areas])
    names = ["no", "yes"]
    return {
        "kind": "classes", "table": table, "confusion": cells.tolist(), "names": names, "hidden": 0, "seeds": len(seeds)
    }  # fmt: skip


def _scores(names: list[str], counts: Sequence[tuple[Array, Array, Array]]) -> list[dict[str, Any]]:
    """One row per class from hits, predicted and actual numbers of every seed."""
    hits, predicted, actual = np.array(counts, dtype=float).swapaxes(0, 1)
    with np.errstate(invalid="ignore"):
        found = {"precision": hits / predicted, "recall": hits / actual, "f1": 2 * hits / (predicted + actual)}
    return [
        {
            "name": name,
            "number": actual[:, c].mean(),
            "predicted_in": int((predicted[:, c] > 0).sum()),
            **{key: _mean(values[:, c]) for key, values in found.items()},
        }
        for c, name in enumerate(names)
    ]


def _mean(values: Sequence[float] | Array) -> Spread | None:
    """Mean and sample deviation of those that are known; one value has no deviation."""
    known = [float(value) for value in values if value == value]
    if not known:
        return None
    return float(np.mean(known)), spread(known) if len(known) > 1 else None


def _residuals(task: Task, seeds: Sequence[Predictions], part: str) -> dict[str, Any]:
    """Target against prediction of the first seed, and the errors of all."""
    targets, values = [], []
    for predictions in seeds:
        assert predictions.targets is not None
        rows = _rows(predictions, part)
        targets.append(predictions.targets[rows].double())
        values.append(predictions.outputs[rows].double().reshape(targets[-1].shape))
    flat = torch.cat([(p - y)[~y.isnan()] for p, y in zip(values, targets, strict=True)])
    if not flat.numel():
        return {"kind": "residuals", "seeds": len(seeds), "scatter": None, "table": []}
    known = ~targets[0].isnan()
    y, p = targets[0][known], values[0][known]
    some = draw(y.numel(), SCATTER_POINTS)
    heights, edges = np.histogram(flat.numpy(), bins=BINS)
    table = []
    for name, column in _groups(task, targets[0]):
        pairs = zip(targets, values, strict=True)
        scores = [_value_scores(*(part if column is None else part[:, column] for part in pair)) for pair in pairs]
        table.append({"name": name, **{key: _mean([one[key] for one in scores]) for key in ("mse", "mae", "r2")}})
    over_time = None
    if task.kind == "series":
        gaps = (values[0] - targets[0]).square().flatten(1).nanmean(1).tolist()
        over_time = {"time": _rows(seeds[0], part).tolist(), "mse": [rounded(v) for v in gaps]}
    return {
        "kind": "residuals",
        "seeds": len(seeds),
        "scatter": {"target": [rounded(v) for v in y[some].tolist()],
                    "prediction": [rounded(v) for v in p[some].tolist()]},
        "histogram": {"left": edges[:-1].tolist(), "width": float(edges[1] - edges[0]), "height": heights.tolist()},
        "mean": float(flat.mean()),
        "over_time": over_time,
        "table": table,
    }  # fmt: skip


def _value_scores(target: Tensor, value: Tensor) -> dict[str, float]:
    """Of known targets; NaN where there are none, or where R² has no variance to explain."""
    known = ~target.isnan()
    if not known.any():
        return dict.fromkeys(("mse", "mae", "r2"), math.nan)
    error, variance = (value - target)[known], target[known].var(unbiased=False)
    mse = error.square().mean()
    r2 = 1 - mse / variance if variance > 0 else torch.tensor(math.nan)
    return {"mse": float(mse), "mae": float(error.abs().mean()), "r2": float(r2)}


def _groups(task: Task, y: Tensor) -> list[tuple[str, int | None]]:
    """All together, then by target column, or by node of a series: a name and the number of the column."""
    groups: list[tuple[str, int | None]] = [("all", None)]
    axis = y.shape[1] if y.dim() > 1 else 1
    if axis == 1:
        return groups
    names = column_names(task)
    if task.kind == "series":
        names = list(task.instance_names) if len(task.instance_names) == axis else [f"node {i}" for i in range(axis)]
    return groups + [(names[c] if c < len(names) else str(c), c) for c in range(axis)]


@dataclass(frozen=True)
class Calibration:
    """Predicted probabilities against how often they are right, in bins that hold anything."""

    confidence: list[float]  # mean predicted probability of each bin
    accuracy: list[float]  # share that is right
    count: list[int]  # predictions in the bin
    error: float  # expected calibration error


def calibration(task: Task, seeds: Sequence[Predictions], part: str) -> Calibration | None:
    """Of the predicted class, or of the more probable answer of every column; None for a regression."""
    sure, right = [], []
    for predictions in seeds if task.problem != "regression" else ():
        assert predictions.targets is not None
        rows = _rows(predictions, part)
        p, y = predictions.probabilities()[rows], predictions.targets[rows]
        if task.problem == "multiclass":
            best, known = p.max(-1), y >= 0
            sure.append(best.values[known])
            right.append(best.indices[known] == y[known])
        else:
            y, known = y.reshape(p.shape), ~y.reshape(p.shape).isnan()
            sure.append(torch.maximum(p, 1 - p)[known])
            right.append(((p > 0.5) == (y > 0.5))[known])
    if not sure or not (total := sum(one.numel() for one in sure)):
        return None
    c, hit = torch.cat(sure).double().numpy(), torch.cat(right).double().numpy()
    which = np.minimum((c * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    bins = [which == b for b in range(CONFIDENCE_BINS) if (which == b).any()]
    means = [(float(c[b].mean()), float(hit[b].mean()), int(b.sum())) for b in bins]
    error = sum(n * abs(a - p) for p, a, n in means) / total
    return Calibration([m[0] for m in means], [m[1] for m in means], [m[2] for m in means], error)


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
    splits: dict[str, Split] = {}
    for result in material.folder.results():
        splits.setdefault(result["split"], material.folder.split_of(task, result["seed"]))
    each = task.num_features * task.num_outputs * (task.num_nodes if task.kind == "series" else 1)
    limit, sampled = max(LEAST_ROWS, FIT_WORK // each), False
    found: tuple[list[float], list[float]] = ([], [])
    for split in list(splits.values())[:FIT_SPLITS]:
        part, train = split.parts()[material.part], split.train[draw(split.train.numel(), limit)]
        sampled |= train.numel() < split.train.numel()
        y = task.y[part]
        shape = (*y.shape[: 2 if task.kind == "series" else 1], task.num_outputs)
        for model, values in zip((_constant, _linear), found, strict=True):
            outputs = torch.from_numpy(model(task, train, part)).float().reshape(shape)
            values.append(float(metric(outputs, y)))
    names = {
        "multiclass": ("always predicting the most frequent class", "a logistic regression"),
        "multilabel": ("always predicting the base rate", "a linear model"),
        "regression": ("always predicting the training mean", "a ridge regression"),
    }[task.problem]
    of = f" on {limit:,} of the training instances" if sampled else ""
    return Baseline(names[0], found[0]), Baseline(names[1] + of, found[1])


def _table(task: Task, rows: Tensor) -> Any:
    """Features of instances, dense or scipy's CSR; of graphs means over nodes, of series one row per node."""
    if task.kind == "series":
        return task.x[rows].flatten(0, 1).numpy()
    if task.kind == "graphs":
        assert task.node_ptr is not None
        nodes = [torch.arange(int(task.node_ptr[g]), int(task.node_ptr[g + 1])) for g in rows.tolist()]
        return torch.stack([dense_rows(task, one).mean(0) for one in nodes]).numpy()
    return task.x[rows].float().numpy() if task.x.layout == torch.strided else to_scipy(task.x)[rows.numpy()]


def _flat(task: Task, rows: Tensor) -> Array:
    """Targets as columns of floats, NaN where unknown; of classes one column of numbers."""
    y = task.y[rows]
    if task.problem == "multiclass":
        return np.where(y.reshape(-1, 1).numpy() < 0, np.nan, y.reshape(-1, 1).numpy())
    return y.reshape(-1, task.num_outputs).double().numpy()


def _constant(task: Task, train: Tensor, part: Tensor) -> Array:
    y = _flat(task, train)
    size = len(_flat(task, part))
    if task.problem == "multiclass":
        counts = np.bincount(y[~np.isnan(y)].astype(int), minlength=task.num_outputs)
        return np.tile(np.eye(task.num_outputs)[counts.argmax()], (size, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without any label
        mean = np.nan_to_num(np.nanmean(y, axis=0))
    return np.tile(mean if task.problem == "regression" else mean - 0.5, (size, 1))


def _linear(task: Task, train: Tensor, part: Tensor) -> Array:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer, StandardScaler

    x, y, asked = _table(task, train), _flat(task, train), _table(task, part)
    outputs = _constant(task, train, part)
    counts = hasattr(x, "tocsr") or (x == 0).mean() > MOSTLY_ZERO
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged is close enough for a yardstick
        for c in range(y.shape[1]):
            known = ~np.isnan(y[:, c])
            if not known.any():
                continue
            scale = Normalizer() if counts else StandardScaler()
            values = y[known, c]
            if task.problem == "regression" or y.shape[1] > FIT_COLUMNS:
                fitted = make_pipeline(scale, Ridge()).fit(x[known], values)
                outputs[:, c] = fitted.predict(asked) - (0.5 if task.problem == "multilabel" else 0)
            elif len(np.unique(values)) > 1:
                fitted = make_pipeline(scale, LogisticRegression(max_iter=200)).fit(x[known], values.astype(int))
                chances = np.log(fitted.predict_proba(asked).clip(1e-12))
                if task.problem == "multilabel":
                    outputs[:, c] = chances[:, 1] - chances[:, 0]
                else:
                    outputs = np.full(outputs.shape, np.log(1e-12))
                    outputs[:, fitted[-1].classes_] = chances
    return outputs


@dataclass(frozen=True)
class Importance:
    """What happens to the metric when a column is shuffled."""

    names: list[str]  # of the columns, the most important first
    losses: list[float]  # by how much the metric gets worse, mean over shufflings
    note: str = ""  # what was left out, or why nothing was measured


@torch.no_grad()
def column_importance(material: Material) -> Importance:
    """Permutation importance on the part that is reported, for the seed that is looked into.

    Encoded columns of one column of the table are shuffled together. Of more than `TRIED_COLUMNS` columns those with
    the largest gradient times deviation are tried.
    """
    loaded, task, rows = material.loaded, material.task, material.rows
    passes, model = loaded.feed.passes(), loaded.model
    if not rows.numel() or passes[0].x.shape[1] != task.num_features:
        return Importance([], [], "Not measured: the model makes features of its own from the columns.")
    if sum(one.x.shape[0] * one.x.shape[1] for one in passes) > DENSE_ENTRIES:
        return Importance([], [], "Not measured: there are too many rows and columns to shuffle one after the other.")
    dense = [one.x.to_dense() for one in passes]
    metric, targets = find_metric(material.folder.summary().metric), task.y[rows]
    sign = 1.0 if metric.higher_is_better else -1.0

    def score(features: Sequence[Tensor]) -> float:
        made = [replace(one, x=x).outputs(model).float().cpu() for one, x in zip(passes, features, strict=True)]
        return sign * float(metric(torch.cat(made).reshape(material.outputs.shape)[rows], targets))

    begun = time.perf_counter()
    base = score(dense)
    once = time.perf_counter() - begun
    expected = sign * float(metric(material.outputs[rows], targets))
    if not abs(base - expected) <= 0.02 * max(1.0, abs(expected)):
        return Importance([], [], "Not measured: this run is evaluated in batches that cannot be put together again.")
    groups, note = source_columns(task), ""
    limit = min(TRIED_COLUMNS, max(4, int(SECONDS / max(once * REPEATS, 1e-6))))
    if len(groups) > limit:
        note = f"{limit} of {len(groups):,} columns were tried, those with the largest gradients."
        steep = _steepness(material, dense)
        groups = dict(sorted(groups.items(), key=lambda one: -float(steep[one[1]].sum()))[:limit])
    generator = torch.Generator().manual_seed(0)
    found = []
    for name, together in groups.items():
        drops = []
        for _ in range(REPEATS):
            shuffled = [x.clone() for x in dense]
            for x in shuffled:
                x[:, together] = x[torch.randperm(x.shape[0], generator=generator).to(x.device)][:, together]
            drops.append(base - score(shuffled))
        found.append((float(np.mean(drops)), name))
    found.sort(key=lambda one: -one[0])
    return Importance([name for _, name in found], [loss for loss, _ in found], note)


def _steepness(material: Material, dense: Sequence[Tensor]) -> Tensor:
    """Of every column Σ_i |∂L/∂x_ic| times its deviation, L the sum of squared outputs."""
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
    said: str  # how many there are, and how many are listed


def errors(material: Material, important: Sequence[str]) -> ErrorList:
    """Errors of the seed that is looked into, with the columns of their instances in original units."""
    task, part = material.task, material.rows
    y, o = task.y[part], material.outputs[part]
    heads, found, count, total = _wrong_classes(task, y, o) if task.problem == "multiclass" else _far_values(task, y, o)
    series = task.kind == "series"
    lead = ["snapshot", "node"] if series else ["graph" if task.kind == "graphs" else "instance"]
    names = task.instance_names if not series or len(task.instance_names) == task.num_nodes else ()
    columns = list(important)[:ERROR_COLUMNS] if task.kind == "nodes" and task.feature_names else []
    places = part[[place[0] for place, _ in found]]
    held = original_cells(task, places, [columns] * len(found)) if columns and found else [[]] * len(found)
    table = []
    for i, (place, cells) in enumerate(found):
        number = int(part[place[0]])
        which = place[1] if series else number
        first = [*([number] if series else []), names[which] if names else which]
        table.append([*first, *cells, *held[i]])
    wrong = "is wrong" if count == 1 else "are wrong"
    said = f"{count:,} of {total:,} {material.part} predictions of seed {material.seed} {wrong}."
    if task.problem == "regression":
        said = f"The {len(table)} largest of {total:,} {material.part} errors of seed {material.seed}."
    elif count > len(table):
        said += f" The {len(table)} most confident ones are listed."
    headings = [*lead, *heads, *columns]
    right = [c for c in range(len(headings)) if table and all(_is_number(row[c]) for row in table)]
    return ErrorList(headings, table, right, said)


def _is_number(cell: Any) -> bool:
    try:
        return cell in (None, "") or math.isfinite(float(cell))
    except ValueError:
        return False


# Headings, then place within the part and cells of every listed error, the number of errors and of predictions.
_Errors = tuple[list[str], list[tuple[tuple[int, ...], list[Any]]], int, int]


def _wrong_classes(task: Task, y: Tensor, o: Tensor) -> _Errors:
    names, (chance, claim) = column_names(task), o.softmax(-1).max(-1)
    wrong = ((claim != y) & (y >= 0)).nonzero().squeeze(1)
    order = wrong[chance[wrong].argsort(descending=True)][:ERRORS].tolist()
    found = [((i,), [names[int(y[i])], names[int(claim[i])], round(float(chance[i]), 4)]) for i in order]
    return ["target", "prediction", "probability"], found, wrong.numel(), int((y >= 0).sum())  # type: ignore[return-value]


def _far_values(task: Task, y: Tensor, o: Tensor) -> _Errors:
    """Columns with the wrong answer, or the largest errors of values."""
    names, labels = column_names(task), task.problem == "multilabel"
    value, known = (o.sigmoid() if labels else o).reshape(y.shape), ~y.isnan()
    gap = (value - y).abs().masked_fill(~known, -1)
    count = int((gap > 0.5).sum() if labels else known.sum())
    several = task.kind != "series" and y.dim() > 1 and y.shape[1] > 1
    found = []
    for flat in gap.flatten().argsort(descending=True)[: min(ERRORS, count)].tolist():
        at = tuple(int(i) for i in np.unravel_index(flat, tuple(y.shape)))
        cells = [rounded(float(v)) for v in (y[at], value[at], value[at] - y[at])]
        found.append((at, [*([names[at[1]]] if several else []), *cells]))
    heads = [*(["column"] if several else []), "target", "probability" if labels else "prediction", "error"]
    return heads, found, count, int(known.sum())
