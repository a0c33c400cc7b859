"""``runs.jsonl``: one line a finished run, and one a run that could not be made, with the reason.

A line is written in one go and flushed to disk before the next run begins. Whatever stops the process, every line is
whole but perhaps the last, and that one is cut off before anything is added. Lines stand for themselves: files of
several machines can be joined by writing one after the other.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from difformer.files import finite, writing

DONE, FAILED = "done", "failed"

Line = dict[str, Any]


class Ledger:
    """The lines of one experiment.

    Args:
        folder: Of the experiment; made with the first line.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "runs.jsonl"

    def read(self) -> list[Line]:
        """Every whole line, in order.

        Raises:
            ValueError: If a line that is whole is no run, naming it.
        """
        if not self.path.is_file():
            return []
        lines: list[Line] = []
        for number, text in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                line = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{self.path}, line {number}: not JSON ({error}); remove the line") from error
            if not isinstance(line, dict) or "data" not in line or "status" not in line:
                raise ValueError(f"{self.path}, line {number}: no run of `difformer reproduce`; remove the line")
            lines.append(line)
        return lines

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds one line: on disk when this returns, and not there at all if it cannot be."""
        content = (json.dumps(finite(dict(line)), ensure_ascii=False) + "\n").encode()
        with writing(self.path):
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                end = _end_of_last_line(descriptor)
                os.ftruncate(descriptor, end)
                os.lseek(descriptor, end, os.SEEK_SET)
                try:
                    if os.write(descriptor, content) < len(content):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, end)
                    raise
            finally:
                os.close(descriptor)


def identity(**parts: Any) -> str:
    """A name for what a run is: equal where everything that decides its result is equal."""
    text = json.dumps(finite(parts), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def current(lines: Sequence[Line], planned: Mapping[tuple[str, str, str], str] | None = None) -> list[Line]:
    """Finished runs that count: of every cell those with one and the same settings, each seed once, the last.

    A preset that changes makes its earlier runs those of another system; one that is changed back finds them again.

    Args:
        lines: Of the file.
        planned: Identity of the settings that a cell has now, by (data, system, preset). Where none of its runs has
            them, or nothing is planned for it, those of its last run are meant.
    """
    done = [line for line in lines if line["status"] == DONE]
    meant = {_cell(line): line["settings_id"] for line in done}
    there = {(_cell(line), line["settings_id"]) for line in done}
    meant |= {cell: id_ for cell, id_ in (planned or {}).items() if (cell, id_) in there}
    kept = {(*_cell(line), line["seed"]): line for line in done if line["settings_id"] == meant[_cell(line)]}
    return list(kept.values())


def reasons(lines: Sequence[Line]) -> dict[tuple[str, str, str], str]:
    """Why a cell could not be run, by (data, system, preset); system and preset are empty where all of them are meant.

    A run that was made later takes the reason away.
    """
    found: dict[tuple[str, str, str], str] = {}
    for line in lines:
        if line["status"] == FAILED:
            found[_cell(line)] = line["reason"]
        else:
            found.pop(_cell(line), None)
            found.pop((line["data"], "", ""), None)
    return found


def _cell(line: Mapping[str, Any]) -> tuple[str, str, str]:
    return line["data"], line.get("system", ""), line.get("preset", "")


def _end_of_last_line(descriptor: int) -> int:
    """Bytes up to and with the last line break."""
    size = os.fstat(descriptor).st_size
    place = size
    while place > 0:
        start = max(0, place - 65536)
        os.lseek(descriptor, start, os.SEEK_SET)
        block = os.read(descriptor, place - start)
        if (found := block.rfind(b"\n")) >= 0:
            return start + found + 1
        place = start
    return 0
