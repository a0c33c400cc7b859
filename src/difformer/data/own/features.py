"""Features: columns of a table, NPZ and NPY files, and objects in memory (numpy, scipy, torch, frames, lists).

Columns are given by name, or by number counted from one; those that are not given are found by the usual names.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.data.archives import read_npy, read_npz
from difformer.data.own.cell_values import canonical_id, loose_id, number
from difformer.data.own.csv_files import ARRAY_ENDINGS, DELIMITERS, PYG_ENDINGS, TextFormat, open_table
from difformer.data.own.preprocessing import LARGE, Preprocessing, large_numbers
from difformer.data.own.table import Column, Columns, Path_, Table, Values, check_columns, frame_table, index_of_ids
from difformer.data.sparse_features import checked_csr, from_scipy, to_scipy
from difformer.errors import DAMAGE, DataError, in_file, listed

PART_WORDS = {
    **dict.fromkeys(("train", "training", "tr"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing", "te", "holdout"), "test"),
}
# What the arrays of an NPZ file are called; the first name found counts.
ARRAY_NAMES = {
    "x": ("x", "X", "features", "node_features", "feat"),
    "y": ("y", "Y", "labels", "label", "node_labels", "targets", "target"),
    "edges": ("edge_index", "edges", "adj", "adjacency", "adj_matrix"),
    "weights": ("edge_weight", "edge_weights", "weights"),
    "ids": ("ids", "node_ids", "instance_names", "node_names"),
    "feature_names": ("feature_names", "columns"),
    "class_names": ("class_names",),
}
SPARSE_PARTS = ("data", "indices", "indptr", "shape")
SPLIT_FORMS = ("masks", "mask", "idx", "index", "indices")
SPLIT_ARRAYS = frozenset(f"{part}_{form}" for part in ("train", "val", "valid", "test") for form in SPLIT_FORMS)
ROWS = (list, tuple, np.ndarray, Tensor)
READ_AS_IDS = "was read as ids"  # what a note on a guessed column says


@dataclass(frozen=True)
class Features:
    """Rows of features, and what else is in their file."""

    x: Tensor  # [N, F], dense or CSR
    names: tuple[str, ...] = ()  # of the columns, if they have names
    ids: tuple[str, ...] = ()  # of the rows, if they have ids, or of their graphs
    node_ptr: Tensor | None = None  # the row where each graph begins, if rows are nodes of separate graphs
    path: str = ""  # the file
    raw: Sequence[tuple[str, Values]] = ()  # the columns of a table as they were read
    preprocessing: Preprocessing | None = None  # how they became `x`, unless all are numbers without gaps
    notes: Sequence[str] = ()  # what was guessed, one sentence each
    table: Table | None = None
    arrays: Mapping[str, Any] = field(default_factory=dict)  # the content of a file of arrays
    chosen: Selection | None = None  # of the columns of the table

    @property
    def index(self) -> dict[str, int] | None:
        """Row of every id, if rows have ids."""
        return index_of_ids(self.ids, self.table) if self.ids and self.node_ptr is None else None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the caller says about the columns of a table; None means find them by their usual names."""

    ids: Column | bool | None = None  # True for the first column, False for none
    id_name: str | None = None  # the column of this name holds the ids wherever it is, unless `ids` is False
    label_columns: Columns | None = None
    labels_here: bool = False  # the labels must be in this table
    label_names: Sequence[str] | None = ()  # of labels that are elsewhere; None if they are not known yet
    split_column: Column | None = None
    drop: Columns = ()
    wanted: Sequence[str] = ()  # the features by name; others are left out
    raw: bool = True  # texts, dates and gaps are encoded; otherwise features are numbers
    standardize: bool = True
    categories: Columns = ()
    dates: Columns = ()
    preprocessing: Preprocessing | None = None  # encodes raw columns; None fits a new one
    notes: Sequence[str] = ()  # on what was guessed


