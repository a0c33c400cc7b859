"""Files on disk: whole or absent, written with errors that say what to do, and by one process at a time.

Every file that the package writes goes through `atomic_write`: it is written to a temporary file, flushed to disk,
then renamed. A killed process leaves at most ``.<name>.<random>.part``, never a half-written file under its own name.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import filelock

_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)  # the last: Windows would translate line ends
LARGEST_TEXT = 64 * 2**20  # bytes of a JSON or TOML file; ours are far smaller
LOCK = ".lock"
# Control characters (but for tab and newline), C1 controls, and marks that reverse the direction of text: a terminal
# acts on them, and names and labels come from files of others.
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class RunFolderError(OSError):
    """A folder that cannot be made, written, read or resumed; the message says why and what to do."""


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` for writing; it replaces `path` when the block ends without an error.

    If the block raises, or the process dies, `path` is as it was before. A missing folder is created.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    descriptor = os.open(temporary, _NEW, 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that fits in memory, whole or not at all."""
    with atomic_write(path) as stream:
        stream.write(content)


_ADVICE = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "your quota is used up; make room",
    errno.ENOENT: "no file or folder can be created at that path; choose another",
    errno.EROFS: "the place is read-only; choose another folder",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "no write permission; choose another folder, or change it"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a part of the path is a file; choose another folder"),
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises a `RunFolderError` with advice if `path` cannot be written; earlier content stays as it was.

    Below a folder that this process has locked (`only_one`), it is also checked that the lock still holds.
    """
    for folder in (path, *path.parents):
        if folder in _held and _lock_file(folder) != _held[folder]:
            problem = f"{folder / LOCK} was removed or replaced while this process was writing to the folder"
            advice = "another process may be writing there too; make sure that none is, then continue with resume"
            raise RunFolderError(f"{problem}; {advice}")
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "make it writable")
        in_a_run = any(os.path.isfile(place / "config.toml") for place in (path, *path.parents))
        if "choose another" not in advice and in_a_run:
            advice += ", then continue with resume"
        said = error.strerror or str(error)
        raise RunFolderError(f"{path} cannot be written ({said}): {advice}. Nothing was overwritten.") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or none of it, with errors as `writing` gives them."""
    with writing(path):
        write_whole(path, content)


def append_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Add whole lines to a file in one write, and take them back if they do not fit on the disk.

    A line that a killed process left unfinished is cut off first. If `durable`, the lines are on disk at the end.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            length = os.fstat(descriptor).st_size
            os.lseek(descriptor, max(0, length - 1), os.SEEK_SET)
            if os.read(descriptor, 1) not in (b"\n", b""):
                length = path.read_bytes().rfind(b"\n") + 1
                os.ftruncate(descriptor, length)
            try:
                if os.write(descriptor, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if durable:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, length)
                raise
        finally:
            os.close(descriptor)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file; NaN and infinities, which JSON does not have, become null."""
    write_bytes(path, (json.dumps(finite(document), indent=2, ensure_ascii=False) + "\n").encode())


def printable(text: str) -> str:
    """Text with control characters written out (``\\x1b``), so that a name cannot move the cursor or hide a line."""
    return UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as comma-separated text; control characters in names are written out, as by `printable`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return printable(text.getvalue())


def read_text(path: Path, largest: int = LARGEST_TEXT) -> str:
    """A small text file.

    Raises:
        RunFolderError: If it is absent, unreadable, not UTF-8, or implausibly large.
    """
    try:
        if (size := path.stat().st_size) > largest:
            raise RunFolderError(f"{path} has {size:,} bytes, where at most {largest:,} are expected; restore the file")
        return path.read_text(encoding="utf-8")
    except RunFolderError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        RunFolderError: If the file is absent or damaged.
    """
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}; restore the file") from error


def finite(value: Any) -> Any:
    """The same value with null for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


_held: dict[Path, tuple[int, int]] = {}  # folders that this process has locked, with their `_lock_file`


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder; the system releases the lock if this process is killed.

    Raises:
        RunFolderError: If another process is at work there.
    """
    lock = filelock.FileLock(folder / LOCK)
    if (folder / LOCK).is_symlink():
        raise RunFolderError(f"{folder / LOCK} is a symbolic link, where a lock is an empty file; delete it")
    with writing(folder / LOCK):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise RunFolderError(f"{folder} is being written by another process; wait until it has ended") from None
    try:
        if (held := _lock_file(folder)) is None:
            raise RunFolderError(f"{folder / LOCK} was removed at once; make sure that no other process works there")
        _held[folder] = held
        yield
    finally:
        _held.pop(folder, None)
        lock.release()


def _lock_file(folder: Path) -> tuple[int, int] | None:
    """Device and inode of the lock file, or None if it does not exist."""
    try:
        found = (folder / LOCK).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def within(folder: Path, path: Path) -> Path:
    """`path`, after a check that it lies in `folder` even when symbolic links are followed.

    Raises:
        RunFolderError: If a link leads out of the folder.
    """
    inside = os.path.realpath(folder)
    if os.path.commonpath([inside, real := os.path.realpath(path)]) != inside:
        problem = f"{path} leads out of the run folder through a symbolic link, to {real}"
        raise RunFolderError(f"{problem}; replace the link by the file")
    return path


def sweep(folder: Path) -> None:
    """Removes what killed processes left half-written beside the files they would have become."""
    for base, _, names in os.walk(folder):  # which does not follow links
        for name in names:
            if name.startswith(".") and name.endswith(".part"):
                Path(base, name).unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which appears at `path` with everything in it when the block ends, or not at all.

    An empty folder at that place is replaced.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    new.mkdir(parents=True)
    try:
        yield new
        for file in new.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        if path.is_dir():
            path.rmdir()
        os.replace(new, path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def cache_folder() -> Path:
    """Where the package keeps what it can compute or fetch again: `$DIFFORMER_CACHE` or ``~/.cache/difformer``."""
    if chosen := os.environ.get("DIFFORMER_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "difformer"
