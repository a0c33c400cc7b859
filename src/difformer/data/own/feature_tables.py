"""Tables of features: which column is what, and the rows of features of the training data or of new rows.

Columns are given by name, or by number counted from one; what is not said is found by the usual names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.errors import DataError, in_file, listed
from difformer.data.own.arrays import ARRAY_ENDINGS, features_from, named_array, needed_array
from difformer.data.own.csv_files import DELIMITERS, TextFormat, open_table
from difformer.data.own.preprocessing import LARGE, Preprocessing, large_numbers
from difformer.data.own.table import LABEL_NAMES, SPLIT_NAMES, Column, Table, Values, canonical_id, names_ids
from difformer.errors import did_you_mean

PART_WORDS = {
    **dict.fromkeys(("train", "training", "tr"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing", "te", "holdout"), "test"),
}


@dataclass(frozen=True)
class Roles:
    """Positions of columns."""

    ids: int | None = None
    guessed: bool = False  # whether ids were found by their looks alone: a first column of texts
    labels: Sequence[int] = ()
    split: int | None = None
    features: Sequence[int] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Features:
    """Rows of features, and what else their file holds."""

    x: Tensor  # [N, F], dense or CSR
    names: tuple[str, ...] = ()  # of the columns, if they have names
    ids: tuple[str, ...] = ()  # of the rows, if they have ids
    path: str = ""  # the file
    raw: Sequence[tuple[str, Values]] = ()  # the columns of a table as they were read
    preprocessing: Preprocessing | None = None  # how they became `x`, if that took more than reading numbers
    notes: Sequence[str] = ()  # what had to be decided, one sentence each
    table: Table | None = None
    roles: Roles = Roles()  # of the columns of the table
    arrays: Mapping[str, Any] = field(default_factory=dict)  # everything in a file of arrays


def several(given: Column | Sequence[Column]) -> tuple[Column, ...]:
    """One column, or several: a text is one name, not its letters."""
    return (given,) if isinstance(given, (str, int)) else tuple(given)


def column_roles(
    table: Table,
    *,
    ids: Column | bool | None = None,
    label_columns: Sequence[Column] | None = None,
    labels_here: bool = False,
    split_column: Column | None = None,
    drop: Sequence[Column] = (),
    wanted: Sequence[str] = (),
    id_name: str | None = None,
) -> Roles:
    """What each column is; what is None is found by the usual names.

    `ids` is True for the first column and False for none. `labels_here` says that the labels must be in this table.
    `wanted` are the features by name; others are left out. A column called `id_name` holds the ids wherever it is,
    unless `ids` is False.
    """
    label_at = [table.find(column, "label_columns") for column in label_columns or ()]
    taken = {*(table.find(column, "drop") for column in drop), *label_at}
    at = {name: i for i, name in enumerate(table.names)} if table.named else {}
    ids = id_name if id_name in at and ids is not False else ids
    asked = {at[name] for name in wanted if name in at}
    id_at, guessed = _id_column(table, ids, taken | asked)
    taken |= set() if id_at is None else {id_at}
    split_at = None if split_column is None else table.find(split_column, "split_column")
    likely = [] if wanted else [i for i in table.named_like(SPLIT_NAMES) if i not in taken]
    if split_column is None:
        split_at = next((i for i in likely if table.first[i].lower() in PART_WORDS), None)
    taken |= set() if split_at is None else {split_at}
    reasons = dict.fromkeys(likely, "; it does not say train and test: pass drop={} if it is no property of its row")
    notes = []
    if labels_here and label_columns is None:
        label_at = _find_labels(table, taken)
        notes += [f"labels are in column {table.names[i]!r} of {table.file}" for i in label_at]
    elif not wanted:
        for i in table.named_like(LABEL_NAMES if labels_here else LABEL_NAMES - {"y"}):
            reasons[i] = ", although its name is usual for labels; pass drop={} if it tells the answer"
            if not labels_here and i not in taken:
                raise DataError(
                    f"column {table.names[i]!r} looks like labels and would be used as a feature, while labels come "
                    f"from elsewhere; pass drop={table.names[i]} or rename it",
                    path=table.path,
                    argument="drop",
                )
    taken |= set(label_at)
    for i, reason in reasons.items():
        if i not in taken:
            name = table.names[i]
            notes.append(f"column {name!r} of {table.file} is used as a feature{reason.format(name)}")
    features = [i for i in range(len(table.names)) if i not in taken]
    if wanted and table.named:
        if absent := [name for name in wanted if name not in at]:
            raise DataError(
                f"lacks {len(absent)} of the {len(wanted)} columns wanted: {listed(absent)}; "
                f"{did_you_mean(absent[0], table.names)}it has {listed(table.names)}",
                path=table.path,
            )
        if extra := [table.names[i] for i in features if i not in asked]:
            notes.append(f"columns of {table.file} that training did not have are left out: {listed(extra, 6)}")
        features = [at[name] for name in wanted]
    return Roles(id_at, guessed, label_at, split_at, features, notes)


def _id_column(table: Table, ids: Column | bool | None, taken: set[int]) -> tuple[int | None, bool]:
    if ids is False:
        return None, False
    if ids is not None:
        return (0 if ids is True else table.find(ids, "ids")), False
    if stored := table.named_like({"__index_level_0__"}):
        return stored[0], False
    # A table of one column holds features, whatever they look like.
    usual = table.named and names_ids(table.names[0])
    if 0 in taken or len(table.names) < 2 or not (usual or table.textual[0]):
        return None, False
    return 0, not usual


def _find_labels(table: Table, taken: set[int]) -> list[int]:
    likely = [i for i in table.named_like(LABEL_NAMES) if i not in taken]
    if len(likely) == 1:
        return likely
    last = len(table.names) - 1
    if not table.named and last > 0 and last not in taken and table.textual[last]:
        return [last]  # as data sets for learning have been kept for decades
    which = "which of its columns are the labels is not clear" if likely else "no column of it is called label or class"
    raise DataError(
        f"{which}; pass labels=FILE, or label_columns= with some of {table.listed()}",
        path=table.path,
        argument="label_columns",
    )


def read_features(
    path: str | os.PathLike[str],
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
        columns: The columns wanted, in the order wanted: a task's ``feature_names``. Others are left out. A file
            without a header must have as many.
        num_columns: How many there must be: a task's ``num_features``.
        preprocessing: A task's ``preprocessing``, if it has one: raw columns are read and encoded as in training, and
            `columns` and `num_columns` do not count.
        ids: The column with the rows' ids by name or number counted from one; True for the first, False for none; None
            finds it by its name, or takes a first column of texts.
        id_name: The name of the column of ids in training, see `id_column_name`; it is found wherever it is.
        drop: Columns to leave out, by name or number counted from one.
        header: As for `TextFormat`, likewise the rest.
        delimiter: Between cells.
        encoding: Of the text.
        decimal: ``","`` where numbers are written 1,5.
        comment: What lines above the table begin with.

    Raises:
        DataError: If the file is broken, or columns are absent; with file, line and column.
    """
    format = TextFormat(delimiter, header, encoding, decimal, comment)
    options: dict[str, Any] = {"ids": ids, "id_name": id_name, "drop": drop, "format": format}
    if preprocessing is not None:
        return load_features(path, preprocessing=preprocessing, raw=True, **options)
    found = load_features(path, wanted=tuple(columns), **options)
    expected = num_columns if num_columns is not None else len(columns) or None
    if expected is not None and found.x.shape[1] != expected:
        raise DataError(f"has {found.x.shape[1]} columns of features, expected {expected}", path=path)
    return found


