"""A user's own data as a task: files, a data frame as it is, arrays that are ready, or PyG's objects.

    features.csv   name,age,income      labels.csv   name,group      edges.csv   from,to,weight
                   ann,31,52000                      ann,A                       ann,bob,2
                   bob,45,48000                      bob,                        bob,eve,1

    read → columns (features, ids, labels, split) → targets, edges → `assemble` → Task

Ids join the files if rows have them; otherwise rows are known by their number, counted from zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

import numpy as np
import torch

from difformer.data.edges import Duplicates, SelfLoops, check_choices, tidy_edges
from difformer.data.own.csv_files import ARRAY_ENDINGS, PYG_ENDINGS, TextFormat
from difformer.data.own.features import Features, Rows, Selection, features_from, load_features, select_features
from difformer.data.own.graphs import Found, edges_from, edges_in, join_graphs, read_edges, read_pyg
from difformer.data.own.row_splits import Splits, drawn_splits, given_splits, named_splits, splits_of
from difformer.data.own.table import Column, Path_, frame_table, row_ids
from difformer.data.own.targets import Labels, Targets, encode_targets, labels_from, labels_in, read_labels, suspicions
from difformer.data.scaling import Scaling, uneven
from difformer.data.task import Problem, Task
from difformer.errors import DataError, UserError, did_you_mean, in_file, listed

if TYPE_CHECKING:
    from typing_extensions import Unpack

FEW_NUMBERS = 10  # with at most this many different whole numbers, targets look like classes
METRICS = {"multiclass": "accuracy", "multilabel": "rocauc", "regression": "mse"}


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
    """The choices completed by the defaults."""
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
    describes each. Files of arrays hold features that are ready. Columns are given by name, or by number counted from
    one. None means that it is detected; guesses are noted in the task.

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

    for option, value in (("delimiter", delimiter), ("header", header)):
        if isinstance(value, Mapping) and (other := {*value} - {"features", "labels", "edges"}):
            raise UserError(f"{option}: expected the keys features, labels and edges, got {listed(sorted(other))}")

    def format(role: str) -> TextFormat:
        own = [option.get(role) if isinstance(option, Mapping) else option for option in (delimiter, header)]
        return TextFormat(own[0], own[1], encoding, decimal, comment)  # type: ignore[arg-type]

    options |= {"labels_here": labels is None, "label_names": None, "standardize": chosen["standardize"]}
    found = load_features(features, Selection(**options), format("features"))
    if found.x.dim() == 3 or "node_ptr" in found.arrays:
        what = "a series of snapshots" if found.x.dim() == 3 else "many graphs (an array node_ptr)"
        remedy = "load it with numpy.load and pass its arrays to difformer.data.from_arrays"
        raise DataError(f"holds {what}; {remedy}", path=features)
    rows = Rows(found.x.shape[0], found.index, found)
    graph = edges_in(found) if edges is None else read_edges(edges, rows, edge_columns, format("edges"))
    with in_file(labels or features):
        if labels is None:
            target = labels_in(found)
        else:
            target = read_labels(labels, rows, label_columns, label_ids, format("labels"))
    found = rows.found or found
    table, selection = found.table, found.chosen
    if labels and table and selection and (table.named_like("labels") or {*table.names} & {*target.names}):
        found = select_features(table, replace(selection, label_names=target.names))
    chosen["class_names"] = class_names if len(class_names) else target.classes
    return assemble(found, target, graph, chosen, edges or features)


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
        frame: One row per instance. The index of a pandas frame names its rows, unless it only counts them, or has no
            name and a column holds ids.
        label: The column of labels by name, several of them, or labels as `from_arrays` takes them.
        edges: The graph, if any, as `from_arrays` takes it; pairs of ids where rows have ids.
        edge_weight: ``[E]`` weights ≥ 0.
        ids: The column of ids, instead of the index; detected as in files by default; False ignores the index, too.
        split_column, drop, categories, dates: Columns, see `from_files`.
        **choices: See `from_arrays`; columns of numbers are standardised unless ``standardize`` is False.

    Raises:
        DataError: If a column is absent, or the parts contradict each other; the message says where.
    """
    chosen = _chosen("from_frame", {"standardize": True, **choices})
    if not hasattr(frame, "columns"):
        raise DataError(f"frame: expected a pandas or polars frame, got {type(frame).__name__}; see from_arrays")
    columns = [label] if isinstance(label, str) else [*map(str, label)] if isinstance(label, (list, tuple)) else []
    if not isinstance(label, str) and len({*columns} & {*map(str, frame.columns)}) < len(columns):
        columns = []  # these are labels; names of columns would be distinct
    options: dict[str, Any] = {"drop": drop, "categories": categories, "dates": dates, "split_column": split_column}
    index = row_ids(frame) if ids is None else ()
    named = index and (frame.index.name is not None or frame.index.dtype.kind not in "iu")  # not left by a filter
    options |= {"ids": False if named else ids, "label_columns": columns or (None if label is None else ())}
    twin = "" if columns else str(getattr(label, "name", ""))
    left_out = [drop] if isinstance(drop, str | int) else [*drop]
    if twin in map(str, frame.columns) and not twin.isdigit() and twin not in left_out:
        note = f"column {twin!r} of frame is not used as a feature, since the labels have this name"
        options |= {"drop": [*left_out, twin], "notes": (note,)}
    selection = Selection(**options, labels_here=True, standardize=chosen["standardize"])
    found = select_features(frame_table(frame), selection)
    found = replace(found, ids=found.ids or index)
    rows = Rows(len(found.x), found.index, found)
    graph = None if edges is None else edges_from(edges, edge_weight, rows)
    found = rows.found or found
    if columns or label is None:
        return assemble(found, labels_in(found), graph, chosen)
    table = found.table
    named_ids = None if table is None or table.ids is None else table.names[table.ids]
    return assemble(found, labels_from(label, frame, rows.size, ids=named_ids), graph, chosen)


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
            Labels from pandas are matched with `x` by index if both have one.
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
    features, columns = features_from(x)
    names, ids = tuple(map(str, feature_names)) or columns, tuple(map(str, instance_names))
    if features.dim() == 3:
        return _series(Features(features, names, ids), y, edge_index, edge_weight, chosen)
    ptr = None if node_ptr is None else torch.as_tensor(node_ptr)
    if ptr is not None and (ptr.dim() != 1 or bool((ptr != ptr.long()).any())):
        raise DataError(f"node_ptr: expected whole numbers, [G + 1], got {ptr.dtype} of shape {list(ptr.shape)}")
    found = Features(features, names, ids or row_ids(x)) if ptr is None else Features(features, names, ids, ptr.long())
    rows = Rows(features.shape[0], found.index)
    labels = labels_from(y, x, rows.size if ptr is None else ptr.numel() - 1)
    graph = None if edge_index is None else edges_from(edge_index, edge_weight, rows)
    return assemble(found, labels, graph, chosen)


