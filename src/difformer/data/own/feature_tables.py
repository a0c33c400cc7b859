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

from difformer.data.errors import DataError, in_file
from difformer.data.own.arrays import ARRAY_ENDINGS, features_from, named_array, read_arrays
from difformer.data.own.preprocessing import LARGE, Preprocessing, Values
from difformer.data.own.table import (
    LABEL_NAMES,
    PART_WORDS,
    SPLIT_NAMES,
    Column,
    Head,
    Source,
    Table,
    canonical_id,
    names_ids,
)
from difformer.data.own.text import DELIMITERS, TextFormat, open_table
from difformer.errors import did_you_mean


@dataclass(frozen=True)
class Roles:
    """Positions of columns; `guessed` says that ids were found by their looks alone: a first column of texts."""

    ids: int | None
    guessed: bool
    labels: list[int]
    split: int | None
    features: list[int]
    notes: tuple[str, ...] = ()


def several(given: Column | Sequence[Column]) -> tuple[Column, ...]:
    """One column, or several: a text is one name, not its letters."""
    return (given,) if isinstance(given, (str, int)) else tuple(given)


def column_roles(
    head: Head,
    *,
    ids: Column | bool | None = None,
    labels: Sequence[Column] | None = None,
    labels_here: bool = False,
    split: Column | None = None,
    drop: Sequence[Column] = (),
    wanted: Sequence[str] = (),
    id_name: str | None = None,
) -> Roles:
    """What each column is; what is None is found by the usual names.

    `ids` is True for the first column and False for none. `labels_here` says that the labels must be in this table.
    `wanted` are the features by name; others are left out. A column called `id_name` holds the ids wherever it is,
    unless `ids` is False.
    """
    asked = set(wanted) if head.named else set()
    unused = {head.find(column, "drop") for column in drop}
    label_at = [head.find(column, "label_columns") for column in labels or ()]
    if id_name and ids is not False and head.named and id_name in head.names:
        ids = id_name
    taken = {*unused, *label_at}
    id_at, guessed = _id_column(head, ids, taken | {i for i, name in enumerate(head.names) if name in asked})
    taken |= set() if id_at is None else {id_at}
    split_at = head.find(split, "split_column") if split is not None else None
    if split is None and not wanted:
        likely = [i for i in head.named_like(SPLIT_NAMES) if i not in taken and head.first[i].lower() in PART_WORDS]
        split_at = likely[0] if likely else None
    taken |= set() if split_at is None else {split_at}
    notes = []
    file = Path(head.path).name
    if not wanted:
        for i in head.named_like(SPLIT_NAMES):
            if i not in taken:
                notes.append(
                    f"column {head.names[i]!r} of {file} is used as a feature; it does not say train and test: pass "
                    f"drop={head.names[i]} if it is no property of its row"
                )
    if labels_here and labels is None:
        label_at = _find_labels(head, taken)
        notes += [f"labels are in column {head.names[i]!r} of {file}" for i in label_at]
    elif not wanted:
        for i in head.named_like(LABEL_NAMES if labels_here else LABEL_NAMES - {"y"}):
            if i in taken:
                continue
            if not labels_here:
                raise DataError(
                    f"column {head.names[i]!r} looks like labels and would be used as a feature, while labels come "
                    f"from elsewhere; pass drop={head.names[i]} or rename it",
                    path=head.path,
                    argument="drop",
                )
            notes.append(
                f"column {head.names[i]!r} of {file} is used as a feature, although its name is usual for labels; "
                f"pass drop={head.names[i]} if it tells the answer"
            )
    taken |= set(label_at)
    features = [i for i in range(len(head.names)) if i not in taken]
    if asked:
        there = {head.names[i]: i for i in range(len(head.names))}
        absent = [name for name in wanted if name not in there]
        if absent:
            raise DataError(
                f"lacks {len(absent)} of the {len(wanted)} columns wanted: {', '.join(map(repr, absent[:8]))}; "
                f"{did_you_mean(absent[0], head.names)}it has {', '.join(map(repr, head.names[:8]))}",
                path=head.path,
            )
        extra = [head.names[i] for i in features if head.names[i] not in asked]
        if extra:
            shown = ", ".join(map(repr, extra[:6])) + (", …" if len(extra) > 6 else "")
            notes.append(f"columns of {file} that training did not have are left out: {shown}")
        features = [there[name] for name in wanted]
    return Roles(id_at, guessed, label_at, split_at, features, tuple(notes))


def _id_column(head: Head, ids: Column | bool | None, taken: set[int]) -> tuple[int | None, bool]:
    if ids is False:
        return None, False
    if ids is not None:
        return (0 if ids is True else head.find(ids, "ids")), False
    if head.named and "__index_level_0__" in head.names:
        return head.names.index("__index_level_0__"), False
    # A table of one column holds features, whatever they look like.
    if 0 in taken or len(head.names) < 2:
        return None, False
    if head.named and names_ids(head.names[0]):
        return 0, False
    return (0, True) if head.textual[0] else (None, False)


def _find_labels(head: Head, taken: set[int]) -> list[int]:
    likely = [i for i in head.named_like(LABEL_NAMES) if i not in taken]
    if len(likely) == 1:
        return likely
    last = len(head.names) - 1
    if not head.named and last > 0 and last not in taken and head.textual[last]:
        return [last]  # as data sets for learning have been kept for decades
    have = ", ".join(map(repr, head.names[:20])) if head.named else f"{len(head.names)} unnamed columns"
    which = "which of its columns are the labels is not clear" if likely else "no column of it is called label or class"
    raise DataError(
        f"{which}; pass labels=FILE, or label_columns= with some of {have}", path=head.path, argument="label_columns"
    )


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
    drop: Sequence[Column] = (),
    wanted: tuple[str, ...] = (),
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
    head = source.head
    used = () if preprocessing is None else tuple(c.name for c in preprocessing.columns if c.kind != "left out")
    known = {} if preprocessing is None else {c.name: c for c in preprocessing.columns}
    if preprocessing is not None and head.named:
        drop = [*drop, *(c.name for c in preprocessing.columns if c.kind == "left out" and c.name in head.names)]
    roles = column_roles(head, drop=drop, wanted=used or wanted, **options)
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
        features, textual = [0, *features], {0, *textual}
        roles = replace(roles, ids=None, features=features)
    elif roles.guessed:
        notes.append(
            f"column {head.names[0]!r} of {Path(head.path).name} holds a different text in every row and was read as "
            f"ids; pass ids=false if it is a feature"
        )
    if not features:
        raise DataError("has no column of features left", path=head.path)
    table.check_finite(numeric if raw else ())
    names = list(known) if preprocessing is not None and not head.named else [head.names[i] for i in features]
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
                argument="delimiter",
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