def column_roles(table: Table, chosen: Selection, known: Sequence[str]) -> tuple[list[int], bool, list[str]]:
    """Positions of features, whether ids are a guess, and notes; `known` are the columns that training had, if any."""
    wanted, at = chosen.wanted, {name: i for i, name in enumerate(table.names) if table.named}
    labels = [] if chosen.label_columns is None else table.find_all(chosen.label_columns, "label_columns")
    taken: set[int | None] = {*table.find_all(chosen.drop, "drop"), *labels}
    named = chosen.id_name in at and chosen.ids is not False
    asked = {at[name] for name in known if name in at}
    ids, guessed = _id_column(table, chosen.id_name if named else chosen.ids, taken | asked)
    taken.add(ids)
    split = None if chosen.split_column is None else table.find(chosen.split_column, "split_column")
    likely = [] if wanted else [i for i in table.named_like("split") if i not in taken]
    if split is None:
        split = next((i for i in likely if table.first[i].lower() in PART_WORDS), None)
    taken.add(split)
    reasons = dict.fromkeys(likely, ", since its values are not train and test; pass drop={} to leave it out")
    notes = list[str]()
    if chosen.labels_here and chosen.label_columns is None:
        labels = _find_labels(table, taken)
        notes += [f"labels are in column {table.names[i]!r} of {table.file}" for i in labels]
        taken.update(labels)
    alike = [] if wanted else [i for i in table.named_like("labels") if i not in taken]
    if chosen.labels_here:
        reasons |= dict.fromkeys(alike, ", although its name is usual for labels; pass drop={} if it reveals the label")
    elif not wanted and chosen.label_names is not None:
        twins = [i for name, i in at.items() if i not in taken and name in chosen.label_names and not name.isdigit()]
        said = "is not used as a feature, since the labels have this name"
        notes += [f"column {table.names[i]!r} of {table.file} {said}" for i in twins]
        taken.update(twins)
        if clear := [table.names[i] for i in alike if i not in taken and table.names[i].strip().lower() != "y"]:
            problem = f"column {clear[0]!r} looks like labels and would be used as a feature, while labels "
            problem += f"come from elsewhere; pass drop={clear[0]} or rename it"
            raise DataError(problem, path=table.path, argument="drop")
    for name, reason in [(table.names[i], reason) for i, reason in reasons.items() if i not in taken]:
        notes.append(f"column {name!r} of {table.file} is used as a feature{reason.format(name)}")
    features = [i for i in range(len(table.names)) if i not in taken]
    if wanted and table.named:
        check_columns(wanted, at, table.path)
        if extra := [table.names[i] for i in features if i not in asked]:
            notes.append(f"columns of {table.file} that training did not have are left out: {listed(extra, 6)}")
        features = [at[name] for name in wanted]
    table.ids, table.labels, table.split = ids, labels, split
    return features, guessed, notes


def _id_column(table: Table, ids: Column | bool | None, taken: Container[int | None]) -> tuple[int | None, bool]:
    """Position of the column of ids, and whether it was guessed only by its texts."""
    if isinstance(ids, bool):
        return 0 if ids else None, False
    if ids is not None or "__index_level_0__" in table.names:
        return table.find("__index_level_0__" if ids is None else ids, "ids"), False
    # A single column holds features, whatever it looks like.
    usual = 0 in table.named_like("ids")
    if 0 in taken or len(table.names) < 2 or not (usual or table.textual[0]):
        return None, False
    return 0, not usual


def _find_labels(table: Table, taken: Container[int | None]) -> list[int]:
    likely = [i for i in table.named_like("labels") if i not in taken]
    if len(likely) == 1:
        return likely
    last = len(table.names) - 1
    if not table.named and last > 0 and last not in taken and table.textual[last]:
        return [last]  # without a header, the class is usually the last column
    which = "several of its columns may be the labels" if likely else "none of its columns is called label or class"
    one = table.names[likely[0] if likely else last] if table.named else last + 1
    remedy = f"pass label_columns={one}, or another of {table.listed()}, or labels=FILE"
    problem = f"{which}; {remedy if last > 0 else f'it has {table.listed()}'}"
    raise DataError(problem, path=table.path, argument="label_columns")


def read_features(
    path: Path_,
    *,
    columns: Sequence[str] = (),
    num_columns: int | None = None,
    preprocessing: Preprocessing | None = None,
    ids: Column | bool | None = None,
    id_name: str | None = None,
    drop: Sequence[Column] = (),
    header: bool | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    comment: str | None = "#",
) -> Features:
    """Read rows of features, for example new ones for a trained model: see `Task.scaled`.

    Args:
        path: CSV and relatives, Parquet, NPZ or NPY.
        columns: The columns wanted, in order: a task's ``feature_names``. Others are left out. A file without a header
            must have as many.
        num_columns: The number of columns expected: a task's ``num_features``.
        preprocessing: A task's ``preprocessing``, if it has one: raw columns are read and encoded as in training, and
            `columns` and `num_columns` are ignored.
        id_name: The name of the column of ids in training, see `id_column_name`; its position does not matter.
        ids, drop, header, delimiter, encoding, decimal, comment: See `from_files`.

    Raises:
        DataError: If the file is broken, or columns are absent; with file, line and column.
    """
    chosen = Selection(ids=ids, id_name=id_name, drop=drop, raw=preprocessing is not None, preprocessing=preprocessing)
    format = TextFormat(delimiter, header, encoding, decimal, comment)
    found = load_features(path, chosen if chosen.raw else replace(chosen, wanted=tuple(columns)), format)
    expected = num_columns if num_columns is not None else len(columns) or None
    if preprocessing is None and expected not in (None, found.x.shape[1]):
        raise DataError(f"has {found.x.shape[1]} columns of features, expected {expected}", path=path)
    return found