def from_pyg(data: Any, **choices: Unpack[Choices]) -> Task:
    """A task from a PyG ``Data``, a list or data set of them, or a ``Batch``.

    PyG lists both directions of an undirected edge. If an edge comes in one direction only, the other one is added
    unless `directed` is true, and a note says so. ``edge_weight``, or an ``edge_attr`` of one column, weighs the edges.
    The masks of a single ``Data`` (one split per column), or its ``train_idx``, ``val_idx`` and ``test_idx``, are its
    splits, unless `splits` is given.

    Args:
        data: What to take over; without ``x``, ``pos`` holds the features.
        **choices: See `from_arrays`; self-loops are kept as they are unless ``self_loops`` says otherwise.

    Raises:
        DataError: If something is absent or contradicts the rest; the message says in which graph.
    """
    chosen = _chosen("from_pyg", {"self_loops": "keep", **choices})
    found, y, graph = join_graphs(data, directed=chosen["directed"])
    return assemble(found, labels_from(y, None, y.shape[0]), graph, chosen)


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
    given = [edges_from(graph, weight, Rows(x.shape[1])) for graph, weight in zip(graphs, weights, strict=True)]
    notes = list(dict.fromkeys(note for *_, said in given for note in said))
    rules = {"num_nodes": x.shape[1], **_edge_rules(chosen)}
    done = [tidy_edges(index, weight, **rules) for index, weight, _ in given]
    edges: Any = {"edge_index": tuple(index for index, _ in done)} if done else {}
    if any(weight is not None for _, weight in done):  # a matrix of ones has no weights, its neighbours may have
        edges["edge_weight"] = tuple(torch.ones(index.shape[1]) if weight is None else weight for index, weight in done)
    if not several:
        edges = {name: value for name, (value,) in edges.items()}
    splits = given_splits(chosen["splits"]) or drawn_splits(None, x.shape[0], chosen["fractions"], (0,))
    values = target[target.isfinite()].unique()
    if chosen["problem"] is None and values.numel() <= FEW_NUMBERS and torch.equal(values, values.round()):
        guess = f"the targets of the series are {values.numel()} different whole numbers, read as quantities"
        notes.append(f"{guess}; pass problem=regression to confirm it (a series has no classes)")
    if chosen["splits"] is None:
        train, valid, test = splits[0].sizes()
        order = f"the first {train} train, the next {valid} choose the model, the last {test} test"
        notes.append(f"snapshots were split in time order: {order}; pass fractions= or splits= for another split")
    targets = Targets(target, "regression", 1 if target.dim() == 2 else target.shape[2], ())
    protocol = f"own data, series; {splits[0].name}"
    return _task(found, targets, chosen, protocol=protocol, splits=splits, notes=tuple(notes), **edges)


