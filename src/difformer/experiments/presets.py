"""Presets: named hyper-parameters for a model on a data set, and where they come from.

``presets.toml`` holds those of the package. Three names are used:

* ``"public-code"``: what the authors' public code sets, oddities included.
* ``"paper"``: tuned over the paper's own grid, under its protocol.
* ``"best"``: tuned over whatever helps, under the default protocol.

The last two exist only where something was really tuned; they carry the validation score, the number of trials and the
command that found them. `difformer tune` writes a file with one preset of the same form, for `fit --preset FILE`.
No torch here: the command line reads presets before it knows whether it will train.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from difformer.files import write_whole
from difformer.training import toml

NAMES = ("paper", "public-code", "best")
SHIPPED = Path(__file__).with_name("presets.toml")
_FIELDS = (
    "name",
    "model",
    "dataset",
    "source",
    "protocol",
    "seeds",
    "metric",
    "validation",
    "trials",
    "runs",
    "command",
    "note",
    "variant",
)
# How the search and `difformer tune` are told, and how presets that are older than the field say it.
_RUNS = (re.compile(r"--(?:runs|seeds)[ =](\d+)"), re.compile(r"mean over (\d+) (?:run|split)"))


@dataclass(frozen=True)
class Preset:
    """Hyper-parameters with a name and an origin.

    Args:
        name: ``"public-code"``, ``"paper"``, ``"best"``, or a name of your own.
        model: Model of the zoo that they are for.
        dataset: Data set that they were chosen on.
        settings: What `--set` takes, in one mapping: fields of the training configuration and options of the model.
        source: Where they come from, in a sentence.
        protocol: Protocol under which they were chosen, where it is known.
        seeds: How many runs the source averages over, where it says so.
        metric: What `validation` measures.
        validation: Validation score that selected them, where they were tuned here.
        trials: How many settings competed.
        runs: Over how many runs each of them was averaged; read from `command` or `note` where it is left out.
        command: The command that found them.
        note: What a reader should know.
        variant: Which question of the data set they are for, where it is asked several (``"per_class=10"``); such a
            preset is taken by experiments that ask it, and by nobody else.
    """

    name: str
    model: str
    dataset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    protocol: str | None = None
    seeds: int | None = None
    metric: str | None = None
    validation: float | None = None
    trials: int | None = None
    runs: int | None = None
    command: str | None = None
    note: str | None = None
    variant: str | None = None

    def __post_init__(self) -> None:
        if self.runs is None and self.trials is not None:
            said = [
                found
                for form, text in zip(_RUNS, (self.command, self.note), strict=True)
                if (found := form.search(text or ""))
            ]
            object.__setattr__(self, "runs", int(said[0][1]) if said else None)

    def describe(self) -> str:
        """Origin in one line."""
        tuned = ""
        if self.validation is not None:
            tuned = f" (validation {self.metric or 'score'} {self.validation:.4g}, {self.trials} trials)"
        return f"{self.name} ({self.model} on {self.dataset}): {self.source}{tuned}"

    @property
    def data_options(self) -> dict[str, str]:
        """Options of the data set that they were found with, as its command has them: ``--data KEY=VALUE …``."""
        found: dict[str, str] = {}
        within = False
        for word in shlex.split(self.command or ""):
            within = word == "--data" if word.startswith("--") else within
            if within and "=" in word:
                key, _, value = word.partition("=")
                found[key] = value
        return found

    def to_dict(self) -> dict[str, Any]:
        """Fields that are set, with `settings` last, as they stand in a file."""
        written = {key: getattr(self, key) for key in _FIELDS if getattr(self, key) not in (None, "")}
        return {**written, "settings": dict(self.settings)}


@cache
def load_presets(path: Path = SHIPPED) -> tuple[Preset, ...]:
    """Every preset of a file in which ``[base.NAME]`` tables hold what several presets share.

    A preset's ``inherits`` names bases, later ones and its own settings going before earlier ones.
    """
    content = _parse(path)
    bases: dict[str, dict[str, Any]] = content.get("base", {})
    found = []
    for entry in content.get("preset", []):
        inherited: dict[str, Any] = {}
        for base in entry.pop("inherits", []):
            inherited |= bases[base]
        found.append(_preset({**entry, "settings": {**inherited, **entry.get("settings", {})}}, path))
    return tuple(found)


def find_preset(name: str, *, model: str, dataset: str) -> Preset:
    """A preset of the package.

    Raises:
        ValueError: If there is none of that name for the pair; the message names those that there are.
    """
    shipped = load_presets()
    for preset in shipped:
        if (preset.name, preset.model, preset.dataset, preset.variant) == (name, model, dataset, None):
            return preset
    names = sorted({*NAMES, *(preset.name for preset in shipped)})
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"preset: there is no preset {name!r}; {hint}known are {', '.join(names)}, or a .toml file")
    plain = [preset for preset in shipped if preset.variant is None]
    here = ", ".join(p.name for p in plain if (p.model, p.dataset) == (model, dataset))
    models = ", ".join(sorted({p.model for p in plain if (p.name, p.dataset) == (name, dataset)}))
    datasets = ", ".join(sorted({p.dataset for p in plain if (p.name, p.model) == (name, model)}))
    exists = [f"for that pair there is {here}"] if here else []
    if not here:
        exists += [f"on {dataset} it exists for {models}"] if models else []
        exists += [f"{model} has it for {datasets}"] if datasets else []
    if not exists:
        exists = [f"{model} has it for no data set"]
    raise ValueError(
        f"preset: there is no preset {name!r} for {model} on {dataset}; {'; '.join(exists)}. "
        f"Leave --preset out to use the defaults, or find values of your own with `difformer tune`"
    )


def read_preset(path: str | os.PathLike[str]) -> Preset:
    """The one preset of a file as `write_preset` and `difformer tune` write it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no preset, naming what is wrong.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"preset: there is no file {os.fspath(path)}")
    return _preset(_parse(place), place)


def write_preset(preset: Preset, path: str | os.PathLike[str]) -> None:
    """Write one preset as TOML, whole or not at all."""
    write_whole(path, toml.dumps(preset.to_dict()).encode())


def _parse(path: Path) -> dict[str, Any]:
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"preset: {path} is not a TOML file ({error})") from error


def _preset(entry: Mapping[str, Any], path: Path) -> Preset:
    unknown = sorted(set(entry) - set(_FIELDS) - {"settings"})
    if unknown:
        raise ValueError(
            f"preset: {path} has the unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}, settings"
        )
    for required in ("name", "model", "dataset"):
        if not isinstance(entry.get(required), str):
            raise ValueError(f'preset: {path} must say {required} = "…", got {entry.get(required)!r}')
    settings = entry.get("settings", {})
    if not isinstance(settings, Mapping):
        raise ValueError(f"preset: {path} must hold a table [settings], got {settings!r}")
    return Preset(**{**entry, "settings": dict(settings)})
