"""A user's own files as a task: a table of features, and labels and edges in it or beside it.

    features.csv   name,age,income      labels.csv   name,group      edges.csv   from,to,weight
                   ann,31,52000                      ann,A                       ann,bob,2
                   bob,45,48000                      bob,                        bob,eve,1

Ids join the files where rows have them; otherwise rows are known by their number, counted from zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from difformer.data.edges import Duplicates, SelfLoops
from difformer.data.errors import DataError, in_file
from difformer.data.own.arrays import (
    ARRAY_ENDINGS,
    class_names_of,
    label_cells,
    labels_by_name,
    named_array,
    stored_splits,
    unused_arrays,
)
from difformer.data.own.assembly import Choices, Material, Path_, Splits, assemble, split_from_words
from difformer.data.own.feature_tables import Features, load_features, several
from difformer.data.own.graphs import edges_from, read_edges
from difformer.data.own.pyg import PYG_ENDINGS, from_pyg, read_pyg
from difformer.data.own.table import Column, index_of_ids
from difformer.data.own.targets import Labels, read_labels
from difformer.data.own.text import TextFormat
from difformer.data.split import Split
from difformer.data.task import Problem, Task


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
        problem: See `from_arrays`, likewise all below.
        metric: None takes accuracy, ROC-AUC or MSE, after the problem.
        splits: Ready-made ones, or a file of them; None takes the split column, or masks, or draws them.
        fractions: Of train, valid and test.
        seeds: One split each.
        directed: Keep directions.
        self_loops: ``"add"``, ``"remove"`` or ``"keep"``.
        duplicates: What becomes of an edge given with different weights.
        missing: Texts that mean no label, instead of the rule of `difformer.data.own.targets`.
        class_names: The classes in order.
        standardize: Bring columns of numbers to mean 0 and deviation 1 over all rows; None does so for tables, and
            leaves arrays as they are.

    Raises:
        DataError: If a file is broken, or files contradict each other; with file, line and column.
        FileNotFoundError: If a file is not there.
    """
    suffix = Path(features).suffix.lower()
    is_table = suffix not in (*ARRAY_ENDINGS, *PYG_ENDINGS)
    choices: Choices = {
        "name": name or Path(features).name.split(".")[0],
        "problem": problem,
        "metric": metric,
        "splits": splits,
        "fractions": fractions,
        "seeds": seeds,
        "directed": directed,
        "self_loops": self_loops,
        "duplicates": duplicates,
        "missing": missing,
        "class_names": class_names,
        "standardize": is_table if standardize is None else standardize,
    }
    of_table: dict[str, Any] = {
        "ids": ids,
        "drop": several(drop),
        "categories": several(categories),
        "dates": several(dates),
    }
    apart: dict[str, Any] = {
        **of_table,
        "split_column": split_column,
        "label_columns": None if labels is not None else label_columns,
    }
    if suffix in PYG_ENDINGS:
        apart = {"labels": labels, "edges": edges, **apart, "label_columns": label_columns}
        apart |= {"label_ids": label_ids, "edge_columns": edge_columns}
    extra = [option for option, value in apart.items() if value not in (None, False, ())]
    if suffix in PYG_ENDINGS:
        if extra:
            raise DataError(f"a PyG file holds everything itself; leave out {', '.join(extra)}", path=features)
        with in_file(features):
            return from_pyg(read_pyg(features), **choices)
    if extra and not is_table:
        raise DataError(f"holds arrays, which have no named columns; leave out {', '.join(extra)}", path=features)

    def format(role: str) -> TextFormat:
        def of(option: Any) -> Any:
            return option.get(role) if isinstance(option, Mapping) else option

        return TextFormat(of(delimiter), of(header), encoding, decimal, comment)

    columns = None if label_columns is None else several(label_columns)
    options: dict[str, Any] = {"labels": columns if labels is None else None, "labels_here": labels is None}
    options |= {**of_table, "split": split_column, "raw": True, "standardize": choices["standardize"]}
    found = load_features(features, format=format("features"), **options if is_table else {})
    _refuse_other_kinds(found)
    size, arrays = found.x.shape[0], found.arrays
    index = index_of_ids(found.ids, lambda text, row: found.error(text, row, found.id_column)) if found.ids else None
    if labels is not None:
        given = read_labels(labels, size=size, ids=index, columns=columns, id_column=label_ids, format=format("labels"))
    else:
        given = _labels_within(found, size)
        choices["class_names"] = class_names or class_names_of(arrays)
    graph: Any = None
    said = tuple[str, ...]()
    if edges is not None:
        *graph, said = read_edges(edges, num_nodes=size, ids=index, columns=edge_columns, format=format("edges"))
    elif (inside := named_array(arrays, "edges")) is not None:
        with in_file(found.path):
            *graph, said = edges_from(inside, named_array(arrays, "weights"), num_nodes=size, ids=index)
    stored: Sequence[Split] = ()
    if splits is None:
        at = None if found.roles is None else found.roles.split
        stored = split_from_words(found.split, lambda text, row: found.error(text, row, at))
        if found.split is None:
            with in_file(found.path):
                stored = stored_splits(arrays, size)
    return assemble(
        Material(
            x=found.x,
            labels=given,
            edges=None if graph is None else (graph[0], graph[1]),
            edge_path=edges or features,
            ids=found.ids,
            feature_names=found.names,
            splits=stored,
            raw=found.raw,
            preprocessing=found.preprocessing,
            notes=(*found.notes, *unused_arrays(arrays, found.path), *given.notes, *said),
        ),
        **choices,
    )


def _refuse_other_kinds(found: Features) -> None:
    """Files hold instances of one table or graph; what else an NPZ may hold is for `from_arrays`."""
    ways = "load it with numpy.load and pass its arrays to difformer.data.from_arrays"
    if found.x.dim() == 3:
        raise DataError(f"x has shape {list(found.x.shape)}, a series of snapshots; {ways}", path=found.path)
    if "node_ptr" in found.arrays:
        raise DataError(f"holds many graphs (an array node_ptr); {ways}", path=found.path)


def _labels_within(found: Features, size: int) -> Labels:
    """Labels from the file of features."""
    if found.labels and found.roles is not None:
        at = found.roles.labels
        return Labels(list(found.labels.values()), tuple(found.labels), lambda t, row, c: found.error(t, row, at[c]))
    y = named_array(found.arrays, "y")
    if y is None:
        has = f"; it has {', '.join(found.arrays)}" if found.arrays else ""
        raise DataError(
            f"holds no labels (an array called y); pass labels=FILE{has}", path=found.path, argument="labels"
        )
    with in_file(found.path):
        columns, _ = label_cells(labels_by_name(y, found.arrays), None, size)
    return Labels(columns, tuple(str(i + 1) for i in range(len(columns))), lambda t, row, c: found.error(t, row))
