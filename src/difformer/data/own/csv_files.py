"""Delimited text files: CSV and its relatives.

Files may have a byte-order mark, Windows line ends, quotes, blank lines, comments above the table, semicolons or tabs
for commas, runs of spaces, decimal commas on request, a header or none, gzip. What cannot be right (ragged rows, cells
that are not numbers, bytes that are not text) is a `DataError` with file, line and column.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any, Literal

from difformer.data.archives import check_size, limit
from difformer.data.own.cell_values import is_gap, loose_id, number
from difformer.data.own.table import HEADER_WORDS, Path_, Table, names_ids, open_parquet
from difformer.errors import DataError, UserError, in_file

DELIMITERS = (";", "\t", ",", "|")  # a comma may be part of a number; the ones before it never are
SAMPLE_LINES = 50  # to find the delimiter
SAMPLE_ROWS, SAMPLE_CELLS = 1000, 200_000  # to tell columns of numbers from columns of text
CHUNK_CELLS = 10_000  # converted together: more would not stay in the processor's cache
ARRAY_ENDINGS, PYG_ENDINGS = (".npz", ".npy"), (".pt", ".pth")
NOT_TEXT = (".json", ".xlsx", ".xls", ".pkl", ".pickle", *PYG_ENDINGS, ".mat", ".feather", ".h5", ".hdf5", ".zip")
ZEROS = "holds zero bytes: it is not text, or it is UTF-16 without a byte-order mark; pass encoding=utf-16-le or "
ZEROS += "encoding=utf-16-be, or save it as UTF-8"

_SPACED = re.compile(r'"((?:[^"]|"")*)"(?!\S)|(\S+)')  # cells between spaces, some of them in quotes

Row = tuple[int, list[str]]
Role = Literal["features", "labels", "edges"]


@dataclass(frozen=True)
class TextFormat:
    """How a text file is written; None means detect it."""

    delimiter: str | None = None  # between cells; " " is any run of spaces and tabs
    header: bool | None = None  # whether the first row names the columns
    encoding: str | None = None  # for example "latin-1"; UTF-8 and UTF-16 are detected
    decimal: str = "."  # "," where numbers are written 1,5
    comment: str | None = "#"  # lines above the table that begin with it are skipped; None keeps them

    def __post_init__(self) -> None:
        mark = "," if self.delimiter is None else self.delimiter
        if not isinstance(mark, str) or len(mark) != 1 or mark in '"\r\n' or mark.isalnum():
            expected = "one character that is no letter or digit, such as ';' or '\\t' (quoted in a shell)"
            raise UserError(f"delimiter: expected {expected}, got {self.delimiter!r}")
        if self.decimal not in (".", ","):
            raise UserError(f"decimal: expected '.' or ',', got {self.decimal!r}")
        if self.comment is not None and (not isinstance(self.comment, str) or not self.comment):
            raise UserError(f"comment: expected the character that starts a comment, or None; got {self.comment!r}")
        try:
            "".encode(self.encoding or "utf-8")
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(f"encoding: {error}; usual ones are 'utf-8', 'latin-1' and 'utf-16'") from error

    def pointed(self, cell: str) -> str:
        """A cell without spaces around it, and with a decimal point if it is a number."""
        cell = cell.strip()
        if self.decimal == "." or "," not in cell:
            return cell
        plain = cell.replace(",", ".")
        return cell if number(plain) is None else plain


DECIMAL_COMMA = TextFormat(decimal=",")


def lines_of(
    path: str, encoding: str | None, *, errors: Literal["strict", "replace"] = "strict", newline: str = ""
) -> Iterator[str]:
    """The lines of a text file, gzipped or not, in one pass; UTF-8, or UTF-16 with a byte-order mark, if None."""
    packed = Path(path).suffix.lower() == ".gz"
    binary: Any = gzip.open(path, "rb") if packed else open(path, "rb")  # noqa: SIM115  closed with the wrapper
    most, count, start = limit("LINE"), 0, b""
    try:
        with binary:
            if encoding is None:
                start = binary.peek(2)
                encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            stream = io.TextIOWrapper(binary, encoding=encoding, errors=errors, newline=newline)
            while line := stream.readline(most + 1):
                count += 1
                if len(line) > most:
                    remedy = "if you trust the file, set DIFFORMER_MAX_LINE to read it"
                    raise DataError(f"has more than {most:,} characters; {remedy}", path=path, line=count)
                yield line
    except UnicodeError as error:
        remedy = "pass encoding=latin-1 or the one it was saved in, or save it as UTF-8"
        problem = f"is not text in the encoding expected ({error}); {remedy}"
        problem = ZEROS if b"\0" in start and encoding != "utf-16" else problem
        raise DataError(problem, path=path, argument="encoding") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be unpacked ({error})", path=path) from error


def open_table(
    path: Path_, format: TextFormat, *, role: Role = "features", ids: Collection[str] | None = None
) -> Table:
    """The head of a Parquet or text file; the `ids` of nodes help to recognise the header of labels and edges."""
    suffix = Path(path).suffix.lower()
    with in_file(path):
        if Path(path).is_dir():
            raise DataError("is a folder, expected a file")
        if suffix in NOT_TEXT:
            hint = "; load what PyG has saved with torch, and pass it to from_pyg" if suffix in PYG_ENDINGS else ""
            raise DataError(f"is not a supported type of file; save it as CSV, Parquet or NPZ{hint}")
        if not Path(path).exists():
            raise FileNotFoundError(f"no file at {os.fspath(path)}")
        return open_parquet(path) if suffix in (".parquet", ".pq") else _open_text(os.fspath(path), format, role, ids)


def _open_text(name: str, format: TextFormat, role: Role, ids: Collection[str] | None) -> Table:
    lines = lines_of(name, format.encoding)
    above, first, notes = list[str](), "", list[str]()
    for line in lines:
        text = line.strip()
        if not above and text.lower() in ("sep=;", "sep=,", "sep=|"):  # written by spreadsheets
            format, text = replace(format, delimiter=format.delimiter or text[-1]), ""
        elif text and not (format.comment and text.startswith(format.comment)):
            first = line
            break
        above.append(text)
    sample = [first, *islice(lines, SAMPLE_LINES)]
    zeros = next((i for i, line in enumerate(sample, len(above) + 1) if "\0" in line), None)
    if zeros is not None:  # text has no zero bytes, unless it is decoded wrongly
        raise DataError(ZEROS, line=zeros)
    spaces = not {".csv", ".tsv"} & {ending.lower() for ending in Path(name).suffixes}
    delimiter = format.delimiter or sniff_delimiter(sample, spaces=spaces)
    rows = _rows_of(name, chain(sample, lines), delimiter, len(above))
    start = list(islice(rows, max(5, min(SAMPLE_ROWS, SAMPLE_CELLS // (1 + len(_cells(first, delimiter)))))))
    filled = [row for row in start if row[1]]
    if not filled:
        raise DataError("holds no rows")
    (line_of_names, cells), second = filled[0], filled[1][1] if filled[1:] else None
    cells = cells[:-1] if second and len(cells) == len(second) + 1 and not cells[-1].strip() else cells
    names, hidden = list[str](), list[str]()  # a comment right above the table may be its header
    if format.header is None and format.comment and above and above[-1].startswith(format.comment):
        hidden = [cell.strip() for cell in _cells(above[-1].lstrip(format.comment).strip(), delimiter)]
    if len(hidden) == len(cells) > 1 and looks_like_header(hidden, cells, role=role, ids=ids):
        names, line_of_names = hidden, len(above)
    elif len(hidden) == len(cells) > 1 and [number(c) is None for c in hidden] == [number(c) is None for c in cells]:
        problem = f"begins with {format.comment!r}, as a comment does, but looks like a row of the table"
        raise DataError(f"{problem}; pass comment=none if it is one, or delete it", line=len(above))
    elif format.header or (format.header is None and looks_like_header(cells, second, role=role, ids=ids)):
        names = [format.pointed(cell) for cell in cells]
        if second and len(second) == len(names) + 1:
            ended = all(len(row) > len(names) and not row[len(names)].strip() for _, row in filled[1:])
            names.insert(len(names) if ended else 0, "")  # R does not name the column of the rows' names
            notes += [f"the {delimiter!r} at the end of every row of {Path(name).name} was left out"] if ended else []
        notes += [f"line {line_of_names} of {Path(name).name} was read as a header"] if format.header is None else []
        start, filled = [row for row in start if row[0] > line_of_names], filled[1:]
    check_size(max(len(names), len(filled[0][1]) if filled else 0), "the table", "COLUMNS")
    if not filled:
        raise DataError("holds a header and no rows")
    rows, (line_of_first, begin) = chain(start, rows), filled[0]
    if len(names) > 1 and not names[-1] and not begin[-1].strip():  # every line ends in a delimiter
        names, begin = names[:-1], begin[:-1]
        rows = ((line, row if row and row[-1].strip() else row[:-1]) for line, row in rows)
    width = len(names or begin)
    if len(begin) != width:
        raise DataError(f"has {len(begin)} cell(s), but the header names {width} columns", line=line_of_first)
    seen: dict[str, int] = {}
    for i, column in enumerate(names):
        other = seen.setdefault(column, i)
        if other != i or (i and not column):
            problem = f"the name {column!r} is already that of column {other + 1}; names must differ"
            problem = problem if column else "the header leaves this column without a name"
            raise DataError(problem, line=line_of_names, column=i + 1)
    if delimiter == " " and format.delimiter is None and width > 1:
        notes.append(f"cells of {Path(name).name} were split at spaces; pass delimiter= if that is wrong")
    textual = []
    for i in range(width):  # 1,5 counts as a number
        known = [row[i] for _, row in filled if len(row) > i and not is_gap(row[i].strip())]
        textual.append(2 * sum(number(DECIMAL_COMMA.pointed(cell)) is None for cell in known) > len(known))
    columns, first_row = tuple(names or map(str, range(1, width + 1))), [format.pointed(cell) for cell in begin]
    table = Table(name, columns, bool(names), first_row, textual, notes, decimal=format.decimal, lines=array("q"))
    table.source = _chunks(table, _filled(rows, width, role == "labels"), format)
    return table


def _chunks(table: Table, rows: Iterator[Row], format: TextFormat) -> Iterator[Any]:
    """Line numbers and columns of consecutive rows."""
    width, expected = len(table.names), "header" if table.named else "first row"
    while chunk := list(islice(rows, 1 + CHUNK_CELLS // width)):
        good = next((i for i, (_, row) in enumerate(chunk) if len(row) != width), len(chunk))
        columns: Any = list(zip(*(row for _, row in chunk[:good]), strict=True))
        if format.decimal != ".":
            columns = [[format.pointed(cell) for cell in column] for column in columns]
        if good:  # errors in the rows before a wrong one come first
            yield [line for line, _ in chunk[:good]], columns
        for line, row in chunk[good : good + 1]:
            place = table.names[len(row)] if table.named and len(row) < width else min(len(row), width) + 1
            problem = f"has {len(row)} cell(s), expected {width} as in the {expected}"
            problem += "; remove the delimiter at its end" if len(row) > width and not row[-1].strip() else ""
            raise DataError(problem, path=table.path, line=line, column=place)


def _filled(rows: Iterator[Row], width: int, keep_blank: bool) -> Iterator[Row]:
    """Drops trailing rows without text, and blank lines unless `keep_blank` makes them empty cells."""
    waiting: list[Row] = []
    for line, row in rows:
        if row or (keep_blank and width == 1):
            waiting.append((line, row or [""]))
        if row and (width == 1 or "".join(row).strip()):
            yield from waiting
            waiting.clear()


def sniff_delimiter(lines: Sequence[str], *, spaces: bool) -> str:
    """The delimiter for which most lines have as many cells as the first, and more than one."""
    full = [line for line in lines if line.strip()]  # spaces need a column of numbers: names contain spaces
    spaced = zip(*(line.split() for line in full[1:] or full), strict=False)
    spaces = spaces and any(all(number(cell) is not None for cell in column) for column in spaced)
    best, most = ",", 0
    for candidate in (*DELIMITERS, " ") if spaces else DELIMITERS:
        counts = [len(_cells(line, candidate)) for line in full]
        agreeing = counts.count(counts[0]) if counts and counts[0] > 1 else 0
        if agreeing > most:
            best, most = candidate, agreeing
    return best


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a single line; none if it cannot be split."""
    try:
        return next((cells for _, cells in _rows_of("", iter([line]), delimiter, 0, strict=False)), [])
    except DataError:
        return []


