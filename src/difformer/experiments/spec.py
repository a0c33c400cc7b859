"""Experiments as data: one TOML file in ``specs/`` per table or figure.

    experiment  =  {data} × {systems},     cell  =  (data, system, preset),     run  =  (cell, seed)

Seed s uses split s modulo the number of splits. A file holds ``[[data]]`` entries (sections of the table), the keys of
its ``systems`` (rows; ``specs/systems.toml`` defines the shared ones, ``[[system]]`` its own), and the settings of
systems without a preset. A ``[[system]]`` with ``each = {num_layers = [2, 4]}`` gives one row per combination, a
``[[data]]`` with ``each = {labels_per_class = [1, 5]}`` for one section per combination.
This module does not import torch, so that ``difformer reproduce --list`` is immediate.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from difformer.errors import UserError, did_you_mean
from difformer.training import toml

SPECS = Path(__file__).with_name("specs")
# In the order of the paper; `robustness` is this project's own.
NAMES = (
    "citation",
    "heterophily",
    "large",
    "temporal",
    "unobserved",
    "particles",
    "attention-ablation",
    "depth",
    "batch-size",
    "cost",
    "energy",
    "visualise",
    "robustness",
)
Role = Literal["ours", "rival", "off", "variant"]


@dataclass(frozen=True)
class Data:
    """A data set under one protocol: one section of a table.

    Args:
        key: Name in the ledger and for ``--datasets``.
        dataset: Name for `difformer.data.load` and for presets.
        label: Name in tables.
        options: Options of the data set.
        alter: Changes made after loading, see `difformer.experiments.samples.altered`.
        seeds: Number of seeds in the full protocol.
        mode: What a run measures: ``"score"``, ``"cost"``, ``"energy"`` or ``"visualise"``.
        settings: Settings that override any preset, such as the loss and metric of a protocol.
        untuned: Settings of systems without a preset; they override those of the experiment.
        needs: Gigabytes of free memory below which the data set is not loaded.
        variant: Variant of the presets, for data sets that appear with several label counts.
        loader: Name of a generator in `difformer.experiments.samples`, in place of `load`.
        published: Key of the paper's figures, if it is not `key`.
        paper_protocol: Whether the splits are the paper's, so that its figures can be compared directly.
        measures: Measures recorded in addition to the metric, see `difformer.experiments.measure`.
        compare: The figure compared with published ones: ``"test"`` or one of `measures`.
        alone: Train one seed at a time, and measure the memory of training without evaluation.
        systems: Keys of the systems that run on it; all if None.
        note: A sentence for the table.
    """

    key: str
    dataset: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    alter: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 5
    mode: str = "score"
    settings: Mapping[str, Any] = field(default_factory=dict)
    untuned: Mapping[str, Any] = field(default_factory=dict)
    needs: float = 0.0
    variant: str | None = None
    loader: str = ""
    published: str = ""
    paper_protocol: bool = False
    measures: tuple[str, ...] = ()
    compare: str = "test"
    alone: bool = False
    systems: tuple[str, ...] | None = None
    note: str = ""


@dataclass(frozen=True)
class System:
    """A row of a table.

    Args:
        key: Name in the ledger and for ``--models``.
        label: Name in tables.
        model: Model of the zoo; empty for a `baseline`.
        role: ``"ours"`` and ``"rival"`` are compared by a paired test; ``"off"`` is our encoder without attention;
            ``"variant"`` is shown only.
        base: Model whose presets are used if the system has none of its own.
        settings: Settings that define the system; they override presets.
        suffix: Suffix of its preset names, as in ``public-code-no-graph``.
        baseline: A prediction without training, see `difformer.experiments.samples.baseline`.
        compared: Whether it can be the best row of its role; not if its validation score is not held out.
    """

    key: str
    label: str
    model: str = ""
    role: Role = "rival"
    base: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ""
    baseline: str = ""
    compared: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names for ``--models``: its key and its model; as the model of variants ``"difformer"`` names no row."""
        return (self.key,) if self.model in ("", "difformer") else (self.key, self.model)


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Args:
        name: Name for `difformer reproduce`.
        title: Heading of the table.
        about: One line for ``--list``.
        source: Where the paper has it.
        data: Sections.
        systems: Rows.
        untuned: Settings of systems without a preset; such rows are marked.
        quick_data: Sections of ``--quick``.
        quick_systems: Keys of the systems of ``--quick``; all if None.
        quick_settings: Settings of every ``--quick`` run.
        one_preset: Whether our systems run with their best preset only.
        only_presets: Names of the presets in use; all if empty.
        figure: Name of the drawing in `difformer.experiments.figures`.
        notes: Sentences that a reader of the table needs.
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
    figure: str = "scores"
    notes: tuple[str, ...] = ()

    def sections(self, quick: bool) -> tuple[Data, ...]:
        """Data of the full or the quick form."""
        return self.quick_data if quick else self.data

    def rows(self, data: Data, quick: bool) -> tuple[System, ...]:
        """Systems of a section."""
        limits = (self.quick_systems if quick else None, data.systems)
        return tuple(one for one in self.systems if all(keys is None or one.key in keys for keys in limits))

    def select_data(self, names: Sequence[str], quick: bool) -> tuple[Data, ...]:
        """Sections by key or data set; all if `names` is empty.

        Raises:
            UserError: If a name is unknown.
        """
        sections = self.sections(quick)
        every = {name for one in self.data for name in (one.key, one.dataset)}
        self._check("--datasets", names, {n for one in sections for n in (one.key, one.dataset)}, every, quick)
        return tuple(one for one in sections if not names or one.key in names or one.dataset in names)

    def select_systems(self, names: Sequence[str], quick: bool = False) -> frozenset[str]:
        """Keys of systems by key or model; all if `names` is empty.

        Raises:
            UserError: If a name is unknown.
        """
        rows = {one.key: one for data in self.sections(quick) for one in self.rows(data, quick)}
        every = {name for one in self.systems for name in one.names}
        self._check("--models", names, {name for one in rows.values() for name in one.names}, every, quick)
        return frozenset(one.key for one in rows.values() if not names or set(one.names) & set(names))

    def _check(self, option: str, names: Iterable[str], known: set[str], every: set[str], quick: bool) -> None:
        for name in names:
            if name in known:
                continue
            has = ", ".join(sorted(known))
            if quick and name in every:
                raise UserError(
                    f"{option}: the quick form of {self.name} has no {name!r}, only {has}; drop --quick, or {option}"
                )
            raise UserError(f"{option}: {self.name} has no {name!r}; it has {has}")


