"""Finding files: `root`, then `$DIFFORMER_DATA`, then the cache; what is nowhere is downloaded into the cache.

The three folders have one layout, that of ``catalogue.toml``. The first two may be read-only: nothing is written there.
`$DIFFORMER_CACHE` moves the cache; `$DIFFORMER_OFFLINE=1` forbids downloads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from difformer.data.catalogue import BUILT_IN, ENTRIES, FORMS, OWN, Entry, Form, installed
from difformer.data.download import DownloadError, check_kept, fetch, has_checksum
from difformer.data.errors import DAMAGE, DataError
from difformer.files import cache_folder as cache_folder


@dataclass(frozen=True)
class Found:
    """Files of one form of a data set, on disk, in the form's order."""

    name: str
    form: str
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        return self.paths[0]

    def __getitem__(self, file_name: str) -> Path:
        return next(path for path in self.paths if path.name == file_name)


def folders(root: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders that are searched, in order; absent ones are left out."""
    chosen = [
        Path(folder).expanduser() for folder in (root, os.environ.get("DIFFORMER_DATA"), cache_folder()) if folder
    ]
    return tuple(path for path in chosen if path.is_dir())


def check_folders(root: str | os.PathLike[str] | None = None) -> None:
    """Refuse a `root` or a `$DIFFORMER_DATA` that is not a folder."""
    for given, label in ((root, "root"), (os.environ.get("DIFFORMER_DATA") or None, "$DIFFORMER_DATA")):
        if given is not None and not Path(given).expanduser().is_dir():
            raise DataError(f"{label} must be a folder with data sets, but {os.fspath(given)!r} is not a folder")


def find(name: str, root: str | os.PathLike[str] | None = None, *, forms: Sequence[str] | None = None) -> Found | None:
    """The first complete form of a data set in the first folder that has one, or None. Downloads nothing."""
    for folder in folders(root):
        for form in _forms(name, forms):
            paths = tuple(folder / file.path for file in form.files)
            if all(path.is_file() for path in paths):
                return Found(name, form.name, paths)
    return None


def find_file(path: str, root: str | os.PathLike[str] | None = None) -> Path | None:
    """A single file by its place in the layout, or None."""
    return next((folder / path for folder in folders(root) if (folder / path).is_file()), None)


@dataclass(frozen=True)
class Listing:
    """An entry, and where its files are."""

    entry: Entry
    place: (
        str | None
    )  # folder of its files, "built in" or "your own" for what needs none, None where it would be downloaded
    lacks: str | None = None  # a file that `load` needs by default and cannot download: learned features of images

    @property
    def on_disk(self) -> bool:
        return self.place is not None


def list_datasets(root: str | os.PathLike[str] | None = None) -> tuple[Listing, ...]:
    """Every data set, and where its files are; what `difformer datasets` shows. Reads and downloads nothing.

    Args:
        root: Folder to search first, as in `load`.
    """
    return tuple(listing(one, root) for one in (*ENTRIES.values(), *installed().values()))


def listing(one: Entry, root: str | os.PathLike[str] | None = None) -> Listing:
    """A data set, and where its files are."""
    found = find(one.name, root) if one.forms else None
    without = OWN if one.licence == OWN else BUILT_IN
    place = without if not one.forms else None if found is None else str(found.path.parent)
    lacks = one.learned if one.learned is not None and find_file(one.learned, root) is None else None
    return Listing(one, place, lacks)


def locate(name: str, root: str | os.PathLike[str] | None = None, *, forms: Sequence[str] | None = None) -> Found:
    """Files of a data set, downloaded if they are in no folder; `forms` names those that will do, in order.

    Raises:
        DataError: If a folder does not exist, a kept file has changed, or there is nothing to download.
        DownloadError: If the download fails; the message says what to fetch by hand and where to put it.
    """
    check_folders(root)
    cache = cache_folder()
    if found := find(name, root, forms=forms):
        form = next(form for form in _forms(name, forms) if form.name == found.form)
        for path, file in zip(found.paths, form.files, strict=True):
            if path.is_relative_to(cache):
                check_kept(path, file.checksum, data_set=name)
        return found
    remote = next((form for form in _forms(name, forms) if form.downloadable), None)
    if remote is None:
        wanted = " or ".join(" + ".join(file.path for file in form.files) for form in _forms(name, forms))
        folder = os.fspath(root or os.environ.get("DIFFORMER_DATA") or cache)
        raise DataError(f"data set {name!r} is not on disk and cannot be downloaded: put {wanted} into {folder}")
    for file in remote.files:
        target = cache / file.path
        if target.is_file():
            check_kept(target, file.checksum, data_set=name)
            continue
        if os.environ.get("DIFFORMER_OFFLINE", "") not in ("", "0"):
            raise DownloadError(name, file, target, "downloads are forbidden by $DIFFORMER_OFFLINE")
        fetch(file, target, data_set=name)
    return Found(name, remote.name, tuple(cache / file.path for file in remote.files))


class DataSetError(DataError):
    """A `DataError` that names its data set and says where to get the files anew."""


@contextmanager
def reading(found: Found | Path, *, data_set: str | None = None) -> Iterator[None]:
    """Errors that a damaged file causes become a `DataError` that names the data set, the file and the remedy.

    A ValueError or LookupError of other code means damage only where a file differs from the published one; otherwise
    it is a fault of the program, and passes through with its traceback as TypeError, AttributeError and the like do.
    """
    paths = found.paths if isinstance(found, Found) else (found,)
    name = found.name if isinstance(found, Found) else data_set
    try:
        yield
    except DataSetError:
        raise
    except (MemoryError, *DAMAGE, ValueError, LookupError) as error:
        if not isinstance(error, (MemoryError, *DAMAGE)) and _altered(paths) is None:
            raise
        url = next((form.files[0].url for form in FORMS.get(name or "", ()) if form.downloadable), None)
        way_out = "delete the file and load again, or put a good copy in its place"
        way_out += "" if url is None else f"; its official source is {url}"
        # The file at fault: the only one, or the first that is not what was published; else the folder.
        path = paths[0] if len(paths) == 1 else _altered(paths) or paths[0].parent
        if isinstance(error, DataError):
            place = {"line": error.line, "row": error.row, "column": error.column}
            problem = f"{error.problem} (data set {name!r}: {way_out})"
            raise DataSetError(problem, path=error.path or path, **place) from error  # type: ignore[arg-type]
        problem = f"cannot be read from here ({type(error).__name__}: {error}); the file is cut short, or not what its "
        problem += f"name says: {way_out}"
        if isinstance(error, MemoryError):
            problem = f"needs more memory than there is ({error}), or the file is damaged: {way_out}"
        raise DataSetError(f"data set {name!r} {problem}", path=path) from error


def _altered(paths: Sequence[Path]) -> Path | None:
    """The first file whose checksum differs from the published one; None if all agree or none was published."""
    known = {file.path: file.checksum for forms in FORMS.values() for form in forms for file in form.files}
    for path in paths:
        checksum = next((known[place] for place in known if path.as_posix().endswith(f"/{place}")), None)
        if checksum is not None and not has_checksum(path, checksum):
            return path
    return None


def _forms(name: str, forms: Sequence[str] | None) -> tuple[Form, ...]:
    by_name = {form.name: form for form in FORMS[name]}
    return tuple(by_name[form] for form in forms or by_name)
