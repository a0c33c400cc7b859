"""Arrays, archives and tables of numbers, read within limits: a small file cannot exhaust the memory of the machine.

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
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.lib import format as npy

from difformer.errors import DataError, UserError

Array = np.ndarray[Any, Any]

PACKED, RATIO = 1 << 30, 200  # what unpacks to more than RATIO times the size of its archive has at most PACKED bytes
BLOCK_BYTES = 16 << 20  # of a table of numbers read at a time
LIMITS = {"MEMBER": 16 << 30, "LINE": 64 << 20, "COLUMNS": 1 << 20}


def limit(kind: str) -> int:
    """The limit on ``"MEMBER"``, ``"LINE"`` or ``"COLUMNS"``, as the environment or `LIMITS` sets it."""
    given = os.environ.get(f"DIFFORMER_MAX_{kind}", "")
    if given and not given.isdecimal():
        raise UserError(f"DIFFORMER_MAX_{kind}: expected a whole number, got {given!r}")
    return int(given) if given else LIMITS[kind]


def check_size(size: int, name: str, kind: str = "MEMBER", packed: int | None = None) -> None:
    """Refuses what is larger than the limit, and says how to raise it; `packed` is the size of its archive."""
    most = limit(kind)
    if packed is not None and size > RATIO * packed and most == LIMITS[kind]:
        most = min(most, PACKED)
    if size > most:
        units = {"MEMBER": "bytes", "LINE": "characters", "COLUMNS": "columns"}[kind]
        remedy = f"if you trust the file, set DIFFORMER_MAX_{kind}={size} to read it"
        raise DataError(f"{name} has {size:,} {units}, more than the limit of {most:,}; {remedy}")


class Contents(dict[str, Any]):
    """The arrays of a file by name; a missing one is reported as an error of the file."""

    def __missing__(self, name: str) -> NoReturn:
        raise UserError(f"there is no array {name!r}, only {', '.join(self) or 'an empty file'}")


def read_npz(path: str | os.PathLike[str] | IO[bytes], names: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an NPZ file by name, or those of `names` that it holds.

    Raises:
        DataError: If an array holds Python objects or fields, is larger than the limit, or is not all there.
        zipfile.BadZipFile: If it is not an archive; `difformer.errors.DAMAGE` lists what else damage raises.
    """
    arrays, size = Contents(), 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if names is None or key in names:
                _check_member(info, f"array {key!r}")
                check_size(size := size + info.file_size, f"the archive up to {key!r}", packed=archive.start_dir)
                with archive.open(info) as stream:
                    arrays[key] = _array(stream, info.file_size, key)
    return arrays


def _check_member(info: zipfile.ZipInfo, name: str, path: object = None) -> None:
    check_size(info.file_size, name)
    if info.flag_bits & 1:
        raise DataError(f"{name} is encrypted, which is not supported", path=path)


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
        shape, _, dtype = read(stream)
    except Exception as error:  # numpy hands the header to Python's parser, which has errors of its own
        problem = f"array {name!r} is not in the NPY format 1.0 or 2.0, or its header is damaged ({error})"
        raise UserError(problem) from error
    if dtype.hasobject or dtype.names is not None or dtype.itemsize == 0:
        raise DataError(f"array {name!r} holds Python objects or fields, which are not read; store numbers or texts")
    left, entries = size - stream.tell(), math.prod(shape)
    if entries * dtype.itemsize != left:
        raise DataError(f"array {name!r} should hold {entries:,} entries of {dtype}, but {left:,} bytes follow")
    stream.seek(0)
    try:
        return npy.read_array(stream, allow_pickle=False)
    except ValueError as error:  # an archive may announce more bytes than it holds
        raise EOFError(f"array {name!r} ends too early ({error})") from error


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Members of a zip or tar archive by the last part of their name; a tar archive is read no further than needed."""
    members: dict[str, bytes] = {}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if (name := info.filename.rsplit("/", 1)[-1]) in names:
                    _check_member(info, name, path)
                    check_size(info.file_size, name, packed=archive.start_dir)
                    members[name] = archive.read(info)
    else:
        for place, content in tar_members(path, names):
            members[place.rsplit("/", 1)[-1]] = content
            if len(members) == len(names):
                break
    if absent := [name for name in names if name not in members]:
        raise DataError(f"the archive holds no {', '.join(absent)}", path=path)
    return {name: members[name] for name in names}


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


def number_blocks(stream: IO[bytes], *, columns: int, dtype: Any, path: object = None) -> Iterator[Array]:
    """Consecutive blocks ``[rows, columns]`` of a table of numbers separated by commas.

    Anything that is not a number, and a line with another number of columns, is an error that names its line.
    """
    line, rest = 0, b""
    while block := stream.read(BLOCK_BYTES) or (rest and b"\n"):  # the last line may lack its end
        *rows, rest = (rest + block).split(b"\n")
        check_size(len(rest), "a line", "LINE")
        if not rows:
            continue
        values = None
        with suppress(ValueError, Warning), warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns of fractions among whole numbers, and of blank lines
            values = np.loadtxt(rows, dtype, delimiter=",", comments=None, ndmin=2)
        if values is None or values.shape != (len(rows), columns):
            _refuse(rows, columns, dtype, path, line)
        yield values
        line += len(rows)


def _refuse(rows: Sequence[bytes], columns: int, dtype: Any, path: object, line: int) -> NoReturn:
    """Raises the error of the first bad line."""
    for number, row in enumerate(rows, start=line + 1):
        fields = row.decode(errors="replace").split(",") if row.strip() else []
        for column, field in enumerate(fields, start=1):
            try:
                np.dtype(dtype).type(field)
            except (ValueError, OverflowError):
                problem = f"expected a number, got {field!r}"
                raise DataError(problem, path=path, line=number, column=column) from None
        if len(fields) != columns:
            raise DataError(f"expected {columns} numbers, got {len(fields)}", path=path, line=number)
    raise DataError(f"expected lines of {columns} numbers from line {line + 1} on", path=path)
