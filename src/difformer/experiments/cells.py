"""Cells of an experiment: which settings each system runs with, and which cells a request selects.

* Our systems run with each of their presets, ``public-code``, ``paper`` and ``best``: one row each.
* A rival runs with ``best``, or else ``paper``.
* "Attention off" uses the presets of DIFFormer-s, unless it has its own under the same name.
* A system without a preset runs with the settings that the experiment gives to all such systems, as ``untuned``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from difformer.errors import UserError
from difformer.experiments.ledger import identity
from difformer.experiments.presets import NAMES, PREFERRED, Preset, load_presets, read_preset
from difformer.experiments.spec import Data, Experiment, System
from difformer.training.config import PRECISIONS, TrainConfig, make_config
from difformer.zoo import find, options_of

UNTUNED = "untuned"
NO_TRAINING = "no training"
TUNED = "tuned"  # the name that `difformer tune` gives its preset
OURS = ("public-code", "paper", "best")
RIVALS = ("best", "paper")
SUFFIXES = ("", "-no-graph")
# Fields that do not affect a result.
_IRRELEVANT = ("checkpoint_every", "checkpoint_seconds")
# Fields that are no part of an identity. Specs of series fix `scale_targets` at what was done before it existed.
_NO_IDENTITY = ("model", "precision", "scale_targets")
# Options whose default is not what was done before they existed.
BEFORE = {"initialisation": "torch"}


@dataclass(frozen=True)
class Choice:
    """Settings and their origin.

    Args:
        name: A preset's name, ``"untuned"`` or ``"no training"``.
        settings: As `--set` takes them.
        origin: Where they come from, in a sentence.
        trials: Number of settings that were compared; None if unknown.
        runs: Number of runs that each of them was averaged over; None if unknown.
        data: Options of the data set that belong to the settings, such as ``features="raw"``.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    trials: int | None = None
    runs: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One row of one section."""

    data: Data
    system: System
    choice: Choice

    @property
    def key(self) -> tuple[str, str, str]:
        return self.data.key, self.system.key, self.choice.name

    @property
    def options(self) -> dict[str, Any]:
        """Options of the data set, those of the settings included."""
        return {**self.data.options, **self.choice.data}

    def config(self) -> TrainConfig | None:
        """The training configuration; None for a baseline.

        Raises:
            UserError: If a setting is unknown to the model.
        """
        return None if self.system.baseline else make_config(self.system.model, self.choice.settings)

    def settings(self) -> dict[str, Any]:
        """Every setting including defaults; of a baseline its name."""
        config = self.config()
        return {"baseline": self.system.baseline} if config is None else complete(config)

    def settings_id(self) -> str:
        """Identity of the data and settings of the cell."""
        options = {**self.options, **self.data.alter}
        return settings_id(self.system.model, self.settings(), self.data.dataset, options)


def complete(config: TrainConfig) -> dict[str, Any]:
    """Every setting of a configuration in one mapping, including the model's defaults."""
    fields = {key: value for key, value in config.to_dict().items() if key not in (*_IRRELEVANT, "options")}
    return {**find(config.model).fixed, **options_of(config.model), **config.options, **fields}


def settings_id(model: str, settings: Mapping[str, Any], dataset: str, options: Mapping[str, Any]) -> str:
    """Identity of a data set with options and of settings, without the precision.

    Settings at their default do not count. So a run keeps its identity when the package gains an option whose default
    is what was done before, and lines of older versions are found again.
    """
    if model == "difformer" and settings.get("diffusivity", "") is None:
        model = "difformer-off"  # its name before it had one of its own
    if "baseline" in settings:
        return identity(baseline=settings["baseline"], dataset=dataset, options=options)
    try:
        default = complete(TrainConfig(model=model))
    except ValueError:  # a model that the package no longer has
        default = {}
    before = {key: value for key, value in BEFORE.items() if key in default}
    chosen = {
        key: value
        for key, value in {**before, **settings}.items()
        if key not in _NO_IDENTITY and (key not in default or _plain(value) != _plain(default[key]))
    }
    return identity(model=model, settings=chosen, dataset=dataset, options=options)


def _plain(value: Any) -> Any:
    """Older lines have ``norm = false`` for ``"none"``."""
    return "none" if value is False else value


@dataclass(frozen=True)
class Request:
    """What a call of `difformer reproduce` asks for.

    Args:
        quick: Small data and few epochs, to check that everything works.
        seeds: Seeds per cell; None uses the protocol's number.
        device: As in `difformer.training.train_one`.
        models: Systems or models; all if empty.
        datasets: Sections or data sets; all if empty.
        presets: Names of presets; all if empty.
        preset_folder: Folder of preset files that override the package's.
        seconds: Start no new run after this time.
        limit: Seconds after which a single run is stopped.
        retry: Whether to repeat runs that failed.
        precision: Overrides the precision of the settings.
    """

    quick: bool = False
    seeds: int | None = None
    device: str = "auto"
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    preset_folder: Path | None = None
    seconds: float = math.inf
    limit: float = math.inf
    retry: bool = False
    precision: str | None = None


def read_presets(folder: str | Path | None) -> tuple[Preset, ...]:
    """The package's presets, preceded by those of a folder; what `difformer tune` found counts as ``best``.

    Raises:
        FileNotFoundError: If the folder does not exist.
        UserError: If it holds no preset, or a preset whose name no row uses.
    """
    if folder is None:
        return load_presets()
    place = Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"--presets: there is no folder {place}")
    paths = sorted(place.glob("*.toml"))
    if not paths:
        raise UserError(f"--presets: {place} holds no .toml file; give a folder of files as `difformer tune` writes")
    found = [read_preset(path) for path in paths]
    known = [*(name + suffix for name in OURS for suffix in SUFFIXES), TUNED]
    for path, preset in zip(paths, found, strict=True):
        if preset.name not in known:
            raise UserError(
                f"--presets: {path} has name = {preset.name!r}, which no row uses; expected one of {', '.join(known)}"
            )
    return (*(replace(one, name="best") if one.name == TUNED else one for one in found), *load_presets())


