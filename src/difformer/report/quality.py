"""How good the predictions of the test part are: by class, by column, or as residuals.

For class c with TP, FP and FN: precision TP / (TP + FP), recall TP / (TP + FN), F1 2TP / (2TP + FP + FN); each the mean
over seeds, with the sample standard deviation. The confusion matrix adds up the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from difformer.data import Task
from difformer.report.sampling import draw
from difformer.training.metrics import rocauc
from difformer.training.predictions import Predictions
from difformer.training.record import spread

SHOWN_CLASSES = 30
SCATTER_POINTS = 2_000
BINS = 60
Array = np.ndarray[Any, Any]


def quality(task: Task, seeds: Sequence[Predictions], part: str) -> dict[str, Any]:
    """What is shown of the predictions of all seeds on one part."""
    if task.problem == "multiclass":
        return _classes(task, seeds, part)
    return _columns(task, seeds, part) if task.problem == "multilabel" else _residuals(task, seeds, part)


def column_names(task: Task) -> list[str]:
    """Of classes or target columns."""
    return list(task.class_names) if task.class_names else [str(c) for c in range(task.num_outputs)]


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
    table = _scores(column_names(task), [(m.diagonal(), m.sum(0), m.sum(1)) for m in matrices])
    total = np.sum(matrices, axis=0) if matrices else np.zeros((count, count), dtype=int)
    order = np.sort(np.argsort(-total.sum(1), kind="stable")[:SHOWN_CLASSES])
    names = column_names(task)
    return {
        "kind": "classes",
        "table": table,
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
        hits = (known & truth & claim).sum(0).numpy(force=True)
        claimed, true = ((known & which).sum(0).numpy(force=True) for which in (claim, truth))
        counts.append((hits, claimed, true))
        for i, wanted in enumerate((~truth, truth)):
            for j, said in enumerate((~claim, claim)):
                cells[i, j] += int((known & wanted & said).sum())
        areas.append([float(rocauc(outputs[:, [c]], targets[:, [c]])) for c in range(task.num_outputs)])
    table = _scores(column_names(task), counts)
    for c, row in enumerate(table):
        values = [seed[c] for seed in areas if seed[c] == seed[c]]
        row["auc"] = _mean(values)
    return {
        "kind": "classes",
        "table": table,
        "confusion": cells.tolist(),
        "names": ["no", "yes"],
        "hidden": 0,
        "seeds": len(seeds),
    }


def _scores(names: list[str], counts: Sequence[tuple[Array, Array, Array]]) -> list[dict[str, Any]]:
    """One row per class from hits, predicted and actual numbers of every seed."""
    rows = []
    for c, name in enumerate(names):
        found: dict[str, list[float]] = {"precision": [], "recall": [], "f1": []}
        for hits, predicted, actual in counts:
            for key, below, factor in (
                ("precision", predicted[c], 1),
                ("recall", actual[c], 1),
                ("f1", predicted[c] + actual[c], 2),
            ):
                if below:
                    found[key].append(factor * float(hits[c]) / float(below))
        rows.append(
            {
                "name": name,
                "number": float(np.mean([actual[c] for _, _, actual in counts])) if counts else 0.0,
                "predicted_in": sum(bool(predicted[c]) for _, predicted, _ in counts),
                **{key: _mean(v) for key, v in found.items()},
            }
        )
    return rows


def _residuals(task: Task, seeds: Sequence[Predictions], part: str) -> dict[str, Any]:
    """Target against prediction of the first seed given, and the errors of all."""
    targets, values, errors = [], [], []
    for predictions in seeds:
        assert predictions.targets is not None
        rows = _rows(predictions, part)
        y = predictions.targets[rows].double()
        p = predictions.outputs[rows].double().reshape(y.shape)
        targets.append(y)
        values.append(p)
        errors.append((p - y)[~y.isnan()])
    flat = torch.cat(errors) if errors else torch.zeros(0, dtype=torch.float64)
    if not flat.numel():
        return {"kind": "residuals", "seeds": len(seeds), "scatter": None, "table": []}
    known = ~targets[0].isnan()
    y, p = targets[0][known], values[0][known]
    some = draw(y.numel(), SCATTER_POINTS)
    heights, edges = np.histogram(flat.numpy(), bins=BINS)
    table = []
    for name, column in _groups(task, targets[0]):
        scores: dict[str, list[float]] = {"mse": [], "mae": [], "r2": []}
        for every, claimed in zip(targets, values, strict=True):
            target, value = (every, claimed) if column is None else (every[:, column], claimed[:, column])
            mask = ~target.isnan()
            error = (value - target)[mask]
            if not error.numel():
                continue
            scores["mse"].append(float(error.square().mean()))
            scores["mae"].append(float(error.abs().mean()))
            variance = float(target[mask].var(unbiased=False))
            if variance > 0:
                scores["r2"].append(1 - float(error.square().mean()) / variance)
        table.append({"name": name, **{k: _mean(v) for k, v in scores.items()}})
    over_time = None
    if task.kind == "series":
        rows = _rows(seeds[0], part)
        gaps = (values[0] - targets[0]).square()
        over_time = {"time": rows.tolist(), "mse": [_short(v) for v in gaps.flatten(1).nanmean(1).tolist()]}
    return {
        "kind": "residuals",
        "seeds": len(seeds),
        "scatter": {"target": _list(y[some]), "prediction": _list(p[some]), "all": y.numel()},
        "histogram": {"left": [_short(e) for e in edges[:-1]], "width": float(edges[1] - edges[0]),
                      "height": heights.tolist()},
        "mean": float(flat.mean()),
        "over_time": over_time,
        "table": table,
    }  # fmt: skip


def _groups(task: Task, y: torch.Tensor) -> list[tuple[str, int | None]]:
    """All together, then by target column, or by node of a series: a name and the number of the column."""
    groups: list[tuple[str, int | None]] = [("all", None)]
    axis = y.shape[1] if y.dim() > 1 else 1
    if axis == 1:
        return groups
    names = column_names(task)
    if task.kind == "series":
        names = list(task.instance_names) if len(task.instance_names) == axis else [f"node {i}" for i in range(axis)]
    return groups + [(names[c] if c < len(names) else str(c), c) for c in range(axis)]


def _mean(values: list[float]) -> tuple[float, float | None] | None:
    """Mean and sample deviation; one value has no deviation."""
    if not values:
        return None
    return float(np.mean(values)), spread(values) if len(values) > 1 else None


def _short(value: float) -> float | None:
    return None if value != value else float(f"{value:.5g}")


def _list(values: torch.Tensor) -> list[float | None]:
    return [_short(v) for v in values.tolist()]
