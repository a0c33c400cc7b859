r"""A prediction attributed to columns and neighbours by integrated gradients, and the sentence that says so.

The predicted probability F (or value) is a function of all features X. On the straight path from the average row
:math:`\bar x`, the same for all instances, to X,

.. math:: e_{jc} = (x_{jc} - \bar x_c) \int_0^1 \frac{∂F(\bar x + α (X - \bar x))}{∂x_{jc}}\, dα,
    \qquad \sum_{jc} e_{jc} = F(X) - F(\bar x),

with Gauss and Legendre's quadrature, on intervals that are halved until the effects add up to within `tolerance`.
Columns are the :math:`e_{ic}` of the instance itself, a neighbour's effect is :math:`\sum_c e_{jc}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from difformer.data import Task
from difformer.nn import GraphLevel
from difformer.report.gather import DENSE_ENTRIES, Scene, source_columns
from difformer.training.trained_run import Loaded

QUADRATURE, COARSE, MANY = 24, 6, 20_000  # points of the path, and fewer where there are many rows
HALVINGS = 5  # of an interval whose effects do not add up
TOLERANCE = 0.005  # of a probability, or of the deviation of targets: the largest gap that is not mentioned
LEAST = 0.01  # effects below this share of all are summed up
NAMED = 5  # columns and neighbours of a sentence


@dataclass(frozen=True)
class Attribution:
    """The predicted probability, or value, attributed to columns and instances.

    Args:
        value: F(X): probability of the predicted class or column, or the predicted value.
        base: The same if every instance had the average row.
        columns: Effect of each column of the user's table, in the instance's row; of a graph, in all its nodes' rows.
        neighbours: Effect of each instance that an observed edge leads from, by name; self-loops are not neighbours.
        others: Effect of all other instances together.
        gap: What quadrature leaves of value - base.
    """

    value: float
    base: float
    columns: dict[str, float]
    neighbours: dict[str, float]
    others: float
    gap: float


def attribute(loaded: Loaded, scene: Scene, place: int, names: Callable[[int], str]) -> Attribution | None:
    """Integrated gradients; None where the features are too large to be differentiated as a dense matrix."""
    if scene.size * scene.inputs.x.shape[1] > DENSE_ENTRIES:
        return None
    x = scene.inputs.x.to_dense().detach()
    whole = isinstance(loaded.model, GraphLevel)
    with torch.no_grad():
        final = scene.inputs.outputs(loaded.model)[0 if whole else place]
    column = int(final.argmax()) if loaded.task.problem == "multiclass" else explained_column(loaded.task, final)

    def value(features: Tensor) -> Tensor:
        out = replace(scene.inputs, x=features).outputs(loaded.model)[0 if whole else place]
        if loaded.task.problem == "multiclass":
            return out.softmax(-1)[column]
        return out[column].sigmoid() if loaded.task.problem == "multilabel" else out[column]

    middle = x.mean(0, keepdim=True)
    away = x - middle
    points, weights = np.polynomial.legendre.leggauss(QUADRATURE if scene.size < MANY else COARSE)

    def at(place: float) -> float:
        with torch.no_grad():
            return float(value(middle + place * away))

    def integral(low: float, high: float, rise: tuple[float, float], allowed: float, halvings: int) -> Tensor:
        """Effects of a piece of the path, on which the value goes from the one to the other of `rise`."""
        found = torch.zeros_like(x)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            with torch.enable_grad():
                here = (middle + (low + float(point) * (high - low)) * away).requires_grad_()
                found += float(weight) * (high - low) * torch.autograd.grad(value(here), here)[0]
        found *= away
        if not halvings or abs(rise[1] - rise[0] - float(found.sum())) < allowed:
            return found
        half = (low + high) / 2
        between = at(half)
        found = integral(low, half, (rise[0], between), allowed / 2, halvings - 1)
        found += integral(half, high, (between, rise[1]), allowed / 2, halvings - 1)
        return found

    with torch.no_grad():
        top, base = float(value(x)), float(value(middle.expand_as(x).contiguous()))
    effects = integral(0.0, 1.0, (base, top), tolerance(loaded.task), HALVINGS)
    own = effects.sum(0) if whole else effects[place]
    each = torch.zeros(scene.size) if whole else effects.sum(1).cpu()
    linked: list[int] = []
    if scene.graph is not None and not whole:
        source, target = scene.graph.edge_index.cpu()
        linked = [j for j in source[target == place].unique().tolist() if j != place]
    given = {j: float(each[j]) for j in linked}
    others = 0.0 if whole else float(each.sum() - each[place]) - sum(given.values())
    columns = {f"column {c}": v for c, v in enumerate(own.tolist())}
    if x.shape[1] == loaded.task.num_features:
        columns = {name: float(own[held].sum()) for name, held in source_columns(loaded.task).items()}
    gap = top - base - float(effects.sum())
    neighbours: dict[str, float] = {}
    for j, v in given.items():
        neighbours[names(j) if names(j) not in neighbours else f"{names(j)} (number {j})"] = v
    return Attribution(top, base, columns, neighbours, others, gap)


def tolerance(task: Task) -> float:
    """The largest gap that is not mentioned, in units of the prediction."""
    if task.problem != "regression":
        return TOLERANCE
    known = task.y[~task.y.isnan()].double()
    return TOLERANCE * (float(known.std(correction=0)) if known.numel() else 1.0)


def remainder(task: Task, found: Attribution | None) -> str:
    """``Not attributed: +0.045 …``; empty where the effects add up."""
    if found is None or abs(found.gap) < tolerance(task):
        return ""
    return f"Not attributed: {found.gap:+.3g}, by which the effects miss {found.value - found.base:+.3g}."


def sentence(task: Task, prediction: str, found: Attribution | None) -> str:
    """``Predicted churns (0.71): late_payments (+0.31) …; neighbours Ewa Silva and Ivan Rossi (+0.18) …``."""
    if found is None:
        return f"Predicted {prediction}."
    form = ".3g" if task.problem == "regression" else ".2f"
    least = LEAST * sum(map(abs, [*found.columns.values(), *found.neighbours.values(), found.others]))
    named, rest = _largest_named(found.columns, least)
    listed = [f"{name} ({effect:+{form}})" for name, effect in named]
    if more := len(found.columns) - len(named):
        listed.append(f"{more} other column{'s' * (more > 1)} ({rest:+{form}})")
    parts = [", ".join(listed)]
    if found.neighbours:
        named, rest = _largest_named(found.neighbours, least)
        same = [[one for one in named if sign * one[1] > 0] for sign in (1, -1)]
        listed = [f"{_joined([n for n, _ in some])} ({sum(v for _, v in some):+{form}})" for some in same if some]
        if more := len(found.neighbours) - len(named):
            listed.append(f"{more} {'other' + 's' * (more > 1) if named else 'in all'} ({rest:+{form}})")
        parts.append(f"neighbour{'s' * (len(found.neighbours) > 1)} {', '.join(listed)}")
    if abs(found.others) >= least and found.others:
        parts.append(f"all other instances ({found.others:+{form}})")
    value = "" if task.problem == "regression" else f"{found.value:{form}}; "
    return f"Predicted {prediction} ({value}{found.base:{form}} with average features): {'; '.join(parts)}."


def _largest_named(effects: dict[str, float], least: float) -> tuple[list[tuple[str, float]], float]:
    """At most `NAMED` effects of at least `least`, the largest first, and the sum of the rest."""
    order = sorted(effects.items(), key=lambda one: -abs(one[1]))
    named = [(name, effect) for name, effect in order[:NAMED] if abs(effect) >= least and effect]
    return named, sum(effect for _, effect in order[len(named) :])


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def explained_column(task: Task, outputs: Tensor) -> int:
    """The output that is explained: the surest column, or the first value."""
    return int(outputs.detach().abs().argmax()) if task.problem == "multilabel" else 0