def _rows_of(path: str, lines: Iterator[str], delimiter: str, offset: int, strict: bool = True) -> Iterator[Row]:
    """Rows with the number of their last line; a blank line is an empty row."""
    if delimiter == " ":  # a quoted cell ends with its line
        for count, line in enumerate(lines, offset + 1):
            quoted = [a.replace('""', '"') or b for a, b in _SPACED.findall(line)] if '"' in line else None
            yield count, line.split() if quoted is None else quoted
        return
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=strict)
    try:
        for row in reader:
            yield offset + reader.line_num, row if len(row) != 1 or row[0].strip() or row[0] == "" else []
    except csv.Error as error:
        raise DataError(f"cannot be read as a table: {error}", path=path, line=offset + reader.line_num) from error


def looks_like_header(
    first: Sequence[str], second: Sequence[str] | None, *, role: Role = "features", ids: Collection[str] | None = None
) -> bool:
    """Whether the first row of a table names its columns, judged by the next row and by the `ids` of nodes."""
    first, second = ([DECIMAL_COMMA.pointed(cell) for cell in row or ()] for row in (first, second))
    if ids:  # of nodes: the first cells of labels and edges
        known, count = {loose_id(name) for name in ids}, 1 if role == "labels" else 2
        if any(loose_id(cell) in known for cell in first[:count]):
            return False
        if second and all(loose_id(cell) in known for cell in second[:count]):
            return True
    counted = role == "features" and len(first) > 2 and first == [str(i) for i in range(len(first))]
    if counted or (first[0] == "" and len(first) > 1 and all(first[1:])):
        return True  # 0, 1, 2, …: a frame without names; or an index without a name
    words, below = ([number(cell) is None for cell in row] for row in (first, second))
    if len(words) == len(below) and any(w and cell and not b for cell, w, b in zip(first, words, below, strict=True)):
        return True  # a word above a number
    if not all(words):
        return False
    if second and len(words) != len(below) and not all(below):
        return all(first)  # names of all columns but the index, or the rows do not fit the header
    return any(cell.lower() in HEADER_WORDS or (cell and names_ids(cell)) for cell in first)
