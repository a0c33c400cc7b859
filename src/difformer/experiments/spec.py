"""Experiments as data: one TOML file in ``specs/`` per table or figure.

    experiment  =  {data} × {systems},     cell  =  (data, system, preset),     run  =  (cell, seed)

Seed s uses split s modulo the number of splits. A file holds ``[[data]]`` entries (sections of the table), rows, and
the settings of systems without a preset. Rows are its ``[[system]]`` entries and those of ``systems.toml`` that the
list ``systems`` names; the list also orders them, and what it does not name comes first. A ``[[system]]`` with
``each = {num_layers = [2, 4]}`` gives one row per combination, a ``[[data]]`` with ``each = {labels_per_class = [1]}``
one section per combination.
This module does not import torch, so that ``difformer reproduce --list`` is immediate.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from difformer.errors import UserError, did_you_mean
from difformer.experiments.presets import read_toml

SPECS = Path(__file__).with_name("specs")
# In the order of the paper; `robustness` is this project's own.
NAMES = (
    *("citation", "heterophily", "large", "temporal", "unobserved", "particles"),
    *("attention-ablation", "depth", "batch-size", "cost", "energy", "visualise", "robustness"),
)
Role = Literal["ours", "rival", "off", "variant"]


@dataclass(frozen=True)
class Data:
    """A data set under one protocol: one section of a table."""

    key: str  # name in the ledger and for --datasets
    dataset: str  # name for `difformer.data.load` and for presets
    label: str  # name in tables
    options: Mapping[str, Any] = field(default_factory=dict)  # of the data set
    alter: Mapping[str, Any] = field(default_factory=dict)  # changes after loading: `difformer.experiments.samples`
    seeds: int = 5  # in the full protocol
    mode: str = "score"  # what a run measures: "score", "cost", "energy" or "visualise"
    settings: Mapping[str, Any] = field(default_factory=dict)  # override any preset: loss and metric of a protocol
    untuned: Mapping[str, Any] = field(default_factory=dict)  # of systems without a preset
    needs: float = 0.0  # gigabytes of free memory below which the data set is not loaded
    variant: str | None = None  # of the presets, for data sets that appear with several label counts
    published: str = ""  # key of the paper's figures, if it is not `key`
    paper_protocol: bool = False  # whether the splits are the paper's, so that its figures can be compared directly
    measures: tuple[str, ...] = ()  # beside the metric: `difformer.experiments.measure`
    compare: str = "test"  # what is compared with published figures: "test" or one of `measures`
    alone: bool = False  # train one seed at a time, and measure the memory of training without evaluation
    systems: tuple[str, ...] | None = None  # keys of the systems that run on it; all if None
    note: str = ""  # a sentence for the table

    @property
    def names(self) -> tuple[str, ...]:
        """Names for ``--datasets``."""
        return self.key, self.dataset


@dataclass(frozen=True)
class System:
    """A row of a table.

    Rows of role ``"ours"`` and ``"rival"`` are compared by a paired test, ``"off"`` is our encoder without attention,
    ``"variant"`` is only shown.
    """

    key: str  # name in the ledger and for --models
    label: str  # name in tables
    model: str = ""  # of the zoo; empty for a `baseline`
    role: Role = "rival"
    base: str = ""  # model whose presets are used if the system has no presets
    settings: Mapping[str, Any] = field(default_factory=dict)  # define the system; they override presets
    suffix: str = ""  # of its preset names, as in public-code-no-graph
    baseline: str = ""  # a prediction without training: `difformer.experiments.samples.baseline`
    compared: bool = True  # False if its validation score is not held out: never the best row of its role

    @property
    def names(self) -> tuple[str, ...]:
        """Names for ``--models``: its key and its model, except ``"difformer"``, the model of many variants."""
        return (self.key,) if self.model in ("", "difformer") else (self.key, self.model)


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str  # for `difformer reproduce`
    title: str  # heading of the table
    about: str  # one line for --list
    source: str  # where the paper has it
    data: tuple[Data, ...]  # sections
    systems: tuple[System, ...]  # rows
    untuned: Mapping[str, Any] = field(default_factory=dict)  # of systems without a preset; such rows are marked
    quick_data: tuple[Data, ...] = ()  # sections of --quick
    quick_systems: tuple[str, ...] | None = None  # keys of the systems of --quick; all if None
    quick_settings: Mapping[str, Any] = field(default_factory=dict)  # of every --quick run
    one_preset: bool = False  # whether our systems run with their best preset only
    only_presets: tuple[str, ...] = ()  # names of the presets in use; all if empty
    figure: str = "scores"  # drawing in `difformer.experiments.figures`
    notes: tuple[str, ...] = ()  # sentences that a reader of the table needs

    def sections(self, quick: bool) -> tuple[Data, ...]:
        return self.quick_data if quick else self.data

    def rows(self, data: Data, quick: bool) -> tuple[System, ...]:
        """Systems of a section."""
        limits = (self.quick_systems if quick else None, data.systems)
        return tuple(one for one in self.systems if all(keys is None or one.key in keys for keys in limits))


def find(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in NAMES:
        raise UserError(f"there is no experiment {name!r}; {did_you_mean(name, NAMES)}known are {', '.join(NAMES)}")
    return read_experiment(SPECS / f"{name}.toml")


def experiments() -> tuple[Experiment, ...]:
    return tuple(map(find, NAMES))


@cache
def read_experiment(path: Path) -> Experiment:
    """An experiment from a TOML file, named after the file.

    Raises:
        UserError: If the file is not TOML or has an unknown field; the message names the file.
    """
    content = read_toml(path)
    own = {one.key: one for entry in content.pop("system", []) for one in _entries(System, entry, path)}
    known, listed = {**shared_systems(), **own}, content.pop("systems", [])
    if unknown := [key for key in listed if key not in known]:
        raise UserError(f"{path}: there is no system {unknown[0]!r}; define it as [[system]] or in systems.toml")
    content["systems"] = tuple(known[key] for key in [*(key for key in own if key not in listed), *listed])
    for name in ("data", "quick_data"):
        content[name] = tuple(one for entry in content.get(name, []) for one in _entries(Data, entry, path))
    return _made(Experiment, {"name": path.stem, **content}, path)


@cache
def shared_systems() -> dict[str, System]:
    """Systems of ``systems.toml`` by key; the model is named like the system unless it says otherwise."""
    path = SPECS / "systems.toml"
    return {key: next(_entries(System, {"key": key, **entry}, path)) for key, entry in read_toml(path).items()}


def _entries(kind: Any, entry: Mapping[str, Any], path: Path) -> Iterator[Any]:
    """What a ``[[data]]`` or ``[[system]]`` table stands for: one entry, or one per combination of ``each``.

    The values are filled into key and label, and become settings of a system or alterations of the data.
    """
    where = "settings" if kind is System else "alter"
    if kind is System and not entry.get("baseline"):
        entry = {"model": entry["key"], **entry}
    each: Mapping[str, Sequence[Any]] = entry.get("each", {})
    for values in itertools.product(*each.values()):
        made = {key: value for key, value in entry.items() if key != "each"}
        if each:
            chosen = dict(zip(each, values, strict=True))
            made |= {name: str(entry[name]).format(**chosen) for name in ("key", "label")}
            made[where] = {**entry.get(where, {}), **chosen}
        yield _made(kind, made, path)


def _made(kind: Any, entry: Mapping[str, Any], path: Path) -> Any:
    known = [one.name for one in fields(kind)]
    if unknown := sorted(set(entry) - set(known)):
        raise UserError(f"{path}: {kind.__name__} has no field {unknown[0]!r}; known are {', '.join(known)}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
