"""Tables as people write them: cells that are numbers, cells that are not, and whether the first row names the columns.

A table is read in one pass: its reader says what it can tell from the first rows (`Head`), is told which columns to
keep as text, and takes every other column for numbers. A cell that breaks that is an error with line and column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.errors import DataError

ID_NAMES = frozenset(
    ("", "id", "ids", "node", "nodeid", "name", "names", "index", "key", "instance", "unnamed: 0", "__index_level_0__")
)
LABEL_NAMES = frozenset(("label", "labels", "class", "target", "y"))
SOURCE_NAMES = frozenset(("source", "src", "from", "u", "node1", "node_1", "head", "fromnodeid", "source_id", "i"))
TARGET_NAMES = frozenset(("target", "dst", "to", "v", "node2", "node_2", "tail", "tonodeid", "target_id", "dest", "j"))
WEIGHT_NAMES = frozenset(("weight", "weights", "w", "edge_weight", "value"))
SPLIT_NAMES = frozenset(("split", "set", "part", "fold"))
HEADER_WORDS = (ID_NAMES | LABEL_NAMES | SOURCE_NAMES | TARGET_NAMES | WEIGHT_NAMES | SPLIT_NAMES) - {""}

_WHOLE = re.compile(r"[+-]?\d+\.0+\Z")
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class Head:
    """What is known of a table before its rows are read.

    Args:
        path: The file.
        names: Of its columns; their numbers, counted from one, where the file does not name them.
        named: Whether the file does.
        first: The cells of its first row, as text.
        textual: Whether each of them is something other than a number.
    """

    path: str
    names: tuple[str, ...]
    named: bool
    first: tuple[str, ...]
    textual: tuple[bool, ...]

    def find(self, column: str | int) -> int:
        """Position of a column given by name, or by number counted from one."""
        if isinstance(column, str) and column in self.names:
            return self.names.index(column)
        if isinstance(column, int) and not isinstance(column, bool) and 1 <= column <= len(self.names):
            return column - 1
        have = ", ".join(repr(name) for name in self.names[:20]) if self.named else f"{len(self.names)} unnamed columns"
        raise DataError(f"has no column {column!r}; it has {have}", path=self.path)

    def named_like(self, names: Collection[str]) -> list[int]:
        """Positions of the columns whose name, in lower case, is one of these."""
        return [i for i, name in enumerate(self.names) if name.strip().lower() in names] if self.named else []


Choose = Callable[[Head], Collection[int]]


def no_text(head: Head) -> tuple[int, ...]:
    """Every column holds numbers."""
    return ()


def every_column(head: Head) -> range:
    """Every column is kept as text."""
    return range(len(head.names))


@dataclass(frozen=True)
class Table:
    """A table that has been read.

    Args:
        path: The file.
        names: As in `Head`.
        named: As in `Head`.
        numbers: ``[N, len(number_columns)]``.
        number_columns: Which columns they are.
        texts: The columns kept as text, by position; a missing cell is the empty string.
        lines: The line of every row in a text file; None where rows have no lines.
        notes: What the reader had to decide, one sentence each.
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

    def error(self, problem: str, row: int | None = None, column: int | None = None) -> DataError:
        """An error that says where in the file it is."""
        where: dict[str, Any] = {}
        if row is not None:
            where["line" if self.lines is not None else "row"] = row if self.lines is None else int(self.lines[row])
        if column is not None:
            where["column"] = self.names[column] if self.named and self.names[column] else column + 1
        return DataError(problem, path=self.path, **where)

    def check_finite(self) -> None:
        """Refuse numbers that are missing, infinite, or too large for single precision, naming the first."""
        good = np.abs(self.numbers) <= np.finfo(np.float32).max  # false for NaN
        if not good.all():
            row, place = (int(i) for i in np.argwhere(~good)[0])
            value = self.numbers[row, place]
            problem = "a number is missing here" if np.isnan(value) else f"{value} is too large a number"
            raise self.error(
                f"{problem}; fill it in, or leave the row or the column out", row, self.number_columns[place]
            )


def number(cell: str) -> float | None:
    """The number a cell holds, or None: what Python reads as a float, and true and false."""
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return _TRUTH.get(cell.strip().lower())


def names_ids(name: str) -> bool:
    """Whether a column is called as columns of ids usually are: ``id``, ``name``, ``user_id``, ``paperId``."""
    return name.strip().lower() in ID_NAMES or name.strip().lower().endswith(("_id", " id")) or name.endswith("Id")


def is_missing(value: Any) -> bool:
    """Whether a value is none: None; NaN, which differs from itself; pandas' NA, which will not say whether it does."""
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
    """Row of every id.

    Raises:
        DataError: If an id is empty, or stands in two rows.
    """
    index: dict[str, int] = {}
    for row, name in enumerate(ids):
        if not name:
            raise error("the id is missing here", row)
        first = index.setdefault(name, row)
        if first != row:
            before = error("", first)
            place = f"line {before.line}" if before.line is not None else f"row {first}"
            raise error(
                f"id {name!r} is already that of {place}; ids must differ (pass ids=False if this is none)", row
            )
    return index


def looks_like_header(first: Sequence[str], second: Sequence[str] | None, *, counting: bool = False) -> bool:
    """Whether the first row of a table names its columns.

    It does where a cell of it is not a number and the one below is; where its first cell alone is empty (an index that
    a program wrote without a name); where no cell is a number and one is a usual name such as ``id``, ``label``,
    ``source``; and, where `counting`, where it reads 0, 1, 2, … over at least three columns, as data frames without
    names are written.
    """
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
