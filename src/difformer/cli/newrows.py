"""New instances from files, for a model that has been trained: the same columns, and edges to old and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from difformer.data import DataError, Task
from difformer.data.edges import tidy_edges
from difformer.data.own.features import Features, id_column_name, read_features
from difformer.data.own.graphs import read_edges
from difformer.data.own.text import TextFormat
from difformer.training.run_folder import RunFolder

# How a user's files are written: what was said of those of the training holds for new ones.
_FORMAT = ("delimiter", "header", "encoding", "decimal", "comment")


@dataclass(frozen=True)
class NewRows:
    """New instances, ready for `difformer.training.using.predict`.

    Args:
        x: Features, columns in the order of training.
        names: Ids of the rows, where they have ids.
        edge_index: Their edges; numbers from 0 are the run's instances, followed by the new ones.
        edge_weight: Weights of the edges.
        notes: What a person should know of the rows, one sentence each.
    """

    x: Tensor
    names: tuple[str, ...] = ()
    edge_index: Tensor | None = None
    edge_weight: Tensor | None = None
    notes: tuple[str, ...] = ()


def read_new_rows(run: str | Path, features: Path, edges: Path | None, *, together: bool) -> NewRows:
    """Rows of a file, matched with the columns that the run was trained on.

    Args:
        run: The run folder.
        features: File of the new rows.
        edges: File of their edges: by id where instances have ids, by number otherwise.
        together: Whether edges may name the run's own instances, which are then counted first.

    Raises:
        DataError: If columns are missing, or an id is not known or not new.
    """
    folder = RunFolder.open(run)
    task = folder.task()
    if task.kind != "nodes":
        raise ValueError(
            f"--features: {run} was trained on {task.kind}, and new rows are instances of a run on nodes; from Python, "
            f"difformer.training.predict takes new {'graphs' if task.kind == 'graphs' else 'snapshots'}"
        )
    for role, path in (("features", features), ("edges", edges)):
        if path is not None and not path.exists():
            raise FileNotFoundError(f"--{role}: there is no file {path}")
    options = dict(folder.source.options) if folder.source is not None and folder.source.files else {}
    form = {key: _of(options[key], "features") for key in _FORMAT if key in options}
    ids = options.get("ids")
    name = None
    if task.instance_names and folder.source is not None and folder.source.files:
        name = id_column_name(folder.source.files["features"], ids=ids, format=TextFormat(**form))
    found = read_features(
        features,
        columns=task.feature_names,
        num_columns=task.num_features,
        preprocessing=task.preprocessing,
        ids=ids,
        id_name=name,
        **form,
    )
    told = found.notes if task.preprocessing is not None else ()
    if edges is None:
        return NewRows(found.x, found.ids, notes=(*told, *_familiar(task, found)))
    start = task.num_instances if together else 0
    form = {key: _of(options[key], "edges") for key in _FORMAT if key in options}
    index, weight, _ = read_edges(
        edges,
        num_nodes=start + found.x.shape[0],
        ids=_index(task, found, together),
        columns=options.get("edge_columns"),
        format=TextFormat(**form),
    )
    # Nodes get their edges to themselves where the task's have them, so none are added here.
    index, weight = tidy_edges(
        index,
        weight,
        num_nodes=start + found.x.shape[0],
        directed=bool(options.get("directed", False)),
        self_loops="remove",
        duplicates=options.get("duplicates", "error"),
    )
    return NewRows(found.x, found.ids, index, weight, told)


def _familiar(task: Task, found: Features) -> tuple[str, ...]:
    """Says which new rows carry an id that is known: without edges nothing is looked up by it."""
    known = set(task.instance_names)
    old = [name for name in found.ids if name in known]
    twice = [name for name, number in Counter(found.ids).items() if number > 1]
    notes = []
    if old:
        notes.append(
            f"{len(old)} of {len(found.ids)} rows of {found.path} have the id of an instance of the run "
            f"({', '.join(map(repr, old[:3]))}{', …' if len(old) > 3 else ''}); they are taken as new instances beside "
            f"those (without --features the run's own instances are predicted)"
        )
    if twice:
        notes.append(f"{found.path} has {len(twice)} id{'s' * (len(twice) > 1)} in several rows, {twice[0]!r} first")
    return tuple(notes)


def _of(option: Any, role: str) -> Any:
    return option.get(role) if isinstance(option, Mapping) else option


def _index(task: Task, found: Features, together: bool) -> dict[str, int] | None:
    """Position of every id, the run's instances before the new ones; None where rows are known by number."""
    old = task.instance_names if together else ()
    if not found.ids and not old:
        return None
    if together and bool(found.ids) != bool(old):
        known, unknown = ("new rows", "instances of the run") if found.ids else ("instances of the run", "new rows")
        raise DataError(f"the {known} have ids and the {unknown} have none, so edges cannot name both", path=found.path)
    index = {name: place for place, name in enumerate(old)}
    for row, name in enumerate(found.ids):
        if name in index:
            whose = "an instance of the run" if index[name] < len(old) else "another row"
            raise found.error(f"id {name!r} is that of {whose}", row, found.id_column)
        index[name] = len(old) + row
    return index
