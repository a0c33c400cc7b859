"""The figure of a table: every system a dot with its deviation, the paper's figure a hollow diamond beside it."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from difformer.experiments.choosing import NO_TRAINING, UNTUNED
from difformer.experiments.drawing import BLACK, ROLES, empty, head, legend_below, panels, pyplot
from difformer.experiments.measures import LABELS
from difformer.experiments.summary import Row, Section, Summary, is_percent


def dots(summary: Summary, folder: Path) -> Any:
    """One panel a data set that was run."""
    shown = [section for section in summary.sections if section.data.mode != "cost" and _rows(section)]
    if not shown:
        return empty(f"{summary.experiment.title}: nothing was run yet")
    tallest = max(len(_rows(section)) for section in shown)
    longest = max(len(_name(row)) for section in shown for row in _rows(section))
    width, height = 2.9 + 0.075 * longest, 1.6 + 0.2 * tallest
    fig, axes = panels(len(shown), width=width, height=height, across=2 if len(shown) in (2, 4) else 3)
    for ax, section in zip(axes, shown, strict=True):
        _panel(ax, section)
    _legend(fig, shown)
    head(fig, summary)
    return fig


def _rows(section: Section) -> list[Row]:
    return [row for row in section.rows if row.values(section.data.compare)]


def _panel(ax: Any, section: Section) -> None:
    rows, what = _rows(section), section.data.compare
    metric = rows[0].metric if what == "test" else what
    factor = 100 if is_percent(metric) else 1
    for place, row in enumerate(reversed(rows)):
        colour, shape = ROLES[row.system.role]
        mean, spread = row.mean(what), row.deviation(what)
        assert mean is not None
        filled = colour if row.preset != UNTUNED else "white"
        ax.errorbar(
            factor * mean, place, xerr=factor * spread, fmt=shape, color=colour, mfc=filled, ms=5, capsize=2, lw=1.1
        )
        if row.paper is not None and row.paper.mean is not None:
            ax.plot(row.paper.mean, place, "D", mfc="none", mec=BLACK, ms=4.5, mew=0.9, zorder=3)
    ax.set_yticks(range(len(rows)), [_name(row) for row in reversed(rows)])
    ax.set_ylim(-0.7, len(rows) - 0.3)
    ax.set_title(f"{fill(section.data.label, 34)}\n{section.counted}", loc="left")
    ax.set_xlabel(
        f"test {LABELS.get(metric, metric)} in %"
        if factor == 100
        else f"test {LABELS.get(metric, metric)} (lower is better)"
    )


def _name(row: Row) -> str:
    return row.system.label if row.preset in (UNTUNED, NO_TRAINING) else f"{row.system.label} ({row.preset})"


def _legend(fig: Any, sections: list[Section]) -> None:
    line = pyplot().Line2D
    roles = {row.system.role for section in sections for row in _rows(section)}
    said = {"ours": "ours", "rival": "rival", "off": "attention off", "variant": "variant"}
    marks = [
        line([], [], ls="", marker=ROLES[role][1], color=ROLES[role][0], label=said[role])
        for role in ROLES
        if role in roles
    ]
    every = [row for section in sections for row in _rows(section)]
    if any(row.preset == UNTUNED for row in every):
        marks.append(line([], [], ls="", marker="o", mfc="white", mec="#767676", label="hollow: not tuned"))
    if any(row.paper is not None for row in every):
        marks.append(line([], [], ls="", marker="D", mfc="none", mec=BLACK, label="the paper's figure"))
    legend_below(fig, marks)