def load_features(path: Path_, chosen: Selection, format: TextFormat) -> Features:
    """Features from any kind of file."""
    suffix = Path(path).suffix.lower()
    if suffix in ARRAY_ENDINGS:
        return _features_in_arrays(path)
    if suffix in PYG_ENDINGS:
        raise DataError("new rows are read from CSV, Parquet, NPZ or NPY, not from a file of PyG", path=path)
    table = open_table(path, format)
    cell, name = table.first[0], table.names[0] if table.named else table.first[0]
    for sign in DELIMITERS if len(table.names) == 1 else ():  # another delimiter in every cell
        if name.count(sign) == cell.count(sign) > 0 and (sign != "," or name.count(sign) > 1 or table.named):
            problem = f"has one column, {name!r}, whose cells seem to be separated by {sign!r}"
            raise DataError(f"{problem}; pass delimiter={sign!r}", path=path, argument="delimiter")
    return select_features(table, chosen)


def select_features(table: Table, chosen: Selection) -> Features:
    """Features of a table, without its columns of labels, ids and split."""
    raw, preprocessing = chosen.raw, chosen.preprocessing
    kinds = {} if preprocessing is None else {column.name: column.kind for column in preprocessing.columns}
    wanted = [name for name, kind in kinds.items() if kind != "left out"] or chosen.wanted
    features, guessed, notes = column_roles(table, replace(chosen, wanted=wanted), [*kinds] or wanted)
    names = [table.names[i] for i in features]
    forced = {kind: table.find_all(getattr(chosen, kind), kind) for kind in ("categories", "dates")}
    if kinds:
        if not table.named and len(features) != len(kinds):
            raise DataError(f"has {len(features)} columns of features, expected {len(kinds)}", path=table.path)
        names = names if table.named else list(kinds)
        numeric = {i for i, name in zip(features, names, strict=True) if kinds[name] == "number"}
    else:
        textual = {i for i in features if table.textual[i]}.union(*forced.values()) if raw else set[int]()
        numeric = {i for i in features if i not in textual}
    table.trained = bool(wanted)
    table.read(set(range(len(table.names))) - numeric, gaps=raw)
    if guessed:
        cells, name = table.cells[0], table.names[0]
        if raw and not kinds and (len(set(cells)) != len(cells) or not all(cells)):
            notes.append(f"column {name!r} repeats values, so it is used as a feature and not as ids")
            features, names, table.ids = [0, *features], [name, *names], None
        else:
            guess = f"column {name!r} of {table.file} holds a different text in every row and {READ_AS_IDS}"
            notes.append(f"{guess}; pass {table.option('ids', False)} if it is a feature")
    elif chosen.ids is None and raw and not kinds and features[:1] == [0] and identifies(table.cells[0], True):
        guess = f"column {names[0]!r} of {table.file} holds a different whole number in every row and is used as a"
        notes.append(f"{guess} feature; pass {table.option('ids', names[0])} if these are ids")
    if not features:
        raise DataError("has no column of features left", path=table.path)
    columns = [(name, table.cells[i]) for name, i in zip(names, features, strict=True)]
    numbers = [values for _, values in columns if isinstance(values, np.ndarray)]
    with table.locate(dict(zip(names, features, strict=True))):
        if preprocessing is None and len(numbers) == len(columns) and not any(np.isnan(n).any() for n in numbers):
            x = np.stack(numbers, 1).astype(np.float32)
            notes += [large_numbers(n) for n, v in columns if raw and float(np.abs(v).max()) > LARGE]
        else:
            if preprocessing is None:
                named: Any = {kind: [table.names[i] for i in places] for kind, places in forced.items()}
                preprocessing = Preprocessing.fit(columns, standardize=chosen.standardize, **named)
                notes += preprocessing.notes
            x, said = preprocessing.transform(dict(columns))
            notes += said
    names = [*preprocessing.feature_names] if preprocessing is not None else names if table.named else []
    ids = () if table.ids is None else tuple(map(canonical_id, table.cells[table.ids]))
    origin: Any = {"path": table.path, "table": table, "notes": (*table.notes, *chosen.notes, *notes)}
    origin |= {"raw": columns, "preprocessing": preprocessing, "chosen": chosen}
    return Features(torch.from_numpy(x), tuple(names), ids, **origin)


