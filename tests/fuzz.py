"""Damaged files, and a judge of what a reader does with them.

`damage` changes a file as a full disk, an editor or an attacker would: bytes are cut, repeated and changed; values of
JSON, TOML, tables, arrays, tensors and pickles are replaced by others of the wrong kind, size or range.

`attack` gives damaged copies of a folder to a reader, in a process of its own. A reader must return, or raise an error
of ours (`UserError`, `OSError`), within five seconds of CPU time and one gigabyte, and must not end the process.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import time
import traceback
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from difformer.errors import UserError, WouldNotFitError

SECONDS = 5
BYTES = 1 << 30
ALLOWED = (UserError, OSError, WouldNotFitError)

DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, 0.5, 1e308, float("nan"), float("inf"), -0.0),
    *("", "x", "0", "nan", "..", "../../../etc/passwd", "\x1b[2J\x07", "a" * 5000, "\ud800", "é\u2028", "__class__"),
    *([], {}, [[]], [None], ["x"], [0, -1], {"a": 1}, {"": None}, [1] * 500, DEEP),
]
CELLS = [
    "",
    "nan",
    "inf",
    "-1",
    "1e999",
    "x",
    '"',
    "'",
    ",",
    "\t",
    "9" * 400,
    "é",
    "\x00",
    "=1+1",
    "NA",
    "1_0",
    "-",
    "id",
]
TOML = ['""', "'x'", "0", "-1", "true", "nan", "inf", "[]", "{}", "[[1]]", "{a = 1}", "9223372036854775807", "1e308"]
TOML += [
    "[0, 0]",
    "['x', 1]",
    "1979-05-27",
    '"../../../etc/passwd"',
    '"\\u001b[2J"',
    "[" * 300 + "]" * 300,
    "2000000000",
]


_BROKEN = (zlib.error, MemoryError, OSError, RecursionError, OverflowError, TypeError, AttributeError)


def damage(content: bytes, name: str, draw: random.Random) -> bytes:
    """A damaged copy of a file, the same for the same state of `draw`."""
    kinds = {
        **{".json": _json, ".jsonl": _lines, ".toml": _toml, ".npz": _npz, ".pt": _zip, ".safetensors": _tensors},
        **{".csv": _table, ".tsv": _table, ".txt": _table, ".gz": _gzip, ".pkl": _pickle, ".pickle": _pickle},
    }
    change = kinds.get(Path(name).suffix, _bytes) if draw.random() < 0.7 else _bytes
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        try:
            content = change(content, draw)
        except (ValueError, KeyError, IndexError, struct.error, zipfile.BadZipFile, EOFError, *_BROKEN):
            content = _bytes(content, draw)  # the last change broke the format
    return content


def _bytes(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    place, size = draw.randrange(len(changed) + 1), draw.choice([1, 1, 2, 8, 50])
    match draw.randrange(7):
        case 0:
            del changed[place:]
        case 1:
            del changed[place : place + size]
        case 2:
            changed[place:place] = draw.randbytes(size)
        case 3:
            changed[place : place + size] = draw.choice([b"\x00", b"\xff", b"\x80", b"\x7f"]) * size
        case 4:
            changed[place:place] = changed[place : place + size] * draw.choice([1, 3, 100])
        case 5:
            return draw.choice([b"", b"\n", b"\x00" * 64, b"[]", b"null", b"{}", b"[" * 5000, draw.randbytes(300)])
        case _:
            for _ in range(draw.choice([1, 1, 4])):
                if changed:
                    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _value(document: Any, draw: random.Random) -> Any:
    """A document of JSON with one of its values replaced, removed or added."""
    where: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            where.append((value, key))
            if isinstance(value[key], (dict, list)):
                walk(value[key])

    if not isinstance(document, (dict, list)) or not document:
        return draw.choice(VALUES)
    walk(document)
    inside, key = draw.choice(where)
    match draw.randrange(8):
        case 0:
            del inside[key]
        case 1 if isinstance(inside, list):
            inside += inside[:3]
        case 2 if isinstance(inside, dict):
            inside[draw.choice(["x", "", "__init__", "format", str(key) + "2"])] = draw.choice(VALUES)
        case 3 if isinstance(inside[key], (int, float)):
            inside[key] = inside[key] * draw.choice([-1, 2, 1000, 10**9]) + draw.choice([0, 1, -1])
        case _:
            inside[key] = draw.choice(VALUES)
    return document


def _json(content: bytes, draw: random.Random) -> bytes:
    return json.dumps(_value(json.loads(content), draw)).encode()


def _lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.split(b"\n")
    place = draw.randrange(max(len(lines) - 1, 1))
    match draw.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case 2:
            draw.shuffle(lines)
        case _:
            lines[place] = _json(lines[place], draw)
    return b"\n".join(lines)


def _toml(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode().split("\n")
    place = draw.choice([i for i, line in enumerate(lines) if line.strip()])
    key, equals, _ = lines[place].partition(" = ")
    match draw.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case 2:
            lines.insert(place, f"unknown = {draw.choice(TOML)}")
        case _:
            lines[place] = f"{key} = {draw.choice(TOML)}" if equals else draw.choice(["[x]", "[[x]]", "[a.b]", "[run]"])
    return "\n".join(lines).encode()


def _table(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode("utf-8", "replace").split("\n")
    place = draw.randrange(len(lines))
    cells = lines[place].split(",")
    match draw.randrange(6):
        case 0:
            cells.pop(draw.randrange(len(cells)))
        case 1:
            cells.insert(draw.randrange(len(cells) + 1), draw.choice(CELLS))
        case 2:
            lines.insert(place, draw.choice(["", "#", '"', lines[0]]))
        case _:
            cells[draw.randrange(len(cells))] = draw.choice(CELLS)
    lines[place] = ",".join(cells)
    return draw.choice(["\n", "\n", "\r\n", "\r"]).join(lines).encode()


def _gzip(content: bytes, draw: random.Random) -> bytes:
    inner = gzip.decompress(content)
    if draw.random() < 0.1:
        return gzip.compress(inner + b"1," * (1 << 20) * draw.choice([1, 40]), 1)
    return gzip.compress(_table(inner, draw)) + draw.choice(
        [b"", b"", b"\x1f\x8b", gzip.compress(b"1,2\n"), b"\x00" * 9]
    )


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _packed(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _zip(content: bytes, draw: random.Random) -> bytes:
    """A file of torch.save: members are dropped, swapped, grown or changed."""
    members = _members(content)
    name, other = draw.choice(sorted(members)), draw.choice(sorted(members))
    match draw.randrange(6):
        case 0:
            del members[name]
        case 1:
            members[name], members[other] = members[other], members[name]
        case 2:
            members[name] += bytes(draw.choice([1, 100, 10_000_000]))
        case 3:
            members["../../escaped"] = b"x"
        case _:
            name = next((each for each in members if each.endswith("data.pkl")), name)
            members[name] = _pickle(members[name], draw)
    return _packed(members)


def _npz(content: bytes, draw: random.Random) -> bytes:
    """An archive of arrays with another array, another header, or a missing one."""
    members = _members(content)
    name = draw.choice(sorted(members))
    array = np.load(io.BytesIO(members[name]), allow_pickle=False)
    stream = io.BytesIO()
    match draw.randrange(8):
        case 0:
            del members[name]
            return _packed(members)
        case 1:  # a header that announces something else
            shape = draw.choice([(2**40,), (2**20, 2**20), (0,), (), (-1,), (3, 3), (2**31, 2)])
            kind = draw.choice(["<f8", "|O", "<U200000000", "<i8", ">f4", "|V100", "<M8[s]", "<c16", "|b1"])
            header = {"descr": kind, "fortran_order": draw.random() < 0.5, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            members[name] = stream.getvalue() + members[name][128:]
            return _packed(members)
        case 2:
            array = array.astype(draw.choice(["<f4", "<i1", "<U5", "?", "<c16", "S3", "<u8", "<f2"]), casting="unsafe")
        case 3:
            array = draw.choice([array[..., None], array[:0], array.ravel()[:1], np.concatenate([array.ravel()] * 2)])
        case 4:
            array = np.array(draw.choice([0, -1, 2**62, "x", "../x", 1e308, np.nan, True]))
        case _ if array.size and array.dtype.kind in "iuf":
            array = array.copy()
            array.reshape(-1)[draw.randrange(array.size)] = draw.choice([-1, 0, 1, 100, 2**31 - 1, -(2**31)])
    np.save(stream, array, allow_pickle=False)
    members[name] = stream.getvalue()
    return _packed(members)


def _tensors(content: bytes, draw: random.Random) -> bytes:
    """A safetensors file with another header, or with tensors of other numbers, shapes or kinds."""
    size = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    names = sorted(set(header) - {"__metadata__"})
    name = draw.choice(names)
    match draw.randrange(8):
        case 0:
            del header[name]
        case 1:
            header[draw.choice(["x", "", name + "2", "model.x"])] = header.pop(name)
        case 2 if "__metadata__" in header:
            inner = {
                key: json.dumps(_value(json.loads(text), draw)) if text[:1] in "{[" and draw.random() < 0.8 else text
                for key, text in header["__metadata__"].items()
            }
            header["__metadata__"] = {key: value for key, value in inner.items() if draw.random() < 0.9}
        case 3:
            header[name]["dtype"] = draw.choice(["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "I8"])
        case 4:
            header[name]["shape"] = draw.choice(
                [header[name]["shape"][::-1], [1, *header[name]["shape"]], [2**40, 2**40], []]
            )
        case 5:
            other = draw.choice(names)
            header[name], header[other] = header[other], header[name]
        case 6:
            first, last = header[name]["data_offsets"]
            for place in range(first, last, 8):
                body[place : place + 8] = struct.pack("<q", draw.choice([-1, 2**62, 0, 2**31]))[: last - place]
        case _:
            first, last = header[name]["data_offsets"]
            if last > first:
                place = draw.randrange(first, last)
                body[place : place + 4] = draw.choice([b"\xff\xff\xff\xff", b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f"])
    packed = json.dumps(header).encode()
    return struct.pack("<Q", len(packed)) + packed + bytes(body)


OPCODES = [b"0", b"2", b"(", b"1", b"R", b"b", b"\x81", b"}", b"]", b")", b"N", b"\x88", b"u", b"s", b"a", b"e", b"t"]
OPCODES += [b"cos\nsystem\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"cbuiltins\neval\n", b"Q", b"\x93", b"\x85"]
OPCODES += [
    b"X\x02\x00\x00\x00O8",
    b"K\x01",
    b"J\xff\xff\xff\xff",
    b"h\x00",
    b"q\x00",
    b"\x94",
    b"\x92",
    b"\x8a\x01\x01",
]


def _pickle(content: bytes, draw: random.Random) -> bytes:
    """A pickle with opcodes put in, taken out or repeated at places where opcodes begin."""
    import pickletools

    places = [place for _, _, place in pickletools.genops(content) if place is not None]
    first = draw.randrange(len(places) - 1)
    start, end = places[first], places[min(first + draw.choice([1, 1, 3]), len(places) - 1)]
    match draw.randrange(4):
        case 0:
            return content[:start] + content[end:]
        case 1:
            return content[:start] + content[start:end] * draw.choice([2, 50]) + content[end:]
        case 2:
            return _bytes(content, draw)
        case _:
            return content[:start] + b"".join(draw.choices(OPCODES, k=draw.choice([1, 2, 4]))) + content[start:]


# ------------------------------------------------------------------------------------------------------------ attack


@dataclass(frozen=True)
class Reader:
    """Something that reads files.

    Args:
        name: What it is called in the report.
        make: Writes sound files into a folder.
        files: Patterns of the files that are damaged.
        read: Reads the folder; whatever it returns is accepted.
    """

    name: str
    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], Any]


class _TooLong(BaseException):
    pass


def _stop(*_: Any) -> None:
    raise _TooLong


def attack(reader: Reader, folder: Path, cases: range, seed: int) -> list[str]:
    """Findings: one text per case in which a reader did what it must not. `folder` is new."""
    sound, work, notes = folder / "sound", folder / "work", folder / "notes.txt"
    sound.mkdir(parents=True)
    reader.make(sound)
    reader.read(shutil.copytree(sound, folder / "sound copy" / "sound"))  # it can be read before it is damaged
    left = list(cases)
    found = []
    while left:
        child = os.fork()
        if child == 0:
            try:
                _serve(reader, sound, work, notes, left, seed)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(70)
        limit = time.monotonic() + 60 * (1 + len(left))
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > limit:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        lines = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
        notes.unlink(missing_ok=True)
        found += [f"{reader.name}, case {line['case']}: {line['problem']}" for line in lines if line.get("problem")]
        begun, done = [{line["case"] for line in lines if kind in line} for kind in ("begun", "done")]
        if ended[1] == 70 << 8:
            raise RuntimeError(f"{reader.name}, case {max(begun)}: the judge failed, see standard error")
        if broken := begun - done:
            found.append(f"{reader.name}, case {min(broken)}: the process ended with {ended[1]}")
        elif not begun:
            raise RuntimeError(f"{reader.name}: nothing was read, status {ended[1]}")
        left = [case for case in left if case not in begun]
    return found


def _serve(reader: Reader, sound: Path, work: Path, notes: Path, cases: list[int], seed: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    faulthandler.disable()  # a crash is reported by the parent
    torch.set_num_threads(1)  # a forked process has none of its parent's threads, and would wait for them
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    signal.signal(signal.SIGPROF, _stop)
    with notes.open("a", buffering=1) as stream:
        for case in cases:
            stream.write(json.dumps({"case": case, "begun": 1}) + "\n")
            problem = _one(reader, sound, work, random.Random(f"{seed} {reader.name} {case}"))
            stream.write(json.dumps({"case": case, "done": 1, "problem": problem}) + "\n")


def _one(reader: Reader, sound: Path, work: Path, draw: random.Random) -> str:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(sound, work)
    files = sorted({file for pattern in reader.files for file in work.glob(pattern)})
    for file in draw.sample(files, draw.choice([1, 1, 1, min(2, len(files))])):
        file.write_bytes(damage(file.read_bytes(), file.name, draw))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        reader.read(work)
    except ALLOWED:
        pass
    except _TooLong:
        return f"more than {SECONDS} s: {''.join(traceback.format_exc().splitlines(keepends=True)[-7:-1])}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ours = [one for one in traceback.extract_tb(error.__traceback__) if "/difformer/" in one.filename][-1:]
        at = " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.line}" for one in (where, *ours))
        return f"{type(error).__name__}: {str(error)[:200]} at {at}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""
