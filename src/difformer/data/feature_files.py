"""Rows of features from a file: of the training data, or new ones that must have the same columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.arrays import features_from
from difformer.data.column_roles import Column, column_roles
from difformer.data.columnar import named_array, read_arrays, read_parquet
from difformer.data.errors import DataError
from difformer.data.readers import read_csv
from difformer.data.tables import Head, Table, canonical_id, looks_like_header
from difformer.data.text_files import TextFormat


@dataclass(frozen=True)
class Features:
    """What a file of features holds.

    Args:
        path: The file.
        x: ``[N, F]`` float32, CSR where an NPZ holds a sparse matrix.
        names: Of the columns of `x`, where the file names them.
        ids: Of the rows, where they have ids.
        labels: Columns of labels in the same file, by name, as text.
        split: The column that says train, valid or test, as text.
        arrays: Everything an NPZ file holds.
        table: What was read, for errors that name a line.
        columns: Positions in the table of the id column, the label columns and the split column.
        notes: What had to be decided.
    """

    path: str
    x: Tensor
    names: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    labels: dict[str, list[str]] = field(default_factory=dict)
    split: list[str] | None = None
    arrays: Mapping[str, Any] = field(default_factory=dict)
    table: Table | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
    ids: Column | bool | None = None,
    id_name: str | None = None,
    drop: Sequence[Column] = (),
    header: bool | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    comment: str | None = "#",
) -> Features:
    """Read rows of features as they stand, for example new ones for a model that has been trained: see `Task.scaled`.

    Args:
        path: CSV and relatives, Parquet, NPZ or NPY.
        columns: The columns wanted, in the order wanted: a task's ``feature_names``. Others are left out. A file
            without a header must have as many.
        num_columns: How many there must be: a task's ``num_features``.
        ids: The column with the rows' ids by name or number counted from one; True for the first, False for none; None
            finds it by its name, or takes a first column that holds no numbers.
        id_name: How the column of ids was called in training, see `id_column_name`; it is found so wherever it stands.
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
    found = load_features(path, ids=ids, id_name=id_name, drop=drop, wanted=tuple(columns), format=format)
    expected = num_columns if num_columns is not None else len(columns) or None
    if expected is not None and found.x.shape[1] != expected:
        raise DataError(f"has {found.x.shape[1]} columns of features, expected {expected}", path=path)
    return found


def load_features(
    path: str | os.PathLike[str],
    *,
    ids: Column | bool | None = None,
    labels: Sequence[Column] | None = None,
    labels_here: bool = False,
    split: Column | None = None,
    drop: Sequence[Column] = (),
    wanted: tuple[str, ...] = (),
    id_name: str | None = None,
    format: TextFormat,
) -> Features:
    """As `read_features`, and the columns of labels and of the split apart.

    Args:
        path: The file.
        ids: As above.
        labels: Columns of labels; None finds them where `labels_here`.
        labels_here: Whether the labels must be in this file.
        split: The column of the split; None finds it by its name.
        drop: As above.
        wanted: As ``columns`` above.
        id_name: As above.
        format: Of a text file.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".npz", ".npy"):
        return _from_arrays(path)
    if suffix in (".pt", ".pth"):
        raise DataError("new rows are read from CSV, Parquet, NPZ or NPY, not from a file of PyG", path=path)
    roles: dict[str, Any] = {}

    def choose(head: Head) -> set[int]:
        roles.update(column_roles(head, ids, labels, labels_here, split, drop, wanted, id_name))
        apart = {i for i in (roles["ids"], roles["split"]) if i is not None}
        return apart | set(roles["labels"]) | set(roles["unused"])

    try:
        if suffix in (".parquet", ".pq"):
            table = read_parquet(path, text=choose)
        else:
            table = read_csv(path, text=choose, format=format, is_header=_is_header)
    except DataError as error:
        if error.column is None or not error.problem.startswith("expected a number") or ";" in error.problem or wanted:
            raise
        raise error.reworded(
            f"{error.problem}; features are numbers: correct the cell or, if the column holds names, put numbers in "
            f"their place (one column of 0 and 1 a name), or leave it out with drop=[{error.column!r}]"
        ) from None
    if not table.number_columns:
        raise DataError("has no column of features left", path=path)
    table.check_finite()
    names = tuple(table.names[i] for i in table.number_columns) if table.named else ()
    numbers = table.numbers
    if wanted and table.named:
        place = {name: i for i, name in enumerate(names)}
        numbers, names = numbers[:, [place[name] for name in wanted]], wanted
    id_column = roles["ids"]
    return Features(
        path=os.fspath(path),
        x=torch.from_numpy(numbers.astype(np.float32)),
        names=names,
        ids=() if id_column is None else tuple(canonical_id(cell) for cell in table.texts[id_column]),
        labels={table.names[i]: table.texts[i] for i in roles["labels"]},
        split=None if roles["split"] is None else table.texts[roles["split"]],
        table=table,
        columns=roles,
        notes=(*table.notes, *roles["notes"]),
    )


class _Known(Exception):
    """Ends a reading at the head of a table."""


def id_column_name(path: str | os.PathLike[str], *, ids: Column | bool | None = None, format: TextFormat) -> str | None:
    """How the column of ids of a file of features is called; None where there is none or it has no name.

    No more than the head of a text file is read.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".npz", ".npy", ".pt", ".pth"):
        return None
    found: list[str] = []

    def choose(head: Head) -> set[int]:
        at = column_roles(head, ids, (), False, None, (), ())["ids"]
        found.extend([head.names[at]] if head.named and at is not None else [])
        raise _Known

    try:
        if suffix in (".parquet", ".pq"):
            read_parquet(path, text=choose)
        else:
            read_csv(path, text=choose, format=format, is_header=_is_header)
    except _Known:
        pass
    return found[0] if found and found[0] else None


def _is_header(first: Sequence[str], second: Sequence[str] | None) -> bool:
    return looks_like_header(first, second, counting=True)


def _from_arrays(path: str | os.PathLike[str]) -> Features:
    arrays = read_arrays(path)
    found = named_array(arrays, "x")
    if found is None:
        raise DataError(f"holds no array called x or features; it has {', '.join(arrays)}", path=path)
    try:
        x, _ = features_from(found)
    except DataError as error:
        raise DataError(str(error), path=path) from error
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
