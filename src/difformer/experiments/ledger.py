"""``runs.jsonl``: an append-only ledger with one line per finished run, and one per run that failed, with the reason.

A line is written in one call and flushed to disk before the next run starts. Whatever stops the process, every line is
complete except perhaps the last, which is cut off before anything is appended. Lines are self-contained, so files from
several machines can be concatenated.

Each finished run has two names:

* ``key`` identifies what was asked for: data set with options, settings that differ from their defaults, seed, split
  and what is measured. A run is made again only if no line of its row has its key.
* ``id`` identifies what was measured: the key, the fingerprint of the data, the version of the code and of torch, the
  kind of device and the precision. Two lines with the same id have the same score.

Lines written before version 0.2 carry the key's predecessor under ``id``. `Ledger.read` adds both names to them, so the
files stay as they were written: where two such lines shared an id but not a score, they differ in fingerprint, torch
version or device, and so in their new ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from difformer.errors import UserError
from difformer.experiments.spec import NAMES
from difformer.files import append_bytes, finite, writing

DONE, FAILED, TAKEN_FROM = "done", "failed", "taken_from"
Line = dict[str, Any]
CellKey = tuple[str, str, str]


class Ledger:
    """The lines of one experiment.

    Args:
        folder: Folder of the experiment; created with the first line.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "runs.jsonl"

    def read(self) -> list[Line]:
        """Every complete line, in order, with ``key`` and ``id``.

        Raises:
            UserError: If a complete line is not a run; the message names the line.
        """
        lines = read_lines(self.path)
        for number, line in enumerate(lines, 1):
            if problem := _problem(line):
                raise UserError(
                    f"{self.path}, line {number}: not a run of `difformer reproduce` ({problem}); remove the line"
                )
        try:
            json.dumps(lines, ensure_ascii=False).encode()
            return [named(line) for line in lines]
        except UnicodeEncodeError:
            raise UserError(f"{self.path}: a text holds half of a character; restore the file") from None
        except RecursionError:
            raise UserError(f"{self.path}: the settings of a run are nested too deeply; restore the file") from None

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line: on disk when this returns, or not there at all."""
        append_line(self.path, line)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add one JSON line to a file: on disk when this returns, or not there at all. An incomplete last line is cut."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    append_bytes(path, (json.dumps(finite(dict(line)), ensure_ascii=False) + "\n").encode(), durable=True)


def read_lines(path: Path) -> list[Line]:
    """Every complete JSON line of a file; empty if the file does not exist.

    Raises:
        UserError: If a complete line is not JSON; the message names the line.
    """
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1] if path.is_file() else (), 1):
        try:
            lines.append(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}); remove the line") from error
    return lines


# What the fields of a line must be, where they occur.
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("data", "status", "system", "preset", "split", "protocol", "metric", "model", "dataset"), str),
    **dict.fromkeys(("key", "id", "settings_id", "fingerprint", "experiment", "reason", "device"), str),
    **dict.fromkeys(("settings", "measures", "versions", "data_options"), dict),
    **dict.fromkeys(
        ("train", "valid", "test", "seconds", "epochs", "best_epoch", "peak_memory"), (int, float, type(None))
    ),
    **dict.fromkeys(("seed", "stacked"), int),
}
_REQUIRED = {
    DONE: {"data", "system", "preset", "seed", "split", "test", "metric", "measures", "device", "peak_memory"},
    FAILED: {"data", "reason"},
}


def _problem(line: Any) -> str:
    """Why a line is not a run; empty if it is one."""
    if not isinstance(line, dict) or line.get("status") not in (DONE, FAILED):
        return "it has no status"
    wrong = [name for name, kind in _KINDS.items() if name in line and not isinstance(line[name], kind)]
    missing = sorted(_REQUIRED[line["status"]] - line.keys())
    return f"{wrong[0]} is {str(line[wrong[0]])[:40]}" if wrong else f"{missing[0]} is missing" if missing else ""


def identity(**parts: Any) -> str:
    """A hash of the content of `parts`."""
    text = json.dumps(finite(parts), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@cache
def code_version() -> str:
    """Version of the package and a hash of its source files: ``"0.1.0+3f2a9c81"``."""
    from difformer import __version__

    root, found = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(one for one in root.rglob("*") if one.suffix in (".py", ".c", ".h")):
        found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"{__version__}+{found.hexdigest()[:8]}"


def run_key(settings_id: str, seed: int, split: str, mode: str = "score") -> str:
    """Identity of what a run is asked for."""
    return identity(settings=settings_id, seed=seed, split=_wording(split), mode=mode)


def _wording(text: str) -> str:
    """Names of splits and protocols as they are worded today; version 0.1 wrote "20 a class"."""
    return re.sub(r"\ba class\b", "per class", text)


def run_id(line: Mapping[str, Any]) -> str:
    """Identity of what a run measured, see the module."""
    versions = line.get("versions", {})
    return identity(
        key=line["key"],
        fingerprint=line.get("fingerprint", ""),
        code=versions.get("difformer", ""),
        torch=versions.get("torch", ""),
        device=str(line.get("device", "")).partition(",")[0],
        precision=line.get("settings", {}).get("precision", "float32"),
    )


def named(line: Line) -> Line:
    """The line with ``key``, ``id`` and ``settings_id``; those of an older version are computed."""
    line = {**line, **{key: _wording(line[key]) for key in ("split", "protocol") if key in line}}
    if line["status"] != DONE or "key" in line or not line.keys() >= {"id", "settings", "dataset", "model"}:
        return line
    from difformer.experiments.cells import settings_id

    settings = dict(line["settings"])
    if settings.get("metric") == "cosine":  # the model's option of that name was written in place of the metric
        settings["metric"] = line["metric"] if line["metric"].endswith("mse") else "auto"
    found = settings_id(line["model"], settings, line["dataset"], line.get("data_options", {}))
    signs = {"epoch_seconds": "cost", "pictures": "visualise", "energy": "energy"}
    mode = next((mode for sign, mode in signs.items() if sign in line["measures"]), "score")
    line = {**line, "settings_id": found, "key": run_key(found, line["seed"], line["split"], mode)}
    return {**line, "id": run_id(line)}


def current(lines: Sequence[Line], planned: Mapping[CellKey, str] | None = None) -> list[Line]:
    """Finished runs that count: for each cell those with one and the same settings, for each seed the last.

    Args:
        lines: Lines of the ledger.
        planned: ``settings_id`` of each cell today. A cell without runs of these settings, or that is not planned,
            shows those of its last run.
    """
    done = [line for line in lines if line["status"] == DONE]
    meant = {cell_of(line): line["settings_id"] for line in done}
    there = {(cell_of(line), line["settings_id"]) for line in done}
    meant |= {cell: id_ for cell, id_ in (planned or {}).items() if (cell, id_) in there}
    kept = {(*cell_of(line), line["seed"]): line for line in done if line["settings_id"] == meant[cell_of(line)]}
    return list(kept.values())


def reasons(lines: Sequence[Line]) -> dict[CellKey, str]:
    """Why a cell has no runs; system and preset are empty if the whole data set is meant. A later run clears it."""
    found: dict[CellKey, str] = {}
    for line in lines:
        if line["status"] == FAILED:
            found[cell_of(line)] = line["reason"]
        else:
            found.pop(cell_of(line), None)
            found.pop((line["data"], "", ""), None)
    return found


def cell_of(line: Mapping[str, Any]) -> CellKey:
    """Data, system and preset of a line."""
    return line["data"], line.get("system", ""), line.get("preset", "")


class Finished:
    """Finished runs of this and other experiments, for rows that ask for the same run.

    A copy names the experiment that it comes from, and is never copied again: a run that is removed and repeated does
    not come back from a copy.

    Args:
        folder: Folder of the experiment. Its sibling folders are read when they are first needed.
        own: Lines of this experiment.
        quick: Whether quick runs are wanted.
        say: Takes remarks about files that cannot be read.
    """

    def __init__(self, folder: Path, own: Iterable[Line], quick: bool, say: Callable[[str], None]) -> None:
        self.folder, self.quick, self.say = folder, quick, say
        self._known: dict[tuple[str, str], Line] = {}
        self._others_read = False
        self.add(own)

    def add(self, lines: Iterable[Line]) -> None:
        """Lines that other rows may use from now on."""
        for line in lines:
            usable = line["status"] == DONE and line.keys() >= {"key", "fingerprint", "experiment"}
            if usable and TAKEN_FROM not in line and bool(line.get("quick")) == self.quick and line["test"] is not None:
                self._known.setdefault((line["key"], line["fingerprint"]), line)

    def find(self, key: str, fingerprint: str, measures: Sequence[str]) -> Line | None:
        """A finished run with this key on the same data that has all `measures`, or None."""
        if not self._others_read:
            self._others_read = True
            beside = [self.folder.parent / name for name in NAMES] if self.folder.name in NAMES else []
            for folder in beside:
                try:
                    self.add(Ledger(folder).read() if folder != self.folder else ())
                except (OSError, ValueError) as error:
                    self.say(f"{self.folder.name}: no run is reused from {folder}: {error}")
        found = self._known.get((key, fingerprint))
        return found if found is not None and found["measures"].keys() >= set(measures) else None