def identifies(values: Values, whole: bool) -> bool:
    """Whether a column holds a different whole number in every row, or else a different text."""
    if not isinstance(values, np.ndarray):
        return not whole and "" not in values and len(set(values)) == len(values)
    numbers = (np.abs(values) < LARGE) & (values == np.floor(values))
    return whole and bool(numbers.all()) and len(np.unique(values)) == len(values)


@dataclass
class Rows:
    """The rows of features, which labels and edges name: by id, or by number if there are no `ids`."""

    size: int
    ids: Mapping[str, int] | None = None
    found: Features | None = None  # if `find_ids` may look for ids among them
    searched: bool = False  # whether it did

    def find_ids(self, values: Sequence[Any], what: str) -> None:
        """Looks once for ids that are neither known nor ruled out: a column that holds all `values`, which name rows.

        Only columns with a different whole number in each row are considered, and exactly one must hold all. Values
        that may be numbers of rows remain that, with a note. A column with most values, more than are numbers of rows,
        is taken too: `positions` then refuses the others.
        """
        searched, self.searched = self.searched, True  # all data name rows in the same way
        if searched or self.ids or not self.found or not (chosen := self.found.chosen) or chosen.ids is not None:
            return
        columns = {name: cells for name, cells in self.found.raw if len(self.found.raw) > 1 and identifies(cells, True)}
        holding, most, wanted = _holding(columns, values)
        numbers = sum(name.isdigit() and len(name) < 19 and int(name) < self.size for name in wanted)
        if numbered := numbers == len(wanted):  # rows may be called by their own numbers
            holding = [name for name in holding if [*map(int, columns[name])] != [*range(self.size)]]
        unclear, named = numbered or len(holding) > 1, " and column ".join(map(repr, holding))
        doubtful = most < len(wanted) and (unclear or most <= max(numbers, len(wanted) / 2))
        if (table := self.found.table) is None or not holding or doubtful:
            return
        option = table.option("ids", holding[0] if unclear else False)
        held = "all" if most == len(wanted) else f"{most} of {len(wanted)} different"
        note = f"column {named} of {table.file} {READ_AS_IDS}, since it holds a different whole number in every row, "
        note += f"and {held} {what}; pass {option} if these are numbers of rows"
        if unclear:
            note = f"{what} were read as numbers of rows, counted from 0, although column {named} of {table.file} "
            note += f"holds them all; pass {option} if that holds the ids"
        ids = None if unclear else holding[0]
        self.found = select_features(table, replace(chosen, notes=(*chosen.notes, note), ids=ids))
        self.ids = self.found.index

    def positions(self, values: Any, *, what: str = "node", hint: str = "") -> NDArray[np.int64]:
        """Rows that `values` name. Errors name the row, and add the `hint` for names that are not known."""
        ids, size = self.ids, self.size
        if ids is not None:
            names = values if isinstance(values, list) else values.tolist()
            places = [ids.get(name if name in ids else canonical_id(name), -1) for name in names]
            if unknown := [row for row, place in enumerate(places) if place < 0]:
                row, plain = unknown[0], {loose_id(name): name for name in ids}
                first = ", ".join(map(repr, list(ids)[:3]))
                for note in self.found.notes if self.found is not None else ():
                    hint += f"; {note}" if READ_AS_IDS in note else ""
                hint += self._may_hold_ids(values) if 2 * len(unknown) > len(names) else ""
                called = f"no {what} is called {canonical_id(names[row])!r}"
                problem = f"{called}; the {size} known ids begin with {first}{hint}"
                if close := plain.get(loose_id(names[row])):
                    count = f"{sum(loose_id(names[i]) in plain for i in unknown)} of the {len(unknown)}"
                    problem = f"{count} ids that do not match differ in case or spaces only, for example "
                    problem += f"{str(names[row])!r} here and {close!r} in the features: make them the same"
                raise DataError(problem, row=row)
            return np.array(places, dtype=np.int64)
        array = np.asarray(values)
        if array.dtype.kind not in "iuf":
            cells = [number(str(value)) for value in array.tolist()]
            if None in cells:
                cell = str(values[row := cells.index(None)])
                hint = self._may_hold_ids(values) or hint or "; give the rows ids, or name them by number, from 0"
                problem = f"{cell!r} is not the number of a row, and the {what}s have no ids{hint}"
                raise DataError(problem, row=row, argument="ids")
            array = np.array(cells, dtype=np.float64)
        outside = ~((array >= 0) & (array < size))
        wrong = outside | (array != np.floor(array))
        if wrong.any():
            row = int(np.argmax(wrong))
            if not outside[row] or not np.isfinite(array[row]):
                raise DataError(f"{array[row]} is not the number of a row", row=row)
            shifted = "; yours seem to count from 1" if array.min() == 1 and array.max() == size else ""
            problem = f"there is no {what} {array[row]:.0f}: rows are counted from 0 to {size - 1}"
            raise DataError(f"{problem}{self._may_hold_ids(values) or shifted}", row=row)
        return array.astype(np.int64)

    def _may_hold_ids(self, values: Any) -> str:
        """The columns that hold the most of the `values`, at least half, as a remedy."""
        if self.found is None or (table := self.found.table) is None:
            return ""
        columns = {name: cells for name, cells in self.found.raw if identifies(cells, isinstance(cells, np.ndarray))}
        likely, most, wanted = _holding(columns, [values])
        options = " or ".join(table.option("ids", name) for name in likely[:4])
        named = " or ".join(map(repr, likely[:4]))
        return f"; if column {named} holds the ids, pass {options}" if 2 * most >= len(wanted) > 0 else ""


