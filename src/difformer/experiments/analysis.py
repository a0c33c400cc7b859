"""From the ledger to tables: pandas frames of runs and rows, published figures beside them, and paired comparisons.

Means are over runs; deviations are sample standard deviations (n - 1). The best row of a role is the one with the best
mean *validation* score (of ours, among rows of the common protocol if there are any); test scores are compared, never
used to choose.

There is one rule of significance: over the seeds and splits that two rows share, the tests of
`difformer.report.comparison`, with Holm's correction for all comparisons of a section.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from difformer.errors import require
from difformer.experiments.cells import NO_TRAINING, UNTUNED, Request, cells, read_presets
from difformer.experiments.ledger import CellKey, Ledger, Line, cell_of, current, failures
from difformer.experiments.presets import Preset, read_toml
from difformer.experiments.spec import Data, Experiment, System
from difformer.report.comparison import ALPHA, Paired, judge, paired

NOT_YET = "not run yet"
# The preset `paper` was tuned here; under its own name it could be mistaken for the paper's figures.
SHOWN = {"paper": "paper's grid"}
PERCENT = ("accuracy", "rocauc", "f1", "f1-micro", "batch-rocauc")
LABELS = {
    "rocauc": "AUROC",
    "mse": "MSE",
    "broadcast-mse": "broadcast MSE",
    "period-mse": "MSE in units of the period",
    "batch-rocauc": "mean AUROC per batch",
}
PAPER, AUTHORS, MEMORY = "paper", "authors-code", "paper-memory"
_COLUMNS = ["seed", "split", "test", "valid", "seconds", "megabytes", "place", "measures"]  # of no runs
_NONE: Line = {"data_options": {}, "fingerprint": None}  # lines of old versions may have no such fields
pandas = partial(require, "pandas", extra="figures", purpose="making tables of results")


@cache
def published() -> dict[str, Any]:
    """Everything in ``published.toml``: the paper's figures, and those measured with the authors' public code."""
    return read_toml(Path(__file__).with_name("published.toml"))


def figure(experiment: str, source: str, data: Data, system: str) -> str | None:
    """The figure that a source gives for a system; for the paper, the section's key `published` is tried too."""
    tables = published().get(experiment, {}).get(source, {})
    keys = (data.key,) if source == AUTHORS else (data.key, data.published)
    return next((tables[key][system] for key in keys if system in tables.get(key, {})), None)


def mean_of(figure: str | None) -> float | None:
    """The mean of a published figure such as ``"65.20 ± 0.34"``; None if it is in words."""
    number = re.match(r"[\d.]+", figure or "")
    return float(number[0]) if number else None


@dataclass(frozen=True)
class Row:
    """A system with one preset on one section."""

    data: Data
    system: System
    preset: str  # name of its settings
    runs: Any = field(repr=False)  # frame of its runs, see `frame`
    reason: str = ""  # why runs are missing; empty if none is
    planned: bool = True  # whether `reproduce` would run it today
    paper: str | None = None  # the paper's figure
    authors: str | None = None  # the figure of the authors' code
    memory: str | None = None  # the paper's memory in megabytes

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def settings(self) -> str:
        return SHOWN.get(self.preset, self.preset)

    @property
    def label(self) -> str:
        return self.system.label if self.preset == NO_TRAINING else f"{self.system.label} ({self.settings})"

    def first(self, what: str, default: Any = None) -> Any:
        return self.runs.iloc[0][what] if self.n and what in self.runs else default

    @property
    def metric(self) -> str:
        return str(self.first("metric", ""))

    @property
    def sign(self) -> int:
        """1 if a higher score is better, otherwise -1."""
        return 1 if self.first("higher_is_better", True) else -1

    def factor(self, what: str = "test") -> int:
        """100 for metrics and measures shown in percent, otherwise 1."""
        return 100 if (self.metric if what in ("test", "valid", "train") else what) in PERCENT else 1

    @property
    def scale(self) -> int:
        return self.factor(self.data.compare)

    @property
    def device(self) -> str:
        return " and ".join(self.runs["place"].unique()) if self.n else ""

    @property
    def low(self) -> int:
        """Number of runs in mixed precision."""
        return int(self.runs["place"].str.endswith(" in bf16").sum())

    def values(self, what: str = "test") -> Any:
        """One number per run: ``"test"``, ``"valid"``, ``"seconds"``, …, or a measure."""
        return self.runs.get(what, pandas().Series(dtype=float)).dropna().astype(float)

    def mean(self, what: str = "test") -> float | None:
        values = self.values(what)
        return float(values.mean()) if len(values) else None

    def std(self, what: str = "test") -> float:
        values = self.values(what)
        return float(values.std(ddof=1)) if len(values) > 1 else 0.0

    @property
    def rank(self) -> float:
        """The mean validation score, larger for better rows."""
        return self.sign * (self.mean("valid") or 0.0)

    def scores(self) -> dict[tuple[int, str], float]:
        """Scores by seed and split."""
        return dict(self.runs.set_index(["seed", "split"])["test"].dropna())

    @property
    def splits(self) -> int:
        return len({split for _, split in self.scores()})

    @property
    def budget(self) -> str:
        """How it was tuned: ``"16 × 2"`` settings and runs each; empty if unknown or not tuned itself."""
        trials, runs = self.first("trials"), self.first("tuning_runs")
        borrowed = self.system.base and f"({self.system.base} on " in str(self.first("origin", ""))
        if self.preset == UNTUNED or borrowed or pandas().isna(trials):
            return "borrowed" if borrowed else ""
        return f"{trials:.0f}" if pandas().isna(runs) else f"{trials:.0f} × {runs:.0f}"


