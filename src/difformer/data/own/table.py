"""Tables as people write them: their cells, their columns, and whether the first row names the columns.

A table is read in two steps. A `Source` tells what it can see in the first rows (`Head`); with that the caller decides
what each column is, and `Source.read` takes the columns that are named as texts and every other one as numbers. A cell
that breaks that is an error with line and column.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from difformer.data.archives import check_size
from difformer.data.errors import DAMAGE, DataError, require
from difformer.errors import did_you_mean

ID_NAMES = frozenset(
    ("", "id", "ids", "node", "nodeid", "name", "names", "index", "key", "instance", "unnamed: 0", "__index_level_0__")
)
LABEL_NAMES = frozenset(("label", "labels", "class", "target", "y"))
SOURCE_NAMES = frozenset(("source", "src", "from", "u", "node1", "node_1", "head", "fromnodeid", "source_id", "i"))
TARGET_NAMES = frozenset(("target", "dst", "to", "v", "node2", "node_2", "tail", "tonodeid", "target_id", "dest", "j"))
WEIGHT_NAMES = frozenset(("weight", "weights", "w", "edge_weight", "value"))
SPLIT_NAMES = frozenset(("split", "set", "part", "fold"))
PART_WORDS = {
    **dict.fromkeys(("train", "training", "tr"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing", "te", "holdout"), "test"),
}
HEADER_WORDS = (ID_NAMES | LABEL_NAMES | SOURCE_NAMES | TARGET_NAMES | WEIGHT_NAMES | SPLIT_NAMES) - {""}

# Words that may mean: nothing here. Among numbers they do; among texts they are texts like any other.
GAP_WORDS = frozenset(("na", "n/a", "<na>", "nan", "null", "none", "?"))

_WHOLE = re.compile(r"[+-]?\d+\.0+\Z")
_TRUTH = {"true": 1.0, "false": 0.0}

Column = str | int
MISSING_NUMBER = "a number is missing here; fill it in, or leave the row or the column out"


@dataclass(frozen=True)
class Head:
    """What is known of a table before its rows are read.

    `names` are numbers, counted from one, unless the file names its columns (`named`). `first` is the first row as
    text, and `textual` says whether most cells of a column, in a sample of rows, are something other than numbers.
    """

    path: str
    names: tuple[str, ...]
    named: bool
    first: tuple[str, ...]
    textual: tuple[bool, ...]

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: i for i, name in reversed(list(enumerate(self.names)))}

    def find(self, column: Column, option: str | None = None) -> int:
        """Position of a column given by name, or by number counted from one, with an argument called `option`."""
        if isinstance(column, str) and column in self._place:
            return self._place[column]
        if isinstance(column, int) and not isinstance(column, bool) and 1 <= column <= len(self.names):
            return column - 1
        have = ", ".join(repr(name) for name in self.names[:20]) if self.named else f"{len(self.names)} unnamed columns"
        hint = did_you_mean(str(column), self.names) if self.named else ""
        raise DataError(f"has no column {column!r}; {hint}it has {have}", path=self.path, argument=option)

    def named_like(self, names: Collection[str]) -> list[int]:
        """Positions of the columns whose name, in lower case, is one of these."""
        return [i for i, name in enumerate(self.names) if name.strip().lower() in names] if self.named else []


@dataclass(frozen=True)
class Table:
    """A table that has been read: columns of numbers, and columns kept as text, by position; a missing text is empty.

    `lines` are those of the rows in a text file; None if rows have no lines.
    """

    path: str
    names: tuple[str, ...]
    named: bool
    numbers: NDArray[np.float64]
    number_columns: tuple[int, ...]
    texts: dict[int, list[str]]
    lines: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return self.numbers.shape[0]

    @cached_property
    def _place(self) -> dict[int, int]:
        return {column: place for place, column in enumerate(self.number_columns)}

    def column(self, position: int) -> Any:
        """A column: a list of texts, or an array of numbers."""
        return self.texts[position] if position in self.texts else self.numbers[:, self._place[position]]

    def error(self, problem: str, row: int | None = None, column: int | None = None) -> DataError:
        """An error that says where in the file it is."""
        where: dict[str, Any] = {}
        if row is not None:
            where["line" if self.lines is not None else "row"] = row if self.lines is None else int(self.lines[row])
        if column is not None:
            where["column"] = self.names[column] if self.named and self.names[column] else column + 1
        return DataError(problem, path=self.path, **where)

    def check_finite(self, gaps: Collection[int] = ()) -> None:
        """Refuse numbers that are infinite or too large for single precision, or missing outside of `gaps`."""
        good = np.abs(self.numbers) <= np.finfo(np.float32).max  # false for NaN
        may = set(gaps)
        good |= np.isnan(self.numbers) & np.array([column in may for column in self.number_columns], dtype=bool)
        if not good.all():
            row, place = (int(i) for i in np.argwhere(~good)[0])
            value = self.numbers[row, place]
            large = f"{value} is too large a number; correct it, or leave the row or the column out"
            raise self.error(MISSING_NUMBER if np.isnan(value) else large, row, self.number_columns[place])


class Source(Protocol):
    """A table whose head is known and whose rows are still to be read."""

    @property
    def head(self) -> Head: ...

    def read(self, text: Collection[int], gaps: Collection[int] = ()) -> Table:
        """All rows; columns in `text` as texts, those in `gaps` as numbers that may be missing, others as numbers."""
        ...


@dataclass(frozen=True)
class ColumnSource:
    """A table in memory: named columns, each an array or a list of numbers, texts and None."""

    path: str
    columns: Sequence[tuple[str, Any]]

    def __post_init__(self) -> None:
        if not self.columns or not len(self.columns[0][1]):
            raise DataError("holds no rows", path=self.path)
        check_size(len(self.columns), "the table", "COLUMNS")
        twice = next((name for name, count in Counter(name for name, _ in self.columns).items() if count > 1), None)
        if twice is not None:
            raise DataError(f"two columns are called {twice!r}; names must differ", path=self.path)

    @cached_property
    def head(self) -> Head:
        names = tuple(name for name, _ in self.columns)
        first = tuple(cell_text(values[0]) for _, values in self.columns)
        textual = tuple(not is_numeric(v) and any(isinstance(cell, str) for cell in v) for _, v in self.columns)
        return Head(self.path, names, True, first, textual)

    def read(self, text: Collection[int], gaps: Collection[int] = ()) -> Table:
        kept = set(text)
        numbered = [i for i in range(len(self.columns)) if i not in kept]
        table = Table(
            path=self.path,
            names=self.head.names,
            named=True,
            numbers=np.empty((len(self.columns[0][1]), len(numbered))),
            number_columns=tuple(numbered),
            texts={i: [cell_text(value) for value in self.columns[i][1]] for i in sorted(kept)},
        )
        for place, i in enumerate(numbered):
            table.numbers[:, place] = self._numbers(self.columns[i][1], table, i, i in gaps)
        return table

    def _numbers(self, values: Any, table: Table, column: int, gaps: bool) -> NDArray[np.float64]:
        if is_numeric(values):
            return np.asarray(values, dtype=np.float64)
        converted = np.empty(len(values))
        for row, value in enumerate(values):
            cell = cell_text(value)
            found = number(cell)
            if found is None and gaps and is_gap(cell):
                found = np.nan
            if found is None:
                raise table.error(f"expected a number, got {cell!r}" if cell else MISSING_NUMBER, row, column)
            converted[row] = found
        return converted


def is_numeric(values: Any) -> bool:
    """Whether an array holds numbers or truth values."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf"


