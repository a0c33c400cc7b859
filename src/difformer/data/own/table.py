"""Tables: named columns of numbers or texts, and the place of every cell, so that an error can name it.

A table is read in two steps. Opening it shows the head (names, first row, which columns look like text). The caller
then decides what each column is, and `Table.read` reads some columns as text and the others as numbers.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.archives import check_size
from difformer.data.own.cell_values import canonical_id, cell_text, is_gap, is_missing, number
from difformer.errors import DataError, did_you_mean, in_file, listed, require

Path_ = str | os.PathLike[str]
Column = str | int
Columns = Column | Sequence[Column]
Floats = NDArray[np.float64]
Ids = Mapping[str, int]  # row of every id
Values = Sequence[str] | Floats  # a column: texts, empty where missing, or numbers, NaN where missing

ID_NAMES = frozenset(("id", "ids", "node", "nodeid", "name", "names", "index", "key", "instance"))
ID_NAMES |= {"", "unnamed: 0", "__index_level_0__"}  # columns that a program wrote without a name
USUAL_NAMES = {  # of columns, by their role
    "labels": ("label", "labels", "class", "target", "y"),
    "source": ("source", "src", "from", "u", "node1", "node_1", "head", "fromnodeid", "source_id", "i"),
    "target": ("target", "dst", "to", "v", "node2", "node_2", "tail", "tonodeid", "target_id", "dest", "j"),
    "weight": ("weight", "weights", "w", "edge_weight", "value"),
    "split": ("split", "set", "part", "fold"),
}
HEADER_WORDS = (ID_NAMES | {name for names in USUAL_NAMES.values() for name in names}) - {""}

MISSING = "a number is missing here; fill it in, or leave the row out"
LARGEST = float(np.finfo(np.float32).max)  # of single precision, which features and weights have

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?\Z")


@dataclass
class Table:
    """A table whose head is known; `read` fills `cells`."""

    path: str  # the file, or another name for errors
    names: tuple[str, ...]  # of the columns; numbers counted from one unless they are `named`
    named: bool
    first: Sequence[str]  # the first row as text
    textual: Sequence[bool]  # whether most cells of each column, in a sample of rows, are not numbers
    notes: Sequence[str] = ()  # what was guessed
    source: Iterable[tuple[Sequence[int], Sequence[Any]]] = ()  # lines and columns of consecutive rows
    decimal: str = ""  # the decimal sign of a text file
    cells: dict[int, Any] = field(default_factory=dict)  # columns by position, once read: lists of texts, or numbers
    lines: array[int] | None = None  # of the rows in a text file
    rows: int = 0
    trained: bool = False  # whether these are new rows for a trained model
    gaps: bool = False  # whether numbers may be missing
    in_python: bool = False  # whether this is a frame, for which options are shown as Python has them
    ids: int | None = None  # positions of columns with a role
    labels: Sequence[int] = ()
    split: int | None = None

    def read(self, text: Collection[int], *, gaps: bool = False) -> Table:
        """Read all rows, once: columns in `text` as text, others as numbers, with `gaps` NaN where missing."""
        if self.rows:
            return self
        text, self.gaps, parts, same = {*text}, gaps, defaultdict[int, list[Any]](list), dict[str, str]()
        for lines, columns in self.source:
            if self.lines is not None:
                self.lines.extend(lines)
            refused: list[DataError] = []
            for i, values in enumerate(columns):
                try:
                    if i in text:  # one copy of every text: names repeat
                        parts[i] += (same.setdefault(cell, cell) for cell in map(cell_text, values))
                    else:
                        parts[i].append(self._numbers(values, i))
                except DataError as error:
                    refused.append(error)
            if refused:
                raise min(refused, key=lambda error: error.line or error.row or 0)
            self.rows += len(columns[0])
        if not self.rows:
            raise DataError("holds no rows", path=self.path)
        self.cells = {i: part if i in text else np.concatenate(part) for i, part in parts.items()}
        for i, values in ((i, values) for i, values in self.cells.items() if i not in text):
            good = np.abs(values) <= LARGEST  # false for NaN
            good |= np.isnan(values) & gaps
            if not good.all():
                row = int(np.argmin(good))
                large = f"{values[row]} is too large a number; correct it, or leave the row out"
                raise self.error(MISSING if np.isnan(values[row]) else large, row, i)
        return self

    def _numbers(self, values: Any, column: int) -> Floats:
        try:
            if not has_numbers(values) and "_" in "".join(values):  # Python would read 1_000
                raise ValueError
            return np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            cells = map(cell_text, values)
            return np.array([self.number(cell, row, column) for row, cell in enumerate(cells, self.rows)])

    @property
    def file(self) -> str:
        """The last part of the path, for notes."""
        return Path(self.path).name

    def find(self, column: Column, option: str) -> int:
        """Position of a column given by name, or by number counted from one, with the argument `option`."""
        if isinstance(column, str) and column in self.names:
            return self.names.index(column)
        if isinstance(column, int) and not isinstance(column, bool) and 1 <= column <= len(self.names):
            return column - 1
        hint = did_you_mean(str(column), self.names) if self.named else ""
        problem = f"has no column {column!r}; {hint}it has {self.listed()}"
        raise DataError(problem, path=self.path, argument=option)

    def find_all(self, columns: Columns, option: str) -> list[int]:
        """Positions of one or several columns."""
        return [self.find(c, option) for c in ([columns] if isinstance(columns, (str, int)) else columns)]

    def listed(self) -> str:
        """The columns, for errors."""
        if len(self.names) == 1 and not self.named and self.textual[0]:
            return "one unnamed column of text (this does not look like a table)"
        return ", ".join(map(repr, self.names[:20])) if self.named else f"{len(self.names)} unnamed columns"

    def option(self, name: str, value: str | bool) -> str:
        """An option as it is typed: ``ids=customer``, for a frame ``ids="customer"``."""
        if self.in_python:
            return f"{name}={value}" if isinstance(value, bool) else f'{name}="{value}"'
        return f"{name}={str(value).lower() if isinstance(value, bool) else value}"

    def named_like(self, role: str) -> list[int]:
        """Positions of the columns with a usual name for the role: ``"ids"``, or one of `USUAL_NAMES`."""
        usual = names_ids if role == "ids" else lambda name: name.strip().lower() in USUAL_NAMES[role]
        return [i for i, name in enumerate(self.names) if self.named and usual(name)]

    def place(self, row: int) -> str:
        """Where a row is, in words."""
        return f"row {row}" if self.lines is None else f"line {self.lines[row]}"

    def error(self, problem: str, row: int, column: int | None, argument: str | None = None) -> DataError:
        """An error with its place in the file."""
        called = None if column is None else self.names[column] if self.named and self.names[column] else column + 1
        place: Any = {"row": row} if self.lines is None else {"line": self.lines[row]}
        return DataError(problem, path=self.path, column=called, argument=argument, **place)

    @contextmanager
    def locate(self, columns: Mapping[Column | None, int], rows: Sequence[int | None] | None = None) -> Iterator[None]:
        """Add file, line and column to errors that give a row of `rows` (None: of the table) and a key of `columns`."""
        try:
            with in_file(self.path):
                yield
        except DataError as error:
            if error.row is None or error.path != self.path or error.column not in columns:
                raise
            row = error.row if rows is None else rows[error.row] or 0
            raise self.error(error.problem, row, columns[error.column], error.argument) from error

    def number(self, cell: str, row: int, column: int) -> float:
        """The number in a cell; NaN for a gap, if there may be gaps."""
        value = number(cell)
        if value is not None or (self.gaps and is_gap(cell)):
            return float("nan") if value is None else value
        if not cell:
            raise self.error(MISSING, row, column)
        hint, argument, pointed = "", None, cell.replace(",", ".")
        if self.trained:
            hint = "; this column held numbers in training: write one, as in 1234.5"
            hint += ", or leave the cell empty" if self.gaps else ""
        elif self.decimal == "." and (_THOUSANDS.match(cell) or number(pointed) is not None):
            hint, argument = "; pass decimal=',' if numbers are written with a comma", "decimal"
            if _THOUSANDS.match(cell):
                hint = "; leave out the commas between thousands, or pass decimal=',' if this is a decimal comma"
        elif self.lines and self.lines[row] <= 2 and not self.named:
            hint, argument = "; pass header=true if this row names the columns", "header"
        elif self.gaps:
            name = self.names[column]
            hint = f"; correct the cell, or pass categories={name} if the column holds names, or drop={name}"
        raise self.error(f"expected a number, got {cell!r}{hint}", row, column, argument)


def check_columns(wanted: Sequence[str], known: Collection[str], path: Path_ | None = None) -> None:
    """Refuse a table with the columns `known` that lacks one of those wanted."""
    if absent := [name for name in wanted if name not in known]:
        problem = f"lacks {len(absent)} of the {len(wanted)} columns wanted: {listed(absent)}; "
        raise DataError(f"{problem}{did_you_mean(absent[0], known)}it has {listed([*known])}", path=path)


def memory_table(path: str, columns: Sequence[tuple[str, Any]]) -> Table:
    """The table of named columns, each an array or a list of numbers, texts and None."""
    if not columns or not len(columns[0][1]):
        raise DataError("holds no rows", path=path)
    check_size(len(columns), "the table", "COLUMNS")
    names, values = zip(*columns, strict=True)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"two columns are called {twice[0]!r}; names must differ", path=path)
    textual = []
    for column in values:
        known = [] if has_numbers(column) else [value for value in column if not is_missing(value)]
        textual.append(any(isinstance(value, str) or number(cell_text(value)) is None for value in known))
    return Table(path, names, True, [cell_text(column[0]) for column in values], textual, source=[((), values)])


def frame_table(frame: Any, path: str = "frame") -> Table:
    """The columns of a pandas or polars frame."""
    columns = [(str(label), frame_column(frame, i)) for i, label in enumerate(frame.columns)]
    return replace(memory_table(path, columns), in_python=True)


def row_ids(x: Any) -> tuple[str, ...]:
    """Ids of the rows: the index of a pandas frame, unless it only counts them."""
    if not hasattr(x, "iloc") or list(x.index) == list(range(len(x))):
        return ()
    return tuple(canonical_id(label) for label in x.index)


def frame_column(frame: Any, position: int) -> Any:
    """A column of a frame as an array; dates as text."""
    array = np.asarray(frame.iloc[:, position] if hasattr(frame, "iloc") else frame[:, position])
    if array.dtype.kind == "M":
        return ["" if np.isnat(moment) else str(moment.astype("M8[s]")) for moment in array]
    return array


def has_numbers(values: Any) -> bool:
    """Whether a column is an array of numbers or truth values."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf"