def _task(found: Features, targets: Targets, chosen: Choices, **parts: Any) -> Task:
    """The task of these features, targets and other `parts`."""
    about = {"name": chosen["name"], "metric": chosen["metric"] or METRICS[targets.problem], **vars(targets), **parts}
    about["kind"] = "series" if found.x.dim() == 3 else "nodes" if found.node_ptr is None else "graphs"
    about |= {"instance_names": found.ids, "feature_names": found.names, "preprocessing": found.preprocessing}
    try:
        return Task(x=found.x, node_ptr=found.node_ptr, **about)
    except UserError as error:
        raise error if isinstance(error, DataError) else DataError(str(error)) from error


def _edge_rules(chosen: Choices) -> dict[str, Any]:
    return {"directed": chosen["directed"], "self_loops": chosen["self_loops"], "duplicates": chosen["duplicates"]}


def assemble(found: Features, labels: Labels, graph: Found | None, chosen: Choices, path: Path_ | None = None) -> Task:
    """A task of nodes or of graphs; `graph` holds edges as given, from the file `path` if from a file."""
    check_choices(chosen["self_loops"], chosen["duplicates"])
    with labels.locate():
        rule: Any = {"problem": chosen["problem"], "missing": chosen["missing"]}
        targets = encode_targets(labels.columns, names=labels.names, class_names=chosen["class_names"], **rule)
    remarks = [*targets.notes, *found.notes, *labels.notes, *suspicions(found.raw, targets)]
    protocol, edges = "own data, no graph", dict[str, Any]()
    if graph is not None:
        done = {"add": "added", "remove": "removed", "keep": "as given"}[chosen["self_loops"]]
        directions = "directed" if chosen["directed"] else "both directions listed"
        protocol = f"own data, given graph, {directions}, self-loops {done}"
        with in_file(path):
            names = found.ids if found.node_ptr is None else ()
            index, weight = tidy_edges(*graph[:2], num_nodes=found.x.shape[0], names=names, **_edge_rules(chosen))
        edges = {"edge_index": index, "edge_weight": weight}
        remarks += graph[2]
        if lost := int((~torch.isin(*index)).sum()):  # in-degree normalisation gives edges of such a sender weight zero
            why = "directed edges leave nodes that receive nothing, and the normalisation gcn gives such edges weight 0"
            how = "pass self_loops=add, or train with graph_norm=random_walk"
            remarks.append(f"{lost} of {index.shape[1]} {why}: {how}")
    scaling = None
    if found.preprocessing is not None:
        protocol += "; columns encoded"
    else:
        still = [n for n, v in found.raw if isinstance(v, np.ndarray) and len(v) > 1 and bool((v == v[0]).all())]
        end = "nothing can be learned from a column that never changes"
        remarks += [f"constant column{'s' * (len(still) > 1)}: {listed(still, 6)}; {end}"] if still else []
        if chosen["standardize"]:
            scaling = Scaling.of(found.x)
            found = replace(found, x=scaling(found.x))
            remarks.append(scaling.describe())
            protocol += "; columns scaled" if scaling.shift is None else "; columns standardised"
        else:
            remarks += uneven(found.x, found.names)
    splits = splits_of(found, targets, chosen, remarks)
    protocol = f"{protocol}; {named_splits(splits)}"
    parts: Any = {"protocol": protocol, "splits": splits, "scaling": scaling, "notes": tuple(remarks)}
    return _task(found, targets, chosen, **parts, **edges)