def _holding(columns: Mapping[str, Values], values: Sequence[Any]) -> tuple[list[str], int, set[str]]:
    """The `columns` that hold the most of the `values`, how many these are, and all values, as ids."""
    wanted = {canonical_id(value) for part in values if columns for value in set(np.asarray(part).tolist())}
    held = {name: len(wanted.intersection(map(canonical_id, cells))) for name, cells in columns.items()}
    most = max(held.values(), default=0)
    return [name for name, count in held.items() if count == most > 0], most, wanted


def id_column_name(
    path: Path_, *, ids: Column | bool | None = None, names: Sequence[str] = (), format: TextFormat
) -> str | None:
    """The name of the column of ids in a file of features, or None; without a usual name, that with these `names`."""
    if Path(path).suffix.lower() in (*ARRAY_ENDINGS, *PYG_ENDINGS):
        return None
    table = open_table(path, format)
    at, guessed = _id_column(table, ids, set())
    if names and ids is None and (guessed or at is None):  # otherwise the head of the file is enough
        table.read(range(len(table.names)))
        cells = ((i, [number(cell) for cell in column]) for i, column in table.cells.items())
        at = next((i for i, values in cells if [*map(canonical_id, values)] == [*names]), at)
    return table.names[at] or None if table.named and at is not None else None


def _features_in_arrays(path: Path_) -> Features:
    found, arrays = needed_array(path, "x")
    with in_file(path):
        x, _ = features_from(found)
    named: dict[str, tuple[str, ...]] = {}
    for role, expected in (("ids", x.shape[0]), ("feature_names", x.shape[1])):
        given = named_array(arrays, role)
        if given is not None and given.shape != (expected,):
            raise DataError(f"{role}: expected {expected}, got shape {list(given.shape)}", path=path)
        named[role] = () if given is None else tuple(canonical_id(name) for name in given.tolist())
    used = SPLIT_ARRAYS.union(next((n for n in names if n in arrays), "") for names in ARRAY_NAMES.values())
    unused = [name for name in arrays if name not in used]
    notes = (f"arrays of {Path(path).name} not used: {', '.join(unused)}",) if unused else ()
    return Features(x, named["feature_names"], named["ids"], path=os.fspath(path), notes=notes, arrays=arrays)