def find(name: str) -> Experiment:
    """The experiment of a name.

    Raises:
        UserError: If there is no such experiment, with the nearest name.
    """
    if name not in NAMES:
        raise UserError(f"there is no experiment {name!r}; {did_you_mean(name, NAMES)}known are {', '.join(NAMES)}")
    return read_experiment(SPECS / f"{name}.toml")


def experiments() -> tuple[Experiment, ...]:
    """All experiments."""
    return tuple(find(name) for name in NAMES)


@cache
def read_experiment(path: Path) -> Experiment:
    """An experiment from a TOML file, named after the file.

    Raises:
        UserError: If the file is not TOML or has an unknown field; the message names the file.
    """
    content = _parse(path)
    own = [one for entry in content.pop("system", []) for one in _systems(entry, path)]
    known = {**shared_systems(), **{one.key: one for one in own}}
    wanted = content.pop("systems", None) or [one.key for one in own]
    if unknown := [key for key in wanted if key not in known]:
        raise UserError(f"{path}: there is no system {unknown[0]!r}; define it as [[system]] or in systems.toml")
    content["systems"] = tuple(known[key] for key in wanted)
    for name in ("data", "quick_data"):
        content[name] = tuple(one for entry in content.get(name, []) for one in _sections(entry, path))
    return _made(Experiment, {"name": path.stem, **content}, path)


@cache
def shared_systems() -> dict[str, System]:
    """Systems of ``systems.toml`` by key; the model is named like the system unless it says otherwise."""
    path = SPECS / "systems.toml"
    return {key: _system({"key": key, **entry}, path) for key, entry in _parse(path).items()}


def _parse(path: Path) -> dict[str, Any]:
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not a TOML file ({error})") from error


def _systems(entry: Mapping[str, Any], path: Path) -> Iterable[System]:
    """The systems of a ``[[system]]`` table: a shared one by its key, its own, or one per combination of ``each``."""
    if set(entry) == {"key"}:
        if entry["key"] not in shared_systems():
            raise UserError(f"{path}: systems.toml has no system {entry['key']!r}")
        yield shared_systems()[entry["key"]]
        return
    for chosen, rest in _combinations(entry):
        yield _system({**rest, "settings": {**rest.get("settings", {}), **chosen}}, path)


def _sections(entry: Mapping[str, Any], path: Path) -> Iterable[Data]:
    """The sections of a ``[[data]]`` table: one per combination of ``each``, which alters the data."""
    for chosen, rest in _combinations(entry):
        yield _made(Data, {**rest, **({"alter": chosen} if chosen else {})}, path)


def _combinations(entry: Mapping[str, Any]) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    """Values of ``each`` with the entry's other fields; key and label are filled in with the values."""
    each: Mapping[str, Sequence[Any]] = entry.get("each", {})
    rest = {key: value for key, value in entry.items() if key != "each"}
    for values in itertools.product(*each.values()):
        chosen = dict(zip(each, values, strict=True))
        named = {name: str(rest[name]).format(**chosen) for name in ("key", "label")} if chosen else {}
        yield chosen, {**rest, **named}


def _system(entry: Mapping[str, Any], path: Path) -> System:
    model = "" if entry.get("baseline") else entry["key"]
    return _made(System, {"model": model, **entry}, path)


def _made(kind: Any, entry: Mapping[str, Any], path: Path) -> Any:
    known = [one.name for one in fields(kind)]
    if unknown := sorted(set(entry) - set(known)):
        raise UserError(f"{path}: {kind.__name__} has no field {unknown[0]!r}; known are {', '.join(known)}")
    return kind(**{key: _frozen(value) for key, value in entry.items()})


def _frozen(value: Any) -> Any:
    """Lists as tuples, also inside tables."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {key: _frozen(one) for key, one in value.items()} if isinstance(value, dict) else value