def cell_text(value: Any) -> str:
    """A value as a text file would hold it; what is missing is empty."""
    if is_missing(value):
        return ""
    return str(value.item() if isinstance(value, np.generic) else value).strip()


def number(cell: str) -> float | None:
    """The number a cell holds, or None: what Python reads as a float, and true and false."""
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return _TRUTH.get(cell.strip().lower())


def is_gap(cell: str) -> bool:
    """Whether a cell in a column of numbers means that there is none."""
    return not cell or cell.strip().lower() in GAP_WORDS


def names_ids(name: str) -> bool:
    """Whether a column is called as columns of ids usually are: ``id``, ``name``, ``user_id``, ``paperId``."""
    return name.strip().lower() in ID_NAMES or name.strip().lower().endswith(("_id", " id")) or name.endswith("Id")


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None; NaN, which differs from itself; pandas' NA, which does not compare."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        return str(value) == "<NA>"


def canonical_id(value: Any) -> str:
    """The text by which a node is known: spaces trimmed, 7.0 the same as 7, since programs write whole numbers so."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    return str(int(float(text))) if _WHOLE.match(text) and len(text) < 16 else text


def index_of_ids(ids: Sequence[str], error: Callable[[str, int], DataError]) -> dict[str, int]:
    """Row of every id; an id that is empty, or belongs to two rows, is an error."""
    index: dict[str, int] = {}
    for row, name in enumerate(ids):
        if not name:
            raise error("the id is missing here", row)
        first = index.setdefault(name, row)
        if first != row:
            before = error("", first)
            place = f"line {before.line}" if before.line is not None else f"row {first}"
            raise error(
                f"id {name!r} is already that of {place}; ids must differ (pass ids=false if the column holds no ids)",
                row,
            )
    return index


def near_misses(unknown: Sequence[str], ids: Collection[str]) -> str:
    """A sentence on ids that differ from known ones in case or spaces only; empty if there are none."""
    plain = {"".join(name.split()).casefold(): name for name in ids}
    alike = [(name, plain[key]) for name in unknown if (key := "".join(name.split()).casefold()) in plain]
    if not alike:
        return ""
    given, known = alike[0]
    how = "case" if given.casefold() == known.casefold() else "spaces"
    return (
        f"; {len(alike)} of the {len(unknown)} ids that do not match differ in {how} only, for example {given!r} here "
        f"and {known!r} in the features: make them the same"
    )


def looks_like_header(
    first: Sequence[str],
    second: Sequence[str] | None,
    *,
    counting: bool = False,
    ids: Collection[str] | None = None,
) -> bool:
    """Whether the first row of a table names its columns.

    It does if a cell of it is not a number and the one below is; if its first cell alone is empty (an index that a
    program wrote without a name); if no cell is a number and one is a usual name such as ``id``, ``label``, ``source``;
    and, with `counting`, if it reads 0, 1, 2, … over at least three columns, as data frames without names are written.
    With `ids`, those of the nodes that the first two columns name, it does not if it names nodes, and does if the next
    row does and it does not.
    """
    if ids:
        if any(canonical_id(cell) in ids for cell in first[:2]):
            return False
        if second is not None and all(canonical_id(cell) in ids for cell in second[:2]):
            return True
    is_number = [number(cell) is not None for cell in first]
    if first[0] == "" and len(first) > 1 and all(first[1:]):
        return True
    if counting and len(first) > 2 and list(first) == [str(i) for i in range(len(first))]:
        return True
    if second is not None and len(second) == len(first):
        for cell, numeric, below in zip(first, is_number, second, strict=True):
            if cell and not numeric and number(below) is not None:
                return True
    if any(is_number):
        return False
    if second is not None and len(second) != len(first) and any(number(cell) is not None for cell in second):
        return all(first)  # of all columns but that of the rows' names; or of a table whose rows do not fit it
    return any(cell.strip().lower() in HEADER_WORDS or (cell and names_ids(cell)) for cell in first)


PARQUET_ENDINGS = (".parquet", ".pq")


def open_parquet(path: str | os.PathLike[str]) -> ColumnSource:
    """The columns of a Parquet file; errors name row and column."""
    name = os.fspath(path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {name}")
    pyarrow = require("pyarrow", extra="frames", purpose="reading Parquet")
    parquet = require("pyarrow.parquet", extra="frames", purpose="reading Parquet")
    try:
        table = parquet.ParquetFile(path).read()
    except Exception as error:  # pyarrow has a dozen errors for a damaged file
        raise DataError(
            f"is not a Parquet file that can be read ({type(error).__name__}: {error})", path=path
        ) from error
    parts: list[tuple[str, Any]] = []
    for label, column in zip(map(str, table.column_names), table.columns, strict=True):
        try:
            parts += _spread(name, label, column)
        except DataError:
            raise
        except (pyarrow.lib.ArrowException, *DAMAGE) as error:
            raise DataError(f"cannot be read ({type(error).__name__}: {error})", path=path, column=label) from error
    return ColumnSource(name, parts)


def _spread(path: str, label: str, column: Any) -> list[tuple[str, Any]]:
    """A column of lists as columns of numbers; any other as it is."""
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        rows = column.to_pylist()
        width = len(rows[0] or ()) if rows else 0
        for row, cells in enumerate(rows):
            if cells is None or len(cells) != width or not width:
                got = "none" if cells is None else len(cells)
                problem = f"expected a list of {width} numbers as in row 0, got {got}"
                raise DataError(problem, path=path, row=row, column=label)
        if types.is_integer(kind.value_type) or types.is_floating(kind.value_type):
            matrix = np.array(rows, dtype=np.float64)  # what is missing becomes NaN
            return [(f"{label}_{i}", matrix[:, i]) for i in range(width)]
        return [(f"{label}_{i}", [cells[i] for cells in rows]) for i in range(width)]
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        if types.is_decimal(kind):
            column = column.cast(pa.float64())  # what is missing becomes NaN
        if not column.null_count or types.is_floating(column.type):
            return [(label, column.combine_chunks().to_numpy(zero_copy_only=False))]
        return [(label, column.to_pylist())]
    if types.is_timestamp(kind) or types.is_date(kind):
        return [(label, [None if moment is None else moment.isoformat() for moment in column.to_pylist()])]
    is_view = getattr(types, "is_string_view", lambda _: False)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind) or is_view(kind):
        try:
            return [(label, column.to_pylist())]
        except UnicodeDecodeError as error:
            raise DataError(f"is damaged: not text in UTF-8 ({error})", path=path, column=label) from error
    raise DataError(f"holds {kind}, expected numbers, text, dates, or lists of numbers", path=path, column=label)
