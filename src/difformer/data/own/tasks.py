"""A user's own data as a task: files, a data frame as it is, or arrays that are ready.

    features.csv   name,age,income      labels.csv   name,group      edges.csv   from,to,weight
                   ann,31,52000                      ann,A                       ann,bob,2
                   bob,45,48000                      bob,                        bob,eve,1

    read → columns (features, ids, labels, split) → targets, edges → `assemble` → Task

Ids join the files where rows have them; otherwise rows are known by their number, counted from zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from difformer.data.edges import Duplicates, SelfLoops, tidy_edges
from difformer.data.errors import DataError, in_file, listed
from difformer.data.own.arrays import (
    ARRAY_ENDINGS,
    features_from,
    label_cells,
    labels_by_name,
    named_array,
    row_ids,
    stored_splits,
    unused_arrays,
)
from difformer.data.own.assembly import (
    Choices,
    Path_,
    Splits,
    assemble,
    check_names,
    drawn_splits,
    given_splits,
    split_in_column,
)
from difformer.data.own.csv_files import TextFormat
from difformer.data.own.feature_tables import Features, load_features, select_features, several
from difformer.data.own.graphs import edges_from, read_edges
from difformer.data.own.pyg import PYG_ENDINGS, from_pyg, read_pyg
from difformer.data.own.table import Column, MemoryTable, index_of_ids, names_ids
from difformer.data.own.targets import Labels, read_labels
from difformer.data.task import Problem, Task
from difformer.errors import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Unpack

FEW_NUMBERS = 10  # whole numbers of so few kinds look like classes


def from_files(
    features: Path_,
    labels: Path_ | None = None,
    edges: Path_ | None = None,
    *,
    ids: Column | bool | None = None,
    label_columns: Column | Sequence[Column] | None = None,
    label_ids: Column | bool | None = None,
    edge_columns: Sequence[Column] | None = None,
    split_column: Column | None = None,
    drop: Column | Sequence[Column] = (),
    categories: Column | Sequence[Column] = (),
    dates: Column | Sequence[Column] = (),
    header: bool | Mapping[str, bool] | None = None,
    delimiter: str | Mapping[str, str] | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    comment: str | None = "#",
    name: str | None = None,
    problem: Problem | None = None,
    metric: str | None = None,
    splits: Splits = None,
    fractions: Sequence[float] | None = None,
    seeds: Sequence[int] = (0,),
    directed: bool = False,
    self_loops: SelfLoops = "add",
    duplicates: Duplicates = "error",
    missing: Sequence[str] | None = None,
    class_names: Sequence[str] = (),
    standardize: bool | None = None,
) -> Task:
    """A task from files: CSV and its relatives, Parquet, NPZ, and PyG's ``.pt``.

    Tables are taken as they are: numbers, truth values, categories, dates and gaps become features as
    `difformer.data.own.preprocessing` says, and the task's ``preprocessing`` tells what became of each column. Files of
    arrays hold features that are ready.

    Columns are given by name, or by number counted from one. What is None is found out, and noted in the task where it
    was a choice.

    Args:
        features: A table, perhaps with a column of ids, of labels and of the split. An NPZ may hold everything:
            ``x``, ``y``, ``edge_index``, ``edge_weight``, ``ids``, and splits as masks or indices. A ``.pt`` with a
            PyG ``Data`` or a list of them holds everything, see `from_pyg`.
        labels: One label per row, or with a column of ids; None takes them from `features`.
        edges: Source, target and perhaps weight.
        ids: The column of ids in `features`; True for the first, False for none.
        label_columns: The columns of labels, in `labels` or else in `features`.
        label_ids: The column of ids in `labels`; True for the first, False where labels are in order.
        edge_columns: Source, target and perhaps weight in `edges`.
        split_column: The column of `features` that says train, valid or test.
        drop: Columns of `features` to leave out.
        categories: Columns of `features` to take as categories, whatever they look like: codes that are numbers.
        dates: Columns of `features` to take as dates.
        header: Whether the first row names the columns; for one file only: ``{"edges": False}``.
        delimiter: Between cells, likewise.
        encoding: Of the text files.
        decimal: ``","`` where numbers are written 1,5.
        comment: What lines above a table begin with.
        name: Of the data in reports; None takes the name of the file.
        splits: Ready-made ones, or a file of them; None takes the split column, or masks, or draws them.
        standardize: Bring columns of numbers to mean 0 and deviation 1 over all rows; None does so for tables, and
            leaves arrays as they are.
        problem, metric, fractions, seeds, directed, self_loops, duplicates, missing, class_names: See `from_arrays`.

    Raises:
        DataError: If a file is broken, or files contradict each other; with file, line and column.
        FileNotFoundError: If a file is not there.
    """
    suffix = Path(features).suffix.lower()
    is_table = suffix not in (*ARRAY_ENDINGS, *PYG_ENDINGS)
    scaled = is_table if standardize is None else standardize
    choices: Choices = {"name": name or Path(features).name.split(".")[0], "problem": problem, "metric": metric}
    choices |= {"splits": splits, "fractions": fractions, "seeds": seeds, "missing": missing}
    choices |= {"directed": directed, "self_loops": self_loops, "duplicates": duplicates}
    choices |= {"class_names": class_names, "standardize": scaled}
    columns = None if label_columns is None else several(label_columns)
    options: dict[str, Any] = {"ids": ids, "drop": several(drop), "categories": several(categories)}
    options |= {"dates": several(dates), "split_column": split_column}
    options |= {"label_columns": columns if labels is None or suffix in PYG_ENDINGS else None}
    if not is_table:
        refusal, refused = "holds arrays, which have no named columns", options
        if suffix in PYG_ENDINGS:
            beside = {"labels": labels, "edges": edges, "label_ids": label_ids, "edge_columns": edge_columns}
            refusal, refused = "a PyG file holds everything itself", {**beside, **options}
        if extra := [option for option, value in refused.items() if value not in (None, False, ())]:
            raise DataError(f"{refusal}; leave out {', '.join(extra)}", path=features)
        if suffix in PYG_ENDINGS:
            with in_file(features):
                return from_pyg(read_pyg(features), **choices)

    def format(role: str) -> TextFormat:
        own = [option.get(role) if isinstance(option, Mapping) else option for option in (delimiter, header)]
        return TextFormat(own[0], own[1], encoding, decimal, comment)  # type: ignore[arg-type]

    options |= {"labels_here": labels is None, "raw": True, "standardize": scaled}
    found = load_features(features, format=format("features"), **options)
    size, arrays = found.x.shape[0], found.arrays
    if found.x.dim() == 3 or "node_ptr" in arrays:
        what = "a series of snapshots" if found.x.dim() == 3 else "many graphs (an array node_ptr)"
        ways = "load it with numpy.load and pass its arrays to difformer.data.from_arrays"
        raise DataError(f"holds {what}; {ways}", path=features)
    index = index_of_ids(found.ids, found.table, found.roles.ids) if found.ids else None
    notes = unused_arrays(arrays, found.path)
    if labels is not None:
        given = read_labels(labels, size=size, ids=index, columns=columns, id_column=label_ids, format=format("labels"))
        notes += given.table.notes if given.table is not None else ()
    elif is_table:
        given = _labels_within(found)
    else:
        y, classes = labels_by_name(arrays)
        if y is None:
            problem_ = f"holds no labels (an array called y); pass labels=FILE; it has {', '.join(arrays)}"
            raise DataError(problem_, path=features, argument="labels")
        with in_file(features):
            cells, _ = label_cells(y, None, size)
        given = Labels(cells, tuple(str(i + 1) for i in range(len(cells))), found.path)
        choices["class_names"] = class_names or classes
    graph = None
    if edges is not None:
        with _suggesting_ids(found):
            graph = read_edges(edges, num_nodes=size, ids=index, columns=edge_columns, format=format("edges"))
    with in_file(found.path):
        if edges is None and (inside := named_array(arrays, "edges")) is not None:
            graph = edges_from(inside, named_array(arrays, "weights"), num_nodes=size, ids=index)
        stored = split_in_column(found) or stored_splits(arrays, size) if splits is None else ()
    return assemble(found, given, graph, edge_path=edges or features, stored=stored, notes=notes, **choices)


@contextmanager
def _suggesting_ids(found: Features) -> Iterator[None]:
    """Where edges name rows that have no ids, the error names the columns that look like ids."""
    try:
        yield
    except DataError as error:
        texts = [(name, values) for name, values in found.raw if isinstance(values, list) and "" not in values]
        likely = [name for name, values in texts if len(set(values)) == len(values)]
        likely = [name for name in likely if names_ids(name)] or likely
        if error.argument != "ids" or not likely:
            raise
        ways = " or ".join(f"ids={name}" for name in likely[:4])
        raise error.reworded(f"{error.problem}; pass {ways}, where no text comes twice") from error


def _labels_within(found: Features) -> Labels:
    """Labels in the table of the features."""
    table, at = found.table, found.roles.labels
    assert table is not None
    return Labels([table.texts(i) for i in at], tuple(table.names[i] for i in at), found.path, table, None, at)


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
    columns = _columns_named(label, frame, "label: the frame")
    found = select_features(
        MemoryTable.of_frame(frame),
        ids=False if ids is None else ids,
        label_columns=columns or (None if label is None else ()),
        labels_here=True,
        split_column=split_column,
        drop=several(drop),
        raw=True,
        standardize=choices.setdefault("standardize", True),
        categories=several(categories),
        dates=several(dates),
    )
    rows = found.ids or row_ids(frame)
    index = index_of_ids(rows, found.table, found.roles.ids) if rows else None
    given = _labels_within(found) if found.roles.labels else Labels(*label_cells(label, frame, found.x.shape[0]))
    with _suggesting_ids(found):
        graph = None if edges is None else edges_from(edges, edge_weight, num_nodes=len(frame), ids=index)
    stored = split_in_column(found) if choices.get("splits") is None else ()
    return assemble(replace(found, ids=rows), given, graph, stored=stored, **choices)


def _columns_named(y: Any, frame: Any, called: str) -> list[str]:
    """The columns of a frame that `y` names; none if it holds labels instead: those come more than once."""
    given = [y] if isinstance(y, str) else list(y) if isinstance(y, (list, tuple)) else []
    wanted, known = [str(column) for column in given], [str(column) for column in frame.columns]
    if wanted and len(set(wanted)) == len(wanted) and set(wanted) <= set(known):
        return wanted
    if isinstance(y, str):
        problem = f"{called} has no column {y!r}; {did_you_mean(y, known)}it has {listed(known, 20)}"
        raise DataError(problem, argument="label")
    return []


def from_arrays(
    x: Any,
    y: Any,
    edge_index: Any = None,
    edge_weight: Any = None,
    *,
    node_ptr: Any = None,
    instance_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    **choices: Unpack[Choices],
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
        node_ptr: ``[G + 1]`` where rows belong to G separate graphs, ``node_ptr[g]:node_ptr[g + 1]`` to graph g; then
            `y` and the splits are of graphs.
        instance_names: Ids of the rows, or of the graphs.
        feature_names: Of the columns.
        name: Of the data in reports, ``"own data"`` by default.
        problem: ``"multiclass"``, ``"multilabel"`` or ``"regression"``; found out from `y` by default.
        metric: Accuracy, ROC-AUC or MSE by default, after the problem.
        splits: Ready-made ones (`Split`, or positions of rows by train, valid and test), or a file of them; drawn by
            default.
        fractions: Of train, valid and test where splits are drawn; 50, 25 and 25 % by default, and for a series the
            first 20, the next 20 and the last 60 %.
        seeds: One split each, ``(0,)`` by default.
        directed: Keep directions; by default both directions of every edge are listed.
        self_loops: ``"add"`` (the default) to every node that has none, ``"remove"``, or ``"keep"`` as given.
        duplicates: What becomes of an edge given with different weights: see `tidy_edges`; refused by default.
        missing: Texts that mean no label, instead of the rule of `difformer.data.own.targets`.
        class_names: The classes in order, instead of numerical or alphabetical order.
        standardize: Bring columns to mean 0 and deviation 1 over all rows (of a sparse matrix to quadratic mean 1, so
            that zeros stay). By default features are used as they are.

    Raises:
        DataError: If the parts contradict each other; the message says where.
    """
    check_names("from_arrays", choices)
    if edge_index is None and edge_weight is not None:
        raise DataError("edge_weight: weights without edges; pass edge_index too")
    if hasattr(x, "columns") and (columns := _columns_named(y, x, "y: x")):
        places = {str(column): column for column in x.columns}
        x, y = x[[column for name, column in places.items() if name not in columns]], x[[places[c] for c in columns]]
    features, columns_ = features_from(x)
    names, ids = tuple(map(str, feature_names)) or columns_, tuple(map(str, instance_names))
    if features.dim() == 3:
        return _series(Features(features, names, ids), y, edge_index, edge_weight, **choices)
    ids = ids or (row_ids(x) if node_ptr is None else ())
    index = index_of_ids(ids) if ids and node_ptr is None else None
    ptr = None if node_ptr is None else torch.as_tensor(node_ptr)
    if ptr is not None and (ptr.dim() != 1 or bool((ptr != ptr.long()).any())):
        raise DataError(f"node_ptr: expected whole numbers, [G + 1], got {ptr.dtype} of shape {list(ptr.shape)}")
    ptr = None if ptr is None else ptr.long()
    labels = Labels(*label_cells(y, x, features.shape[0] if ptr is None else ptr.numel() - 1))
    graph = None
    if edge_index is not None:
        graph = edges_from(edge_index, edge_weight, num_nodes=features.shape[0], ids=index)
    return assemble(Features(features, names, ids), labels, graph, node_ptr=ptr, **choices)


