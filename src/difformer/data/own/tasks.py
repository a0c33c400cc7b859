"""A user's own data as a task: files, a data frame as it is, arrays that are ready, or PyG's objects.

    features.csv   name,age,income      labels.csv   name,group      edges.csv   from,to,weight
                   ann,31,52000                      ann,A                       ann,bob,2
                   bob,45,48000                      bob,                        bob,eve,1

    read → columns (features, ids, labels, split) → targets, edges → `assemble` → Task

Ids join the files if rows have them; otherwise rows are known by their number, counted from zero.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

import torch
from torch import Tensor

from difformer.data.edges import Duplicates, SelfLoops, check_choices, tidy_edges
from difformer.data.errors import DataError, in_file, listed
from difformer.data.own.csv_files import TextFormat
from difformer.data.own.features import (
    ARRAY_ENDINGS,
    PART_WORDS,
    Features,
    features_from,
    load_features,
    named_array,
    row_ids,
    select_features,
    stored_splits,
    unused_arrays,
)
from difformer.data.own.graphs import PYG_ENDINGS, Found, edges_from, join_graphs, read_edges, read_pyg
from difformer.data.own.table import Column, Path_, frame_table, index_of_ids, names_ids
from difformer.data.own.targets import (
    METRICS,
    Labels,
    Targets,
    constant_columns,
    encode_targets,
    labels_beside,
    labels_from,
    read_labels,
    suspicions,
)
from difformer.data.scaling import Scaling, uneven
from difformer.data.split import Split, labelled, load_splits, random_split, split_of_parts, time_split
from difformer.data.task import Problem, Task
from difformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Unpack

Splits = Split | Mapping[str, Any] | Iterable[Split | Mapping[str, Any]] | Path_ | None

SHARES = (0.5, 0.25, 0.25)  # of train, valid and test where splits are drawn
SERIES = (0.2, 0.2, 0.6)  # likewise for a series
FEW_NUMBERS = 10  # whole numbers of so few kinds look like classes


class Choices(TypedDict, total=False):
    """What the caller of any reader may choose; `from_arrays` explains each."""

    name: str
    problem: Problem | None
    metric: str | None
    splits: Splits
    fractions: Sequence[float] | None
    seeds: Sequence[int]
    directed: bool
    self_loops: SelfLoops
    duplicates: Duplicates
    missing: Sequence[str] | None
    class_names: Sequence[str]
    standardize: bool


DEFAULTS: Choices = {"name": "own data", "problem": None, "metric": None, "missing": None, "class_names": ()}
DEFAULTS |= {"splits": None, "fractions": None, "seeds": (0,), "standardize": False}
DEFAULTS |= {"directed": False, "self_loops": "add", "duplicates": "error"}


def _chosen(function: str, choices: Choices) -> Choices:
    """The choices, with defaults for the others."""
    if unknown := next((option for option in choices if option not in DEFAULTS), None):
        raise TypeError(f"{function}() has no option {unknown!r}; {did_you_mean(unknown, DEFAULTS)}see from_arrays")
    return {**DEFAULTS, **choices}


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

    Columns of a table become features as `difformer.data.own.preprocessing` describes; the task's ``preprocessing``
    tells what became of each. Files of arrays hold features that are ready. Columns are given by name, or by number
    counted from one. None means: find out; what was guessed is noted in the task.

    Args:
        features: A table, perhaps with columns of ids, labels and the split. An NPZ may hold everything: ``x``, ``y``,
            ``edge_index``, ``edge_weight``, ``ids``, splits as masks or indices; so may a ``.pt``, see `from_pyg`.
        labels: One label per row, or with a column of ids; None takes them from `features`.
        edges: Source, target and perhaps weight.
        ids: The column of ids in `features`; True for the first, False for none.
        label_columns: The columns of labels, in `labels` or else in `features`.
        label_ids: The column of ids in `labels`; True for the first, False where labels are in order.
        edge_columns: Source, target and perhaps weight in `edges`.
        split_column: The column of `features` that says train, valid or test.
        drop: Columns of `features` to leave out.
        categories: Columns of `features` to take as categories, for example codes that are numbers.
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
    given = locals()  # before any other name is bound
    chosen = cast(Choices, {option: given[option] for option in DEFAULTS})
    suffix = Path(features).suffix.lower()
    is_table = suffix not in (*ARRAY_ENDINGS, *PYG_ENDINGS)
    chosen["name"] = name or Path(features).name.split(".")[0]
    chosen["standardize"] = is_table if standardize is None else standardize
    options: dict[str, Any] = {"ids": ids, "drop": drop, "categories": categories, "dates": dates}
    options |= {"split_column": split_column, "label_columns": label_columns if labels is None else None}
    if not is_table:
        refusal, refused = "holds arrays, which have no named columns", options
        if suffix in PYG_ENDINGS:
            refusal, refused = "a PyG file holds everything itself", {"labels": labels, "edges": edges, **options}
            refused |= {"label_columns": label_columns, "label_ids": label_ids, "edge_columns": edge_columns}
        if extra := [option for option, value in refused.items() if value not in (None, False, (), [])]:
            raise DataError(f"{refusal}; leave out {', '.join(extra)}", path=features)
        if suffix in PYG_ENDINGS:
            with in_file(features):
                return from_pyg(read_pyg(features), **chosen)

    def format(role: str) -> TextFormat:
        own = [option.get(role) if isinstance(option, Mapping) else option for option in (delimiter, header)]
        return TextFormat(own[0], own[1], encoding, decimal, comment)  # type: ignore[arg-type]

    options |= {"labels_here": labels is None, "raw": True, "standardize": chosen["standardize"]}
    found = load_features(features, format=format("features"), **options)
    size, arrays = found.x.shape[0], found.arrays
    if found.x.dim() == 3 or "node_ptr" in arrays:
        what = "a series of snapshots" if found.x.dim() == 3 else "many graphs (an array node_ptr)"
        remedy = "load it with numpy.load and pass its arrays to difformer.data.from_arrays"
        raise DataError(f"holds {what}; {remedy}", path=features)
    index = found.index
    if labels is not None:
        columns: Any = {"columns": label_columns, "id_column": label_ids}
        target = read_labels(labels, size=size, ids=index, format=format("labels"), **columns)
    else:
        target, classes = labels_beside(found)
        chosen["class_names"] = class_names or classes
    notes = [*unused_arrays(arrays, found.path), *(target.table.notes if labels is not None and target.table else ())]
    graph = None
    if edges is not None:
        named: Any = {"ids": index, "columns": edge_columns, "hint": _id_hint(found, index)}
        graph = read_edges(edges, num_nodes=size, format=format("edges"), **named)
    with in_file(found.path):
        if edges is None and (inside := named_array(arrays, "edges")) is not None:
            graph = edges_from(inside, named_array(arrays, "weights"), num_nodes=size, ids=index)
        stored = split_in_column(found) or stored_splits(arrays, size) if splits is None else ()
    return assemble(found, target, graph, chosen, edge_path=edges or features, stored=stored, notes=notes)


def _id_hint(found: Features, index: Mapping[str, int] | None) -> str:
    """For edges that name rows that have no ids: the columns that look like ids."""
    texts = [(name, values) for name, values in found.raw if isinstance(values, list) and "" not in values]
    likely = [name for name, values in texts if index is None and len(set(values)) == len(values)]
    likely = [name for name in likely if names_ids(name)] or likely
    return f"; pass {' or '.join(f'ids={name}' for name in likely[:4])}, where no text comes twice" if likely else ""


def from_frame(
    frame: Any,
    label: Any,
    *,
    edges: Any = None,
    edge_weight: Any = None,
    ids: Column | Literal[False] | None = None,
    split_column: Column | None = None,
    drop: Column | Sequence[Column] = (),
    categories: Column | Sequence[Column] = (),
    dates: Column | Sequence[Column] = (),
    **choices: Unpack[Choices],
) -> Task:
    """A task from a pandas or polars frame as it is: numbers, texts, truth values, categories, dates, gaps.

    What becomes of each column is in the task's ``preprocessing``: ``print(task.preprocessing.describe())``; its
    ``transform`` encodes new rows.

    Args:
        frame: One row per instance. The index of a pandas frame names its rows, unless it only counts them.
        label: The column of labels by name, several of them, or labels as `from_arrays` takes them.
        edges: The graph, if any, as `from_arrays` takes it; pairs of ids where rows have ids.
        edge_weight: ``[E]`` weights ≥ 0.
        ids: The column of ids, instead of the index; False ignores the index.
        split_column, drop, categories, dates: Columns, see `from_files`.
        **choices: See `from_arrays`; columns of numbers are standardised unless ``standardize`` is False.

    Raises:
        DataError: If a column is absent, or the parts contradict each other; the message says where.
    """
    chosen = _chosen("from_frame", {"standardize": True, **choices})
    if not hasattr(frame, "columns"):
        raise DataError(f"frame: expected a pandas or polars frame, got {type(frame).__name__}; see from_arrays")
    columns = _columns_named(label, frame, "label: the frame")
    options: dict[str, Any] = {
        "ids": False if ids is None else ids,
        "drop": drop,
        "categories": categories,
        "dates": dates,
    }
    options |= {"split_column": split_column, "label_columns": columns or (None if label is None else ())}
    options |= {"labels_here": True, "raw": True, "standardize": chosen["standardize"]}
    found = select_features(frame_table(frame), **options)
    found = replace(found, ids=found.ids or (() if ids is False else row_ids(frame)))
    index, graph = found.index, None
    labels = labels_beside(found)[0] if found.roles.labels else labels_from(label, frame, found.x.shape[0])
    if edges is not None:
        graph = edges_from(edges, edge_weight, num_nodes=len(frame), ids=index, hint=_id_hint(found, index))
    stored = split_in_column(found) if chosen["splits"] is None else ()
    return assemble(found, labels, graph, chosen, stored=stored)


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
            With a frame for `x` also the name of its column, or a list of names. Labels from pandas are matched with
            `x` by index if both have one.
        edge_index: The graph, if any: ``[2, E]``, ``[E, 2]``, pairs of ids, an adjacency matrix, a frame of edges; for
            a series also a list with one per snapshot.
        edge_weight: ``[E]`` weights ≥ 0; for a list of graphs a list.
        node_ptr: ``[G + 1]`` where rows belong to G separate graphs, ``node_ptr[g]:node_ptr[g + 1]`` to graph g; then
            `y` and the splits are of graphs.
        instance_names: Ids of the rows, or of the graphs.
        feature_names: Of the columns.
        name: Of the data in reports, ``"own data"`` by default.
        problem: ``"multiclass"``, ``"multilabel"`` or ``"regression"``; inferred from `y` by default.
        metric: By default accuracy, ROC-AUC or MSE, depending on the problem.
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
    chosen = _chosen("from_arrays", choices)
    if edge_index is None and edge_weight is not None:
        raise DataError("edge_weight: weights without edges; pass edge_index too")
    if hasattr(x, "columns") and (columns := _columns_named(y, x, "y: x")):
        places = {str(column): column for column in x.columns}
        x, y = x[[column for name, column in places.items() if name not in columns]], x[[places[c] for c in columns]]
    features, columns_ = features_from(x)
    names, ids = tuple(map(str, feature_names)) or columns_, tuple(map(str, instance_names))
    if features.dim() == 3:
        return _series(Features(features, names, ids), y, edge_index, edge_weight, chosen)
    ids = ids or (row_ids(x) if node_ptr is None else ())
    index = index_of_ids(ids) if ids and node_ptr is None else None
    ptr = None if node_ptr is None else torch.as_tensor(node_ptr)
    if ptr is not None and (ptr.dim() != 1 or bool((ptr != ptr.long()).any())):
        raise DataError(f"node_ptr: expected whole numbers, [G + 1], got {ptr.dtype} of shape {list(ptr.shape)}")
    ptr = None if ptr is None else ptr.long()
    labels = labels_from(y, x, features.shape[0] if ptr is None else ptr.numel() - 1)
    graph = None
    if edge_index is not None:
        graph = edges_from(edge_index, edge_weight, num_nodes=features.shape[0], ids=index)
    return assemble(Features(features, names, ids), labels, graph, chosen, node_ptr=ptr)


def from_pyg(data: Any, *, use_positions: bool = False, **choices: Unpack[Choices]) -> Task:
    """A task from a PyG ``Data``, a list or data set of them, or a ``Batch``.

    PyG lists both directions of an undirected edge. If an edge comes in one direction only, the other one is added
    unless `directed` is true, and a note says so. ``edge_weight``, or an ``edge_attr`` of one column, weighs the edges.
    The masks of a single ``Data`` (one split per column), or its ``train_idx``, ``val_idx`` and ``test_idx``, are its
    splits, unless `splits` is given.

    Args:
        data: What to take over.
        use_positions: Append ``pos`` to the features; without ``x``, ``pos`` is used in any case.
        **choices: See `from_arrays`; self-loops are kept as they are unless ``self_loops`` says otherwise.

    Raises:
        DataError: If something is absent or contradicts the rest; the message says in which graph.
    """
    chosen = _chosen("from_pyg", {"self_loops": "keep", **choices})
    x, y, ptr, graph, arrays = join_graphs(data, use_positions=use_positions, directed=chosen["directed"])
    stored: tuple[Split, ...] = ()
    if chosen["splits"] is None:
        try:
            stored = stored_splits(arrays, x.shape[0], by_row=False)
        except DataError as error:
            raise DataError(f"data: {error}") from error
    return assemble(Features(x), labels_from(y, None, y.shape[0]), graph, chosen, node_ptr=ptr, stored=stored)


def _series(found: Features, y: Any, edge_index: Any, edge_weight: Any, chosen: Choices) -> Task:
    """Snapshots in time order: numbers to predict for every node at every time."""
    if chosen["standardize"]:
        remedy = "standardise it by its training part before lags are taken"
        raise DataError(f"standardize: a series is not scaled here; {remedy}")
    if chosen["problem"] not in (None, "regression"):
        raise DataError(f"problem: a series of snapshots is regression, got {chosen['problem']!r}")
    x = found.x
    wanted = f"[T, N] = {list(x.shape[:2])} for a series x {list(x.shape)}"
    target, _ = features_from(y, name="y", finite=False, shape=wanted)
    if target.shape[:2] != x.shape[:2]:
        raise DataError(f"y: expected {wanted}, got shape {list(target.shape)}")
    several = isinstance(edge_index, (list, tuple)) and any(getattr(graph, "ndim", 0) > 1 for graph in edge_index)
    if several and len(edge_index) != x.shape[0]:
        raise DataError(f"edge_index: a list of {len(edge_index)} graphs for {x.shape[0]} snapshots; give one each")
    graphs = list(edge_index) if several else [] if edge_index is None else [edge_index]
    weights = list(edge_weight) if several and edge_weight is not None else [edge_weight] * len(graphs)
    done: list[tuple[Tensor, Tensor | None]] = []
    notes: list[str] = []
    for graph, weight in zip(graphs, weights, strict=True):
        found_edges = edges_from(graph, weight, num_nodes=x.shape[1])
        done.append(tidy_edges(*found_edges[:2], num_nodes=x.shape[1], **_edge_rules(chosen)))
        notes += found_edges[2]
    if 0 < sum(w is not None for _, w in done) < len(done):  # a matrix of ones has no weights, its neighbours may have
        done = [(i, torch.ones(i.shape[1]) if w is None else w) for i, w in done]
    splits = given_splits(chosen["splits"]) or drawn_splits(None, x.shape[0], chosen["fractions"], (0,))
    values = target[target.isfinite()].unique()
    if chosen["problem"] is None and values.numel() <= FEW_NUMBERS and torch.equal(values, values.round()):
        guess = f"the targets of the series are {values.numel()} different whole numbers, read as quantities"
        notes.append(f"{guess}; pass problem=regression to confirm it (a series has no classes)")
    if chosen["splits"] is None:
        train, valid, test = splits[0].sizes()
        order = f"the first {train} train, the next {valid} choose the model, the last {test} test"
        notes.append(f"snapshots were split in time order: {order}; pass fractions= or splits= for another split")
    return Task(
        name=chosen["name"],
        kind="series",
        problem="regression",
        metric=chosen["metric"] or "mse",
        protocol=f"own data, series; {splits[0].name}",
        x=x,
        y=target,
        splits=splits,
        num_outputs=1 if target.dim() == 2 else target.shape[2],
        edge_index=tuple(i for i, _ in done) if several else done[0][0] if done else None,
        edge_weight=tuple(w for _, w in done if w is not None) or None if several else done[0][1] if done else None,
        instance_names=found.ids,
        feature_names=found.names,
        notes=tuple(dict.fromkeys(notes)),
    )


def _edge_rules(chosen: Choices) -> dict[str, Any]:
    return {"directed": chosen["directed"], "self_loops": chosen["self_loops"], "duplicates": chosen["duplicates"]}


def assemble(
    found: Features,
    labels: Labels,
    graph: Found | None,
    chosen: Choices,
    *,
    edge_path: Path_ | None = None,
    node_ptr: Tensor | None = None,
    stored: Sequence[Split] = (),
    notes: Sequence[str] = (),
) -> Task:
    """A task of nodes, or of graphs if there is a `node_ptr`.

    `graph` holds edges as given, from the file `edge_path`. `stored` are splits that came with the data; those that
    were `chosen` override them.
    """
    check_choices(chosen["self_loops"], chosen["duplicates"])
    with labels.locate():
        rule: Any = {"problem": chosen["problem"], "missing": chosen["missing"]}
        targets = encode_targets(labels.columns, names=labels.names, class_names=chosen["class_names"], **rule)
    remarks = [*targets.notes, *found.notes, *notes, *suspicions(found.raw, targets)]
    protocol, index, weight = "own data, no graph", None, None
    if graph is not None:
        done = {"add": "added", "remove": "removed", "keep": "as given"}[chosen["self_loops"]]
        directions = "directed" if chosen["directed"] else "both directions listed"
        protocol = f"own data, given graph, {directions}, self-loops {done}"
        with in_file(edge_path):
            names = found.ids if node_ptr is None else ()
            index, weight = tidy_edges(*graph[:2], num_nodes=found.x.shape[0], names=names, **_edge_rules(chosen))
        remarks += [*graph[2], *_unheard(index)]
    x, scaling = found.x, None
    if found.preprocessing is not None:
        protocol += "; columns encoded"
    else:
        remarks += constant_columns(found.raw)
        if chosen["standardize"]:
            scaling = Scaling.of(x)
            x = scaling(x)
            remarks.append(scaling.describe(found.names))
            protocol += "; columns scaled" if scaling.shift is None else "; columns standardised"
        else:
            remarks += uneven(x, found.names)
    splits = given_splits(chosen["splits"]) or tuple(_usable(split, targets, remarks) for split in stored)
    splits = splits or drawn_splits(targets, targets.y.shape[0], chosen["fractions"], chosen["seeds"])
    remarks += _never_seen(splits, targets)
    try:
        return Task(
            name=chosen["name"],
            kind="nodes" if node_ptr is None else "graphs",
            problem=targets.problem,
            metric=chosen["metric"] or METRICS[targets.problem],
            protocol=f"{protocol}; {_named(splits)}",
            x=x,
            y=targets.y,
            splits=splits,
            num_outputs=targets.num_outputs,
            edge_index=index,
            edge_weight=weight,
            node_ptr=node_ptr,
            class_names=targets.class_names,
            instance_names=found.ids,
            feature_names=found.names,
            notes=tuple(remarks),
            scaling=scaling,
            preprocessing=found.preprocessing,
        )
    except UserError as error:
        raise error if isinstance(error, DataError) else DataError(str(error)) from error


def _named(splits: Sequence[Split]) -> str:
    """Splits in words: ``stratified 50/25/25, 3 splits, seeds 0, 1, 2``."""
    names = [split.name for split in splits]
    if len(names) == 1:
        return names[0]
    ways, seeds = {name.partition("/seed=")[0] for name in names}, [name.partition("/seed=")[2] for name in names]
    if len(ways) > 1 or not all(re.fullmatch(r"-?\d{1,20}", seed) for seed in seeds):
        return f"{len(names)} splits, {names[0]} to {names[-1]}"
    run = [str(seed) for seed in range(int(seeds[0]), int(seeds[0]) + len(seeds))]
    shown = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 and seeds == run else ", ".join(seeds)
    return f"{ways.pop()}, {len(names)} splits, seeds {shown}"


def given_splits(splits: Splits) -> tuple[Split, ...]:
    """Splits as handed over: one, several, or a file of them; a split may be a mapping of its three parts."""
    if splits is None:
        return ()
    if isinstance(splits, (str, os.PathLike)):
        return load_splits(splits)
    several = [splits] if isinstance(splits, (Split, Mapping)) or not isinstance(splits, Iterable) else splits
    chosen = []
    for given in several:
        try:
            if not isinstance(given, (Split, Mapping)):
                raise UserError(f"got {type(given).__name__}")
            chosen.append(given if isinstance(given, Split) else split_of_parts(given, "given"))
        except UserError as error:
            expected = "expected a Split, a mapping of train, valid and test to the positions of their rows, several "
            expected += "of either, or a file of splits; parts as masks become a Split by difformer.data.masks_split"
            raise DataError(f"splits: {error}; {expected}", argument="splits") from error
    return tuple(chosen)


def drawn_splits(
    targets: Targets | None, size: int, fractions: Sequence[float] | None, seeds: Sequence[int]
) -> tuple[Split, ...]:
    """Random splits of what is labelled, classes in proportion; without targets, those of a series in time order."""
    if not isinstance(seeds, Iterable) or not (seeds := list(seeds)):
        raise UserError(f"seeds: expected whole numbers, one per split, got {seeds!r}")
    shares = fractions if fractions is not None else SERIES if targets is None else SHARES
    if targets is None:
        splits = [time_split(size, ratio=shares)]
    else:
        stratify = targets.problem == "multiclass"
        splits = [random_split(targets.y, fractions=shares, seed=seed, stratify=stratify) for seed in seeds]
    for part, share, held in zip(("train", "valid", "test"), shares, splits[0].sizes(), strict=True):
        if share > 0 and held == 0:
            known = size if targets is None else labelled(targets.y).numel()
            problem = f"fractions: {known} labelled instances are too few to give {share:.0%} of them to {part}"
            raise DataError(f"{problem}; bring more labels, or your own splits: splits=")
    return tuple(splits)


def split_in_column(found: Features) -> tuple[Split, ...]:
    """The split that a column of train, valid and test describes; an empty cell leaves its row out of every part."""
    if found.table is None or found.roles.split is None:
        return ()
    parts: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for row, word in enumerate(found.table.texts(found.roles.split)):
        part = PART_WORDS.get(word.strip().lower())
        if word and part is None:
            problem = f"expected train, valid, test or nothing, got {word!r}"
            raise found.table.error(problem, row, found.roles.split)
        if part is not None:
            parts[part].append(row)
    return (split_of_parts(parts, "given"),)


def _usable(split: Split, targets: Targets, notes: list[str]) -> Split:
    """A stored split without unlabelled instances, its validation part taken from training if it has none."""
    known = labelled(targets.y)
    parts = {part: index[torch.isin(index, known)] for part, index in split.parts().items()}
    gone = sum(split.sizes()) - sum(index.numel() for index in parts.values())
    if gone:
        notes.append(f"split {split.name}: {gone} instance{'s' if gone > 1 else ''} without a label left out")
    train = parts["train"]
    if not parts["valid"].numel() and train.numel() > 1:
        drawn = random_split(targets.y[train], fractions=(0.8, 0.2, 0), stratify=targets.problem == "multiclass")
        held = torch.cat([drawn.valid, drawn.test])
        parts["train"], parts["valid"] = (train[part].sort().values for part in (drawn.train, held))
        count = f"{held.numel()} of its {train.numel()} training instances, drawn with seed 0,"
        notes.append(f"split {split.name} has no validation part: {count} choose the model instead of being trained on")
    return Split(split.name, **parts)


def _unheard(edge_index: Tensor) -> list[str]:
    """A note on edges to which in-degree normalisation gives weight zero: those whose sender receives nothing."""
    source, target = edge_index
    lost = int((~torch.isin(source, target)).sum())
    how = "pass self_loops=add, or train with graph_norm=random_walk"
    why = f"directed edges leave nodes that receive nothing, and the normalisation gcn gives such edges weight 0: {how}"
    return [f"{lost} of {source.numel()} {why}"] if lost else []


def _never_seen(splits: Sequence[Split], targets: Targets) -> list[str]:
    """A note on classes without an instance in a training part, which no model can predict."""
    for split in splits if targets.problem == "multiclass" else ():
        if not split.train.numel() or int(split.train.max()) >= targets.y.numel():
            continue  # the task refuses it, with better words
        seen = set(targets.y[split.train].tolist())
        absent = [name for code, name in enumerate(targets.class_names) if code not in seen]
        if absent:
            classes = f"class{'es' * (len(absent) > 1)} {listed(absent, 6)} {'has' if len(absent) == 1 else 'have'}"
            which = f" of split {split.name}" if len(splits) > 1 else ""
            return [f"{classes} no instance in the training part{which}: no model can learn to predict that"]
    return []
