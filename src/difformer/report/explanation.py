r"""One prediction in one sentence: which columns, neighbours and other instances moved it (integrated gradients).

The predicted probability F (or value) is a function of all features X. On the straight path from the average row
:math:`\bar x`, the same for all instances, to X,

.. math:: e_{jc} = (x_{jc} - \bar x_c) \int_0^1 \frac{∂F(\bar x + α (X - \bar x))}{∂x_{jc}}\, dα,
    \qquad \sum_{jc} e_{jc} = F(X) - F(\bar x),

with Gauss and Legendre's quadrature in :math:`t = \sqrt{α}`, since F changes fastest near the average row. The interval
with the largest gap is halved until the effects add up to within `tolerance`.
Columns are the :math:`e_{ic}` of the instance itself, a neighbour's effect is :math:`\sum_c e_{jc}`. Any model that is
differentiable in its features can be explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data import Task
from difformer.errors import UserError, did_you_mean
from difformer.report import gather
from difformer.report.gather import Material, Scene
from difformer.training.run_folder import RunFolder
from difformer.training.trained_run import Loaded, load_run

QUADRATURE, COARSE, MANY = 24, 4, 20_000  # points of an interval, and fewer where there are many rows
INTERVALS = 32  # at most
TOLERANCE = 0.005  # of a probability, or of the deviation of targets: the largest gap that is not mentioned
LEAST = 0.01  # effects below this share of all are summed up
NAMED = 8  # columns of a sentence, and neighbours, at most
WRONG, NARROW = 2, 1  # instances that a report explains by itself
# A number, a name, or both a snapshot and a node of it.
Place = int | str | tuple[int, int]


@dataclass(frozen=True)
class Attribution:
    """The predicted probability, or value, attributed to columns and instances."""

    value: float  #: probability of the predicted class or column, or the predicted value, F(X)
    base: float  #: the same if every instance had the average row
    columns: dict[str, float]  #: effect of each column of your table, in the instance's row; of a graph, in all rows
    neighbours: dict[str, float]  #: effect of each instance that an observed edge leads from, by name; no self-loops
    others: float  #: effect of all other instances together
    gap: float  #: what quadrature leaves of value - base
    explained: str = ""  #: the target that value and base are of, if the run has several


@dataclass(frozen=True)
class Explanation:
    """Why an instance was predicted as it was."""

    name: str  #: the instance
    node: int | None  #: its number, of a series within the snapshot; None for a graph, which is explained as a whole
    number: int | None  #: snapshot or graph; None for a task on nodes
    prediction: str  #: what was predicted
    target: str  #: what it should be; empty if unknown
    title: str  #: the instance with its snapshot or graph, and how that was chosen if none was named
    attribution: Attribution | None = field(repr=False)  #: None with too many features, or if the model uses none
    sentence: str  #: the attribution in one sentence
    remainder: str  #: what could not be attributed, in words; empty if the effects add up


def explain_node(
    run: RunFolder | str | Path,
    node: Place,
    *,
    target: int | str | None = None,
    names: Sequence[str] = (),
    **given: Any,
) -> Explanation:
    """Explains one prediction of a run.

    Args:
        run: The run folder.
        node: An instance by number, or by name as text; of new rows one of those. Of a series ``"SNAPSHOT:NODE"`` or a
            pair of numbers, or a node of the last test snapshot.
        target: By name or number where a run has several; by default the first number, or the surest yes or no.
        names: Ids of new rows.
        given: Seed, task, device, and new rows with their edges, as in `difformer.training.trained_run.load_run`.

    Raises:
        UserError: If there is no such instance or target.
    """
    loaded = load_run(run, **given)
    if names and loaded.new is not None:
        every = (*loaded.task.instance_names[: loaded.new], *names)
        loaded = replace(loaded, task=replace(loaded.task, instance_names=every))
    return explain_nodes(loaded, [node], target)[0]


def explain_nodes(loaded: Loaded, nodes: Sequence[Place], target: int | str | None = None) -> list[Explanation]:
    """Explains several predictions of a loaded run."""
    task, found = loaded.task, []
    scene_of = cache(partial(gather.make_scene, loaded, with_states=False))
    for node in nodes:
        number, place, chosen = locate(loaded, node)
        scene = scene_of(number)
        with torch.no_grad():
            outputs = scene.inputs.outputs(loaded.model)[place or 0].float().cpu()
        name = title = gather.name_of(task, number if place is None else place)  # type: ignore[arg-type]
        if number is not None:
            where = f"graph {number}" if place is None else f"node {place} of snapshot {number}{chosen}"
            title = where if where == name or where.startswith(f"{name} of ") else f"{name} ({where})"
        prediction, wanted = _texts(task, outputs, task.y[tuple(at for at in (number, place) if at is not None)])
        parts = attribute(loaded, scene, place, _column(task, outputs, target))
        rest = title, parts, sentence(task, prediction, parts), remainder(task, parts)
        found.append(Explanation(name, place, number, prediction, wanted, *rest))
    return found


def locate(loaded: Loaded, node: Place) -> tuple[int | None, int | None, str]:
    """Snapshot or graph (None on nodes), place there (None for a graph), and how a snapshot was chosen, in words."""
    task = loaded.task
    if task.kind != "series":
        if isinstance(node, tuple):
            raise UserError(f"node: {node} names a snapshot and a node; {task.name!r} has no snapshots")
        start, graphs = loaded.new or 0, task.kind == "graphs"
        what = "graph" if graphs else "instance" if loaded.new is None else "new row"
        found = start + find(node, task.num_instances - start, task.instance_names[start:], what)
        return (found, None, "") if graphs else (None, found, "")
    names = task.instance_names if len(task.instance_names) == task.num_nodes else ()
    if isinstance(node, str) and node not in names and ":" in node:  # a name may have a colon in it
        first, _, second = node.rpartition(":")
        node = first, second  # type: ignore[assignment]
    if isinstance(node, tuple):
        snapshot, node = node
        place = find(node, task.num_nodes, names, "node")
        return find(snapshot, task.num_instances, (), "snapshot"), place, ""
    place, (part, rows) = find(node, task.num_nodes, names, "node"), gather.usual_part(loaded.split)
    if not rows.numel():
        return task.num_instances - 1, place, ", the last"
    return int(rows.max()), place, f", the last of the {part} part"


def find(word: int | str, count: int, names: Sequence[str], what: str, argument: str = "node") -> int:
    """Position of a name or number; text is a name, or else a number, unless the names themselves are numbers."""
    places = [place for place, name in enumerate(names) if name == word]
    if len(places) > 1:
        shown, more = ", ".join(map(str, places[:5])), " …" * (len(places) > 5)
        problem = f"{argument}: {len(places)} have the name {word!r}; give the number of one of them: {shown}{more}"
        raise UserError(problem)
    at = int(word) if str(word).isdecimal() and int(word) < count else -1
    numeric = isinstance(word, str) and any(map(str.isdecimal, names))
    if places or (at >= 0 and not (numeric and names.count(names[at]) == 1)):
        return places[0] if places else at
    hint = did_you_mean(word, names) if isinstance(word, str) and not word.isdecimal() else ""
    expected = [f"names such as {name!r}" for name in names[:1]] + [f"a number from 0 to {count - 1}"] * (not numeric)
    known = f"{'E' if hint else 'e'}xpected {', or '.join(expected)}"
    known += f"; the {what} at position {at}, counted from 0, is {names[at]!r}" if numeric and at >= 0 else ""
    raise UserError(f"{argument}: there is no {what} {word!r}; {hint}{known}")


def _texts(task: Task, outputs: Tensor, y: Tensor) -> tuple[str, str]:
    """Prediction and target as strings, the latter empty if unknown."""
    names = gather.column_names(task)
    if task.problem == "multiclass":
        return names[int(outputs.argmax())], names[int(y)] if int(y) >= 0 else ""
    both = (outputs.reshape(-1), y.reshape(-1))
    if task.problem == "multilabel":
        answers = [zip(names, one.tolist(), strict=True) for one in (both[0] > 0, both[1] > 0.5)]
        first, second = (", ".join(name for name, yes in one if yes) or "none" for one in answers)
        return first, "" if y.isnan().all() else second
    names = [""] if len(names) == 1 else [f"{name} " for name in _target_names(task)]
    pairs = [[(name, v) for name, v in zip(names, one.tolist(), strict=True) if v == v] for one in both]
    first, second = (", ".join(f"{name}{v:.4g}" for name, v in one) for one in pairs)
    return first, second


def _target_names(task: Task) -> Sequence[str]:
    return task.class_names or [f"target {c}" for c in range(task.num_outputs)]


def _column(task: Task, outputs: Tensor, target: int | str | None) -> int:
    """The number of the output to explain."""
    if task.problem == "multiclass":
        if target is not None:
            raise UserError("target: the run predicts one label, whose probability is explained; leave it out")
        return int(outputs.argmax())
    if target is not None:
        return find(target, task.num_outputs, _target_names(task), "target", "target")
    return 0 if task.problem == "regression" else int(outputs.abs().argmax())


def attribute(loaded: Loaded, scene: Scene, place: int | None, column: int) -> Attribution | None:
    """Integrated gradients of an output of an instance, or of a whole graph where `place` is None."""
    task = loaded.task
    if scene.size * scene.inputs.x.shape[1] > gather.DENSE_ENTRIES:
        return None
    x = scene.inputs.x.to_dense().detach()

    def value(features: Tensor) -> Tensor:
        out = replace(scene.inputs, x=features).outputs(loaded.model)[place or 0]
        if task.problem == "multiclass":
            return out.softmax(-1)[column]
        return out[column].sigmoid() if task.problem == "multilabel" else out[column]

    middle = x.mean(0, keepdim=True)
    away = x - middle
    points, weights = np.polynomial.legendre.leggauss(QUADRATURE if scene.size < MANY else COARSE)

    @cache
    def at(t: float) -> float:
        with torch.no_grad():
            return float(value((middle + t**2 * away).contiguous()))

    def interval(low: float, high: float) -> tuple[float, float, float, Tensor, Tensor]:
        """Its gap and ends; effects by instance, and by column of the one that is explained."""
        found = torch.zeros_like(x)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            t = low + float(point) * (high - low)
            with torch.enable_grad():
                here = (middle + t**2 * away).requires_grad_()
                reached = value(here)
                if not reached.requires_grad:
                    break
                slope = torch.autograd.grad(reached, here, allow_unused=True, materialize_grads=True)[0]
            found += 2 * t * float(weight) * (high - low) * slope
        found *= away
        own = found.sum(0) if place is None else found[place].clone()
        return at(high) - at(low) - float(found.sum()), low, high, found.sum(1).cpu(), own

    found = [interval(0.0, 1.0)]
    while sum(abs(gap) for gap, *_ in found) >= tolerance(task) and len(found) < INTERVALS:
        _, low, high, *_ = found.pop(max(range(len(found)), key=lambda i: abs(found[i][0])))
        found += [interval(low, (low + high) / 2), interval((low + high) / 2, high)]
    each, own = (torch.stack(parts).sum(0) for parts in list(zip(*found, strict=True))[3:])
    if not own.any() and not each.any():
        return None
    columns = {f"column {c}": v for c, v in enumerate(own.tolist())}
    if x.shape[1] == task.num_features:
        columns = {name: float(own[held].sum()) for name, held in gather.source_columns(task).items()}
    neighbours: dict[str, float] = {}
    if scene.graph is not None and place is not None:
        source, target = scene.graph.edge_index.cpu()
        for j in source[(target == place) & (source != place)].unique().tolist():
            name = gather.name_of(task, j)
            neighbours[name if name not in neighbours else f"{name} (number {j})"] = float(each[j])
    others = 0.0 if place is None else float(each.sum() - each[place]) - sum(neighbours.values())
    explained = _target_names(task)[column] if task.problem != "multiclass" and task.num_outputs > 1 else ""
    return Attribution(at(1.0), at(0.0), columns, neighbours, others, sum(gap for gap, *_ in found), explained)


def tolerance(task: Task) -> float:
    """The largest gap that is not mentioned, in units of the prediction."""
    if task.problem != "regression":
        return TOLERANCE
    known = task.y[~task.y.isnan()].double()
    return TOLERANCE * (float(known.std(correction=0)) if known.numel() else 1.0)


def remainder(task: Task, found: Attribution | None) -> str:
    """``Not attributed: +0.045 …``; empty where the effects add up."""
    if found is None:
        return "Not attributed: the model does not use the features, or there are too many to differentiate."
    if abs(found.gap) < tolerance(task):
        return ""
    return f"Not attributed: {found.gap:+.3g}, by which the effects miss {found.value - found.base:+.3g}."


def sentence(task: Task, prediction: str, found: Attribution | None) -> str:
    """``Predicted churns (0.71): late_payments (+0.31) …; neighbours Ewa Silva and Ivan Rossi (+0.18) …``."""
    if found is None:
        return f"Predicted {prediction}."
    form = ".3g" if task.problem == "regression" else ".2f"

    def signed(effect: float) -> str:
        text = f"{effect:+{form}}"
        return text if float(text) else text[1:]  # no sign of what is rounded to zero

    least = LEAST * sum(map(abs, [*found.columns.values(), *found.neighbours.values(), found.others]))
    named, rest = _largest_named(found.columns, least)
    listed = [f"{name} ({signed(effect)})" for name, effect in named]
    if more := len(found.columns) - len(named):
        listed.append(f"{more} other column{'s' * (more > 1)} ({signed(rest)})")
    parts = [", ".join(listed)]
    if found.neighbours:
        named, rest = _largest_named(found.neighbours, least)
        same = [[one for one in named if sign * one[1] > 0] for sign in (1, -1)]
        listed = [f"{_joined([n for n, _ in some])} ({signed(sum(v for _, v in some))})" for some in same if some]
        if more := len(found.neighbours) - len(named):
            listed.append(f"{more} {'other' + 's' * (more > 1) if named else 'in all'} ({signed(rest)})")
        parts.append(f"neighbour{'s' * (len(found.neighbours) > 1)} {', '.join(listed)}")
    if abs(found.others) >= least and found.others:
        parts.append(f"all other instances ({signed(found.others)})")
    value = "" if task.problem == "regression" else f"{found.value:{form}}; "
    prediction += f"; {found.explained}" if found.explained else ""
    return f"Predicted {prediction} ({value}{found.base:{form}} with average features): {'; '.join(parts)}."


def _largest_named(effects: dict[str, float], least: float) -> tuple[list[tuple[str, float]], float]:
    """At most `NAMED` effects of at least `least`, the largest first, and the sum of the rest."""
    order = sorted(effects.items(), key=lambda one: -abs(one[1]))
    named = [(name, effect) for name, effect in order[:NAMED] if abs(effect) >= least and effect]
    return named, sum(effect for _, effect in order[len(named) :])


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def worth_explaining(material: Material, worst: Sequence[Place]) -> list[Place]:
    """The first of the `worst` errors and, for classes, the correct prediction with the smallest margin."""
    part, found = material.rows, list(dict.fromkeys(worst))[:WRONG]
    if material.task.problem == "multiclass" and material.task.kind != "series" and part.numel():
        top = material.outputs[part].softmax(-1).topk(min(2, material.task.num_outputs), dim=-1)
        right = (top.indices[:, 0] == material.task.y[part]).nonzero().squeeze(1)
        margin = (top.values[:, 0] - top.values[:, -1])[right]
        found += part[right[margin.argsort()[:NARROW]]].tolist()
    return found