def features_from(
    x: Any, *, name: str = "x", finite: bool = True, shape: str = "[N, F]"
) -> tuple[Tensor, tuple[str, ...]]:
    """Features as a float32 tensor, dense or CSR, and the names of its columns; `name` and `shape` are for errors."""
    names: tuple[str, ...] = ()
    if hasattr(x, "tocsr") or (isinstance(x, Tensor) and x.layout != torch.strided):
        try:
            tensor = from_scipy(x if hasattr(x, "tocsr") else to_scipy(x)).float()
        except ValueError as error:
            raise DataError(f"{name}: is not a sparse matrix that can be used: {error}") from error
    elif isinstance(x, Tensor):
        tensor = x.detach().cpu().float()
    elif hasattr(x, "columns"):
        table = frame_table(x, name).read((), gaps=not finite)
        names = table.names
        tensor = torch.from_numpy(np.stack([values.astype(np.float32) for values in table.cells.values()], 1))
    else:
        tensor = torch.from_numpy(_numbers(x, name, shape))
    if tensor.dim() not in (2, 3) or 0 in tensor.shape:
        hint = "; a single column is x.reshape(-1, 1)" if tensor.dim() == 1 and name == "x" else ""
        raise DataError(f"{name}: expected rows and columns, {shape}, got shape {list(tensor.shape)}{hint}")
    sparse = tensor.layout == torch.sparse_csr
    values = tensor.values() if sparse else tensor
    if finite and not bool(values.isfinite().all()):
        where = (~values.isfinite()).nonzero()[0].tolist()
        row, column = tensor.to_sparse_coo().indices()[:, where[0]].tolist() if sparse else (where[0], where[-1])
        problem = f"{name}: holds {values[tuple(where)].item()}; features must be finite numbers of single precision: "
        raise DataError(f"{problem}replace it, or leave the row out", row=row, column=column + 1)
    return tensor, names


def _numbers(x: Any, name: str, shape: str) -> Any:
    """A numpy array of float32, from an array or nested lists."""
    try:
        array = np.asarray(x)
    except ValueError:
        array = np.asarray(x, dtype=object)
    if array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            return np.array(array, dtype=np.float32)
    if array.ndim != 2:
        lengths = [len(row) if isinstance(row, ROWS) else None for row in x] if array.ndim else []
        odd = next((i for i, length in enumerate(lengths) if length != lengths[0]), None)
        if odd is not None:
            raise DataError(f"{name}: has {lengths[odd]} columns, expected {lengths[0]} as in row 0", row=odd)
        raise DataError(f"{name}: expected rows of numbers, {shape}, got {array.dtype} of shape {list(array.shape)}")
    cells = [None if cell is None else number(str(cell)) for cell in array.ravel().tolist()]
    if None in cells:
        row, column = divmod(cells.index(None), array.shape[1])
        raise DataError(f"{name}: expected a number, got {array.tolist()[row][column]!r}", row=row, column=column + 1)
    return np.array(cells, dtype=np.float32).reshape(array.shape)


def read_arrays(path: Path_) -> dict[str, Any]:
    """The arrays of an NPZ file by name, sparse ones as scipy CSR; an NPY file, or a single array, is ``"x"``."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {os.fspath(path)}")
    try:
        if not zipfile.is_zipfile(path):
            return {"x": read_npy(path)}
        arrays: dict[str, Any] = read_npz(path)
        if {*SPARSE_PARTS, "format"} <= arrays.keys():
            form = str(arrays["format"].astype(str))
            if form not in ("csr", "csc"):
                raise DataError(f"holds a sparse matrix in the format {form!r}; save it as CSR: matrix.tocsr()")
            data, indices, ptr, shape = (arrays[part] for part in SPARSE_PARTS)
            matrix = checked_csr(data, indices, ptr, shape if form == "csr" else np.asarray(shape)[::-1])
            return {"x": matrix if form == "csr" else matrix.T.tocsr()}
        for prefix in [key[: -len("_indptr")] for key in arrays if key.endswith("_indptr")]:
            arrays[prefix] = checked_csr(*(arrays[f"{prefix}_{part}"] for part in SPARSE_PARTS))
            for part in SPARSE_PARTS:
                del arrays[f"{prefix}_{part}"]
    except DAMAGE as error:
        said = error.problem if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise DataError(f"is not an array file that can be read ({said})", path=path) from error
    return {"x": next(iter(arrays.values()))} if len(arrays) == 1 else arrays


def named_array(arrays: Mapping[str, Any], *roles: str) -> Any:
    """The first array with one of these roles (keys of `ARRAY_NAMES`), or None."""
    return next((arrays[name] for role in roles for name in ARRAY_NAMES[role] if name in arrays), None)


def needed_array(path: Path_, *roles: str) -> tuple[Any, dict[str, Any]]:
    """The array of a file with one of these roles, and all arrays of the file."""
    arrays = read_arrays(path)
    found = named_array(arrays, *roles)
    if found is None:
        usual = " or ".join(ARRAY_NAMES[roles[0]][0:3:2])
        raise DataError(f"holds no array called {usual}; it has {', '.join(arrays)}", path=path)
    return found, arrays
