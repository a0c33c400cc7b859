"""How points of a map are coloured: by class, prediction, correctness, value, error or part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.report.quality import column_names

COLUMNS = 6  # of a multi-label task that can be chosen as colour
Colouring = dict[str, Any]


def by_class(name: str, numbers: Tensor, names: list[str]) -> Colouring:
    """Classes by number; -1 is unknown."""
    return {"name": name, "kind": "class", "values": numbers.tolist(), "names": names}


def by_value(name: str, values: Tensor, unit: str = "") -> Colouring:
    rounded = [None if v != v else float(f"{v:.4g}") for v in values.double().tolist()]
    return {"name": name, "kind": "value", "values": rounded, "unit": unit}


def by_correctness(right: Tensor, known: Tensor) -> Colouring:
    numbers = torch.where(known, torch.where(right, 0, 1), torch.tensor(-1))
    return {"name": "correctness", "kind": "right", "values": numbers.tolist(), "names": ["right", "wrong"]}


def by_part(split: Split, rows: Tensor, count: int) -> Colouring:
    number = torch.full((count,), -1)
    names = list(split.parts())
    for place, index in enumerate(split.parts().values()):
        number[index] = place
    return by_class("part", number[rows], names)


def of_predictions(task: Task, targets: Tensor, outputs: Tensor) -> list[Colouring]:
    """By what should be and what is predicted, for targets ``[n]`` or ``[n, C]`` and outputs ``[n, C]``."""
    names = column_names(task)
    if task.problem == "multiclass":
        predicted = outputs.argmax(-1)
        return [
            by_class("class", targets, names),
            by_class("prediction", predicted, names),
            by_correctness(predicted == targets, targets >= 0),
        ]
    targets = targets.reshape(outputs.shape)
    if task.problem == "multilabel":
        known, right = ~targets.isnan(), (outputs > 0) == (targets > 0.5)
        found = []
        for c in range(min(COLUMNS, outputs.shape[1])):
            end = f" {names[c]}" if outputs.shape[1] > 1 else ""
            truth = torch.where(known[:, c], (targets[:, c] > 0.5).long(), torch.tensor(-1))
            found += [
                by_class(f"class{end}", truth, ["no", "yes"]),
                by_class(f"prediction{end}", (outputs[:, c] > 0).long(), ["no", "yes"]),
            ]
        if outputs.shape[1] == 1:
            return [*found, by_correctness(right[:, 0], known[:, 0])]
        share = (right & known).sum(1) / known.sum(1).clamp_min(1)
        return [*found, by_value("share of columns right", share)]
    first = f" {names[0]}" if outputs.shape[1] > 1 else ""
    error = outputs[:, 0] - targets[:, 0]
    return [
        by_value(f"target{first}", targets[:, 0]),
        by_value(f"prediction{first}", outputs[:, 0]),
        by_value(f"error{first}", error.abs()),
    ]
