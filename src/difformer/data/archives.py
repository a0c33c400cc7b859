"""Arrays and members of archives, read within limits: a small file cannot ask for all the memory of the machine.

Every size that a file announces is compared with what the file holds before memory is allocated, and what it holds is
compared with a limit. An environment variable raises a limit:

    DIFFORMER_MAX_MEMBER    bytes of one array, or of one member of an archive, once it is unpacked
    DIFFORMER_MAX_LINE      characters of one line of a text file
    DIFFORMER_MAX_COLUMNS   columns of a table
"""

from __future__ import annotations

import math
import os
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.lib import format as npy

from difformer.data.errors import DataError
from difformer.errors import UserError

Array = np.ndarray[Any, Any]

PACKED, RATIO = 1 << 30, 200  # bytes that may be unpacked to more than this many times the size of their archive
LIMITS = {"MEMBER": 16 << 30, "LINE": 64 << 20, "COLUMNS": 1 << 20}


def limit(kind: str) -> int:
    """The limit on ``"MEMBER"``, ``"LINE"`` or ``"COLUMNS"``, as the environment or `LIMITS` sets it."""
    given = os.environ.get(f"DIFFORMER_MAX_{kind}", "")
    if given and not given.isdecimal():
        raise UserError(f"DIFFORMER_MAX_{kind}: expected a whole number, got {given!r}")
    return int(given) if given else LIMITS[kind]


def check_size(size: int, name: str, kind: str = "MEMBER", packed: int | None = None) -> None:
    """Refuse what is larger than the limit, and say how the limit is raised; `packed` is the size of its archive."""
    most = limit(kind)
    if packed is not None and size > RATIO * packed and most == LIMITS[kind]:
        most = min(most, PACKED)
    if size > most:
        units = {"MEMBER": "bytes", "LINE": "characters", "COLUMNS": "columns"}[kind]
        raise DataError(
            f"{name} has {size:,} {units}, more than the limit of {most:,}; if you trust the file, set "
            f"DIFFORMER_MAX_{kind}={size} to read it"
        )


class Contents(dict[str, Any]):
    """The arrays of a file by name; one that is not there is an error of the file."""

    def __missing__(self, name: str) -> NoReturn:
        raise UserError(f"there is no array {name!r}, only {', '.join(self) or 'an empty file'}")


def read_npz(path: str | os.PathLike[str] | IO[bytes], names: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an NPZ file by name, or those of `names` that it holds.

    Raises:
        DataError: If an array holds Python objects or fields, is larger than the limit, or is not all there.
        zipfile.BadZipFile: If it is not an archive; `difformer.data.errors.DAMAGE` lists what else damage raises.
    """
    arrays, size = Contents(), 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if names is None or key in names:
                one = _checked(info, f"array {key!r}")
                check_size(size := size + info.file_size, f"the archive up to {key!r}", packed=archive.start_dir)
                with archive.open(one) as stream:
                    arrays[key] = _array(stream, info.file_size, key)
    return arrays


def _checked(info: zipfile.ZipInfo, name: str, path: object = None) -> zipfile.ZipInfo:
    check_size(info.file_size, name)
    if info.flag_bits & 1:
        raise DataError(f"{name} is encrypted, which is not supported", path=path)
    return info


def read_npy(path: str | os.PathLike[str]) -> Array:
    """The array of an NPY file; errors as for `read_npz`."""
    size = Path(path).stat().st_size
    check_size(size, "the array")
    with open(path, "rb") as stream:
        return _array(stream, size, Path(path).name)


def _array(stream: IO[bytes], size: int, name: str) -> Array:
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
    except Exception as error:  # numpy hands the header to Python's parser, which has errors of its own
        problem = f"array {name!r} is not in the NPY format 1.0 or 2.0, or its header is damaged ({error})"
        raise UserError(problem) from error
    if dtype.hasobject or dtype.names is not None or dtype.itemsize == 0:
        raise DataError(f"array {name!r} holds Python objects or fields, which are not read; store numbers or texts")
    left = size - stream.tell()
    if math.prod(shape) * dtype.itemsize != left:
        raise DataError(
            f"array {name!r} should hold {math.prod(shape):,} entries of {dtype}, but {left:,} bytes follow"
        )
    content = np.empty(left, dtype=np.uint8)
    filled = 0
    while filled < left:
        count = stream.readinto(content[filled : filled + (1 << 26)].data)  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"array {name!r} ends after {filled} of {left} bytes")
        filled += count
    if not left:
        return np.empty(shape, dtype=dtype)
    return content.view(dtype).reshape(shape, order="F" if fortran else "C")


def read_zip(path: str | os.PathLike[str], names: Iterable[str]) -> dict[str, bytes]:
    """Members of a zip archive by the last part of their name."""
    with zipfile.ZipFile(path) as archive:
        inside = {info.filename.rsplit("/", 1)[-1]: info for info in archive.infolist()}
        members = {}
        for name in names:
            if name not in inside:
                raise DataError(f"the archive holds no {name}", path=path)
            check_size(inside[name].file_size, name, packed=archive.start_dir)
            members[name] = archive.read(_checked(inside[name], name, path))
    return members


def tar_members(path: str | os.PathLike[str], names: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file in a tar archive, in order, or of those whose last name is in `names`."""
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if member.isfile() and (names is None or member.name.rsplit("/", 1)[-1] in names):
                check_size(member.size, member.name)
                stream = archive.extractfile(member)
                if stream is not None:
                    yield member.name, stream.read()


def read_mat(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The variables of a MATLAB file; a `DataError` if scipy cannot read it."""
    from scipy.io import loadmat

    try:
        return Contents(loadmat(os.fspath(path)))
    except Exception as error:  # scipy's reader has no error of its own for damaged files
        raise DataError(f"is not a MATLAB file that can be read ({type(error).__name__}: {error})") from error
