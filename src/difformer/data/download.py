"""Finding files: in `root`, then in `$DIFFORMER_DATA`, then in the cache; otherwise they are downloaded into the cache.

The three folders have one layout, that of ``catalogue.toml``. The first two may be read-only: nothing is written there.
`$DIFFORMER_CACHE` moves the cache; `$DIFFORMER_OFFLINE=1` forbids downloads.

A download arrives whole and checked (length, first bytes, checksum), or leaves nothing behind. Where a source publishes
no checksum, the file must at least end as its format ends, and the checksum of the first download is kept in
`<file>.sha256` beside it. A file in the cache is compared with its checksum at every load.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from difformer.data.catalogue import BUILT_IN, ENTRIES, FORMS, JSON, OWN, ZIP, Entry, RemoteFile, installed
from difformer.errors import DAMAGE, DataError
from difformer.files import atomic_write, write_whole
from difformer.files import cache_folder as cache_folder

CHUNK = 1 << 20
TIMEOUT_S = 60.0
ATTEMPTS = 3


@dataclass(frozen=True)
class Found:
    """Files of one form of a data set, on disk, in the form's order."""

    name: str
    form: str
    paths: tuple[Path, ...]
    files: tuple[RemoteFile, ...] = ()  # what was published of each of them

    @property
    def path(self) -> Path:
        return self.paths[0]