def choices(
    experiment: Experiment, data: Data, system: System, presets: Sequence[Preset], *, quick: bool = False
) -> tuple[Choice, ...]:
    """The settings that a system runs with on a section, one row each."""
    if system.baseline:
        return (Choice(NO_TRAINING, {}, "no training"),)
    base = defaults_of_base(system.model, system.base)
    last = {**system.settings, **_known(system.model, data.settings)}
    if quick:
        last = {**_known(system.model, experiment.quick_settings), **last}
    order = experiment.only_presets or (RIVALS if system.role == "rival" else OURS)
    found = [
        Choice(name, {**base, **preset.settings, **last}, preset.describe(), preset.trials, preset.runs, preset.data)
        for name in order
        if (preset := preset_of(name + system.suffix, system, data, presets)) is not None
    ]
    if system.role == "rival":
        found = found[:1]
    elif experiment.one_preset:
        found = sorted(found, key=lambda choice: PREFERRED.index(choice.name))[:1]
    if not found:
        settings = {**base, **_known(system.model, {**experiment.untuned, **data.untuned}), **last}
        found = [Choice(UNTUNED, settings, "not tuned: one set of customary values for every such system")]
    return tuple(found)


def cells(
    experiment: Experiment, presets: Sequence[Preset], *, quick: bool = False, only: Sequence[Data] | None = None
) -> tuple[Cell, ...]:
    """All cells of an experiment, in the order of its tables."""
    return tuple(
        Cell(data, system, choice)
        for data in (experiment.sections(quick) if only is None else only)
        for system in experiment.rows(data, quick)
        for choice in choices(experiment, data, system, presets, quick=quick)
    )


def preset_of(name: str, system: System, data: Data, presets: Sequence[Preset]) -> Preset | None:
    """The preset of the system, or of the model it is a variant of; a section's variant precedes the general one."""
    for model in dict.fromkeys((system.model, system.base or system.model)):
        for variant in dict.fromkeys((data.variant, None)):
            for preset in presets:
                if (preset.name, preset.model, preset.dataset, preset.variant) != (name, model, data.dataset, variant):
                    continue
                # A preset of the general encoder belongs to the system whose defining settings it was tuned with.
                agrees = all(preset.settings.get(key, ...) == value for key, value in system.settings.items())
                if model == system.base or not system.base or agrees:
                    return preset
    return None


def wanted_cells(experiment: Experiment, request: Request) -> list[Cell]:
    """Every cell that is asked for, in the order of the tables.

    Raises:
        UserError: If the request names something unknown, or selects nothing.
    """
    _check_numbers(request)
    sections = experiment.select_data(request.datasets, request.quick)
    systems = experiment.select_systems(request.models, request.quick)
    found = cells(experiment, read_presets(request.preset_folder), quick=request.quick, only=sections)
    chosen = [cell for cell in found if cell.system.key in systems]
    wanted = [c for c in chosen if not request.presets or c.choice.name in (*request.presets, NO_TRAINING)]
    _check_some(experiment, request, chosen, wanted)
    measured = next((cell.data.key for cell in wanted if cell.data.mode == "cost" or cell.data.alone), None)
    if measured is not None and request.precision not in (None, "float32"):
        raise UserError(
            f"--precision {request.precision}: {measured} measures time or memory, in float32 for all systems; "
            f"drop --precision"
        )
    return wanted


def _check_numbers(request: Request) -> None:
    if request.seeds is not None and request.seeds < 1:
        raise UserError(f"--seeds: expected at least 1, got {request.seeds}")
    if not request.seconds >= 0:
        raise UserError(f"--seconds: expected 0 or more, got {request.seconds:g}")
    if not request.limit > 0:
        raise UserError(f"--limit: expected how many seconds one run may take, more than 0, got {request.limit:g}")
    for name in request.presets:
        if name not in (*NAMES, UNTUNED):
            raise UserError(f"--preset: expected one of {', '.join((*NAMES, UNTUNED))}, got {name!r}")
    if request.precision not in (None, *PRECISIONS):
        raise UserError(f"--precision: expected {' or '.join(PRECISIONS)}, got {request.precision!r}")


def _check_some(experiment: Experiment, request: Request, chosen: Sequence[Cell], wanted: Sequence[Cell]) -> None:
    """A request that selects no row is refused; otherwise it would look finished."""
    if not chosen:
        raise UserError(
            f"--models {','.join(request.models)}: {experiment.name} does not run them on {','.join(request.datasets)}"
        )
    if all(cell.system.baseline for cell in wanted) and not all(cell.system.baseline for cell in chosen):
        there = ", ".join(dict.fromkeys(cell.choice.name for cell in chosen))
        raise UserError(
            f"--preset {','.join(request.presets)}: no selected row of {experiment.name} has such a preset; there are "
            f"rows of {there}. `difformer tune` finds presets, --presets FOLDER reads them"
        )


def defaults_of_base(model: str, base: str) -> dict[str, Any]:
    """Options whose default differs between a model and the `base` that it is a variant of, with the base's value."""
    if not base:
        return {}
    own, known = options_of(model), options_of(base)
    return {key: value for key, value in known.items() if key in own and own[key] != value}


def _known(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that the model has."""
    known = {*TrainConfig().to_dict(), *options_of(model)}
    return {key: value for key, value in settings.items() if key in known}
