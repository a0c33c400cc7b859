"""Numbers from large text files, a block at a time: tens of millions of lines within seconds and little memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import IO, Any, NoReturn

import numpy as np

from difformer.data.archives import check_size
from difformer.data.errors import DataError

Array = np.ndarray[Any, Any]

BLOCK_BYTES = 16 << 20


def number_blocks(stream: IO[bytes], *, columns: int, dtype: Any, path: object = None) -> Iterator[Array]:
    """Consecutive blocks ``[rows, columns]`` of a table of numbers separated by commas, tabs or blanks.

    Lines that begin with ``#`` may come first. Something that is not a number, or a line with another number of
    columns, is an error with its line.
    """
    line, rest = 0, b""
    while True:
        block = stream.read(BLOCK_BYTES)
        text = rest + block
        cut = text.rfind(b"\n") + 1 if block else len(text)
        text, rest = text[:cut], text[cut:]
        check_size(len(rest), "a line", "LINE")
        while text.startswith(b"#"):
            line += 1
            text = text.partition(b"\n")[2]
        if text.strip():
            rows = text.count(b"\n") + (not text.endswith(b"\n"))
            yield _parse(text, rows, columns, dtype, path, line)
            line += rows
        if not block:
            return


def _parse(text: bytes, rows: int, columns: int, dtype: Any, path: object, line: int) -> Array:
    plain = text.translate(_TO_BLANK)
    gaps = any(gap in text for gap in (b",,", b",\n", b"\n,", b",\r"))
    try:
        # One pass of C over the block. Older numpy only warns of what is no number, and then returns fewer values.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            values = np.fromstring(plain, dtype=dtype, sep=" ")
    except ValueError:
        gaps = True
    if gaps or not plain.isascii() or values.size != rows * columns:
        _refuse(text, columns, dtype, path, line)
    return values.reshape(rows, columns)


_TO_BLANK = bytes.maketrans(b",\t;\r\n", b"     ")


def _refuse(text: bytes, columns: int, dtype: Any, path: object, line: int) -> NoReturn:
    for number, row in enumerate(text.splitlines(), start=line + 1):
        fields = row.split(b",") if b"," in row else row.translate(_TO_BLANK).split()
        for column, field in enumerate(fields, start=1):
            try:
                np.dtype(dtype).type(field.decode().strip())
            except (ValueError, OverflowError):
                raise DataError(
                    f"expected a number, got {field.decode(errors='replace')!r}", path=path, line=number, column=column
                ) from None
        if len(fields) != columns:
            raise DataError(f"expected {columns} numbers, got {len(fields)}", path=path, line=number)
    raise DataError(f"expected lines of {columns} numbers from line {line + 1} on", path=path)