def folders(root: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders that are searched, in order; absent ones are left out."""
    given = (root, os.environ.get("DIFFORMER_DATA"), cache_folder())
    return tuple(path for folder in given if folder and (path := Path(folder).expanduser()).is_dir())


def check_folders(root: str | os.PathLike[str] | None = None) -> None:
    """Refuses a `root` or a `$DIFFORMER_DATA` that is not a folder."""
    for given, label in ((root, "root"), (os.environ.get("DIFFORMER_DATA") or None, "$DIFFORMER_DATA")):
        if given is not None and not Path(given).expanduser().is_dir():
            raise DataError(f"{label} must be a folder with data sets, but {os.fspath(given)!r} is not a folder")


def find(name: str, root: str | os.PathLike[str] | None = None, *, forms: Sequence[str] | None = None) -> Found | None:
    """The first complete form of a data set in the first folder that has one, or None. Downloads nothing."""
    for folder in folders(root):
        for form in FORMS[name]:
            found = Found(name, form.name, tuple(folder / file.path for file in form.files), form.files)
            if (forms is None or form.name in forms) and all(path.is_file() for path in found.paths):
                return found
    return None


def find_file(path: str, root: str | os.PathLike[str] | None = None) -> Path | None:
    """A single file by its place in the layout, or None."""
    return next((folder / path for folder in folders(root) if (folder / path).is_file()), None)


@dataclass(frozen=True)
class Listing:
    """An entry, and where its files are."""

    entry: Entry
    place: str | None  # folder; "built in" or "your own" if no files are needed; None if they would be downloaded
    lacks: str | None = None  # a file that `load` needs by default and cannot download: learned features of images

    @property
    def on_disk(self) -> bool:
        return self.place is not None


def list_datasets(root: str | os.PathLike[str] | None = None) -> tuple[Listing, ...]:
    """Every data set, and where its files are; `root` is searched first, as in `load`. Downloads nothing."""
    return tuple(listing(one, root) for one in (*ENTRIES.values(), *installed().values()))


def listing(one: Entry, root: str | os.PathLike[str] | None = None) -> Listing:
    """A data set, and where its files are."""
    place: str | None = OWN if one.licence == OWN else BUILT_IN
    if one.forms:
        place = str(found.path.parent) if (found := find(one.name, root)) else None
    lacks = one.learned if one.learned is not None and find_file(one.learned, root) is None else None
    return Listing(one, place, lacks)


def locate(name: str, root: str | os.PathLike[str] | None = None) -> Found:
    """Files of a data set, downloaded if they are in no folder.

    Raises:
        DataError: If a folder does not exist, a kept file has changed, or there is nothing to download.
        DownloadError: If the download fails; the message says what to fetch by hand and where to put it.
    """
    check_folders(root)
    cache = cache_folder()
    found = find(name, root)
    if found is None:
        remote = next((form for form in FORMS[name] if form.downloadable), None)
        if remote is None:
            folder = Path(root or os.environ.get("DIFFORMER_DATA") or cache).expanduser()
            absent = ([file.path for file in form.files if not (folder / file.path).is_file()] for form in FORMS[name])
            wanted = " or ".join(map(" + ".join, absent))
            raise DataError(f"data set {name!r} is not on disk and cannot be downloaded: put {wanted} into {folder}")
        paths = (find_file(file.path, root) or cache / file.path for file in remote.files)
        found = Found(name, remote.name, tuple(paths), remote.files)
        missing = [(file, path) for path, file in zip(found.paths, found.files, strict=True) if not path.is_file()]
        for number, (file, path) in enumerate(missing):
            fetch(file, path, data_set=name, others=[other.name for other, _ in missing[number + 1 :]])
    for path, file in zip(found.paths, found.files, strict=True):
        if path.is_relative_to(cache):
            check_kept(path, file.checksum, data_set=name)
    return found


@contextmanager
def reading(found: Found) -> Iterator[None]:
    """Errors that a damaged file causes become a `DataError` that names the data set, the file and the remedy.

    A ValueError or LookupError of other code means damage only where a file differs from the published one; otherwise
    it is a bug, and passes through with its traceback as TypeError, AttributeError and the like do.
    """
    try:
        yield
    except (MemoryError, *DAMAGE, ValueError, LookupError) as error:
        if not isinstance(error, (MemoryError, *DAMAGE)) and _altered(found) is None:
            raise
        url = next((form.files[0].url for form in FORMS[found.name] if form.downloadable), None)
        way_out = "delete the file and load again, or put a good copy in its place"
        way_out += "" if url is None else f"; its official source is {url}"
        # The file at fault: the only one, or the first that is not what was published; else the folder.
        path = found.path if len(found.paths) == 1 else _altered(found) or found.path.parent
        if isinstance(error, DataError):
            problem = f"{error.problem} (data set {found.name!r}: {way_out})"
            raise DataError(problem, path=error.path or path, **error.place) from error
        problem = f"needs more memory than there is ({error}), or the file is damaged"
        if not isinstance(error, MemoryError):
            reason = f"{type(error).__name__}: {error}"
            problem = f"cannot be read ({reason}); the file is cut short, or not what its name says"
        raise DataError(f"data set {found.name!r} {problem}: {way_out}", path=path) from error


def _altered(found: Found) -> Path | None:
    """The first file whose checksum differs from the published one; None if all agree or none was published."""
    files = zip(found.paths, found.files, strict=True)
    return next((path for path, file in files if file.checksum and not has_checksum(path, file.checksum)), None)


class DownloadError(DataError):
    """A file that could not be downloaded; `others` beside it under the same address are missing, too."""

    def __init__(self, data_set: str, file: RemoteFile, target: Path, reason: str, others: Sequence[str] = ()) -> None:
        what, place = "that address by hand and put the file", f"as {target.name}, or keep it as {file.path}"
        if others:
            what = f"all {1 + len(others)} missing files from there, {', '.join([file.name, *others])}, and put them"
            place = f"or into {file.path.rpartition('/')[0]}"
        failed = f"{file.name} could not be downloaded from {file.url}: {reason}. Nothing was written"
        absent = f"not all of its files are in {' or '.join(map(str, folders()))}, and " if folders() else ""
        how = f"Fetch {what} into {target.parent} {place} in a folder that $DIFFORMER_DATA names"
        super().__init__(f"data set {data_set!r}: {absent}{failed}. {how}")


class _BadDownloadError(Exception):
    """The transfer ended with other bytes than announced."""


def fetch(file: RemoteFile, target: Path, *, data_set: str, others: Sequence[str] = ()) -> None:
    """Downloads one file to `target`, or raises a DownloadError after the last attempt and writes nothing."""
    if os.environ.get("DIFFORMER_OFFLINE", "") not in ("", "0"):
        raise DownloadError(data_set, file, target, "downloads are forbidden by $DIFFORMER_OFFLINE", others)
    for _ in range(ATTEMPTS):
        try:
            return _transfer(file, target)
        except urllib.error.HTTPError as error:
            reason = f"the server answered {error.code} {error.reason}"
            if error.code < 500:
                break
        except urllib.error.URLError as error:  # no answer: another attempt would fail, too
            reason = f"no connection ({error.reason})"
            break
        except (http.client.HTTPException, OSError, _BadDownloadError) as error:
            reason = str(error) or type(error).__name__
    # A server's answer may hold line breaks and control characters.
    said = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    raise DownloadError(data_set, file, target, said, others)


def check_kept(path: Path, checksum: str | None, *, data_set: str) -> None:
    """Raises a DataError if a kept file differs from its published checksum, or else from the recorded one."""
    record, problem = _record(path), "the file is not the published one: its checksum differs"
    if checksum is None and record.is_file():
        checksum = f"sha256:{record.read_text(errors='replace').partition(' ')[0].lower()}"
        problem = f"the file has changed since it was downloaded, or {record.name} beside it has"
    if checksum is not None and not has_checksum(path, checksum):
        raise DataError(f"data set {data_set!r}: {problem}; delete it and load again", path=path)


def has_checksum(path: Path, checksum: str) -> bool:
    """Whether a file has the checksum ``"sha256:…"`` or ``"md5:…"``."""
    algorithm, _, expected = checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == expected


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _transfer(file: RemoteFile, target: Path) -> None:
    """One attempt, with a bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import wrap_file

    console = Console(stderr=True)
    bar: Any = {"description": file.name, "console": console, "transient": True, "disable": not console.is_terminal}
    algorithm, _, expected = (file.checksum or "sha256:").partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    request = urllib.request.Request(file.url or "", headers={"User-Agent": "difformer"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        announced = response.headers.get("Content-Length")
        total = int(announced) if announced and announced.isdecimal() else None
        with atomic_write(target) as stream, wrap_file(response, total or 0, **bar) as body:
            arrived = 0
            while chunk := body.read(CHUNK):
                if arrived == 0 and file.magic is not None and not chunk.startswith(file.magic):
                    raise _BadDownloadError(f"the answer begins with {chunk[:16]!r}; it may be an error page")
                stream.write(chunk)
                digest.update(chunk)
                arrived += len(chunk)
            if arrived == 0:
                raise _BadDownloadError("the server sent an empty file")
            if total is not None and arrived != total:
                raise _BadDownloadError(f"the transfer ended after {arrived} of {total} bytes")
            if expected and digest.hexdigest() != expected:
                raise _BadDownloadError(f"{algorithm} is {digest.hexdigest()}, not {expected} as published")
            if not expected and not _ends_well(stream, file.magic):
                raise _BadDownloadError(f"the {arrived} bytes received have no proper end; they are cut short")
    if not expected:
        write_whole(_record(target), f"{digest.hexdigest()}  {target.name}\n".encode())


def _ends_well(stream: BinaryIO, magic: bytes | None) -> bool:
    """Whether a file without a checksum is complete, as far as its format shows that."""
    if magic == ZIP:  # its table of contents comes last
        return zipfile.is_zipfile(stream)
    if magic == JSON:
        stream.seek(max(0, stream.tell() - 64))
        return stream.read().rstrip().endswith(b"}")
    return True
