"""Downloads that either arrive whole and checked, or leave nothing behind.

Bytes go to a temporary file beside the target; length, first bytes and checksum are compared; only then does the file
get its name. Where a source publishes no checksum, the file must at least end as its kind ends, and the checksum of the
first download is kept in `<file>.sha256` beside it. A file in the cache is compared with its checksum at every load.
"""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from difformer.data.catalogue import JSON, ZIP, RemoteFile
from difformer.data.errors import DataError
from difformer.files import atomic_write, write_whole

CHUNK = 1 << 20
TIMEOUT_S = 60.0
ATTEMPTS = 3


class DownloadError(DataError):
    """A file that could not be downloaded."""

    def __init__(self, data_set: str, file: RemoteFile, target: Path, reason: str) -> None:
        self.data_set, self.url, self.target, self.reason = data_set, file.url, target, reason
        super().__init__(
            f"data set {data_set!r}: {file.name} could not be downloaded from {file.url}: {reason}. "
            f"Nothing was written. Fetch that address by hand and put the file into {target.parent} as {target.name}, "
            f"or keep it as {file.path} in a folder that $DIFFORMER_DATA names"
        )


class _BadDownloadError(Exception):
    """The transfer ended, but with other bytes than promised."""


def fetch(file: RemoteFile, target: Path, *, data_set: str) -> Path:
    """Download one file to `target`, whose folder is made if it is absent.

    Raises:
        DownloadError: After the last attempt, with nothing under the target's name.
    """
    reason = ""
    for _ in range(ATTEMPTS):
        again = False
        try:
            _transfer(file, target)
            return target
        except urllib.error.HTTPError as error:
            reason, again = f"the server answered {error.code} {error.reason}", error.code >= 500
        except urllib.error.URLError as error:  # no answer: another attempt would fail, too
            reason = f"no connection ({error.reason})"
        except (http.client.HTTPException, ConnectionError, TimeoutError, _BadDownloadError) as error:
            reason, again = str(error) or type(error).__name__, True
        except OSError as error:
            reason = str(error)
        if not again:
            break
    # What a server answers may hold line breaks and worse.
    said = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    raise DownloadError(data_set, file, target, said)


def check_kept(path: Path, checksum: str | None, *, data_set: str) -> None:
    """Compare every byte of a kept file with its published checksum, or with the recorded one if none was published.

    Files with neither pass.

    Raises:
        DataError: If the file has changed since it was downloaded.
    """
    record, problem = _record(path), ""
    if checksum is not None:
        problem = "" if has_checksum(path, checksum) else "the file is not the published one: its checksum differs"
    elif record.is_file():
        words = record.read_text(errors="replace").split() or [""]
        found = path.stat().st_size
        if words[-1].isdecimal() and len(words) > 1 and found != int(words[-1]):  # `sha256sum` writes no size
            problem = f"the file has {found} bytes, but {words[-1]} were downloaded"
        elif len(words[0]) != 64:
            problem = f"{record.name} beside the file is not the checksum that was kept of it"
        elif not has_checksum(path, f"sha256:{words[0].lower()}"):
            problem = "the file has changed since it was downloaded"
    if problem:
        raise DataError(f"data set {data_set!r}: {problem}; delete it and load again", path=path)


def has_checksum(path: Path, checksum: str) -> bool:
    """Whether a file's bytes are those that ``"sha256:…"`` or ``"md5:…"`` was taken of."""
    algorithm, _, expected = checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == expected


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _transfer(file: RemoteFile, target: Path) -> None:
    """One attempt."""
    algorithm, _, expected = (file.checksum or "sha256:").partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    request = urllib.request.Request(file.url or "", headers={"User-Agent": "difformer"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        announced = response.headers.get("Content-Length")
        total = int(announced) if announced and announced.isdecimal() else None
        with atomic_write(target) as stream, _progress(file.name, total) as advance:
            arrived = 0
            while chunk := response.read(CHUNK):
                if arrived == 0 and file.magic is not None and not chunk.startswith(file.magic):
                    raise _BadDownloadError(
                        f"what came does not begin like the file wanted (but with {chunk[:16]!r}); "
                        f"it may be an error page"
                    )
                stream.write(chunk)
                digest.update(chunk)
                arrived += len(chunk)
                advance(len(chunk))
            if arrived == 0:
                raise _BadDownloadError("the server sent an empty file")
            if total is not None and arrived != total:
                raise _BadDownloadError(f"the transfer ended after {arrived} of {total} bytes")
            if file.size is not None and arrived != file.size:
                raise _BadDownloadError(f"{arrived} bytes came where {file.size} are expected")
            if expected and digest.hexdigest() != expected:
                raise _BadDownloadError(f"{algorithm} is {digest.hexdigest()} where {expected} is expected")
            if not expected and not _ends_well(stream, file.magic):
                raise _BadDownloadError(f"what came, {arrived} bytes, has no proper end; it is cut short")
    if not expected:
        write_whole(_record(target), f"{digest.hexdigest()}  {target.name}  {arrived}\n".encode())


def _ends_well(stream: BinaryIO, magic: bytes | None) -> bool:
    """Whether a file without a checksum is complete, as far as its kind shows that."""
    if magic == ZIP:  # its table of contents comes last
        return zipfile.is_zipfile(stream)
    if magic == JSON:
        stream.seek(max(0, stream.tell() - 64))
        return stream.read().rstrip().endswith(b"}")
    return True


@contextmanager
def _progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda arrived: progress.update(task, advance=arrived)