@dataclass(frozen=True)
class Comparison:
    """Our best row against another: `test` holds differences of ours minus the other's, with Holm's p."""

    ours: Row
    other: Row
    what: str
    test: Paired | None  # None if they have no seed and split in common
    ties: int  # number of pairs with the same score

    @property
    def gain(self) -> float:
        """How much better ours is, in the units of the table."""
        return self.ours.scale * self.test.difference * self.ours.sign if self.test else math.nan

    @property
    def p(self) -> float | None:
        return self.test.adjusted if self.test else None

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < ALPHA


@dataclass(frozen=True)
class Section:
    """One data set of a table; `reason` says why it has no runs."""

    data: Data
    rows: tuple[Row, ...]
    reason: str = ""

    @cached_property
    def runs(self) -> Any:
        found = [row.runs for row in self.rows if row.n]
        return pandas().concat(found) if found else frame([])

    @property
    def measured(self) -> bool:
        """Whether time or memory was measured, which depend on the device."""
        return self.data.mode == "cost" or self.data.alone

    @property
    def shown(self) -> list[Row]:
        """Rows of systems that were run, or that could not be."""
        there = {row.system.key for row in self.rows if row.n or row.reason not in ("", NOT_YET)}
        return [row for row in self.rows if row.system.key in there and (len(self.runs) or not self.reason)]

    @property
    def counted(self) -> str:
        """``"10 seeds, 10 splits"``."""
        counts = ((self.runs[what].nunique(), what) for what in ("seed", "split"))
        return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)

    def best(self, role: str) -> Row | None:
        """The row of a role with the best mean validation score; None if none was run.

        Our rows compete among those tuned under the common protocol where there are any; rivals all compete, since not
        every rival was tuned under it.
        """
        rows = [row for row in self.rows if row.system.role == role and row.system.compared]
        run = [row for row in rows if row.mean("valid") is not None]
        common = [row for row in run if row.preset == "common" and role != "rival"]
        return max(common or run, key=lambda row: row.rank, default=None)

    @property
    def strongest(self) -> Row | None:
        """The rival with the best mean test score over several runs; None if none was run."""
        run = [row for row in self.rows if row.system.role == "rival" and row.system.compared and row.n > 2]
        return max(run, key=lambda row: row.sign * (row.mean() or 0.0), default=None)

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Our best row against the best rival, the best variant, attention off and the authors' settings."""
        ours = self.best("ours")
        if ours is None or self.data.mode == "cost":
            return ()
        other = {"the best rival": "rival", "the best variant": "variant", "attention off": "off"}
        found = [(what, row) for what, role in other.items() if (row := self.best(role)) is not None]
        code = next((row for row in self.rows if row.system == ours.system and row.preset == "public-code"), None)
        if code is not None and code.n and code is not ours:
            found.append(("the authors' settings", code))
        scores, higher = ours.scores(), ours.sign > 0
        train, _, test = ours.first("sizes", (0, 0, 0))
        ratio = test / train if train else None
        tests = [
            paired(row.scores(), scores, name=what, test_to_train=ratio, higher=higher)
            for what, row in found
            if scores.keys() & row.scores().keys()
        ]
        judged = {one.name: one for one in judge(tests, higher, against="")}
        ties = {what: len(scores.items() & row.scores().items()) for what, row in found}
        return tuple(Comparison(ours, row, what, judged.get(what), ties[what]) for what, row in found)

    def comparison(self, what: str) -> Comparison | None:
        """The comparison of this name, if both sides share runs."""
        return next((one for one in self.comparisons if one.what == what and one.test is not None), None)


