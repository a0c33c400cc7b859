"""Rows of features from a table: of the training data, or new ones that must have the same columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.errors import DataError, in_file
from difformer.data.own.arrays import features_from
from difformer.data.own.npz import ARRAY_ENDINGS, named_array, read_arrays
from difformer.data.own.preprocessing import LARGE, Preprocessing, Values
from difformer.data.own.roles import Roles, column_roles
from difformer.data.own.table import Column, Head, Source, Table, canonical_id
from difformer.data.own.text import DELIMITERS, TextFormat, open_table


@dataclass(frozen=True)
class Features:
    """What a table of features holds; `arrays` is everything in an NPZ, `raw` the columns of features as read."""

    path: str
    x: Tensor
    names: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    labels: dict[str, list[str]] = field(default_factory=dict)
    split: list[str] | None = None
    arrays: Mapping[str, Any] = field(default_factory=dict)
    table: Table | None = None
    roles: Roles | None = None
    raw: Sequence[tuple[str, Values]] = ()
    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = ()

    @property
    def id_column(self) -> int | None:
        """Position of the column of ids in the table, for `error`."""
        return None if self.roles is None else self.roles.ids

    def error(self, problem: str, row: int, column: int | None = None) -> DataError:
        """An error that names the line, where there are lines."""
        if self.table is not None:
            return self.table.error(problem, row, column)
        return DataError(problem, path=self.path, row=row)


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
    source = open_table(path, format, counting=True)
    _check_delimiter(source.head)
    return select_features(source, **options)


def select_features(
    source: Source,
    *,
    ids: Column | bool | None = None,
    labels: Sequence[Column] | None = None,
    labels_here: bool = False,
    split: Column | None = None,
    drop: Sequence[Column] = (),
    wanted: tuple[str, ...] = (),
    id_name: str | None = None,
    raw: bool = False,
    standardize: bool = True,
    categories: Sequence[Column] = (),
    dates: Sequence[Column] = (),
    preprocessing: Preprocessing | None = None,
) -> Features:
    """Features of a table, its columns of labels, ids and split apart: see `column_roles` and `Preprocessing.fit`.

    With `raw`, texts, dates and gaps are encoded, by a new preprocessing or by the given one; otherwise features are
    numbers.
    """
    head = source.head
    used = () if preprocessing is None else tuple(c.name for c in preprocessing.columns if c.kind != "left out")
    known = {} if preprocessing is None else {c.name: c for c in preprocessing.columns}
    if preprocessing is not None and head.named:
        drop = [*drop, *(c.name for c in preprocessing.columns if c.kind == "left out" and c.name in head.names)]
    roles = column_roles(
        head,
        ids=ids,
        labels=labels,
        labels_here=labels_here,
        split=split,
        drop=drop,
        wanted=used or wanted,
        id_name=id_name,
    )
    named = {
        option: [head.find(column, option) for column in given]
        for option, given in (("categories", categories), ("dates", dates))
    }
    forced = {i for places in named.values() for i in places}
    features = list(roles.features)
    if preprocessing is not None and not head.named:
        if len(features) != len(known):
            raise DataError(f"has {len(features)} columns of features, expected {len(known)}", path=head.path)
        textual = {i for i, c in zip(features, known.values(), strict=True) if c.kind not in ("number", "left out")}
    elif preprocessing is not None:
        textual = {i for i in features if known[head.names[i]].kind != "number"}
    else:
        textual = {i for i in features if raw and (head.textual[i] or i in forced)}
    numeric = [i for i in features if i not in textual]
    apart = set(range(len(head.names))) - set(numeric)
    table = source.read(apart, numeric if raw else ())
    notes = [*table.notes, *roles.notes]
    if roles.guessed and raw and preprocessing is None and not _distinct(table.texts[0]):
        notes.append(f"column {head.names[0]!r} repeats values, so it is used as a feature and not as ids")
        roles = Roles(None, False, roles.labels, roles.split, [0, *features], roles.notes)
        features, textual = [0, *features], {0, *textual}
    elif roles.guessed:
        notes.append(
            f"column {head.names[0]!r} of {Path(head.path).name} holds a different text in every row and was read as "
            f"ids; pass ids=false if it is a feature"
        )
    if not features:
        raise DataError("has no column of features left", path=head.path)
    table.check_finite(numeric if raw else ())
    if preprocessing is not None and not head.named:
        names = list(known)
    else:
        names = [head.names[i] for i in features]
    columns: list[tuple[str, Values]] = [(name, table.column(i)) for name, i in zip(names, features, strict=True)]
    place = dict(zip(names, features, strict=True))
    gaps = any(isinstance(values, np.ndarray) and np.isnan(values).any() for _, values in columns)
    try:
        if preprocessing is not None:
            x, said = preprocessing.transform({name: v for name, v in columns if known[name].kind != "left out"})
            notes += said
        elif textual or gaps:
            kinds = {option: [head.names[i] for i in places] for option, places in named.items()}
            preprocessing = Preprocessing.fit(columns, standardize=standardize, **kinds)
            x, _ = preprocessing.transform(dict(columns))
            notes += preprocessing.notes
        else:
            x = np.stack([values for _, values in columns], 1).astype(np.float32)
            notes += [
                _large(name) for name, values in columns if raw and float(np.abs(values).max(initial=0.0)) > LARGE
            ]
    except DataError as error:
        if error.row is not None and isinstance(error.column, str) and error.column in place:
            raise table.error(error.problem, error.row, place[error.column]) from error
        raise error.reworded(error.problem, path=head.path) from error
    return Features(
        path=head.path,
        x=torch.from_numpy(x),
        names=preprocessing.feature_names if preprocessing is not None else tuple(names) if head.named else (),
        ids=() if roles.ids is None else tuple(canonical_id(cell) for cell in table.texts[roles.ids]),
        labels={head.names[i]: table.texts[i] for i in roles.labels},
        split=None if roles.split is None else table.texts[roles.split],
        table=table,
        roles=roles,
        raw=columns,
        preprocessing=preprocessing,
        notes=tuple(notes),
    )


def _distinct(cells: Sequence[str]) -> bool:
    return len(set(cells)) == len(cells) and all(cells)


def _large(name: str) -> str:
    return (
        f"column {name!r} holds numbers beyond {LARGE:.0e}: if it is a code or an id, pass drop={name}, or "
        f"categories={name} if it names a group"
    )


def _check_delimiter(head: Head) -> None:
    """Refuse a table of one column whose cells hold another delimiter."""
    if len(head.names) > 1:
        return
    name, cell = head.names[0] if head.named else head.first[0], head.first[0]
    for sign in DELIMITERS:
        if name.count(sign) == cell.count(sign) > 0 and (sign != "," or name.count(sign) > 1 or head.named):
            raise DataError(
                f"has one column, {name!r}, whose cells seem to be separated by {sign!r}; pass delimiter={sign!r}",
                path=head.path,
            )


def id_column_name(path: str | os.PathLike[str], *, ids: Column | bool | None = None, format: TextFormat) -> str | None:
    """The name of the column of ids in a file of features, whose head alone is read; None if it has no such name."""
    if Path(path).suffix.lower() in (*ARRAY_ENDINGS, ".pt", ".pth"):
        return None
    head = open_table(path, format, counting=True).head
    at = column_roles(head, ids=ids, labels=(), labels_here=True).ids
    return head.names[at] or None if head.named and at is not None else None


def _from_arrays(path: str | os.PathLike[str]) -> Features:
    arrays = read_arrays(path)
    found = named_array(arrays, "x")
    if found is None:
        raise DataError(f"holds no array called x or features; it has {', '.join(arrays)}", path=path)
    with in_file(path):
        x, _ = features_from(found)
    ids, names = named_array(arrays, "ids"), named_array(arrays, "feature_names")
    for role, given, expected in (("ids", ids, x.shape[0]), ("feature_names", names, x.shape[1])):
        if given is not None and given.shape != (expected,):
            raise DataError(f"{role}: expected {expected}, got shape {list(given.shape)}", path=path)
    return Features(
        path=os.fspath(path),
        x=x,
        names=() if names is None else tuple(str(name) for name in names.tolist()),
        ids=() if ids is None else tuple(canonical_id(value) for value in ids.tolist()),
        arrays=arrays,
    )
