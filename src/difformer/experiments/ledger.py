"""``runs.jsonl``: an append-only ledger with one line per finished run, and one per run that failed, with the reason.

A line is written in one call and flushed to disk before the next run starts. If the process is killed, every line is
complete except perhaps the last, which is cut off before the next append. Lines are self-contained, so files from
several machines can be concatenated. Each finished run has two names:

* ``key`` identifies what was asked for: data set with options, settings that differ from their defaults, seed, split
  and what is measured. A run is made again only if no line of its row has its key.
* ``id`` identifies what was measured: the key, the fingerprint of the data, the version of the code and of torch, the
  kind of device and the precision. Two lines with the same id have the same score.

Lines of version 0.1 have the key's predecessor under ``id``. `Ledger.read` computes both names for them; the files stay
as they were written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from difformer.data.split import current_name
from difformer.errors import UserError
from difformer.files import append_bytes, finite, writing
from difformer.schema import check
from difformer.training.config import TrainConfig
from difformer.zoo import find, options_of

DONE, FAILED = "done", "failed"
Line = dict[str, Any]
CellKey = tuple[str, str, str]
CELL = ("data", "system", "preset")  # fields of a line that are its cell's key
# Fields that do not affect a result, or hold those that do.
_IRRELEVANT = ("checkpoint_every", "checkpoint_seconds", "options")
# Fields that are not part of an identity. Specs of series set `scale_targets` to the behaviour before it was added.
_NO_IDENTITY = ("model", "precision", "scale_targets")
# Options whose default differs from the behaviour before they were added.
_BEFORE = {"initialisation": "torch"}
# Types of optional fields, and of those that a line must have.
_FORM: dict[str, Any] = {
    **dict.fromkeys(("key", "id", "settings_id", "fingerprint", "experiment", "protocol", "device"), str),
    **dict.fromkeys(("model", "dataset", "system", "preset", "reason"), str),
    **dict.fromkeys(("settings", "versions", "data_options"), dict),
    **dict.fromkeys(("train", "valid", "seconds", "epochs", "best_epoch", "peak_memory"), (float, None)),
    "stacked": int,
}
_REQUIRED: dict[str, dict[str, Any]] = {
    DONE: dict.fromkeys(("data", "system", "preset", "split", "metric", "device"), str)
    | {"seed": int, "measures": dict, "test": (float, None)},
    FAILED: {"data": str, "reason": str},
}


class Ledger:
    """The lines of one experiment, in the folder `folder`, which is created with the first line."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "runs.jsonl"

    def read(self) -> list[Line]:
        """Every complete line, in order, with ``key`` and ``id``; an error names a line that is not a run."""
        lines = read_lines(self.path)
        for number, line in enumerate(lines, 1):
            try:
                check(line, {"status": {DONE, FAILED}})
                present = {key: kind for key, kind in _FORM.items() if key in line}
                check(line, present | _REQUIRED[line["status"]])
            except UserError as error:
                said = f"not a run of `difformer reproduce` ({error}); remove the line"
                raise UserError(f"{self.path}, line {number}: {said}") from error
        return [named(line) for line in lines]

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line, with the time."""
        append_line(self.path, {**line, "time": datetime.now(timezone.utc).isoformat(timespec="seconds")})


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add one JSON line to a file: on disk when this returns, or not there at all. An incomplete last line is cut."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    append_bytes(path, (json.dumps(finite(dict(line)), ensure_ascii=False) + "\n").encode(), durable=True)


def read_lines(path: Path) -> list[Line]:
    """Every complete JSON line of a file, none if it does not exist; an error names one that is not JSON in UTF-8."""
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1] if path.is_file() else (), 1):
        try:
            lines.append(json.loads(text))
            json.dumps(lines[-1], ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}); remove the line") from error
    return lines


def identity(**parts: Any) -> str:
    """A hash of `parts`."""
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


def complete(config: TrainConfig) -> dict[str, Any]:
    """Every setting of a configuration in one mapping, including the model's defaults."""
    fields = {key: value for key, value in config.to_dict().items() if key not in _IRRELEVANT}
    return {**find(config.model).fixed, **options_of(config.model), **config.options, **fields}


def settings_id(model: str, settings: Mapping[str, Any], dataset: str, options: Mapping[str, Any]) -> str:
    """Identity of a data set with options and of settings, without the precision.

    Settings at their default do not count, so a run keeps its identity when the package gains an option whose default
    is the earlier behaviour.
    """
    if model == "difformer" and settings.get("diffusivity", "") is None:
        model = "difformer-off"  # its name before it had one of its own
    if "baseline" in settings:
        return identity(baseline=settings["baseline"], dataset=dataset, options=options)
    try:
        default = complete(TrainConfig(model=model))
    except ValueError:  # a model that the package no longer has
        default = {}
    given = {**{key: value for key, value in _BEFORE.items() if key in default}, **settings}
    same = {key for key in given.keys() & default.keys() if _plain(given[key]) == _plain(default[key])}
    chosen = {key: value for key, value in given.items() if key not in _NO_IDENTITY and key not in same}
    return identity(model=model, settings=chosen, dataset=dataset, options=options)


def _plain(value: Any) -> Any:
    return "none" if value is False else value  # older lines have ``norm = false`` for ``"none"``


def run_key(settings_id: str, seed: int, split: str, mode: str) -> str:
    """Identity of what a run is asked for."""
    return identity(settings=settings_id, seed=seed, split=current_name(split), mode=mode)


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
    line = {**line, **{key: current_name(line[key]) for key in ("split", "protocol") if key in line}}
    if line["status"] != DONE or "key" in line or not line.keys() >= {"id", "settings", "dataset", "model"}:
        return line
    settings = dict(line["settings"])
    if settings.get("metric") == "cosine":  # the model's option of that name was written in place of the metric
        settings["metric"] = line["metric"] if line["metric"].endswith("mse") else "auto"
    found = settings_id(line["model"], settings, line["dataset"], line.get("data_options", {}))
    signs = {"epoch_seconds": "cost", "pictures": "visualise", "energy": "energy"}
    mode = next((mode for sign, mode in signs.items() if sign in line["measures"]), "score")
    line |= {"settings_id": found, "key": run_key(found, line["seed"], line["split"], mode)}
    return {**line, "id": run_id(line)}


def current(lines: Sequence[Line], planned: Mapping[CellKey, str] | None = None) -> list[Line]:
    """Finished runs that count: for each cell those with the same settings, for each seed the last.

    `planned` holds the ``settings_id`` of each cell today. A cell that is not planned, or has no runs of these
    settings, shows the settings of its last run.
    """
    done = [line for line in lines if line["status"] == DONE]
    meant = {cell_of(line): line["settings_id"] for line in done}
    there = {(cell_of(line), line["settings_id"]) for line in done}
    meant |= dict(there & (planned or {}).items())
    kept = {(*cell_of(line), line["seed"]): line for line in done if line["settings_id"] == meant[cell_of(line)]}
    return list(kept.values())


def failures(lines: Sequence[Line]) -> dict[CellKey, Line]:
    """The last failure of each cell; system and preset are empty if its data failed. A later run clears it."""
    found: dict[CellKey, Line] = {}
    for line in lines:
        if line["status"] == FAILED:
            found[cell_of(line)] = line
        else:
            found.pop(cell_of(line), None)
            found.pop((line["data"], "", ""), None)
    return found


def cell_of(line: Mapping[str, Any]) -> CellKey:
    """Data, system and preset of a line."""
    data, system, preset = (line.get(name, "") for name in CELL)
    return data, system, preset
