"""Cells of an experiment: which settings each system runs with, and which cells a request selects.

* Our systems run with each of their presets, ``public-code``, ``paper`` and ``best``: one row each.
* A rival runs with ``best``, or else ``paper``.
* "Attention off" uses the presets of DIFFormer-s, unless it has its own under the same name.
* A system without a preset runs with the settings that the experiment gives to all such systems, as ``untuned``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from difformer.errors import UserError
from difformer.experiments.ledger import CellKey, complete, settings_id
from difformer.experiments.presets import NAMES, PREFERRED, Preset, load_presets, read_preset
from difformer.experiments.spec import Data, Experiment, System
from difformer.training.config import TrainConfig, make_config
from difformer.zoo import options_of

UNTUNED, NO_TRAINING = "untuned", "no training"
TUNED = "tuned"  # the name that `difformer tune` gives its preset
OURS = ("public-code", "paper", "best", "common")
RIVALS = ("common", "best", "paper")


@dataclass(frozen=True)
class Cell:
    """One row of one section; the preset holds all its settings, and is called ``"untuned"`` if there was none."""

    data: Data
    system: System
    preset: Preset

    @property
    def key(self) -> CellKey:
        return self.data.key, self.system.key, self.preset.name

    @property
    def options(self) -> dict[str, Any]:
        """Options of the data set, including those of the preset."""
        return {**self.data.options, **self.preset.data}

    @property
    def data_options(self) -> dict[str, Any]:
        """Everything that changes the task: options, and what is altered after loading."""
        return {**self.options, **self.data.alter}

    def config(self) -> TrainConfig | None:
        """The training configuration; None for a baseline."""
        return None if self.system.baseline else make_config(self.system.model, self.preset.settings)

    def settings(self) -> dict[str, Any]:
        """Every setting including defaults; of a baseline its name."""
        config = self.config()
        return {"baseline": self.system.baseline} if config is None else complete(config)

    def settings_id(self) -> str:
        """Identity of the data and settings of the cell."""
        return settings_id(self.system.model, self.settings(), self.data.dataset, self.data_options)


@dataclass(frozen=True)
class Request:
    """What a call of `difformer reproduce` asks for."""

    quick: bool = False  # small data and few epochs, to check that everything works
    seeds: int | None = None  # per cell; None uses the protocol's number
    device: str = "auto"  # as in `difformer.training.train_one`
    models: tuple[str, ...] = ()  # systems or models; all if empty
    datasets: tuple[str, ...] = ()  # sections or data sets; all if empty
    presets: tuple[str, ...] = ()  # names of presets; all if empty
    preset_folder: Path | None = None  # of preset files that override the package's
    seconds: float = math.inf  # start no new run after this time
    limit: float = math.inf  # seconds after which a single run is stopped
    retry: bool = False  # whether to repeat runs that failed

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise UserError(f"limit must be a positive number of seconds, got {self.limit}", argument="limit")


def read_presets(folder: str | Path | None) -> tuple[Preset, ...]:
    """Presets of a folder, then those of the package; what `difformer tune` found counts as ``best``."""
    if folder is None:
        return load_presets()
    place = Path(folder)
    known, found = [*OURS, *(f"{name}-no-graph" for name in OURS), TUNED], []
    for path in sorted(place.glob("*.toml")):
        preset = read_preset(path)
        if preset.name not in known:
            used = f"which no row uses; expected one of {', '.join(known)}"
            raise UserError(f"--presets: {path} has name = {preset.name!r}, {used}")
        found.append(replace(preset, name="best") if preset.name == TUNED else preset)
    if not found:
        problem = "holds no .toml file" if place.is_dir() else "is not a folder"
        raise UserError(f"--presets: {place} {problem}; give a folder of files as `difformer tune` writes")
    return (*found, *load_presets())


def choices(
    experiment: Experiment, data: Data, system: System, presets: Sequence[Preset], *, quick: bool = False
) -> tuple[Preset, ...]:
    """The settings that a system runs with on a section, one row each, with their origin as `source`."""
    if system.baseline:
        return (Preset(NO_TRAINING, "", data.dataset, source="no training"),)
    fields = {*TrainConfig().to_dict(), *options_of(system.model)}

    def known(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if key in fields}

    base = defaults_of_base(system.model, system.base)
    last = {**(known(experiment.quick_settings) if quick else {}), **system.settings, **known(data.settings)}
    found = [
        replace(preset, name=name, settings={**base, **preset.settings, **last}, source=preset.describe())
        for name in experiment.only_presets or (RIVALS if system.role == "rival" else OURS)
        if (preset := preset_of(name + system.suffix, system, data, presets)) is not None
    ]
    if system.role == "rival":
        found = found[:1]
    elif experiment.one_preset:
        found = sorted(found, key=lambda preset: PREFERRED.index(preset.name))[:1]
    if not found:
        settings = {**base, **known({**experiment.untuned, **data.untuned}), **last}
        origin = "not tuned: one set of customary values for every such system"
        found = [Preset(UNTUNED, system.model, data.dataset, settings, origin)]
    return tuple(found)


def defaults_of_base(model: str, base: str) -> dict[str, Any]:
    """Options whose default differs between a model and the `base` that it is a variant of, with the base's value."""
    own, known = options_of(model), options_of(base) if base else {}
    return {key: value for key, value in known.items() if key in own and own[key] != value}


