"""Processed forms: arrays that took long to parse, kept in the cache and never beside their source.

The key of a processed form is everything it depends on: the data set, the version of its reader, the options that
were used, and place, size and time of change of every source file. When one of them changes, the old form is simply
not found; files of one name in two folders are never mixed up.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.archives import read_npz
from difformer.data.errors import DAMAGE
from difformer.data.lookup import Found, cache_folder
from difformer.files import atomic_write

Arrays = dict[str, "np.ndarray[Any, Any]"]


def stored_arrays(
    found: Found, read: Callable[[Found], Arrays], *, name: str | None = None, version: int = 1
) -> Arrays:
    """The arrays of a data set: the file itself in the form ``"arrays"``, otherwise what `read` makes of its files."""
    if found.form == "arrays":
        return read_npz(found.path)
    return processed(name or found.name, lambda: read(found), sources=found.paths, version=version)


def processed(
    name: str,
    build: Callable[[], Arrays],
    *,
    sources: Sequence[Path],
    version: int = 1,
    options: Mapping[str, object] | None = None,
) -> Arrays:
    """The arrays that `build` makes, from the cache if they are there; none may hold Python objects.

    `version` is raised whenever `build` gives something else for the same `sources`; `options` are whatever else
    changes the arrays. If the cache cannot be written, a warning says so and nothing is kept.
    """
    path = cache_folder() / "processed" / f"{name}-{_key(name, sources, version, options)}.npz"
    if path.is_file():
        try:
            return read_npz(path)
        except DAMAGE as error:  # what it was made from is still there
            warnings.warn(f"{path} cannot be read ({error}) and is made anew", stacklevel=2)
    arrays = build()
    try:
        with atomic_write(path) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(
            f"the processed form of {name!r} cannot be kept ({error}) and will be made anew next time; "
            f"set DIFFORMER_CACHE to a folder that can be written",
            stacklevel=2,
        )
    return arrays


def _key(name: str, sources: Sequence[Path], version: int, options: Mapping[str, object] | None) -> str:
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    text = json.dumps([name, version, dict(options or {}), stats], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
