"""Which settings a system is run with: its presets, or, marked as such, untuned ones.

* A system of ours is run with every preset there is for it, ``public-code``, ``paper`` and ``best``, a row each.
* A rival is run with ``best``, or else with ``paper``: what was tuned for it, with the budget that every system gets.
* "Attention off" follows DIFFormer-s preset by preset, unless it was tuned itself under the same name.
* What was never tuned is run with the settings that the experiment names for all such systems, and says ``untuned``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from difformer.experiments.plan import Data, Experiment, System
from difformer.experiments.presets import NAMES, Preset, load_presets, read_preset

UNTUNED = "untuned"
NO_TRAINING = "no training"
TUNED = "tuned"  # what `difformer tune` calls its file, whose settings are the best that it found
OURS = ("public-code", "paper", "best")
RIVALS = ("best", "paper")
# Where one row has to do: our own grid, else the authors' values, else the paper's grid, which stays behind those.
ONE_OF_OURS = ("best", "public-code", "paper")
SUFFIXES = ("", "-no-graph")
# The preset `paper` was tuned here; called that beside the paper's own figures, its rows would pass for them.
SAID = {"paper": "paper's grid"}


@dataclass(frozen=True)
class Choice:
    """Settings with their origin.

    Args:
        name: What the table says: a preset's name, or ``"untuned"``.
        settings: As `--set` takes them.
        origin: Where they come from, in a sentence.
        trials: How many settings competed; None where nothing is known.
        runs: Over how many runs each of them was averaged; None where nothing is known.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    trials: int | None = None
    runs: int | None = None


@dataclass(frozen=True)
class Cell:
    """One row of one section."""

    data: Data
    system: System
    choice: Choice

    @property
    def key(self) -> tuple[str, str, str]:
        return self.data.key, self.system.key, self.choice.name


def read_presets(folder: str | Path | None) -> tuple[Preset, ...]:
    """The package's presets, after those of a folder of files as `difformer tune` and the search write them.

    What `difformer tune` found stands for ``best``.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If it holds no preset, or one of a name that no row has and that would be passed over.
    """
    if folder is None:
        return load_presets()
    place = Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"--presets: there is no folder {place}")
    paths = sorted(place.glob("*.toml"))
    found = tuple(read_preset(path) for path in paths)
    if not found:
        raise ValueError(f"--presets: {place} holds no .toml file; give a folder as the search writes it")
    known = [name + suffix for name in OURS for suffix in SUFFIXES]
    for path, preset in zip(paths, found, strict=True):
        if preset.name not in (*known, TUNED):
            raise ValueError(
                f"--presets: {path} calls itself {preset.name!r}, and no row runs with that; expected name = one of "
                f"{', '.join((*known, TUNED))}"
            )
    found = tuple(replace(one, name="best") if one.name == TUNED else one for one in found)
    return (*found, *load_presets())


def choices(
    experiment: Experiment, data: Data, system: System, presets: Sequence[Preset], *, quick: bool = False
) -> tuple[Choice, ...]:
    """Everything a system is to be run with on a section, a row each."""
    if system.baseline:
        return (Choice(NO_TRAINING, {}, "nothing is trained"),)
    last = {**system.settings, **_known(system.model, data.settings)}
    if quick:
        last = {**_known(system.model, experiment.quick_settings), **last}
    order: tuple[str, ...] = OURS if system.role != "rival" else RIVALS
    if experiment.only_presets:
        order = experiment.only_presets
    found = [
        Choice(name, {**preset.settings, **last}, preset.describe(), preset.trials, preset.runs)
        for name in order
        if (preset := preset_of(name + system.suffix, system, data, presets)) is not None
    ]
    if system.role == "rival":
        found = found[:1]
    elif experiment.one_preset:
        found = sorted(found, key=lambda choice: ONE_OF_OURS.index(choice.name))[:1]
    if not found:
        settings = {**_known(system.model, {**experiment.untuned, **data.untuned}), **last}
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


def check_names(names: Sequence[str]) -> None:
    """Refuses names of presets that no row can have.

    Raises:
        ValueError: Naming those that there are.
    """
    for name in names:
        if name not in (*NAMES, UNTUNED):
            raise ValueError(f"--preset: expected one of {', '.join((*NAMES, UNTUNED))}, got {name!r}")


def preset_of(name: str, system: System, data: Data, presets: Sequence[Preset]) -> Preset | None:
    """The system's own, or that of the model it is a variant of; of a section's variant before the general one."""
    for model in dict.fromkeys((system.model, system.base or system.model)):
        for variant in dict.fromkeys((data.variant, None)):
            for preset in presets:
                if (preset.name, preset.model, preset.dataset, preset.variant) != (name, model, data.dataset, variant):
                    continue
                # A preset of the general encoder belongs to the system whose choices it was tuned with.
                if model == system.base or not system.base or _agrees(preset.settings, system.settings):
                    return preset
    return None


def _agrees(tuned: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(key in tuned and tuned[key] == value for key, value in wanted.items())


def _known(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that the model has."""
    from difformer.training.config import TrainConfig
    from difformer.zoo import options_of

    known = {*TrainConfig().to_dict(), *options_of(model)}
    return {key: value for key, value in settings.items() if key in known}
