"""Depth K and step size τ, with and without the source term: over-smoothing, and its cure."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from difformer.experiments.plan import Experiment, System
from difformer.experiments.sections import CUSTOMARY, citation_graphs, small_blocks

if TYPE_CHECKING:
    from difformer.experiments.summary import Section, Summary

DEPTHS = (2, 4, 8, 16, 32)
STEPS = (0.1, 0.5, 0.9)
OFF_STEP = 0.5  # attention off is shown at one step size


def _system(depth: int, step: float, source: float, attention: bool = True) -> System:
    said = f"K = {depth}, τ = {step:g}{', with source' if source else ''}"
    settings: dict[str, Any] = {"num_layers": depth, "step_size": step, "source_weight": source, "residual": True}
    key = f"K{depth}-t{step:g}{'-source' if source else ''}"
    if attention:
        return System(key, said, "difformer-s", "ours" if source else "variant", settings=settings)
    settings = {**settings, "diffusivity": None}
    return System(f"off-{key}", f"attention off, {said}", "difformer", "off", base="difformer-s", settings=settings)


EXPERIMENT = Experiment(
    name="depth",
    title="Depth and step size, with and without source",
    about="K × τ, with and without the source term (figure): over-smoothing and its cure",
    source="The paper's Figure of hyper-parameters (fig-hyper)",
    data=citation_graphs("random splits", "random", 5),
    systems=(
        *(_system(depth, step, source) for source in (0.0, 1.0) for step in STEPS for depth in DEPTHS),
        *(_system(depth, OFF_STEP, source, attention=False) for source in (0.0, 1.0) for depth in DEPTHS),
    ),
    untuned=CUSTOMARY,
    quick_data=(small_blocks(seeds=1),),
    quick_systems=("K2-t0.5", "K8-t0.5", "K2-t0.5-source", "K8-t0.5-source", "off-K2-t0.5", "off-K2-t0.5-source"),
    quick_settings={"epochs": 4, "hidden_channels": 8},
    only_presets=("public-code",),
    figure="difformer.experiments.depth:draw",
    notes=(
        "Everything but K, τ and the source (β = 1, the initial states) is as in the authors' code. Under each "
        "section the best row with source is compared with the best one without.",
    ),
)


def draw(summary: Summary, folder: Path) -> Any:
    """Accuracy against depth: a line a step size, without source left, with source right, a row a data set."""
    from difformer.experiments.drawing import bars, empty, head, legend_below, panels

    shown = [section for section in summary.sections if section.lines]
    if not shown:
        return empty(f"{summary.experiment.title}: nothing was run yet")
    fig, axes = panels(2 * len(shown), width=3.6, height=2.8, across=2, sharey="row")
    for place, section in enumerate(shown):
        for ax, source in zip(axes[2 * place : 2 * place + 2], (False, True), strict=True):
            _panel(ax, section, source)
    # Of every panel: the first one may lack a line that another has.
    marks = {label: mark for ax in axes for mark, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    legend_below(fig, [*marks.values(), bars()])
    head(fig, summary)
    return fig


def _panel(ax: Any, section: Section, source: bool) -> None:
    from difformer.experiments.drawing import CYCLE, LINES, MARKERS
    from difformer.experiments.summary import is_percent

    drawn = [(f"τ = {step:g}", f"t{step:g}", "") for step in STEPS]
    drawn.append((f"attention off, τ = {OFF_STEP:g}", f"t{OFF_STEP:g}", "off-"))
    factor = 1.0
    for number, (label, step, before) in enumerate(drawn):
        points = []
        for row in section.rows:
            depth = row.system.settings["num_layers"]
            if row.system.key == f"{before}K{depth}-{step}{'-source' if source else ''}" and row.values():
                factor = 100.0 if is_percent(row.metric) else 1.0
                points.append((depth, factor * (row.mean() or 0.0), factor * row.deviation()))
        if points:
            x, y, spread = zip(*sorted(points), strict=True)
            colour, style = CYCLE[number], LINES[number]
            ax.errorbar(x, y, yerr=spread, label=label, color=colour, ls=style, marker=MARKERS[number], ms=4, capsize=2)
    ax.set_xscale("log", base=2)
    ax.set_xticks(DEPTHS, [str(depth) for depth in DEPTHS])
    ax.set_xlabel("depth K")
    ax.set_xlim(DEPTHS[0] / 1.15, DEPTHS[-1] * 1.15)
    ax.set_title(
        f"{fill(section.data.label, 42)}\n{'with' if source else 'without'} source; {section.counted}", loc="left"
    )
    ax.set_ylabel("test accuracy in %" if factor == 100 else "test score")