@dataclass(frozen=True)
class Summary:
    """What tables, figures and the page of results are made from."""

    experiment: Experiment
    quick: bool
    sections: tuple[Section, ...]

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    @property
    def made(self) -> int:
        return sum(row.n for row in self.rows)

    @property
    def counted(self) -> str:
        """``"1185 of 1215 runs, and 35 from earlier presets"``."""
        wanted = sum(row.data.seeds for row in self.rows if row.planned)
        besides = sum(row.n for row in self.rows if not row.planned)
        return f"{self.made - besides} of {wanted} runs" + (f", and {besides} from earlier presets" if besides else "")


def frame(lines: Sequence[Line]) -> Any:
    """One row per run: the fields of its line, its measures as columns, ``megabytes`` and ``place``.

    ``place`` is the device, with the precision if it is not float32: what time and memory depend on.
    """
    rows = []
    for line in lines:
        precision, memory = line.get("settings", {}).get("precision", "float32"), line.get("peak_memory")
        more: Line = {name: value for name, value in line["measures"].items() if isinstance(value, (int, float))}
        more["place"] = str(line["device"]) + ("" if precision == "float32" else f" in {precision}")
        more["megabytes"] = None if memory is None else memory / 1e6
        rows.append({**_NONE, **line, **more})
    return pandas().DataFrame(rows, columns=None if rows else [*_COLUMNS, *_NONE])


def summarise(experiment: Experiment, lines: Sequence[Line], presets: Sequence[Preset], *, quick: bool) -> Summary:
    """Rows of what is planned, and of what was run with presets that are no longer in use."""
    planned = {cell.key: cell for cell in cells(experiment, presets, Request(quick=quick))}
    runs = current(lines, {key: cell.settings_id() for key, cell in planned.items()} if lines else None)
    why = {key: line["reason"] for key, line in failures(lines).items()}
    by_cell: dict[CellKey, list[Line]] = {}
    for line in sorted(runs, key=lambda one: int(one["seed"])):
        # A search may have continued after these runs and found nothing better: its preset knows the number of trials.
        cell = planned.get(cell_of(line))
        searched = {"trials": cell.preset.trials} if cell and line["settings_id"] == cell.settings_id() else {}
        by_cell.setdefault(cell_of(line), []).append({**line, **searched})
    keys = dict.fromkeys([*planned, *by_cell])
    sections = []
    for data in experiment.sections(quick):
        here = any(key[0] == data.key for key in by_cell)
        absent = "" if here else why.get((data.key, "", ""), "")
        rows = []
        for system in experiment.rows(data, quick):
            sources = [figure(experiment.name, source, data, system.key) for source in (PAPER, AUTHORS, MEMORY)]
            for key in (one for one in keys if one[:2] == (data.key, system.key)):
                own = by_cell.get(key, [])
                reason = absent.partition(":")[0] or why.get(key, "") or ("" if own else NOT_YET)
                rows.append(Row(data, system, key[2], frame(own), reason, key in planned, *sources))
        sections.append(Section(data, tuple(rows), absent))
    return Summary(experiment, quick, tuple(sections))


def read_summary(experiment: Experiment, folder: Path, preset_folder: Path | None = None) -> Summary:
    """The summary of a results folder; of the quick form if its runs are quick."""
    lines = Ledger(folder).read()
    quick = any(line.get("quick") for line in lines)
    return summarise(experiment, lines, read_presets(preset_folder), quick=quick)
