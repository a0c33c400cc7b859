"""Files of a run folder: errors that say what to do, lines that are whole, and one process at a time."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from difformer.atomic import write_whole
from difformer.training.record import Row

try:
    import fcntl
except ImportError:  # Windows has none; there nobody is kept from starting a run twice
    fcntl = None  # type: ignore[assignment]


class RunFolderError(OSError):
    """A run folder that cannot be made, written, read or resumed; the message says why and what to do."""


_ADVICE = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "your quota is used up; make room",
    errno.ENOENT: "there can be no file or folder at that place; choose another",
    errno.EROFS: "the place is read-only; choose another folder",
    errno.EACCES: "you may not write there; choose another folder, or change its permissions",
    errno.EPERM: "you may not write there; choose another folder, or change its permissions",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
    errno.EEXIST: "a part of the path is a file, not a folder; choose another folder",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever keeps `path` from being written becomes a `RunFolderError`; what was there before stays as it was."""
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "see to it that it can be written")
        if "choose another" not in advice and _within_a_run(path):
            advice += ", then continue with resume"
        said = error.strerror or str(error)
        raise RunFolderError(f"{path} cannot be written ({said}): {advice}. Nothing was overwritten.") from error


def _within_a_run(path: Path) -> bool:
    """Whether there is a run to continue; no where a folder may not even be looked into."""
    return any(os.path.isfile(place / "config.toml") for place in (path, *path.parents))


def write_bytes(path: Path, content: bytes) -> None:
    """A whole file or none of it."""
    with writing(path):
        write_whole(path, content)


def write_json(path: Path, document: Any) -> None:
    """A JSON file; NaN and infinities, which JSON does not have, are null."""
    write_bytes(path, (json.dumps(finite(document), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """What `write_json` wrote.

    Raises:
        RunFolderError: If the file is absent or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error


def finite(value: Any) -> Any:
    """The same with null for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


class MetricsFile:
    """``metrics.jsonl``: one line an epoch and seed. A line is written in one go, and taken back if it does not fit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, seed: int, rows: Iterable[Row]) -> None:
        """Adds lines at the end."""
        content = _lines(seed, rows)
        with writing(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                length = os.fstat(descriptor).st_size
                try:
                    written = os.write(descriptor, content)
                    if written < len(content):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    os.ftruncate(descriptor, length)
                    raise
            finally:
                os.close(descriptor)

    def read(self) -> list[Row]:
        """Every whole line; what a killed process left of one is passed over."""
        if not self.path.is_file():
            return []
        rows = []
        for line in self.path.read_bytes().split(b"\n"):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "seed" in row and "epoch" in row:
                rows.append(row)
        return rows

    def rewrite(self, keep: Callable[[Row], bool], seed: int, rows: Iterable[Row]) -> None:
        """Keeps some lines and puts those of a seed after them, as a new file."""
        kept = [row for row in self.read() if keep(row)]
        content = b"".join(_lines(row["seed"], [row]) for row in kept) + _lines(seed, rows)
        write_bytes(self.path, content)


def _lines(seed: int, rows: Iterable[Row]) -> bytes:
    return "".join(f"{json.dumps(finite({'seed': seed} | row))}\n" for row in rows).encode()


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run folder; the system lets go of it if this one is killed.

    Raises:
        RunFolderError: If another process is at work there.
    """
    if fcntl is None:
        yield
        return
    path = folder / ".lock"
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{folder} is being written by another process; wait until it has ended") from None
        yield
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Removes what killed processes left half-written beside the files they would have become."""
    for left in folder.rglob(".*.part"):
        left.unlink(missing_ok=True)


def file_mask() -> int:
    """Permissions that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
