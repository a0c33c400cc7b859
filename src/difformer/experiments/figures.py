"""The figure of a table: every system a dot with its deviation, the paper's figure a hollow diamond beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from difformer.experiments.choosing import NO_TRAINING, UNTUNED
from difformer.experiments.drawing import BLACK, ROLES, bars, empty, few, head, legend_below, panels, pyplot
from difformer.experiments.measures import LABELS
from difformer.experiments.outliers import near
from difformer.experiments.published import PAPER, source_of
from difformer.experiments.summary import Row, Section, Summary, is_percent

MARGIN = 0.04  # of an axis, on both sides


def dots(summary: Summary, folder: Path) -> Any:
    """One panel a data set that was run."""
    shown = scored(summary)
    if not shown:
        return empty(f"{summary.experiment.title}: nothing was run yet")
    width, height = size(shown)
    fig, axes = panels(len(shown), width=width, height=height, across=2 if len(shown) in (2, 4) else 3)
    score_panels(fig, axes, shown, summary)
    head(fig, summary)
    return fig


def scored(summary: Summary) -> list[Section]:
    """Sections with a score to draw."""
    return [section for section in summary.sections if section.data.mode != "cost" and _rows(section)]


def size(sections: Sequence[Section]) -> tuple[float, float]:
    """Width and height of a panel in inches: names and rows have to find room."""
    tallest = max(len(_rows(section)) for section in sections)
    longest = max(len(_name(row)) for section in sections for row in _rows(section))
    return 2.9 + 0.075 * longest, max(2.6, 1.6 + 0.2 * tallest)  # titles and legend need theirs beside one row too


def score_panels(fig: Any, axes: Sequence[Any], sections: Sequence[Section], summary: Summary) -> None:
    """A panel a section, and one legend for all."""
    for ax, section in zip(axes, sections, strict=True):
        _panel(ax, section)
    _legend(fig, sections, summary.experiment.name)


def _rows(section: Section) -> list[Row]:
    return [row for row in section.rows if row.values(section.data.compare)]


def _panel(ax: Any, section: Section) -> None:
    rows, what = _rows(section)[::-1], section.data.compare
    metric = rows[0].metric if what == "test" else what
    factor = 100 if is_percent(metric) else 1
    means = [factor * (row.mean(what) or 0.0) for row in rows]
    spreads = [factor * row.deviation(what) for row in rows]
    papers = [None if row.paper is None else row.paper.mean for row in rows]
    low, high = _limits(means, spreads, [paper for paper in papers if paper is not None])
    for place, (row, mean, spread, paper) in enumerate(zip(rows, means, spreads, papers, strict=True)):
        colour, shape = ROLES[row.system.role]
        filled = colour if row.preset != UNTUNED else "white"
        if low <= mean <= high:
            ax.errorbar(mean, place, xerr=spread, fmt=shape, color=colour, mfc=filled, ms=5, capsize=2, lw=1.1)
        else:
            _beyond(ax, mean, place, (low, high), colour)
        if paper is None:
            continue
        if low <= paper <= high:
            ax.plot(paper, place, "D", mfc="none", mec=BLACK, ms=4.5, mew=0.9, zorder=3)
        else:
            _beyond(ax, paper, place, (low, high), BLACK, "◇ ")
    ax.set_xlim(low, high)
    ax.locator_params(axis="x", nbins=6)
    ax.set_yticks(range(len(rows)), [_name(row) for row in rows])
    ax.set_ylim(-0.7, len(rows) - 0.3)
    ax.set_title(f"{fill(section.data.label, 34)}\n{section.counted}", loc="left")
    ax.set_xlabel(
        f"test {LABELS.get(metric, metric)} in %"
        if factor == 100
        else f"test {LABELS.get(metric, metric)} (lower is better)"
    )


def _limits(means: Sequence[float], spreads: Sequence[float], papers: Sequence[float]) -> tuple[float, float]:
    """Of an axis that holds every point that is near the others, with its bar, and a margin."""
    first, last = near([*means, *papers])
    inside = [
        (mean - spread, mean + spread) for mean, spread in zip(means, spreads, strict=True) if first <= mean <= last
    ]
    low, high = min([first, *(start for start, _ in inside)]), max([last, *(end for _, end in inside)])
    margin = MARGIN * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin


def _beyond(ax: Any, value: float, place: int, limits: tuple[float, float], colour: str, before: str = "") -> None:
    """A value that lies outside of the axis: an arrow at the edge, and the number."""
    right = value > limits[1]
    ax.annotate(
        f"{before}{value:.4g}",
        xy=(limits[1] if right else limits[0], place),
        xytext=(-22 if right else 22, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="center",
        fontsize=8,
        color=colour,
        arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.1},
        annotation_clip=False,
    )


def _name(row: Row) -> str:
    known = row.system.label if row.preset == NO_TRAINING else row.label
    return known + few(row, row.data.compare)


def _legend(fig: Any, sections: Sequence[Section], experiment: str) -> None:
    line = pyplot().Line2D
    every = [row for section in sections for row in _rows(section)]
    said = {"ours": "ours", "rival": "rival", "off": "attention off", "variant": "variant"}
    marks = [
        line([], [], ls="", marker=ROLES[role][1], color=ROLES[role][0], label=said[role])
        for role in ROLES
        if role in {row.system.role for row in every}
    ]
    if any(row.preset == UNTUNED for row in every):
        marks.append(line([], [], ls="", marker="o", mfc="white", mec="#767676", label="hollow: not tuned"))
    if any(len(row.values(row.data.compare)) > 1 for row in every):
        marks.append(bars())
    if any(row.paper is not None for row in every):
        # What the paper measured need not be what a panel shows: its source says over which splits.
        about = f"the paper's figure, whatever the panel's splits: {source_of(experiment, PAPER)}"
        marks.append(line([], [], ls="", marker="D", mfc="none", mec=BLACK, label=fill(about, 70)))
    legend_below(fig, marks)
