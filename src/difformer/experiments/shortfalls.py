"""Rivals that stay behind the paper's figures: named under the table, with what was tried for them.

``tried.toml`` says in which sections the splits are those of the paper, so that its figures can be held against ours,
and what was tried for a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from difformer.experiments.choosing import UNTUNED
from difformer.experiments.summary import Row, Section, is_percent
from difformer.experiments.verdicts import best
from difformer.training import toml

TRIED = Path(__file__).with_name("tried.toml")
POINTS = 2.0


@cache
def load_tried() -> dict[str, Any]:
    """Everything in the file."""
    return toml.loads(TRIED.read_text(encoding="utf-8"))


def behind(experiment: str, section: Section) -> list[str]:
    """One sentence on who stays more than two points below the paper, and one on what was tried for each of them."""
    if section.data.key not in load_tried().get("compared", {}).get(experiment, ()):
        return []
    rows = [row for row in _bests(section) if row.paper is not None and row.paper.mean is not None]
    if not rows:
        return []
    low = [row for row in rows if _gap(row) < -POINTS]
    if not low:
        return [f"None of these rivals stays more than {POINTS:g} points below the paper."]
    named = ", ".join(f"{row.label if row.preset == UNTUNED else row.system.label} {_gap(row):+.2f}" for row in low)
    said = [f"More than {POINTS:g} points below the paper: {named}."]
    for note in load_tried().get(experiment, ()):
        meant = [row.system.label for row in low if _about(note, row) and row.preset != UNTUNED]
        if meant:
            said.append(f"Tried for {' and '.join(meant)}: {note['tried']}")
    return said


def _bests(section: Section) -> list[Row]:
    """Of each rival that was run, the row that is best on validation."""
    rivals = dict.fromkeys(row.system.key for row in section.rows if row.system.role == "rival" and row.values())
    found = (best([row for row in section.rows if row.system.key == key], "rival") for key in rivals)
    return [row for row in found if row is not None and is_percent(row.metric)]


def _gap(row: Row) -> float:
    mean = row.mean()
    assert mean is not None
    assert row.paper is not None
    assert row.paper.mean is not None
    return 100 * mean - row.paper.mean


def _about(note: dict[str, Sequence[str]], row: Row) -> bool:
    return row.data.key in note["data"] and row.system.key in note["system"]
