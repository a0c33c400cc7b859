"""Text files before they are tables: how they are written, their encoding, their delimiter, their rows of cells."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from difformer.data.archives import limit
from difformer.data.errors import DataError
from difformer.data.tables import number

DELIMITERS = (";", "\t", ",", "|")  # a comma may stand inside a number; the ones before it never do

Row = tuple[int, list[str]]


@dataclass(frozen=True)
class TextFormat:
    """How a text file is written; None means: find out.

    Args:
        delimiter: Between cells; ``" "`` stands for any run of spaces and tabs.
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
            raise ValueError(f"delimiter: expected one character, such as ',' or '\\t', got {self.delimiter!r}")
        if self.decimal not in (".", ","):
            raise ValueError(f"decimal: expected '.' or ',', got {self.decimal!r}")
        if self.comment == "":
            raise ValueError("comment: expected the sign that comments begin with, or None; got an empty text")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError as error:
                raise ValueError(f"encoding: {error}; usual ones are 'utf-8', 'latin-1' and 'utf-16'") from error


def open_text(path: str | os.PathLike[str], encoding: str | None) -> io.TextIOWrapper:
    """Open a text file, unpacking ``.gz``; an encoding that is None is UTF-8, or UTF-16 where the file says so.

    A pipe will do, as a shell makes one for ``<(…)``: nothing is read twice.
    """
    packed = Path(path).suffix.lower() == ".gz"
    binary: Any = gzip.open(path, "rb") if packed else open(path, "rb")  # noqa: SIM115  closed by the wrapper's owner
    if encoding is None:
        try:
            start = binary.peek(2)[:2]
        except (OSError, EOFError, zlib.error) as error:
            binary.close()
            raise DataError(f"cannot be unpacked ({error})", path=path) from error
        encoding = "utf-16" if start in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return io.TextIOWrapper(binary, encoding=encoding, newline="")


def lines_of(stream: io.TextIOWrapper, path: str) -> Iterator[str]:
    """The lines of a text, none longer than the limit.

    Raises:
        DataError: Naming the line that is longer.
    """
    most, number_of_line = limit("LINE"), 0
    while line := stream.readline(most + 1):
        number_of_line += 1
        if len(line) > most:
            raise DataError(
                f"has more than {most:,} characters; if you trust the file, set DIFFORMER_MAX_LINE to read it",
                path=path,
                line=number_of_line,
            )
        yield line


def refuse_zero_bytes(path: str, lines: Sequence[str], first: int) -> None:
    """Text has no zero bytes; with the wrong encoding it seems to.

    Raises:
        DataError: Naming the line; that of ``lines[0]`` is `first`.
    """
    for number_of_line, line in enumerate(lines, first):
        if "\0" in line:
            raise DataError(
                "holds zero bytes: it is no text, or text in UTF-16 that does not say so; pass encoding='utf-16-le' or "
                "encoding='utf-16-be', or save it as UTF-8",
                path=path,
                line=number_of_line,
            )


def with_point(cell: str, format: TextFormat) -> str:
    """A number with its decimal sign as a point; any other cell as it is."""
    if format.decimal == "." or format.decimal not in cell:
        return cell
    pointed = cell.replace(format.decimal, ".")
    return cell if number(pointed) is None else pointed


def rows_of(path: str, lines: Iterator[str], delimiter: str, offset: int) -> Iterator[Row]:
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
