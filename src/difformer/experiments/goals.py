"""What is to be reached, and whether it was: ``goals.toml`` holds the goals, tables say what became of each.

A goal looks at one row: the one that it names, or ours that is best on validation. Where that row, or the one that it
is held against, was not run, nothing is said of the goal but that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from difformer.experiments.summary import Row, Section, is_percent
from difformer.experiments.verdicts import best
from difformer.report.comparison import ALPHA, paired
from difformer.training import toml

GOALS = Path(__file__).with_name("goals.toml")
REACHED, MISSED, UNJUDGED = "reached", "**not reached**", "cannot be judged"


@dataclass(frozen=True)
class Goal:
    """One goal of one section.

    Args:
        data: Key of the section.
        system: Key of the row's system; ours where left out.
        preset: Name of the row's settings; any where left out.
        measure: Which figure of the row.
        over: The row that it is held against, as ``system``, ``preset`` and ``role``; None for a fixed figure.
        near: Figure to be met within `tolerance`.
        tolerance: Of `near`.
        at_least: Figure to be reached, or the lead over the other row.
        below: Figure to stay below, or what to add to the other row's.
        tested: Whether a paired t-test has to tell the two rows apart as well.
        tried: What was tried and what limits it, in sentences that are printed where the goal is not reached.
    """

    data: str
    system: str = ""
    preset: str = ""
    measure: str = "test"
    over: Mapping[str, str] | None = None
    near: float | None = None
    tolerance: float = 0.0
    at_least: float | None = None
    below: float | None = None
    tested: bool = False
    tried: str = ""


@cache
def load_goals() -> dict[str, tuple[Goal, ...]]:
    """Goals by experiment."""
    content: dict[str, list[dict[str, Any]]] = toml.loads(GOALS.read_text(encoding="utf-8"))
    return {name: tuple(Goal(**entry) for entry in entries) for name, entries in content.items()}


@dataclass(frozen=True)
class Judged:
    """What became of a goal.

    Args:
        what: The goal in words.
        state: ``"reached"``, ``"**not reached**"`` or ``"cannot be judged"``.
        by: What it was judged by, or why it cannot be.
        tried: What was tried, where it was not reached.
    """

    what: str
    state: str
    by: str
    tried: str = ""

    def __str__(self) -> str:
        return f"Goal, {self.what}: {self.state}{self.by}.{self.tried}"


def judged(experiment: str, section: Section) -> list[Judged]:
    """What became of every goal of the section."""
    goals = [goal for goal in load_goals().get(experiment, ()) if goal.data == section.data.key]
    return [_judge(goal, section) for goal in goals]


def _judge(goal: Goal, section: Section) -> Judged:
    row = _best(section, goal.system, goal.preset, "ours")
    other = None if goal.over is None else _best(section, **{"system": "", "preset": "", "role": "", **goal.over})
    what = _said(goal)
    if row is None or (goal.over is not None and other is None):
        return Judged(what, UNJUDGED, ", not run yet")
    percent = is_percent(row.metric if goal.measure == "test" else goal.measure)
    scale, digits = (100, 2) if percent else (1, 3)
    mine, theirs = row.by_pair(goal.measure), {} if other is None else other.by_pair(goal.measure)
    # Two rows are compared where both were run: a mean over other splits says nothing of the difference.
    pairs = [pair for pair in mine if other is None or pair in theirs]
    if not pairs:
        return Judged(what, UNJUDGED, ", the rows share no seed on the same split")
    mean = scale * fmean(mine[pair] for pair in pairs)
    base = 0.0 if other is None else scale * fmean(theirs[pair] for pair in pairs)
    if goal.near is not None:
        held = abs(mean - goal.near) <= goal.tolerance
    elif goal.at_least is not None:
        held = mean - base >= goal.at_least
    else:
        held = mean - base < (goal.below or 0.0)
    against = "" if other is None else f" against {base:.{digits}f} of {other.label}"
    tested = ""
    if goal.tested and other is not None:
        found = paired(theirs, mine, name=row.label, test_to_train=row.test_to_train(), higher=row.higher_is_better)
        held = held and found.t_test is not None and found.t_test < ALPHA
        tested = ", no test is possible" if found.t_test is None else f", paired t-test p = {found.t_test:.2g}"
        if found.corrected is not None:
            tested += f" (corrected for overlapping splits: {found.corrected:.2g})"
    few = "" if len(pairs) >= row.data.seeds else f", over {len(pairs)} of {row.data.seeds} seeds only"
    tried = f" {goal.tried}" if goal.tried and not held else ""
    by = f" with {mean:.{digits}f} ({row.label}){against}{tested}{few}"
    return Judged(what, REACHED if held else MISSED, by, tried)


def _best(section: Section, system: str, preset: str, role: str) -> Row | None:
    """The row that is best on validation among those that are meant."""
    meant = [
        row
        for row in section.rows
        if (row.system.key == system if system else row.system.role == role) and (not preset or row.preset == preset)
    ]
    return best(meant, meant[0].system.role) if meant else None


def _said(goal: Goal) -> str:
    """The goal in words."""
    who = " ".join(filter(None, [goal.preset, goal.system or "ours"]))
    measure = "" if goal.measure == "test" else f" in {goal.measure}"
    other = "" if goal.over is None else " ".join(filter(None, [goal.over.get("preset"), goal.over.get("system")]))
    tested = f", paired t-test at {100 * ALPHA:g} %" if goal.tested else ""
    if goal.near is not None:
        return f"{who}{measure} within {goal.tolerance:g} of {goal.near:g}"
    if goal.at_least is not None:
        least = f"{goal.at_least:g} above {other}" if other else f"at least {goal.at_least:g}"
        return f"{who}{measure} {least}{tested}"
    return f"{who}{measure} below {other or format(goal.below or 0.0, 'g')}{tested}"