def load_features(path: str | os.PathLike[str], *, format: TextFormat, **options: Any) -> Features:
    """As `read_features`, from any kind of file; for `options` see `select_features`."""
    suffix = Path(path).suffix.lower()
    if suffix in ARRAY_ENDINGS:
        return _from_arrays(path)
    if suffix in (".pt", ".pth"):
        raise DataError("new rows are read from CSV, Parquet, NPZ or NPY, not from a file of PyG", path=path)
    table = open_table(path, format, counting=True)
    if len(table.names) == 1:  # a wrong delimiter leaves another one in every cell
        name, cell = table.names[0] if table.named else table.first[0], table.first[0]
        for sign in DELIMITERS:
            if name.count(sign) == cell.count(sign) > 0 and (sign != "," or name.count(sign) > 1 or table.named):
                raise DataError(
                    f"has one column, {name!r}, whose cells seem to be separated by {sign!r}; pass delimiter={sign!r}",
                    path=path,
                    argument="delimiter",
                )
    return select_features(table, **options)


def select_features(
    table: Table,
    *,
    drop: Sequence[Column] = (),
    wanted: Sequence[str] = (),
    raw: bool = False,
    standardize: bool = True,
    categories: Sequence[Column] = (),
    dates: Sequence[Column] = (),
    preprocessing: Preprocessing | None = None,
    **options: Any,
) -> Features:
    """Features of a table, its columns of labels, ids and split apart; for `options` see `column_roles`.

    With `raw`, texts, dates and gaps are encoded, by a new preprocessing or by the given one; otherwise features are
    numbers.
    """
    encodings = {} if preprocessing is None else {column.name: column for column in preprocessing.columns}
    wanted = [name for name, column in encodings.items() if column.kind != "left out"] or wanted
    unused = [name for name, column in encodings.items() if column.kind == "left out"]
    if table.named:
        drop = [*drop, *(name for name in unused if name in table.names)]
    roles = column_roles(table, drop=drop, wanted=wanted, **options)
    features, notes = list(roles.features), list(roles.notes)
    names = [table.names[i] for i in features]
    forced = {
        option: [table.find(column, option) for column in given]
        for option, given in (("categories", categories), ("dates", dates))
    }
    if preprocessing is not None:
        if not table.named and len(features) != len(encodings):
            raise DataError(f"has {len(features)} columns of features, expected {len(encodings)}", path=table.path)
        names = names if table.named else list(encodings)
        textual = {i for i, name in zip(features, names, strict=True) if encodings[name].kind != "number"}
    else:
        textual = {i for i in features if raw and (table.textual[i] or i in (*forced["categories"], *forced["dates"]))}
    numeric = [i for i in features if i not in textual]
    table.trained = bool(wanted)
    table.read(set(range(len(table.names))) - set(numeric), numeric if raw else ())
    if roles.guessed:
        cells, name = table.texts(0), table.names[0]
        if raw and preprocessing is None and (len(set(cells)) != len(cells) or not all(cells)):
            notes.append(f"column {name!r} repeats values, so it is used as a feature and not as ids")
            features, names, roles = [0, *features], [name, *names], replace(roles, ids=None)
        else:
            notes.append(
                f"column {name!r} of {table.file} holds a different text in every row and was read as ids; pass "
                f"ids=false if it is a feature"
            )
    if not features:
        raise DataError("has no column of features left", path=table.path)
    table.check_finite(set(numeric) if raw else ())
    columns = [(name, table.cells[i]) for name, i in zip(names, features, strict=True)]
    numbers = [values for _, values in columns if isinstance(values, np.ndarray)]
    try:
        if preprocessing is not None:
            x, said = preprocessing.transform({name: values for name, values in columns if name not in unused})
            notes += said
        elif len(numbers) < len(columns) or any(np.isnan(values).any() for values in numbers):
            kinds = {option: [table.names[i] for i in places] for option, places in forced.items()}
            preprocessing = Preprocessing.fit(columns, standardize=standardize, **kinds)
            x, _ = preprocessing.transform(dict(columns))
            notes += preprocessing.notes
        else:
            x = np.stack(numbers, 1).astype(np.float32)
            notes += [large_numbers(n) for n, v in columns if raw and float(np.abs(np.asarray(v)).max()) > LARGE]
    except DataError as error:
        if error.row is None or error.column not in names:
            raise error.reworded(error.problem, path=table.path) from error
        raise table.error(error.problem, error.row, features[names.index(error.column)]) from error
    return Features(
        x=torch.from_numpy(x),
        names=preprocessing.feature_names if preprocessing is not None else tuple(names) if table.named else (),
        ids=() if roles.ids is None else tuple(canonical_id(cell) for cell in table.texts(roles.ids)),
        path=table.path,
        raw=columns,
        preprocessing=preprocessing,
        notes=(*table.notes, *notes),
        table=table,
        roles=roles,
    )


def id_column_name(path: str | os.PathLike[str], *, ids: Column | bool | None = None, format: TextFormat) -> str | None:
    """The name of the column of ids in a file of features, whose head alone is read; None if it has no such name."""
    if Path(path).suffix.lower() in (*ARRAY_ENDINGS, ".pt", ".pth"):
        return None
    table = open_table(path, format, counting=True)
    at = column_roles(table, ids=ids, label_columns=(), labels_here=True).ids
    return table.names[at] or None if table.named and at is not None else None


def _from_arrays(path: str | os.PathLike[str]) -> Features:
    found, arrays = needed_array(path, "x")
    with in_file(path):
        x, _ = features_from(found)
    named: dict[str, tuple[str, ...]] = {}
    for role, expected in (("ids", x.shape[0]), ("feature_names", x.shape[1])):
        given = named_array(arrays, role)
        if given is not None and given.shape != (expected,):
            raise DataError(f"{role}: expected {expected}, got shape {list(given.shape)}", path=path)
        named[role] = () if given is None else tuple(canonical_id(name) for name in given.tolist())
    return Features(x, named["feature_names"], named["ids"], os.fspath(path), arrays=arrays)
