"""Delimited text files: CSV and its relatives.

What people's files hold is allowed for: a byte-order mark, Windows line ends, quotes, blank lines, comments above the
table, semicolons or tabs for commas, runs of spaces, decimal commas on request, a header or none, gzip. What cannot be
right (ragged rows, cells that are not numbers, bytes that are not text) is a `DataError` with file, line and column.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from difformer.data.archives import check_size, limit
from difformer.data.errors import DataError
from difformer.data.own.table import (
    MISSING_NUMBER,
    PARQUET_ENDINGS,
    Head,
    Source,
    Table,
    is_gap,
    looks_like_header,
    number,
    open_parquet,
)
from difformer.errors import UserError

DELIMITERS = (";", "\t", ",", "|")  # a comma may be part of a number; the ones before it never are
SAMPLE_LINES = 50  # by which the delimiter is found
SAMPLE_ROWS, SAMPLE_CELLS = 1000, 200_000  # by which columns are told to hold numbers or texts
NOT_TEXT = frozenset(
    (".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".pt", ".pth", ".mat", ".feather", ".h5", ".hdf5", ".zip")
)

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?\Z")

Row = tuple[int, list[str]]


@dataclass(frozen=True)
class TextFormat:
    """How a text file is written; None means: find out.

    Args:
        delimiter: Between cells; ``" "`` is any run of spaces and tabs.
        header: Whether the first row names the columns.
        encoding: For example ``"latin-1"``; found out among UTF-8 and UTF-16.
        decimal: ``","`` where numbers are written 1,5.
        comment: Lines above the table that begin so are skipped; None keeps them.
    """

    delimiter: str | None = None
    header: bool | None = None
    encoding: str | None = None
    decimal: str = "."
    comment: str | None = "#"

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise UserError(f"delimiter: expected one character, such as ',' or '\\t', got {self.delimiter!r}")
        if self.decimal not in (".", ","):
            raise UserError(f"decimal: expected '.' or ',', got {self.decimal!r}")
        if self.comment == "":
            raise UserError("comment: expected the sign that comments begin with, or None; got an empty text")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError as error:
                raise UserError(f"encoding: {error}; usual ones are 'utf-8', 'latin-1' and 'utf-16'") from error

    def pointed(self, cell: str) -> str:
        """A number with its decimal sign as a point; any other cell as it is."""
        if self.decimal == "." or self.decimal not in cell:
            return cell
        plain = cell.replace(self.decimal, ".")
        return cell if number(plain) is None else plain


DECIMAL_COMMA = TextFormat(decimal=",")


def lines_of(
    path: str, encoding: str | None, *, errors: Literal["strict", "replace"] = "strict", newline: str = ""
) -> Iterator[str]:
    """The lines of a text file, unpacked if it ends in ``.gz``; each file is read once, so that a pipe will do.

    Without an `encoding` it is UTF-8, or UTF-16 if the file begins with its byte-order mark. A line longer than the
    limit is refused.
    """
    packed = Path(path).suffix.lower() == ".gz"
    binary: Any = gzip.open(path, "rb") if packed else open(path, "rb")  # noqa: SIM115  closed with the wrapper
    most, count = limit("LINE"), 0
    try:
        with binary:
            if encoding is None:
                encoding = "utf-16" if binary.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            stream = io.TextIOWrapper(binary, encoding=encoding, errors=errors, newline=newline)
            while line := stream.readline(most + 1):
                count += 1
                if len(line) > most:
                    raise DataError(
                        f"has more than {most:,} characters; if you trust the file, set DIFFORMER_MAX_LINE to read it",
                        path=path,
                        line=count,
                    )
                yield line
    except UnicodeError as error:
        raise DataError(
            f"is not text in the encoding expected ({error}); pass encoding=latin-1 or the one it was saved in, or "
            f"save it as UTF-8",
            path=path,
            argument="encoding",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be unpacked ({error})", path=path) from error


def open_table(
    path: str | os.PathLike[str],
    format: TextFormat = TextFormat(),  # noqa: B008  frozen
    *,
    ids: Collection[str] | None = None,
    counting: bool = False,
    keep_blank: bool = False,
) -> Source:
    """The head of a Parquet file or of a delimited text file, ``.gz`` or not.

    For `ids` and `counting` see `looks_like_header`. `keep_blank` takes a blank line in a table of one column (but not
    those at the end) for an empty cell.
    """
    if Path(path).suffix.lower() in PARQUET_ENDINGS:
        return open_parquet(path)
    name = os.fspath(path)
    if Path(path).is_dir():
        raise DataError("is a folder, expected a file", path=name)
    if Path(path).suffix.lower() in NOT_TEXT:
        hint = "; what PyG has saved, load with torch and pass to from_pyg" if name.endswith((".pt", ".pth")) else ""
        raise DataError(f"is not a kind of file that can be read; save it as CSV, Parquet or NPZ{hint}", path=name)
    if not Path(path).exists():
        raise FileNotFoundError(f"no file at {name}")
    lines = lines_of(name, format.encoding)
    above: list[str] = []
    first = ""
    for line in lines:
        if not above and line.strip().lower() in ("sep=;", "sep=,", "sep=|"):  # a spreadsheet says how it writes
            format = replace(format, delimiter=format.delimiter or line.strip()[-1])
            above.append("")
            continue
        if line.strip() and not (format.comment and line.lstrip().startswith(format.comment)):
            first = line
            break
        above.append(line.strip())
    if not first:
        raise DataError("holds no rows", path=name)
    sample = [first, *islice(lines, SAMPLE_LINES)]
    _refuse_zero_bytes(name, sample, len(above) + 1)
    delimiter = format.delimiter or sniff_delimiter(sample, spaces=_may_be_spaced(name))
    rows = _rows_of(name, chain(sample, lines), delimiter, len(above))
    start = _sample(rows)
    names, header_line, start, notes = _names(name, start, above, delimiter, format, counting, ids)
    begin = next((cells for _, cells in start if cells), None)
    check_size(max(len(names), len(begin or ())), "the table", "COLUMNS")
    if begin is None:
        raise DataError("holds a header and no rows", path=name)
    # A delimiter at the end of every line, the header's too, ends a column that is not there.
    trailing = int(bool(names) and len(names) > 1 and not names[-1] and begin[-1].strip() == "")
    width = len(names) - trailing if names else len(begin)
    if len(begin) != width + trailing:
        at = next(place for place, row in start if row)
        raise DataError(f"has {len(begin)} cell(s), but the header names {width} columns", path=name, line=at)
    cells = tuple(format.pointed(cell.strip()) for cell in begin[:width])
    head = Head(
        name,
        tuple(names[:width]) or tuple(str(i + 1) for i in range(width)),
        bool(names),
        cells,
        _textual([row for _, row in start if row], width),
    )
    if names:
        _check_names(head, header_line)
    if delimiter == " " and format.delimiter is None and width > 1:
        notes.append(f"cells of {Path(path).name} were separated at blanks; pass delimiter= if that is wrong")
    return TextSource(head, chain(start, rows), trailing, format, keep_blank, tuple(notes))


@dataclass(frozen=True)
class TextSource:
    """A text file whose head is known; see `Source`."""

    head: Head
    rows: Iterator[Row]
    trailing: int
    format: TextFormat
    keep_blank: bool
    notes: tuple[str, ...]

    def read(self, text: Collection[int], gaps: Collection[int] = ()) -> Table:
        """All rows, once: a file is not read twice."""
        head, format, width = self.head, self.format, len(self.head.names) + self.trailing
        kept, gaps = sorted(text), frozenset(gaps)
        apart = set(kept)
        columns = [i for i in range(len(head.names)) if i not in apart]
        pick = itemgetter(*columns) if 1 < len(columns) < width else None
        values, lines = array("d"), array("q")
        texts: dict[int, list[str]] = {i: [] for i in kept}
        same: dict[str, str] = {}  # one copy of every text: names come again and again
        for line, row in self._filled(width):
            if len(row) != width or (self.trailing and row[-1].strip()):
                raise DataError(
                    f"has {len(row)} cell(s), expected {width} as in {'the header' if head.named else 'the first row'}",
                    path=head.path,
                    line=line,
                    column=head.names[len(row)]
                    if head.named and len(row) < len(head.names)
                    else min(len(row), width) + 1,
                )
            cells: Sequence[str] = pick(row) if pick else [row[i] for i in columns] if len(columns) < width else row
            try:
                if format.decimal != "." or "_" in "".join(cells):
                    raise ValueError
                values.extend(map(float, cells))
            except ValueError:
                del values[len(lines) * len(columns) :]
                values.extend(self._number(cell, line, i, i in gaps) for cell, i in zip(cells, columns, strict=True))
            for i in kept:
                cell = format.pointed(row[i].strip())
                texts[i].append(same.setdefault(cell, cell))
            lines.append(line)
        return Table(
            path=head.path,
            names=head.names,
            named=head.named,
            numbers=np.array(values).reshape(len(lines), len(columns)),
            number_columns=tuple(columns),
            texts=texts,
            lines=np.array(lines),
            notes=self.notes,
        )

    def _filled(self, width: int) -> Iterator[Row]:
        """Rows that count: a blank one only if something comes after it."""
        waiting: list[Row] = []
        for line, row in self.rows:
            if not row:
                if self.keep_blank and width == 1:
                    waiting.append((line, [""]))
            elif width > 1 and not "".join(row).strip():
                waiting.append((line, row))
            else:
                yield from waiting
                waiting.clear()
                yield line, row

    def _number(self, cell: str, line: int, column: int, gap: bool) -> float:
        text, head = cell.strip(), self.head
        value = number(self.format.pointed(text))
        if value is not None:
            return value
        if gap and is_gap(text):
            return float("nan")
        where: dict[str, Any] = {"path": head.path, "line": line}
        where["column"] = head.names[column] if head.named and head.names[column] else column + 1
        if not text:
            raise DataError(MISSING_NUMBER, **where)
        hint, argument = "", None
        if self.format.decimal == "." and _THOUSANDS.match(text):
            argument = "decimal"
            hint = "; leave out the commas between thousands, or pass decimal=',' if this is a decimal comma"
        elif self.format.decimal == "." and number(text.replace(",", ".")) is not None:
            hint, argument = "; pass decimal=',' if numbers are written with a comma", "decimal"
        elif line <= 2 and not head.named:
            hint, argument = "; pass header=true if this row names the columns", "header"
        elif gap:
            named = where["column"]
            hint = f"; correct the cell, or pass categories={named} if the column holds names, or drop={named}"
        raise DataError(f"expected a number, got {text!r}{hint}", argument=argument, **where)


def _sample(rows: Iterator[Row]) -> list[Row]:
    """The first rows: a thousand, or fewer of a wide table, but two at least."""
    sample, cells = [], 0
    for row in rows:
        sample.append(row)
        cells += len(row[1])
        if len(sample) >= SAMPLE_ROWS or (cells > SAMPLE_CELLS and sum(1 for _, each in sample if each) > 1):
            break
    return sample


def _textual(rows: Sequence[Sequence[str]], width: int) -> tuple[bool, ...]:
    """Whether most filled cells of each column are something other than numbers; 1,5 is meant for a number."""
    result = []
    for i in range(width):
        filled = [row[i].strip() for row in rows if len(row) > i and not is_gap(row[i].strip())]
        texts = sum(number(DECIMAL_COMMA.pointed(cell)) is None for cell in filled)
        result.append(2 * texts > len(filled))
    return tuple(result)


def _refuse_zero_bytes(path: str, lines: Sequence[str], first: int) -> None:
    """Text has no zero bytes; with the wrong encoding it seems to."""
    for number_of_line, line in enumerate(lines, first):
        if "\0" in line:
            raise DataError(
                "holds zero bytes: it is not text, or text in UTF-16 without a mark; pass encoding=utf-16-le or "
                "encoding=utf-16-be, or save it as UTF-8",
                path=path,
                line=number_of_line,
            )


def _may_be_spaced(path: str) -> Literal["yes", "numbers", "no"]:
    """Whether blanks may part cells: not in CSV, packed or not; without an ending, as in a pipe, only numbers."""
    endings = [ending.lower() for ending in Path(path).suffixes if ending.lower() != ".gz"]
    if endings and endings[-1] in (".csv", ".tsv"):
        return "no"
    return "yes" if endings else "numbers"


def sniff_delimiter(lines: Sequence[str], *, spaces: Literal["yes", "numbers", "no"]) -> str:
    """The delimiter by which most lines have as many cells as the first, and more than one.

    Blanks are one if `spaces` says yes, or numbers and some column holds numbers alone: names have blanks in them.
    """
    full = [line for line in lines if line.strip()]
    if spaces == "numbers":
        cells = zip(*(line.split() for line in full[1:] or full), strict=False)
        spaces = "yes" if any(all(number(cell) is not None for cell in column) for column in cells) else "no"
    best, most = ",", 0
    for candidate in (*DELIMITERS, " ") if spaces == "yes" else DELIMITERS:
        counts = [_count(line, candidate) for line in full]
        agreeing = counts.count(counts[0]) if counts[0] > 1 else 0
        if agreeing > most:
            best, most = candidate, agreeing
    return best


def _count(line: str, delimiter: str) -> int:
    if delimiter == " ":
        return len(line.split())
    try:
        return sum(len(row) for row in csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return 0


def _rows_of(path: str, lines: Iterator[str], delimiter: str, offset: int) -> Iterator[Row]:
    """Rows with the number of their last line; a blank line is an empty row."""
    if delimiter == " ":
        for count, line in enumerate(lines, 1):
            yield offset + count, line.split() if '"' not in line else _spaced(line, path, offset + count)
        return
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            yield offset + reader.line_num, row if len(row) != 1 or row[0].strip() or row[0] == "" else []
    except csv.Error as error:
        raise DataError(f"cannot be read as a table: {error}", path=path, line=offset + reader.line_num) from error


def _spaced(line: str, path: str, number: int) -> list[str]:
    """Cells between spaces, some of them in quotes."""
    try:
        (row,) = csv.reader([line.strip().replace("\t", " ")], delimiter=" ", skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise DataError(f"cannot be read as a table: {error}", path=path, line=number) from error
    return row


def _names(
    path: str,
    start: list[Row],
    above: list[str],
    delimiter: str,
    format: TextFormat,
    counting: bool,
    ids: Collection[str] | None,
) -> tuple[list[str], int, list[Row], list[str]]:
    """Names of the columns (none where the file has none), their line, the rows so far that are data, and notes."""
    full = [
        (line, [format.pointed(cell.strip()) for cell in row]) for line, row in islice((r for r in start if r[1]), 2)
    ]
    if not full:
        raise DataError("holds no rows", path=path)
    line, first = full[0]
    # 1,5 below a name shows that it is one, even without decimal=",": the error comes with the number.
    plain, *below = [[DECIMAL_COMMA.pointed(cell) for cell in row] for _, row in full]
    second = below[0] if below else None
    hidden = _hidden_header(above, delimiter, format)
    if len(hidden) == len(first) > 1:
        # A header behind the comment sign, or a row whose id begins with that sign?
        if looks_like_header(hidden, first, counting=counting, ids=ids):
            return hidden, len(above), start, []
        if [number(cell) is None for cell in hidden] == [number(cell) is None for cell in first]:
            raise DataError(
                f"begins with {format.comment!r}, as a comment does, but looks like a row of the table; "
                f"pass comment=none if it is one, or delete it",
                path=path,
                line=len(above),
            )
    said = format.header
    if said is False or (said is None and not looks_like_header(plain, second, counting=counting, ids=ids)):
        return [], 0, start, []
    names = ["", *first] if second is not None and len(second) == len(first) + 1 else first
    notes = [f"line {line} of {Path(path).name} was read as a header"] if said is None else []
    return names, line, [row for row in start if row[0] > line], notes


def _hidden_header(above: list[str], delimiter: str, format: TextFormat) -> list[str]:
    """The cells of a comment right above the table, unless the header was given."""
    if format.header is not None or not format.comment or not above or not above[-1].startswith(format.comment):
        return []
    text = above[-1].lstrip(format.comment).strip()
    if delimiter == " ":
        return text.split()
    try:
        return [cell.strip() for row in csv.reader([text], delimiter=delimiter) for cell in row]
    except csv.Error:
        return []


def _check_names(head: Head, line: int) -> None:
    first: dict[str, int] = {}
    for i, name in enumerate(head.names):
        if not name and i > 0:
            raise DataError("the header leaves this column without a name", path=head.path, line=line, column=i + 1)
        if first.setdefault(name, i) != i:
            raise DataError(
                f"the name {name!r} is already that of column {first[name] + 1}; names must differ",
                path=head.path,
                line=line,
                column=i + 1,
            )
