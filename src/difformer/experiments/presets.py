"""Presets: named hyper-parameters for a model on a data set, and where they come from.

``presets.toml`` holds those of the package, under four names:

* ``"public-code"``: the values of the authors' public code, including its oddities.
* ``"paper"``: tuned over the paper's own grid, under its protocol.
* ``"best"``: tuned over a larger space, under the default protocol.
* ``"common"``: tuned over the system's own space, with the same budget and protocol for every system.

The last three record the search: validation score, number of trials, command. `difformer tune` writes a file with one
preset in the same form, for `difformer fit --preset FILE`. This module does not import torch: the command line reads
presets before it knows whether it will train.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from difformer import toml
from difformer.errors import UserError, did_you_mean
from difformer.files import write_whole
from difformer.schema import check

NAMES = ("paper", "public-code", "best", "common")
PREFERRED = ("best", "common", "public-code", "paper")  # the order in which one of them is chosen
SHIPPED = Path(__file__).with_name("presets.toml")


@dataclass(frozen=True)
class Preset:
    """Hyper-parameters with a name and an origin."""

    name: str  #: ``"public-code"``, ``"paper"``, ``"best"``, ``"common"``, or your own name
    model: str  #: model of the zoo
    dataset: str  #: data set that they were chosen on
    #: fields of the training configuration and options of the model, as ``--set`` takes them
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""  #: where they come from, in a sentence
    protocol: str | None = None  #: protocol under which they were chosen, if known
    seeds: int | None = None  #: number of runs that the source averages over, if known
    metric: str | None = None  #: what `validation` measures
    validation: float | None = None  #: validation score that selected them, if they were tuned here
    trials: int | None = None  #: number of settings that were compared
    runs: int | None = None  #: number of runs that each of them was averaged over
    command: str | None = None  #: the command that found them
    note: str | None = None  #: a remark for readers
    variant: str | None = None  #: of the data set (``"per_class=10"``), for experiments that ask for the variant
    data: Mapping[str, Any] = field(default_factory=dict)  #: options of the data set, such as ``features="raw"``

    @property
    def identity(self) -> tuple[str, str, str, str | None]:
        """What a preset is for; a file has at most one of each."""
        return self.name, self.model, self.dataset, self.variant

    def describe(self) -> str:
        """Origin in one line."""
        tuned = ""
        if self.validation is not None:
            tuned = f" (validation {self.metric or 'score'} {self.validation:.4g}, {self.trials} trials)"
        return f"{self.name} ({self.model} on {self.dataset}): {self.source}{tuned}"

    def to_dict(self) -> dict[str, Any]:
        """Fields that are set, with `settings` last, as in a file."""
        written = {key: value for key, value in vars(self).items() if key != "settings" and value not in (None, "", {})}
        return {**written, "settings": dict(self.settings)}


@cache
def load_presets(path: Path = SHIPPED) -> tuple[Preset, ...]:
    """Every preset of a file in which ``[base.NAME]`` tables hold what several presets share.

    A preset's ``inherits`` names bases. Later bases override earlier ones, and its own settings override all of them.
    """
    content = read_toml(path)
    found = []
    for entry in content.get("preset", []):
        settings: dict[str, Any] = {}
        for base in entry.pop("inherits", []):
            settings |= content["base"][base]
        found.append(_preset({**entry, "settings": settings | entry.get("settings", {})}, path))
    return tuple(found)


def find_preset(name: str, *, model: str, dataset: str) -> Preset:
    """A preset of the package.

    Raises:
        UserError: If the pair has no preset of that name; the message lists those that exist.
    """
    plain = [preset for preset in load_presets() if preset.variant is None]
    for preset in plain:
        if preset.identity == (name, model, dataset, None):
            return preset
    names = sorted({*NAMES, *(preset.name for preset in plain)})
    if name not in names:
        hint, known = did_you_mean(name, names), ", ".join(names)
        raise UserError(f"preset: there is no preset {name!r}; {hint}known are {known}, or a .toml file")
    here = ", ".join(p.name for p in plain if (p.model, p.dataset) == (model, dataset))
    models = ", ".join(sorted(p.model for p in plain if (p.name, p.dataset) == (name, dataset)))
    datasets = ", ".join(sorted(p.dataset for p in plain if (p.name, p.model) == (name, model)))
    exists = [f"on {dataset} it exists for {models}"] if models else []
    exists += [f"{model} has it for {datasets}"] if datasets else []
    exists = [f"for that pair there is {here}"] if here else exists or [f"{model} has it for no data set"]
    remedy = "Leave --preset out to use the defaults, or find values with `difformer tune`"
    raise UserError(f"preset: there is no preset {name!r} for {model} on {dataset}; {'; '.join(exists)}. {remedy}")


def read_preset(path: str | os.PathLike[str]) -> Preset:
    """The preset of a file as `write_preset` and `difformer tune` write it.

    Raises:
        FileNotFoundError: If the file does not exist.
        UserError: If it is not a preset; the message says what is wrong.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"preset: there is no file {os.fspath(path)}")
    return _preset(read_toml(place), place)


def write_preset(preset: Preset, path: str | os.PathLike[str]) -> None:
    """Write one preset as TOML, atomically."""
    write_whole(path, toml.dumps(preset.to_dict()).encode())


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; the error names the file if it is not TOML."""
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a TOML file ({error})") from error


_FORM = {
    **dict.fromkeys(("name", "model", "dataset"), str),
    **dict.fromkeys(("source", "protocol", "metric", "command", "note", "variant"), (str, None)),
    **dict.fromkeys(("seeds", "trials", "runs"), (int, None)),
    **{"validation": (float, None), "data": (dict, None), "settings": (dict, None)},
}


def _preset(entry: Mapping[str, Any], path: Path) -> Preset:
    if unknown := sorted(set(entry) - set(_FORM)):
        raise UserError(f"preset: {path} has the unknown field {unknown[0]!r}; known are {', '.join(_FORM)}")
    try:
        check(dict(entry), _FORM)
    except UserError as error:
        raise UserError(f"preset: {path}: {error}") from error
    return Preset(**entry)
