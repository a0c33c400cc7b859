"""Files that are either whole or absent: written beside their place, flushed to disk, then renamed into it.

Every file that the package writes goes through here. What a killed process leaves is called ``.<name>.<random>.part``
and never stands under a file's own name.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)  # the last: Windows would translate line ends


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` for writing; it takes the place of `path` when the block ends well.

    If the block raises, or the process dies, `path` is as it was before. The folder is made where it is absent. The
    file gets the permissions that any new file of this process gets.
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
