"""Errors that users can fix. Does not import torch: the command line handles errors before torch is loaded.

The command line shows the message of a `UserError` as one sentence. Any other `ValueError` is a bug of the package and
keeps its traceback.
"""

from __future__ import annotations

import difflib
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from json import JSONDecodeError
from types import ModuleType
from typing import Any


class UserError(ValueError):
    """A request or input that cannot be used as it is.

    Args:
        message: What was given, what was expected and what to do. It names arguments as ``name=value``, without
            quotes, so that it reads the same in Python and on the command line.
        argument: The argument that is wrong, or that solves the problem. The command line adds its own spelling, such
            as ``--data duplicates``.
    """

    def __init__(self, message: str = "", *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


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
        self.place: dict[str, Any] = {"line": line, "row": row, "column": column}
        parts = {"": path, "line ": line, "row ": row, "column ": repr(column) if isinstance(column, str) else column}
        place = ", ".join(f"{word}{value}" for word, value in parts.items() if value is not None)
        super().__init__(f"{place}: {problem}" if place else problem, argument=argument)


@contextmanager
def in_file(path: object) -> Iterator[None]:
    """Adds `path` to errors that name no file, unless it is None."""
    try:
        yield
    except DataError as error:
        if path is None or error.path is not None:
            raise
        raise DataError(error.problem, path=path, **error.place, argument=error.argument) from error


# What decoders raise on a damaged file. TypeError, KeyError, a plain ValueError and the like may be bugs, and must not
# be reported as a damaged file.
_OF_ARCHIVES = (struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
_OF_TEXT = (UnicodeError, JSONDecodeError, OverflowError, RecursionError)  # the last: JSON that is nested too deeply
DAMAGE = (OSError, EOFError, UserError, NotImplementedError, *_OF_TEXT, *_OF_ARCHIVES)


class WouldNotFitError(MemoryError):
    """A model needs more memory than is free; raised before any work is done, with advice in the message."""


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. Torch may not be loaded, so its class is known by name; on a CPU it has none."""
    on_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or on_cpu


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that was likely meant, or None.

    It is close to `word`, begins with it, has a word of its own that is close (``hiden`` for ``hidden_channels``), or
    has these initials (``lr``).
    """
    names = {name.lower(): name for name in known}
    typed = word.lower()
    cutoff = 0.8 if len(typed) > 5 else 0.66  # one wrong letter of a short name
    near = [typed] if typed in names else difflib.get_close_matches(typed, names, n=1, cutoff=cutoff)
    if not near and len(typed) >= 3:
        near = [name for name in names if name.startswith(typed)]
    if not near:
        parts = {part: name for name in reversed(names) for part in name.split("_") if len(part) > 3 and "_" in name}
        near = [parts[part] for part in difflib.get_close_matches(typed, parts, n=1)]
    if not near and len(typed) > 1:
        near = [name for name in names if "".join(part[:1] for part in name.split("_")) == typed]
    return names[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"did you mean cora? "`` where `nearest` finds a name; otherwise nothing."""
    found = nearest(word, known)
    return "" if found is None else f"did you mean {found}? "


def or_near(word: str, known: Iterable[str]) -> str:
    """What follows ``"unknown model 'gccn'"``: ``"; did you mean 'gcn'?"``, or a full stop if no name is near."""
    found = nearest(word, known)
    return "." if found is None else f"; did you mean {found!r}?"


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises a UserError that lists the choices if `value` is not one of them."""
    if value not in choices:
        raise UserError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first names in quotes, for messages."""
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")


def counted(number: int, noun: str) -> str:
    """``1 class`` or ``7 classes``, from the plural."""
    return f"{number:,} {noun if number != 1 else {'classes': 'class'}.get(noun, noun.removesuffix('s'))}"


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or raise an error that names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        install = f"run `pip install 'difformer[{extra}]'`"
        raise ImportError(f"{purpose} needs {module}, which is not installed: {install}") from error
