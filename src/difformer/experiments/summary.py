"""From lines to rows: mean and deviation over the seeds of a cell, published figures beside them, gaps with reasons.

Means are over runs, deviations are sample deviations (n - 1 below the root). Which row is called best is decided by the
mean *validation* score; test scores are compared, never chosen by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from difformer.experiments.choosing import SAID, Cell, cells, preset_of
from difformer.experiments.ledger import Line, current, reasons
from difformer.experiments.measures import PERCENT
from difformer.experiments.performing import settings_id
from difformer.experiments.plan import Data, Experiment, System
from difformer.experiments.presets import Preset
from difformer.experiments.published import AUTHORS, MEMORY, PAPER, Figure, figure
from difformer.training.record import spread

NOT_YET = "not run yet"


@dataclass(frozen=True)
class Row:
    """A system with one preset on one section.

    Args:
        data: The section.
        system: The system.
        preset: Name of its settings.
        lines: Its runs.
        reason: Why there are none, or why some are missing.
        tuning_runs: Over how many runs each setting that competed was averaged; None where that is not known.
        paper: The paper's figure.
        authors: That of the authors' code.
        memory: The paper's figure of memory, in megabytes.
        planned: Whether it would be run today; False where its runs have a preset that is no longer asked for.
    """

    data: Data
    system: System
    preset: str
    lines: tuple[Line, ...] = ()
    reason: str = ""
    tuning_runs: int | None = None
    paper: Figure | None = None
    authors: Figure | None = None
    memory: Figure | None = None
    planned: bool = True

    @property
    def metric(self) -> str:
        return str(self.lines[0]["metric"]) if self.lines else ""

    @property
    def higher_is_better(self) -> bool:
        return bool(self.lines[0]["higher_is_better"]) if self.lines else True

    @property
    def trials(self) -> int | None:
        return self.lines[0]["trials"] if self.lines else None

    @property
    def length(self) -> tuple[int | None, int | None]:
        """Epochs at most, and the patience, of a run; in tuning they were the same."""
        settings = self.lines[0].get("settings", {}) if self.lines else {}
        return settings.get("epochs"), settings.get("patience")

    @property
    def borrowed(self) -> bool:
        """Whether its settings were chosen for the model that it is a variant of, as the origin of a preset tells."""
        return bool(self.lines and self.system.base) and f"({self.system.base} on " in self.lines[0].get("origin", "")

    @property
    def missing(self) -> str:
        """Why some runs are missing where others are there, as it stands in a cell; empty where none is."""
        if not self.lines or len(self.lines) >= self.data.seeds or not self.planned:
            return ""
        return f"; {self.reason or 'the others are ' + NOT_YET}"

    @property
    def settings(self) -> str:
        """What tables and figures call its preset."""
        return SAID.get(self.preset, self.preset)

    @property
    def label(self) -> str:
        return f"{self.system.label} ({self.settings})"

    def values(self, what: str = "test") -> list[float]:
        """One number a run: ``"test"``, ``"valid"``, ``"seconds"``, …, or a measure; what is no number is left out."""
        return [float(v) for line in self.lines if isinstance(v := value_of(line, what), (int, float))]

    def mean(self, what: str = "test") -> float | None:
        values = self.values(what)
        return fmean(values) if values else None

    def median(self, what: str) -> float | None:
        """For times and memory: one run beside which the machine had other things to do must not decide."""
        values = self.values(what)
        return median(values) if values else None

    def deviation(self, what: str = "test") -> float:
        return spread(self.values(what))

    def by_pair(self, what: str = "test") -> dict[tuple[int, str], float]:
        """Test scores, or another number of each run, by seed and split."""
        found = {(line["seed"], line["split"]): value_of(line, what) for line in self.lines}
        return {pair: value for pair, value in found.items() if value is not None}

    def test_to_train(self) -> float | None:
        train, _, test = self.lines[0]["sizes"]
        return test / train if train else None


@dataclass(frozen=True)
class Section:
    """One data set of a table."""

    data: Data
    rows: tuple[Row, ...]
    reason: str = ""

    @property
    def lines(self) -> list[Line]:
        return [line for row in self.rows for line in row.lines]

    @property
    def counted(self) -> str:
        """Seeds and splits of what was run, in words."""
        seeds, splits = ({line[what] for line in self.lines} for what in ("seed", "split"))
        return ", ".join(
            f"{len(found)} {what}{'' if len(found) == 1 else 's'}"
            for found, what in ((seeds, "seed"), (splits, "split"))
        )

    @property
    def wanted(self) -> int:
        """Runs of the full protocol."""
        return self.data.seeds * sum(row.planned for row in self.rows)

    @property
    def unplanned(self) -> int:
        """Runs that are there beside it."""
        return sum(len(row.lines) for row in self.rows if not row.planned)


@dataclass(frozen=True)
class Summary:
    """Everything a table, a figure and the page of results are made from."""

    experiment: Experiment
    quick: bool
    sections: tuple[Section, ...]
    lines: tuple[Line, ...] = field(repr=False, default=())

    @property
    def made(self) -> int:
        return sum(len(section.lines) for section in self.sections)

    @property
    def wanted(self) -> int:
        return sum(section.wanted for section in self.sections)

    @property
    def counted(self) -> str:
        """How many runs there are, of how many: ``"1185 of 1215 runs, and 35 that are no longer asked for"``."""
        besides = sum(section.unplanned for section in self.sections)
        more = f", and {besides} that are no longer asked for" if besides else ""
        return f"{self.made - besides} of {self.wanted} runs{more}"

    def section(self, key: str) -> Section | None:
        return next((one for one in self.sections if one.data.key == key), None)


def value_of(line: Line, what: str) -> Any:
    """A number of a line, wherever it stands."""
    return line["measures"][what] if what in line.get("measures", {}) else line.get(what)


def is_percent(name: str) -> bool:
    """Whether a metric is shown in percent."""
    return name in PERCENT


def summarise(experiment: Experiment, lines: Sequence[Line], presets: Sequence[Preset], *, quick: bool) -> Summary:
    """Rows of what is planned, and of what was run under presets that are no longer there."""
    planned = cells(experiment, presets, quick=quick)
    runs = current(lines, {cell.key: settings_id(cell) for cell in planned} if lines else None)
    why = reasons(lines)
    sections = []
    asked = {cell.key for cell in planned}
    for data in experiment.sections(quick):
        here = [line for line in runs if line["data"] == data.key]
        absent = why.get((data.key, "", ""), "") if not here else ""
        rows = [
            replace(
                _row(experiment, data, system, preset, here, why, absent, presets),
                planned=(data.key, system.key, preset) in asked,
            )
            for system in experiment.rows(data, quick)
            for preset in _presets(planned, data, system, here)
        ]
        sections.append(Section(data, tuple(rows), absent))
    return Summary(experiment, quick, tuple(sections), tuple(runs))


def _presets(planned: Sequence[Cell], data: Data, system: System, lines: Sequence[Line]) -> list[str]:
    asked = [c.choice.name for c in planned if c.data.key == data.key and c.system.key == system.key]
    run = [line["preset"] for line in lines if line["system"] == system.key]
    return list(dict.fromkeys([*asked, *run]))


def _row(
    experiment: Experiment,
    data: Data,
    system: System,
    preset: str,
    lines: Sequence[Line],
    why: dict[tuple[str, str, str], str],
    absent: str,
    presets: Sequence[Preset],
) -> Row:
    own = tuple(
        sorted(
            (one for one in lines if one["system"] == system.key and one["preset"] == preset),
            key=lambda one: int(one["seed"]),
        )
    )
    reason = absent.partition(":")[0] or why.get((data.key, system.key, preset), "") or ("" if own else NOT_YET)
    return Row(
        data,
        system,
        preset,
        own,
        reason,
        _tuning_runs(own, data, system, preset, presets),
        figure(experiment.name, PAPER, data, system.key),
        figure(experiment.name, AUTHORS, data, system.key),
        figure(experiment.name, MEMORY, data, system.key),
    )


def _tuning_runs(lines: Sequence[Line], data: Data, system: System, name: str, presets: Sequence[Preset]) -> int | None:
    """What the lines say, or, where they are older than that, the preset that they ran with."""
    if not lines:
        return None
    if "tuning_runs" in lines[0]:
        return lines[0]["tuning_runs"]
    preset = preset_of(name + system.suffix, system, data, presets)
    if preset is None or preset.trials != lines[0]["trials"]:
        return None
    # A preset that was tuned anew says nothing of runs with its former settings.
    ran, other = lines[0].get("settings", {}), {**data.settings, **system.settings}
    same = all(ran.get(key) == value for key, value in preset.settings.items() if key not in other)
    return preset.runs if same else None