def preset_of(name: str, system: System, data: Data, presets: Sequence[Preset]) -> Preset | None:
    """The preset of the system, or of the model it is a variant of; a section's variant precedes the general one."""
    for model, variant in product((system.model, system.base), (data.variant, None)):
        for preset in (one for one in presets if one.identity == (name, model, data.dataset, variant)):
            # A preset of the general encoder belongs to the system whose defining settings it was tuned with.
            if system.base in ("", model) or system.settings.items() <= preset.settings.items():
                return preset
    return None


def cells(experiment: Experiment, presets: Sequence[Preset], request: Request | None = None) -> tuple[Cell, ...]:
    """The cells of the data sets and models that a request names, in the order of the tables; by default all."""
    request = request or Request()
    return tuple(
        Cell(data, system, preset)
        for data in experiment.sections(request.quick)
        if not request.datasets or set(data.names) & set(request.datasets)
        for system in experiment.rows(data, request.quick)
        if not request.models or set(system.names) & set(request.models)
        for preset in choices(experiment, data, system, presets, quick=request.quick)
    )


def wanted_cells(experiment: Experiment, request: Request) -> list[Cell]:
    """Every cell that is asked for, in the order of the tables; selecting none is an error: it would look finished."""
    _check(experiment, request)
    chosen = cells(experiment, read_presets(request.preset_folder), request)
    if not chosen:
        models, datasets = ",".join(request.models), ",".join(request.datasets)
        raise UserError(f"--models {models}: {experiment.name} does not run them on {datasets}")
    wanted = [cell for cell in chosen if not request.presets or cell.preset.name in (*request.presets, NO_TRAINING)]
    if all(cell.system.baseline for cell in wanted) and not all(cell.system.baseline for cell in chosen):
        there = ", ".join(dict.fromkeys(cell.preset.name for cell in chosen))
        problem = f"--preset {','.join(request.presets)}: no selected row of {experiment.name} has such a preset; "
        problem += f"there are rows of {there}. `difformer tune` finds presets, --presets FOLDER reads them"
        raise UserError(problem)
    return wanted


def _check(experiment: Experiment, request: Request) -> None:
    quick, name = request.quick, experiment.name
    rows = [(data, system) for data in experiment.sections(quick) for system in experiment.rows(data, quick)]
    for option, asked, place in (("--datasets", request.datasets, 0), ("--models", request.models, 1)):
        known = {name for pair in rows for name in pair[place].names}
        if unknown := [word for word in asked if word not in known]:
            which = f"the quick form of {name}" if quick else name
            raise UserError(f"{option}: {which} has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
    presets = (*NAMES, UNTUNED)
    if unknown := [word for word in request.presets if word not in presets]:
        raise UserError(f"--preset: expected one of {', '.join(presets)}, got {unknown[0]!r}")
