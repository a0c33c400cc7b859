"""Figures of experiments, saved as SVG and PNG.

Colours are Okabe and Ito's, which remain distinct for colour-blind readers; shapes repeat what colours say.
An experiment names its drawing in `DRAWINGS`, a function of a `Summary`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import product, zip_longest
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import torch

from difformer.diffusion import as_diffusivity
from difformer.errors import require
from difformer.experiments.analysis import LABELS, PAPER, Row, Section, Summary, mean_of, published
from difformer.experiments.cells import UNTUNED
from difformer.files import write_whole
from difformer.report.maps import GRID

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
SKY, YELLOW, BLACK, GREY = "#56B4E9", "#F0E442", "#000000", "#767676"
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)), (0, (1, 1)), "-")
ROLES = {  # colour, marker and name
    "ours": (BLUE, "o", "ours"),
    "rival": (GREY, "s", "rival"),
    "off": (RED, "X", "attention off"),
    "variant": (GREEN, "^", "variant"),
}
QUICK = "quick form: the numbers mean nothing"
LETTERS_PER_INCH = 13  # of a heading
BARS = "bars: ± standard deviation over seeds and splits"


def pyplot() -> Any:
    """Matplotlib without a display, in the style of this package; an error that names the extra if it is missing."""
    require("matplotlib", extra="figures", purpose="drawing figures").use("Agg")
    plt = require("matplotlib.pyplot", extra="figures", purpose="drawing figures")
    plt.style.use(Path(__file__).with_name("figures.mplstyle"))
    return plt


def draw(summary: Summary) -> Any:
    """The figure of an experiment; None if nothing was run."""
    if (drawn := DRAWINGS[summary.experiment.figure](summary)) is None:
        return None
    lines = [summary.experiment.title, *[QUICK] * summary.quick]
    wide = int(LETTERS_PER_INCH * drawn.get_figwidth())
    drawn.suptitle("\n".join(fill(line, wide) for line in lines), fontsize=10)
    return drawn


def save(fig: Any, folder: Path, name: str = "figure") -> list[Path]:
    """Write the figure in both formats, each atomically, and close it."""
    paths = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
    for path, metadata in zip(paths, ({"Date": None}, None), strict=True):
        content = io.BytesIO()
        fig.savefig(content, format=path.suffix[1:], bbox_inches="tight", pad_inches=0.06, metadata=metadata)
        write_whole(path, content.getvalue())
    pyplot().close(fig)
    return paths


def panels(count: int, *, width: float = 3.2, height: float = 2.8, across: int = 3, **options: Any) -> tuple[Any, Any]:
    """A figure with `count` panels, `across` per row, and a flat list of their axes."""
    columns = min(across, max(count, 1))
    rows = -(-max(count, 1) // columns)
    size = (width * columns, height * rows)
    fig, grid = pyplot().subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    for spare in grid.flat[count:]:
        spare.set_axis_off()
    return fig, list(grid.flat[:count])


def mark(label: str, **look: Any) -> Any:
    """A legend entry; a marker without a line unless `lw` is given."""
    return pyplot().Line2D([], [], label=label, **({} if "lw" in look else {"ls": ""}), **look)


def legend_below(fig: Any, handles: Sequence[Any]) -> None:
    """One legend for all panels, in as many rows as the width requires."""
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        legend = fig.legend(handles=handles, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent(fig.canvas.get_renderer()).width <= fig.bbox.width:
            return
        legend.remove()


def _bars(label: str = BARS) -> Any:
    return mark(label, color=GREY, marker="|", ms=6, lw=1.1)


# Scores: every row a dot with its deviation, the paper's figure a hollow diamond. Cost: bars.


def scores(summary: Summary) -> Any:
    """One panel per section."""
    ran = [(one, [row for row in one.rows if len(row.values(row.data.compare))][::-1]) for one in summary.sections]
    found = [(section, rows) for section, rows in ran if rows]
    if not found:
        return None
    every = [row for _, rows in found for row in rows]
    width = 2.9 + 0.075 * max(len(row.label) for row in every)
    height = max(2.6, 1.6 + 0.2 * max(len(rows) for _, rows in found))
    fig, axes = panels(len(found), width=width, height=height, across=2 if len(found) % 2 == 0 else 3)
    for ax, (section, rows) in zip(axes, found, strict=True):
        (_cost_panel if section.data.mode == "cost" else _score_panel)(ax, section, rows)
    roles = {row.system.role for row in every}
    marks = [mark(name, marker=shape, color=hue) for role, (hue, shape, name) in ROLES.items() if role in roles]
    dots = [row for row in every if row.data.mode != "cost"]
    if any(row.preset == UNTUNED for row in dots):
        marks.append(mark("hollow: not tuned", marker="o", mfc="white", mec=GREY))
    marks += [_bars()] * any(row.n > 1 for row in dots)
    if any(row.paper is not None for row in dots):
        source = published().get(summary.experiment.name, {}).get(f"{PAPER}-source", "")
        marks.append(mark(fill(f"the paper's figure: {source}", 70), marker="D", mfc="none", mec=BLACK))
    legend_below(fig, marks)
    return fig


def _score_panel(ax: Any, section: Section, rows: Sequence[Row]) -> None:
    """Scores in percent on a linear axis, errors on a logarithmic one, where a few large ones leave room for others."""
    what, factor = section.data.compare, rows[0].scale
    for place, row in enumerate(rows):
        colour, shape, _ = ROLES[row.system.role]
        look = {"color": colour, "mfc": colour if row.preset != UNTUNED else "white", "ms": 5, "capsize": 2, "lw": 1.1}
        ax.errorbar(factor * row.values(what).mean(), place, xerr=factor * row.std(what), fmt=shape, **look)
        if (paper := mean_of(row.paper)) is not None:
            ax.plot(paper, place, "D", mfc="none", mec=BLACK, ms=4.5, mew=0.9, zorder=3)
    if rows[0].sign < 0:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("{x:g}")
    metric = rows[0].metric if what == "test" else what
    unit = "in %" if factor == 100 else "(lower is better)"
    ax.set(ylim=(-0.7, len(rows) - 0.3), xlabel=f"test {LABELS.get(metric, metric)} {unit}")
    ax.set_yticks(range(len(rows)), [row.label for row in rows])
    ax.set_title(f"{fill(section.data.label, 34)}\n{section.counted}", loc="left")


def _cost_panel(ax: Any, section: Section, rows: Sequence[Row]) -> None:
    """Time as bars, with the peak memory as their labels."""
    places = section.runs["place"].unique()
    names = [f"{row.system.label} ({row.device})" if len(places) > 1 else row.system.label for row in rows]
    seconds, memory = ([row.values(what).median() for row in rows] for what in ("epoch_seconds", "megabytes"))
    bars = ax.barh(names, [1000 * each for each in seconds], color=[ROLES[row.system.role][0] for row in rows])
    ax.bar_label(bars, [f"{peak:,.0f} MB" if peak == peak else "" for peak in memory], padding=3, fontsize=7)
    ax.margins(x=0.2)
    ax.set_xlabel("milliseconds per epoch; peak memory")
    ax.set_title(f"{section.data.label}\n{' and '.join(places)}; {section.counted}", loc="left", fontsize=8)


def attention_figure(sections: Sequence[Section]) -> Any:
    """What attention adds on each data set, in points, with the 95 % interval of the corrected test."""
    compared = [one for section in sections if (one := section.comparison("attention off"))]
    found = [one for one in compared if one.ours.scale == 100][::-1]
    fig, (ax,) = panels(1, width=7.5, height=1.2 + 0.22 * len(found))
    ax.axvline(0, color=BLACK, lw=0.8)
    for place, one in enumerate(found):
        colour = BLUE if one.gain > 0 else RED
        interval = (one.test.interval if one.test is not None else None) or (0.0, 0.0)
        look = {"color": colour, "mfc": colour if one.significant else "white", "ms": 5, "capsize": 2, "lw": 1.1}
        ax.errorbar(one.gain, place, xerr=50 * (interval[1] - interval[0]), fmt="o", **look)
    ax.set_yticks(range(len(found)), [one.ours.data.label for one in found])
    said = "our best model minus attention off, in points of accuracy or AUROC"
    ax.set(ylim=(-0.7, len(found) - 0.3), xlabel=said)
    marks = [mark("significant", marker="o", color=BLUE), mark("not significant", marker="o", mfc="white", mec=BLUE)]
    legend_below(fig, [*marks, _bars("95 % interval")])
    return fig


# Curves: depth, batch size, robustness, energy. A panel has a title, a label of x and of y, the base of a logarithmic
# axis, and points: (label of the line, x, y, deviation or None).


def _curves(found: Sequence[dict[str, Any]], labels: Sequence[str], *more: Any, first: int = 0, **size: Any) -> Any:
    """Panels after `first` others, with one legend for all lines; None without any. A line's style is its label's."""
    if not first + len(found):
        return None
    fig, axes = panels(first + len(found), **{"width": 3.8, "height": 2.8, "across": 2, **size})
    for ax, panel in zip(axes[first:], found, strict=True):
        for number, label in enumerate(labels):
            if own := [point[1:] for point in panel["points"] if point[0] == label]:
                xs, ys, spread = zip(*own, strict=True)
                error = None if None in spread else spread
                look = {"color": CYCLE[number], "ls": LINES[number], "marker": MARKERS[number], "ms": 4, "capsize": 2}
                ax.errorbar(xs, ys, yerr=error, label=label, **look)
        if panel.get("base") and panel["points"]:
            ticks = sorted({point[1] for point in panel["points"]})
            ax.set_xscale("log", base=panel["base"])
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
            ax.minorticks_off()
        ax.set(xlabel=panel["x"], ylabel=panel.get("y", "test accuracy in %"))
        ax.set_title(panel["title"], loc="left")
    drawn = {one.get_label(): one for ax in axes for one in ax.get_legend_handles_labels()[0]}
    legend_below(fig, [*(drawn[label] for label in labels if label in drawn), *more])
    return fig


def _scored(label: str, x: Any, row: Row) -> tuple[Any, ...]:
    return label, x, row.scale * (row.mean() or 0.0), row.scale * row.std()


def depth(summary: Summary) -> Any:
    """Accuracy against depth: one line per step size, without and with the source term, one row per data set."""

    def label(row: Row) -> str:
        return f"{'attention off, ' * (row.system.role == 'off')}τ = {row.system.settings['step_size']:g}"

    rows = sorted(summary.rows, key=lambda row: (row.system.role == "off", row.system.settings["step_size"]))
    found = []
    for section, source in product((one for one in summary.sections if len(one.runs)), (0.0, 1.0)):
        own = [row for row in section.rows if row.n and row.system.settings["source_weight"] == source]
        points = [_scored(label(row), row.system.settings["num_layers"], row) for row in own]
        title = f"{fill(section.data.label, 42)}\n{'with' if source else 'without'} source; {section.counted}"
        found.append({"title": title, "x": "depth K", "points": points, "base": 2})
    return _curves(found, list(dict.fromkeys(map(label, rows))), _bars(), sharey="row")


def robustness(summary: Summary) -> Any:
    """Accuracy against labels per class and against removed edges, one row per data set, one line per system.

    A line has one point per place: settings no longer in use, and settings with missing runs, are left out.
    """
    kinds = {"labels_per_class": ("training labels per class", 10), "edges_removed": ("share of edges removed", 0)}
    rows, found = [row for row in summary.rows if row.planned and row.n >= row.data.seeds], []
    names = dict.fromkeys(row.data.label.rpartition(", ")[0] for row in rows)
    for name in names:
        of_data = [row for row in rows if row.data.label.startswith(f"{name}, ")]
        if not all(any(kind in row.data.alter for row in of_data) for kind in kinds):
            continue  # a curve of this data set was not run
        for kind, (x, base) in kinds.items():
            own = [row for row in of_data if kind in row.data.alter]
            points = [_scored(row.system.label, row.data.alter[kind], row) for row in own]
            found.append({"title": name, "x": x, "points": points, "base": base})
    labels = list(dict.fromkeys(row.system.label for row in summary.rows))
    return _curves(found, labels, _bars(), sharey="row")


def batch_size(summary: Summary) -> Any:
    """Accuracy at the left and peak memory at the right, over the size of batches; the whole graph at the right end."""
    found = []
    for section in summary.sections:
        scores, peaks = [], []
        for row in (row for row in section.rows if len(row.values())):
            label = "attention off" if row.system.role == "off" else "DIFFormer-s"
            size = row.system.settings.get("batch_size", row.first("settings", {}).get("batch_size")) or "whole"
            scores.append(_scored(label, str(size), row))
            peaks.append((label, str(size), float(row.values("megabytes").median()), None))
        if scores:
            title, places = f"{section.data.label}; {section.counted}", " / ".join(section.runs["device"].unique())
            found.append({"title": title, "x": "nodes per batch", "points": scores})
            found.append({"title": places, "x": "nodes per batch", "y": "peak memory in MB", "points": peaks})
    return _curves(found, ["DIFFormer-s", "attention off"], _bars())


# Energy: forms and fields of a diffusivity, and what trained models spend.

FORMS = {"simple": "DIFFormer-s: f = 2 - z²/2", "sigmoid": "DIFFormer-a: f = σ(1 - z²/2)"}


def energy(summary: Summary) -> Any:
    r"""Per form its curves, velocity field and energy field; below, energy and effective rank of trained models.

    With f = δ', the state z of one instance among others z_j has the velocity v(z) = Σ_j f(||z - z_j||²) (z_j - z) and
    the energy E(z) = Σ_j δ(||z - z_j||²), so that v = -½ ∇E. Drawn for ten random instances in the unit disc, where f
    is non-negative.
    """
    trained = [section for section in summary.sections if len(section.runs)]
    titles = {"energy": "mean δ over pairs", "rank": "effective rank", "separation": "variance between classes"}
    found = []
    for section, (what, title) in product(trained, titles.items()):
        points = []
        for row in section.rows:
            curves = zip(*(one[what] for one in row.runs["measures"] if one.get(what)), strict=True)
            points += [(row.label, layer, fmean(values), None) for layer, values in enumerate(curves)]
        above = f"{section.data.label}: {title}\n{section.counted}"
        found.append({"title": above, "x": "layer", "y": "", "points": points})
    labels = list(dict.fromkeys(row.label for section in trained for row in section.rows if row.n))
    fig = _curves(found, labels, first=6, width=3.5, height=2.9, across=3)
    for ax in fig.axes[6:]:
        ax.xaxis.get_major_locator().set_params(integer=True)
    for place, name in enumerate(FORMS):
        _form(fig.axes[3 * place : 3 * place + 3], name)
    return fig


def _form(axes: Any, name: str) -> None:
    (curves, field, height), form = axes, as_diffusivity(name)
    z = torch.linspace(-2, 2, 201, dtype=torch.float64)
    curves.plot(z, form.delta(z.square()), color=BLUE, label="δ(z²)")
    curves.plot(z, form.f(z.square()), color=ORANGE, ls="--", label="f(z²)")
    curves.set(xlabel="z", title=FORMS[name])
    curves.legend()
    generator = torch.Generator().manual_seed(7)
    angle = 2 * torch.pi * torch.rand(10, generator=generator, dtype=torch.float64)
    radius = 0.9 * torch.rand(10, generator=generator, dtype=torch.float64).sqrt()
    stars = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)

    def grid(count: int) -> tuple[Any, Any]:
        """Points of a square grid and their squared distances to the instances, at most 4, where f is defined."""
        side = torch.linspace(-1, 1, count, dtype=torch.float64)
        place = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
        return place, (place.unsqueeze(-2) - stars).square().sum(-1).clamp_max(4.0)

    place, u = grid(17)
    push = (form.f(u).unsqueeze(-1) * (stars - place.unsqueeze(-2))).sum(-2)
    field.quiver(*place.unbind(-1), *push.unbind(-1), color=BLUE, width=0.005)
    place, u = grid(101)
    drawn = height.contourf(*place.unbind(-1), form.delta(u).sum(-1), levels=20, cmap="cividis")
    pyplot().colorbar(drawn, ax=height, label="Σⱼ δ(||z - zⱼ||²)")
    for ax, said in ((field, "velocity field"), (height, "energy of one instance")):
        ax.plot(*stars.unbind(1), "*", color=RED, mec="white", mew=0.5, ms=9)
        ax.set(title=said, xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        ax.grid(False)


# Maps of states.


def visualise(summary: Summary) -> Any:
    """One row per data set and system, one panel per layer or snapshot."""
    pictures = [
        (f"{row.data.label}, {row.system.label}, seed {row.first('seed')}", picture)
        for row in summary.rows
        if row.n and (picture := row.first("measures").get("pictures"))
    ]
    if not pictures:
        return None
    across = max(len(picture) for _, picture in pictures)
    fig, axes = panels(across * len(pictures), width=3.1, height=3.2, across=across)
    for place, (title, picture) in enumerate(pictures):
        row = axes[across * place : across * (place + 1)]
        seen = [value for panel in picture for value in panel["values"] or ()]
        for ax, panel in zip_longest(row, picture):
            if panel is None:
                ax.set_axis_off()
                continue
            drawn = _map(ax, panel, (min(seen), max(seen)) if seen else None)
            ax.set_title(f"{fill(title, 42)}\n{panel['title']}", loc="left", fontsize=8)
        if seen:
            fig.colorbar(drawn, ax=row[len(picture) - 1], label="target", shrink=0.8)
    every = [panel for _, picture in pictures for panel in picture]
    classes = sorted({number for panel in every if panel["values"] is None for number in panel["classes"] or ()})
    marks = [mark(f"class {number}", **_look(number)) for number in classes]
    if any(panel["pairs"] for panel in every):
        marks.append(mark("a pair with the largest attention; darker is larger", color=GREY, lw=1.0))
    legend_below(fig, marks)
    return fig


def _look(number: int) -> dict[str, str]:
    return {"color": CYCLE[number % len(CYCLE)], "marker": MARKERS[number % len(MARKERS)]}


def _map(ax: Any, panel: Any, limits: tuple[float, float] | None) -> Any:
    """States as points, pairs as lines; returns the points if their colour is a number, within `limits`."""
    x, y, drawn = panel["x"], panel["y"], None
    strongest = max((weight for _, _, weight in panel["pairs"]), default=1.0)
    for source, target, weight in panel["pairs"]:
        shade = 0.15 + 0.5 * weight / strongest
        ax.plot([x[source], x[target]], [y[source], y[target]], color=GREY, lw=0.5, alpha=shade)
    if limits is None:
        for number in sorted(set(panel["classes"])):
            chosen = [i for i, one in enumerate(panel["classes"]) if one == number]
            ax.scatter([x[i] for i in chosen], [y[i] for i in chosen], s=11, lw=0, zorder=2, **_look(number))
    else:
        look = {"cmap": "cividis", "vmin": limits[0], "vmax": limits[1], "edgecolors": "black", "lw": 0.4}
        drawn = ax.scatter(x, y, s=36, c=panel["values"], zorder=2, **look)
    reach = (-0.05 * GRID, 1.05 * GRID)
    ax.set(xticks=[], yticks=[], xlim=reach, ylim=reach, aspect="equal")
    ax.spines[:].set(visible=True, color="#BBBBBB")
    ax.grid(False)
    return drawn


DRAWINGS: Mapping[str, Callable[[Summary], Any]] = {
    one.__name__.replace("_", "-"): one for one in (scores, depth, batch_size, robustness, energy, visualise)
}
