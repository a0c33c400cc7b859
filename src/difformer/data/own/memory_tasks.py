"""A user's own data in memory as a task: arrays that are ready, or a data frame as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from difformer.data.edges import Duplicates, SelfLoops, tidy_edges
from difformer.data.errors import DataError
from difformer.data.own.arrays import features_from, frame_columns, label_cells, row_ids
from difformer.data.own.assembly import (
    Choices,
    Material,
    Splits,
    assemble,
    check_names,
    drawn_splits,
    given_splits,
    split_from_words,
)
from difformer.data.own.feature_tables import select_features, several
from difformer.data.own.graphs import edges_from
from difformer.data.own.table import Column, ColumnSource, index_of_ids
from difformer.data.own.targets import Labels
from difformer.data.task import Problem, Task
from difformer.errors import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Unpack


def from_arrays(
    x: Any,
    y: Any,
    edge_index: Any = None,
    edge_weight: Any = None,
    *,
    name: str = "own data",
    problem: Problem | None = None,
    metric: str | None = None,
    splits: Splits = None,
    fractions: Sequence[float] | None = None,
    seeds: Sequence[int] = (0,),
    node_ptr: Any = None,
    directed: bool = False,
    self_loops: SelfLoops = "add",
    duplicates: Duplicates = "error",
    missing: Sequence[str] | None = None,
    class_names: Sequence[str] = (),
    instance_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    standardize: bool = False,
) -> Task:
    """A task from objects in memory: numpy, scipy sparse, torch, pandas and polars, plain lists.

    Args:
        x: Features ``[N, F]``; ``[T, N, F]`` for a series of snapshots. A sparse matrix stays sparse. The index of a
            pandas frame names its rows, unless it only counts them.
        y: Labels, one per row, or several columns: see `difformer.data.own.targets`; of a series ``[T, N]`` numbers.
            With a frame for `x` also the name of its column, or a list of names. What comes from pandas is matched with
            `x` by index where both have one.
        edge_index: The graph, if any: ``[2, E]``, ``[E, 2]``, pairs of ids, an adjacency matrix, a frame of edges; for
            a series also a list with one per snapshot.
        edge_weight: ``[E]`` weights ≥ 0; for a list of graphs a list.
        name: Of the data in reports.
        problem: ``"multiclass"``, ``"multilabel"`` or ``"regression"``; found out from `y` where it is None.
        metric: None takes accuracy, ROC-AUC or MSE, after the problem.
        splits: Ready-made ones (`Split`, or positions of rows by train, valid and test), or a file of them; None draws
            them.
        fractions: Of train, valid and test where splits are drawn; None takes 50, 25 and 25 %, and for a series the
            first 20, the next 20 and the last 60 %.
        seeds: One split each.
        node_ptr: ``[G + 1]`` where rows belong to G separate graphs, ``node_ptr[g]:node_ptr[g + 1]`` to graph g; then
            `y` and the splits are of graphs.
        directed: Keep directions; otherwise both directions of every edge are listed.
        self_loops: ``"add"`` to every node that has none, ``"remove"``, or ``"keep"`` as given.
        duplicates: What becomes of an edge given with different weights: see `tidy_edges`.
        missing: Texts that mean no label, instead of the rule of `difformer.data.own.targets`.
        class_names: The classes in order, instead of numerical or alphabetical order.
        instance_names: Ids of the rows, or of the graphs.
        feature_names: Of the columns.
        standardize: Bring columns to mean 0 and deviation 1 over all rows (of a sparse matrix to quadratic mean 1, so
            that zeros stay). Without it features are used as they are.

    Raises:
        DataError: If the parts contradict each other; the message says where.
    """
    if edge_index is None and edge_weight is not None:
        raise DataError("edge_weight: weights without edges; pass edge_index too")
    if hasattr(x, "columns") and (isinstance(y, str) or (isinstance(y, list) and all(isinstance(c, str) for c in y))):
        wanted, known = [y] if isinstance(y, str) else y, list(x.columns)
        # Labels of rows come more than once, names of columns do not.
        if len(set(wanted)) == len(wanted) and all(column in known for column in wanted):
            x, y = x[[column for column in known if column not in wanted]], x[wanted]
        elif isinstance(y, str):
            raise DataError(f"y: x has no column {y!r}; {did_you_mean(y, map(str, known))}it has {_listed(known)}")
    features, columns = features_from(x)
    called = tuple(str(column) for column in feature_names) or columns
    if features.dim() == 3:
        if standardize:
            raise DataError(
                "standardize: a series is not scaled here; standardise it by its training part before lags are taken"
            )
        tidy = {"directed": directed, "self_loops": self_loops, "duplicates": duplicates}
        task = _series(features, y, edge_index, edge_weight, problem, splits, fractions, tidy)
        names = tuple(str(i) for i in instance_names)
        return replace(task, name=name, metric=metric or "mse", feature_names=called, instance_names=names)
    ids = tuple(str(i) for i in instance_names) or (row_ids(x) if node_ptr is None else ())
    index = index_of_ids(ids, lambda text, row: DataError(text, row=row)) if ids and node_ptr is None else None
    ptr = None if node_ptr is None else _pointer(node_ptr)
    cells, names = label_cells(y, x, features.shape[0] if ptr is None else ptr.numel() - 1)
    edges, notes = _edges(edge_index, edge_weight, features.shape[0], index)
    return assemble(
        Material(features, Labels(cells, names), edges, node_ptr=ptr, ids=ids, feature_names=called, notes=notes),
        name=name,
        problem=problem,
        metric=metric,
        splits=splits,
        fractions=fractions,
        seeds=seeds,
        directed=directed,
        self_loops=self_loops,
        duplicates=duplicates,
        missing=missing,
        class_names=class_names,
        standardize=standardize,
    )


def _edges(
    edges: Any, weights: Any, num_nodes: int, ids: Mapping[str, int] | None
) -> tuple[tuple[Tensor, Tensor | None] | None, tuple[str, ...]]:
    if edges is None:
        return None, ()
    index, weight, notes = edges_from(edges, weights, num_nodes=num_nodes, ids=ids)
    return (index, weight), notes


def from_frame(
    frame: Any,
    label: Any,
    *,
    edges: Any = None,
    edge_weight: Any = None,
    ids: Column | None = None,
    split_column: Column | None = None,
    drop: Column | Sequence[Column] = (),
    categories: Column | Sequence[Column] = (),
    dates: Column | Sequence[Column] = (),
    **choices: Unpack[Choices],
) -> Task:
    """A task from a pandas or polars frame as it is: numbers, texts, truth values, categories, dates, gaps.

    What becomes of each column is in the task's ``preprocessing``: ``print(task.preprocessing.describe())``; new rows
    are encoded by its ``transform``.

    Args:
        frame: One row per instance. The index of a pandas frame names its rows, unless it only counts them.
        label: The column of labels by name, several of them, or labels as `from_arrays` takes them.
        edges: The graph, if any, as `from_arrays` takes it; pairs of ids where rows have ids.
        edge_weight: ``[E]`` weights ≥ 0.
        ids: The column of ids, instead of the index.
        split_column: The column that says train, valid or test; None finds it by its name.
        drop: Columns to leave out.
        categories: Columns to take as categories, whatever they look like.
        dates: Columns to take as dates.
        **choices: ``name``, ``problem``, ``metric``, ``splits``, ``fractions``, ``seeds``, ``directed``,
            ``self_loops``, ``duplicates``, ``missing``, ``class_names`` and ``standardize`` as in `from_arrays`;
            columns of numbers are standardised unless ``standardize`` is False.

    Raises:
        DataError: If a column is absent, or the parts contradict each other; the message says where.
    """
    check_names("from_frame", choices)
    if not hasattr(frame, "columns"):
        raise DataError(f"frame: expected a pandas or polars frame, got {type(frame).__name__}; see from_arrays")
    names = [str(column) for column in frame.columns]
    listed = [label] if isinstance(label, str) else list(label) if isinstance(label, (list, tuple)) else []
    within = bool(listed) and len(set(map(str, listed))) == len(listed) and all(str(c) in names for c in listed)
    if isinstance(label, str) and not within:
        raise DataError(
            f"label: the frame has no column {label!r}; {did_you_mean(label, names)}it has {_listed(names)}",
            argument="label",
        )
    found = select_features(
        ColumnSource("frame", frame_columns(frame)),
        ids=False if ids is None else ids,
        labels=[str(column) for column in listed] if within else None if label is None else (),
        labels_here=True,
        split=split_column,
        drop=several(drop),
        raw=True,
        standardize=choices.setdefault("standardize", True),
        categories=several(categories),
        dates=several(dates),
    )
    size = found.x.shape[0]
    rows = found.ids or row_ids(frame)
    index = index_of_ids(rows, lambda text, row: found.error(text, row, found.id_column)) if rows else None
    if found.labels:
        given = Labels(list(found.labels.values()), tuple(found.labels))
    else:
        given = Labels(*label_cells(label, frame, size))
    graph, notes = _edges(edges, edge_weight, size, index)
    return assemble(
        Material(
            x=found.x,
            labels=given,
            edges=graph,
            ids=rows,
            feature_names=found.names,
            splits=split_from_words(found.split, found.error) if choices.get("splits") is None else (),
            raw=found.raw,
            preprocessing=found.preprocessing,
            notes=(*found.notes, *notes),
        ),
        **choices,
    )


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names[:20]))


def _pointer(node_ptr: Any) -> Tensor:
    given = torch.as_tensor(node_ptr)
    if given.dim() != 1 or bool((given != given.long()).any()):
        raise DataError(f"node_ptr: expected whole numbers, [G + 1], got {given.dtype} of shape {list(given.shape)}")
    return given.long()


FEW_NUMBERS = 10  # whole numbers of so few kinds look like classes


def _series(
    x: Tensor,
    y: Any,
    edge_index: Any,
    edge_weight: Any,
    problem: Problem | None,
    splits: Splits,
    fractions: Sequence[float] | None,
    tidy: Mapping[str, Any],
) -> Task:
    """Snapshots in time order: numbers to predict for every node at every time."""
    if problem not in (None, "regression"):
        raise DataError(f"problem: a series of snapshots is regression, got {problem!r}")
    wanted = f"[T, N] = {list(x.shape[:2])} for a series x {list(x.shape)}"
    target, _ = features_from(y, name="y", finite=False, shape=wanted)
    if target.dim() not in (2, 3) or target.shape[:2] != x.shape[:2]:
        raise DataError(f"y: expected {wanted}, got shape {list(target.shape)}")
    several = (
        isinstance(edge_index, (list, tuple)) and len(edge_index) == x.shape[0] and hasattr(edge_index[0], "shape")
    )
    if not several and isinstance(edge_index, (list, tuple)) and any(getattr(g, "ndim", 0) > 1 for g in edge_index):
        raise DataError(f"edge_index: a list of {len(edge_index)} graphs for {x.shape[0]} snapshots; give one each")
    graphs = list(edge_index) if several else [] if edge_index is None else [edge_index]
    weights = list(edge_weight) if several and edge_weight is not None else [edge_weight] * len(graphs)
    raw = [edges_from(graph, weight, num_nodes=x.shape[1]) for graph, weight in zip(graphs, weights, strict=True)]
    done = [tidy_edges(index, weight, num_nodes=x.shape[1], **tidy) for index, weight, _ in raw]
    weighted = [w for _, w in done if w is not None]
    if several and 0 < len(weighted) < len(done):  # a matrix of ones has no weights, its neighbours may have
        done = [(i, torch.ones(i.shape[1]) if w is None else w) for i, w in done]
    chosen = given_splits(splits) or drawn_splits(None, x.shape[0], fractions, (0,))
    notes = [note for _, _, guessed in raw for note in guessed]
    found = target[target.isfinite()].unique()
    if problem is None and found.numel() <= FEW_NUMBERS and torch.equal(found, found.round()):
        notes.append(
            f"the targets of the series are {found.numel()} different whole numbers, read as quantities; pass "
            "problem=regression to confirm it (a series has no classes)"
        )
    if splits is None:
        train, valid, test = chosen[0].sizes()
        notes.append(
            f"snapshots were split in time order: the first {train} train, the next {valid} choose the model, the last "
            f"{test} test; pass fractions= or splits= for another split"
        )
    outputs = 1 if target.dim() == 2 else target.shape[2]
    return Task(
        name="own data",
        kind="series",
        problem="regression",
        metric="mse",
        protocol=f"own data, series; {chosen[0].name}",
        x=x,
        y=target,
        splits=chosen,
        num_outputs=outputs,
        edge_index=tuple(i for i, _ in done) if several else done[0][0] if done else None,
        edge_weight=tuple(w for _, w in done if w is not None) or None if several else done[0][1] if done else None,
        notes=tuple(dict.fromkeys(notes)),
    )