def names_ids(name: str) -> bool:
    """Whether a column has a usual name for ids: ``id``, ``name``, ``user_id``, ``paperId``."""
    plain = name.strip().lower()
    return plain in ID_NAMES or plain.endswith(("_id", " id")) or name.endswith("Id")


def index_of_ids(ids: Sequence[str], table: Table | None = None) -> dict[str, int]:
    """Row of every id, which come from a column of `table` if there is one; empty or repeated ids are errors."""
    index: dict[str, int] = {}
    for row, name in enumerate(ids):
        first = index.setdefault(name, row)
        if not name or first != row:
            place = f"row {first}" if table is None else table.place(first)
            undo = "" if table is None else f" (pass {table.option('ids', False)} if these are not ids)"
            problem = f"id {name!r} is already that of {place}; ids must differ{undo}"
            problem = problem if name else "the id is missing here"
            raise DataError(problem, row=row) if table is None else table.error(problem, row, table.ids)
    return index


def open_parquet(path: Path_) -> Table:
    """The columns of a Parquet file; a column of lists becomes several of numbers. Errors name row and column."""
    types = require("pyarrow", extra="frames", purpose="reading Parquet").types
    parquet = require("pyarrow.parquet", extra="frames", purpose="reading Parquet")
    require("pandas", extra="frames", purpose="reading Parquet")
    try:
        table = parquet.ParquetFile(path).read()
        frame = table.to_pandas(integer_object_nulls=True, ignore_metadata=True)
        found = [frame_column(frame, i) for i in range(table.num_columns)]  # which decodes text
    except Exception as error:  # pyarrow has a dozen errors for a damaged file
        problem = f"is not a Parquet file that can be read ({type(error).__name__}: {error})"
        raise DataError(problem, path=path) from error
    columns: list[tuple[str, Any]] = []
    for label, kind, values in zip(table.column_names, table.schema.types, found, strict=True):
        if not types.is_nested(kind) and not types.is_binary(kind) and not types.is_large_binary(kind):
            columns.append((label, values))
            continue
        if not hasattr(kind, "value_type"):
            problem = f"holds {kind}, expected numbers, text, dates, or lists of numbers"
            raise DataError(problem, path=path, column=label)
        widths = [0 if cells is None else len(cells) for cells in values]
        row = next((row for row, width in enumerate(widths) if not width or width != widths[0]), None)
        if row is not None:
            problem = f"expected a list of {widths[0]} numbers as in row 0, got {widths[row] or 'none'}"
            raise DataError(problem, path=path, row=row, column=label)
        columns += [(f"{label}_{j}", np.array([cells[j] for cells in values])) for j in range(max(widths, default=0))]
    return memory_table(os.fspath(path), columns)
