"""What an experiment is, as data: data sets × systems × presets, and the runs that follow from them.

    experiment  =  {data} × {systems},     cell  =  (data, system, preset),     run  =  (cell, seed)

Seed s of a cell is trained on split s, counted around. Nothing here knows how a run is made; no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["ours", "rival", "off", "variant"]


@dataclass(frozen=True)
class Data:
    """A data set under one protocol: one section of a table.

    Args:
        key: How runs and ``--datasets`` call it.
        dataset: Name for `difformer.data.load` and for presets.
        label: What tables call it.
        options: Of the data set.
        seeds: How many the full protocol has.
        mode: What a run measures: ``"score"``, ``"cost"``, ``"energy"`` or ``"visualise"``.
        settings: What goes before any preset: the loss and the metric of a protocol, for example.
        untuned: Settings of systems without a preset, before those of the experiment.
        needs: Gigabytes of memory below which it is not even loaded.
        variant: Which variant of a preset is meant, where a data set is asked several questions.
        loader: ``"module:function"`` in place of `load`, for data that are made.
        published: Key of the paper's figures; the data set's name where left out.
        measures: What is recorded beside the metric, see `difformer.experiments.measures`.
        compare: Which figure of a run is compared with published ones: ``"test"`` or one of `measures`.
        alone: Whether seeds are never trained as one, and memory is that of training one, evaluation left out.
        systems: Keys of the systems that are run on it; all where left out.
        note: One sentence for the table.
    """

    key: str
    dataset: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 5
    mode: str = "score"
    settings: Mapping[str, Any] = field(default_factory=dict)
    untuned: Mapping[str, Any] = field(default_factory=dict)
    needs: float = 0.0
    variant: str | None = None
    loader: str = ""
    published: str = ""
    measures: tuple[str, ...] = ()
    compare: str = "test"
    alone: bool = False
    systems: tuple[str, ...] | None = None
    note: str = ""


@dataclass(frozen=True)
class System:
    """A row of a table.

    Args:
        key: How runs and ``--models`` call it.
        label: What tables call it.
        model: Of the zoo; empty where `baseline` says what is done.
        role: ``"ours"`` and ``"rival"`` are compared by a paired test; ``"off"`` is our encoder without attention;
            ``"variant"`` is shown only.
        base: Model whose presets are used where the system has none of its own; `model` where left out.
        settings: What makes the system what it is, and goes before a preset.
        suffix: What the names of its presets end in, as in ``public-code-no-graph``.
        baseline: A prediction that needs no training, see `difformer.experiments.baselines`.
    """

    key: str
    label: str
    model: str = ""
    role: Role = "rival"
    base: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ""
    baseline: str = ""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Args:
        name: How `difformer reproduce` calls it.
        title: Heading of its table.
        about: One line for ``--list``.
        source: Where it stands in the paper.
        data: Sections of the table.
        systems: Its rows.
        untuned: Settings of a system that has no preset; such rows are marked.
        quick_data: Sections of ``--quick``.
        quick_systems: Keys of the systems of ``--quick``; all where left out.
        quick_settings: What ``--quick`` sets for every run.
        one_preset: Whether a system of ours is run with one preset only, the best that there is.
        only_presets: The names of presets that are used, where it is not asked what each gives; all where left out.
        figure: ``"module:function"`` that draws it from the runs.
        notes: What a reader of the table has to know, one sentence each.
    """

    name: str
    title: str
    about: str
    source: str
    data: tuple[Data, ...]
    systems: tuple[System, ...]
    untuned: Mapping[str, Any] = field(default_factory=dict)
    quick_data: tuple[Data, ...] = ()
    quick_systems: tuple[str, ...] | None = None
    quick_settings: Mapping[str, Any] = field(default_factory=dict)
    one_preset: bool = False
    only_presets: tuple[str, ...] = ()
    figure: str = "difformer.experiments.figures:dots"
    notes: tuple[str, ...] = ()

    def sections(self, quick: bool) -> tuple[Data, ...]:
        """Data of the full or the quick form."""
        return self.quick_data if quick else self.data

    def rows(self, data: Data, quick: bool) -> tuple[System, ...]:
        """Systems that belong on a section."""
        found = self.systems
        if quick and self.quick_systems is not None:
            found = tuple(system for system in found if system.key in self.quick_systems)
        if data.systems is not None:
            found = tuple(system for system in found if system.key in data.systems)
        return found


def selected_data(experiment: Experiment, names: Sequence[str], quick: bool) -> tuple[Data, ...]:
    """Sections by key or by name of their data set; all where nothing is named.

    Raises:
        ValueError: If a name is none of them.
    """
    sections = experiment.sections(quick)
    every = {name for one in experiment.data for name in (one.key, one.dataset)}
    _check("--datasets", names, {n for one in sections for n in (one.key, one.dataset)}, experiment, every, quick)
    return tuple(one for one in sections if not names or one.key in names or one.dataset in names)


def selected_systems(experiment: Experiment, names: Sequence[str], quick: bool = False) -> frozenset[str]:
    """Keys of the systems of these names, by key or by model; all where nothing is named.

    Raises:
        ValueError: If a name is none of them.
    """
    rows = {one.key: one for data in experiment.sections(quick) for one in experiment.rows(data, quick)}
    every = {name for one in experiment.systems for name in _called(one)}
    _check("--models", names, {name for one in rows.values() for name in _called(one)}, experiment, every, quick)
    return frozenset(one.key for one in rows.values() if not names or set(_called(one)) & set(names))


def _called(system: System) -> tuple[str, ...]:
    """What a system answers to; ``"difformer"`` is the model of variants alone, and nobody would mean those."""
    return tuple(name for name in (system.key, system.model) if name and name != "difformer")


def _check(
    option: str, names: Iterable[str], known: set[str], experiment: Experiment, every: set[str], quick: bool
) -> None:
    for name in names:
        if name in known:
            continue
        if quick and name in every:
            raise ValueError(
                f"{option}: the quick form of {experiment.name} has no {name!r}, only {', '.join(sorted(known))}; "
                f"leave --quick out, or {option}"
            )
        raise ValueError(f"{option}: {experiment.name} has no {name!r}; it has {', '.join(sorted(known))}")
