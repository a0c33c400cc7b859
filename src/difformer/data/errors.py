"""The error that broken or contradictory data raises: a command shows its message without a traceback."""

from __future__ import annotations

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from json import JSONDecodeError
from types import ModuleType
from typing import Any

from difformer.errors import UserError

# What decoders raise on a damaged file. TypeError, KeyError, a plain ValueError and the like may be bugs, and must not
# be reported as a damaged file.
DAMAGE = (
    OSError,
    EOFError,
    UserError,  # of the checks of this package
    UnicodeError,
    JSONDecodeError,
    OverflowError,
    NotImplementedError,
    RecursionError,  # JSON that is nested too deeply
    struct.error,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
)


class DataError(UserError):
    """Data that cannot be used: the message says where, what is there, and what to do.

    Args:
        problem: What is wrong, and what to do about it.
        path: The file, where there is one.
        line: Line in a text file, counted from one.
        row: Row of a table without lines (NPZ, Parquet, arrays), counted from zero.
        column: Name of the column, or its number counted from one.
        argument: The argument that solves the problem, as in `UserError`.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: object = None,
        line: int | None = None,
        row: int | None = None,
        column: str | int | None = None,
        argument: str | None = None,
    ) -> None:
        self.problem, self.path = problem, None if path is None else str(path)
        self.line, self.row, self.column = line, row, column
        shown = repr(column) if isinstance(column, str) else column
        parts = {"": path, "line ": line, "row ": row, "column ": None if column is None else shown}
        place = ", ".join(f"{word}{value}" for word, value in parts.items() if value is not None)
        super().__init__(f"{place}: {problem}" if place else problem, argument=argument)

    def reworded(self, problem: str, *, path: object = None) -> DataError:
        """The same place with another text, in the file `path` where none was named."""
        place: dict[str, Any] = {"line": self.line, "row": self.row, "column": self.column, "argument": self.argument}
        return DataError(problem, path=self.path or path, **place)


@contextmanager
def in_file(path: object) -> Iterator[None]:
    """Errors that name no file name this one, unless it is None."""
    try:
        yield
    except DataError as error:
        if path is None or error.path is not None:
            raise
        raise error.reworded(error.problem, path=path) from error


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first names in quotes, for messages."""
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        install = f"run `pip install 'difformer[{extra}]'`"
        raise ImportError(f"{purpose} needs {module}, which is not installed: {install}") from error