def _series(
    found: Features,
    y: Any,
    edge_index: Any,
    edge_weight: Any,
    *,
    name: str = "own data",
    problem: Problem | None = None,
    metric: str | None = None,
    splits: Splits = None,
    fractions: Sequence[float] | None = None,
    standardize: bool = False,
    **choices: Any,
) -> Task:
    """Snapshots in time order: numbers to predict for every node at every time."""
    if standardize:
        raise DataError(
            "standardize: a series is not scaled here; standardise it by its training part before lags are taken"
        )
    if problem not in (None, "regression"):
        raise DataError(f"problem: a series of snapshots is regression, got {problem!r}")
    x = found.x
    wanted = f"[T, N] = {list(x.shape[:2])} for a series x {list(x.shape)}"
    target, _ = features_from(y, name="y", finite=False, shape=wanted)
    if target.shape[:2] != x.shape[:2]:
        raise DataError(f"y: expected {wanted}, got shape {list(target.shape)}")
    listed_ = isinstance(edge_index, (list, tuple)) and any(getattr(graph, "ndim", 0) > 1 for graph in edge_index)
    if listed_ and len(edge_index) != x.shape[0]:
        raise DataError(f"edge_index: a list of {len(edge_index)} graphs for {x.shape[0]} snapshots; give one each")
    graphs = list(edge_index) if listed_ else [] if edge_index is None else [edge_index]
    weights = list(edge_weight) if listed_ and edge_weight is not None else [edge_weight] * len(graphs)
    rules = {rule: choices[rule] for rule in ("directed", "self_loops", "duplicates") if rule in choices}
    done: list[tuple[Tensor, Tensor | None]] = []
    notes: list[str] = []
    for graph, weight in zip(graphs, weights, strict=True):
        found_edges = edges_from(graph, weight, num_nodes=x.shape[1])
        done.append(tidy_edges(*found_edges[:2], num_nodes=x.shape[1], **rules))
        notes += found_edges[2]
    if 0 < sum(w is not None for _, w in done) < len(done):  # a matrix of ones has no weights, its neighbours may have
        done = [(i, torch.ones(i.shape[1]) if w is None else w) for i, w in done]
    chosen = given_splits(splits) or drawn_splits(None, x.shape[0], fractions, (0,))
    values = target[target.isfinite()].unique()
    if problem is None and values.numel() <= FEW_NUMBERS and torch.equal(values, values.round()):
        notes.append(
            f"the targets of the series are {values.numel()} different whole numbers, read as quantities; pass "
            "problem=regression to confirm it (a series has no classes)"
        )
    if splits is None:
        train, valid, test = chosen[0].sizes()
        notes.append(
            f"snapshots were split in time order: the first {train} train, the next {valid} choose the model, the last "
            f"{test} test; pass fractions= or splits= for another split"
        )
    return Task(
        name=name,
        kind="series",
        problem="regression",
        metric=metric or "mse",
        protocol=f"own data, series; {chosen[0].name}",
        x=x,
        y=target,
        splits=chosen,
        num_outputs=1 if target.dim() == 2 else target.shape[2],
        edge_index=tuple(i for i, _ in done) if listed_ else done[0][0] if done else None,
        edge_weight=tuple(w for _, w in done if w is not None) or None if listed_ else done[0][1] if done else None,
        instance_names=found.ids,
        feature_names=found.names,
        notes=tuple(dict.fromkeys(notes)),
    )
