"""Readers of a user's tables: CSV and its relatives here, Parquet and NPZ in `columnar`.

What people's files hold is allowed for: a byte-order mark, Windows line ends, quotes, blank lines, comments above the
table, semicolons or tabs for commas, runs of spaces, decimal commas on request, a header or none, gzip. What cannot be
right (ragged rows, missing or non-numeric numbers, bytes that are no text) is a `DataError` with file, line and column.
"""

from __future__ import annotations

import csv
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from difformer.data.archives import check_size
from difformer.data.errors import DataError
from difformer.data.tables import Choose, Head, Table, looks_like_header, no_text, number
from difformer.data.text_files import (
    Row,
    TextFormat,
    lines_of,
    open_text,
    refuse_zero_bytes,
    rows_of,
    sniff_delimiter,
    with_point,
)

SAMPLE_LINES = 50
NOT_TEXT = frozenset(
    (".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".pt", ".pth", ".mat", ".feather", ".h5", ".hdf5", ".zip")
)

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?\Z")

DECIMAL_COMMA = TextFormat(decimal=",")

IsHeader = Callable[[Sequence[str], "Sequence[str] | None"], bool]


def read_csv(
    path: str | os.PathLike[str],
    *,
    text: Choose = no_text,
    format: TextFormat = TextFormat(),  # noqa: B008  frozen
    is_header: IsHeader = looks_like_header,
    keep_blank: bool = False,
) -> Table:
    """Read a delimited text file.

    Args:
        path: The file; ``.gz`` is unpacked on the way.
        text: Which columns to keep as text; told the `Head`.
        format: How the file is written.
        is_header: Told the first row and the second, says whether the first names the columns.
        keep_blank: In a table of one column, take a blank line (but not those at the end) for an empty cell.

    Raises:
        DataError: If the file is broken; with line and column.
        FileNotFoundError: If there is none.
    """
    name = os.fspath(path)
    if Path(path).is_dir():
        raise DataError("is a folder, expected a file", path=name)
    if Path(path).suffix.lower() in NOT_TEXT:
        hint = "; what PyG has saved, load with torch and pass to from_pyg" if name.endswith((".pt", ".pth")) else ""
        raise DataError(f"is not a kind of file that can be read; save it as CSV, Parquet or NPZ{hint}", path=name)
    with open_text(path, format.encoding) as stream:
        try:
            return _read(name, lines_of(stream, name), text, format, is_header, keep_blank)
        except UnicodeError as error:
            raise DataError(
                f"is not text in the encoding expected ({error}); pass encoding='latin-1' or the one it was saved in, "
                f"or save it as UTF-8",
                path=name,
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"cannot be unpacked ({error})", path=name) from error


def _read(
    path: str, lines: Iterator[str], text: Choose, format: TextFormat, is_header: IsHeader, keep_blank: bool
) -> Table:
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
        raise DataError("holds no rows", path=path)
    sample = [first, *islice(lines, SAMPLE_LINES)]
    refuse_zero_bytes(path, sample, len(above) + 1)
    delimiter = format.delimiter or sniff_delimiter(sample, spaces=_may_be_spaced(path))
    rows = rows_of(path, chain(sample, lines), delimiter, len(above))
    start: list[Row] = []
    for row in rows:
        start.append(row)
        if sum(1 for _, cells in start if cells) == 2:
            break
    if not any(cells for _, cells in start):
        raise DataError("holds no rows", path=path)
    names, header_line, start, notes = _names(path, start, above, delimiter, format, is_header)
    check_size(max(len(names), *(len(row) for _, row in start), 0), "the table", "COLUMNS")
    begin = next((cells for _, cells in start if cells), None)
    if begin is None:
        raise DataError("holds a header and no rows", path=path)
    # A delimiter at the end of every line, the header's too, ends a column that is not there.
    trailing = int(bool(names) and len(names) > 1 and not names[-1] and begin[-1].strip() == "")
    width = len(names) - trailing if names else len(begin)
    if len(begin) != width + trailing:
        at = next(place for place, row in start if row)
        raise DataError(f"has {len(begin)} cell(s), but the header names {width} columns", path=path, line=at)
    cells = tuple(with_point(cell.strip(), format) for cell in begin[:width])
    numbered = tuple(str(i + 1) for i in range(width))
    textual = tuple(
        c != "" and number(with_point(c, DECIMAL_COMMA)) is None for c in cells
    )  # 1,5 is meant for a number
    head = Head(path, tuple(names[:width]) or numbered, bool(names), cells, textual)
    if names:
        _check_names(head, header_line)
    if delimiter == " " and format.delimiter is None and width > 1:
        notes.append(f"cells of {Path(path).name} were separated at blanks; pass delimiter= if that is wrong")
    return _fill(head, chain(start, rows), sorted(text(head)), trailing, format, keep_blank, notes)


def _may_be_spaced(path: str) -> Literal["yes", "numbers", "no"]:
    """Whether blanks may part cells: not in CSV, packed or not; in what has no ending, such as a pipe, numbers only."""
    endings = [ending.lower() for ending in Path(path).suffixes if ending.lower() != ".gz"]
    if endings and endings[-1] in (".csv", ".tsv"):
        return "no"
    return "yes" if endings else "numbers"


def _names(
    path: str, start: list[Row], above: list[str], delimiter: str, format: TextFormat, is_header: IsHeader
) -> tuple[list[str], int, list[Row], list[str]]:
    """Names of the columns (none where the file has none), their line, the rows so far that are data, and notes."""
    full = [(line, [with_point(cell.strip(), format) for cell in row]) for line, row in start if row]
    line, first = full[0]
    # 1,5 below a name shows that it is one, even where nobody has said decimal=",": the error comes with the number.
    plain, *below = [[with_point(cell, DECIMAL_COMMA) for cell in row] for _, row in full[:2]]
    second = below[0] if below else None
    hidden = _hidden_header(above, delimiter, format)
    if len(hidden) == len(first) > 1:
        # A header behind the comment sign, or a row whose id begins with that sign?
        if is_header(hidden, first):
            return hidden, len(above), start, []
        if [number(cell) is None for cell in hidden] == [number(cell) is None for cell in first]:
            raise DataError(
                f"begins with {format.comment!r}, as a comment does, but looks like a row of the table; "
                f"pass comment=None if it is one, or delete it",
                path=path,
                line=len(above),
            )
    if format.header is False or (format.header is None and not is_header(plain, second)):
        return [], 0, start, []
    names = ["", *first] if second is not None and len(second) == len(first) + 1 else first
    notes = [f"line {line} of {Path(path).name} was read as a header"] if format.header is None else []
    return names, line, [row for row in start if row[0] > line], notes


def _hidden_header(above: list[str], delimiter: str, format: TextFormat) -> list[str]:
    """The cells of a comment right above the table, where nobody has said which row the header is."""
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


def _fill(
    head: Head,
    rows: Iterable[Row],
    kept: list[int],
    trailing: int,
    format: TextFormat,
    keep_blank: bool,
    notes: list[str],
) -> Table:
    width = len(head.names) + trailing
    apart = set(kept)
    columns = [i for i in range(len(head.names)) if i not in apart]
    pick = itemgetter(*columns) if len(columns) > 1 and len(columns) < width else None
    values, lines = array("d"), array("q")
    texts: dict[int, list[str]] = {i: [] for i in kept}
    same: dict[str, str] = {}  # one copy of every text: names come again and again

    def take(line: int, row: list[str]) -> None:
        if len(row) != width or (trailing and row[-1].strip()):
            raise DataError(
                f"has {len(row)} cell(s), expected {width} as in {'the header' if head.named else 'the first row'}",
                path=head.path,
                line=line,
                column=head.names[len(row)] if head.named and len(row) < len(head.names) else min(len(row), width) + 1,
            )
        cells: Sequence[str] = pick(row) if pick else [row[i] for i in columns] if len(columns) < width else row
        try:
            if format.decimal != "." or "_" in "".join(cells):
                raise ValueError
            values.extend(map(float, cells))
        except ValueError:
            del values[len(lines) * len(columns) :]
            values.extend(_number(cell, head, line, i, format) for cell, i in zip(cells, columns, strict=True))
        for i in kept:
            cell = with_point(row[i].strip(), format)
            texts[i].append(same.setdefault(cell, cell))
        lines.append(line)

    waiting: list[Row] = []  # blank rows count only if something comes after them
    for line, row in rows:
        if not row:
            if keep_blank and width == 1:
                waiting.append((line, [""]))
        elif width > 1 and not "".join(row).strip():
            waiting.append((line, row))
        else:
            for earlier in waiting:
                take(*earlier)
            waiting.clear()
            take(line, row)
    return Table(
        path=head.path,
        names=head.names,
        named=head.named,
        numbers=np.array(values).reshape(len(lines), len(columns)),
        number_columns=tuple(columns),
        texts=texts,
        lines=np.array(lines),
        notes=tuple(notes),
    )


def _number(cell: str, head: Head, line: int, column: int, format: TextFormat) -> float:
    text = cell.strip()
    value = number(with_point(text, format))
    if value is not None:
        return value
    where: dict[str, Any] = {"path": head.path, "line": line}
    where["column"] = head.names[column] if head.named and head.names[column] else column + 1
    if not text:
        raise DataError("a number is missing here; fill it in, or leave the row or the column out", **where)
    hint = ""
    if format.decimal == "." and _THOUSANDS.match(text):
        hint = "; leave out the commas between thousands, or pass decimal=',' if this comma stands before a fraction"
    elif format.decimal == "." and number(text.replace(",", ".")) is not None:
        hint = "; pass decimal=',' if numbers are written with a comma"
    elif line <= 2 and not head.named:
        hint = "; pass header=True if this row names the columns"
    raise DataError(f"expected a number, got {text!r}{hint}", **where)
