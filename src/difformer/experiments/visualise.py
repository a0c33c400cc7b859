"""Embeddings and the strongest latent edges, layer by layer; for series, snapshot by snapshot."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from difformer.experiments.plan import Data, Experiment
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF

if TYPE_CHECKING:
    from difformer.experiments.summary import Summary

EXPERIMENT = Experiment(
    name="visualise",
    title="Embeddings and latent edges",
    about="embeddings and strongest latent edges by layer: 20News, CIFAR (STL where present), Chickenpox (figure)",
    source="The paper's Figures of embeddings and attentive graphs",
    data=(
        Data(
            "20news", "20news", "20News", options={"per_class": 400}, variant="per_class=400", seeds=1, mode="visualise"
        ),
        Data("cifar10", "cifar10", "CIFAR-10", variant="per_class=100", seeds=1, mode="visualise"),
        Data("stl10", "stl10", "STL-10", variant="per_class=100", seeds=1, mode="visualise"),
        Data(
            "chickenpox",
            "chickenpox",
            "Chickenpox",
            options={"protocol": "paper"},
            settings={"loss": "auto", "metric": "mse"},
            seeds=1,
            mode="visualise",
        ),
    ),
    systems=(DIFFORMER_S, DIFFORMER_A, OFF),
    untuned={"learning_rate": 5e-4, "weight_decay": 0.01, "dropout": 0.2, "hidden_channels": 200, "epochs": 600},
    quick_data=(
        Data("wine-quick", "wine", "wines", options={"per_class": 5, "num_splits": 1}, seeds=1, mode="visualise"),
        Data(
            "waves-quick",
            "waves",
            "waves on a ring",
            loader="difformer.experiments.quick:waves",
            seeds=1,
            mode="visualise",
        ),
    ),
    quick_settings={"epochs": 4, "hidden_channels": 8},
    one_preset=True,
    figure="difformer.experiments.visualise:draw",
    notes=(
        "Maps show the two directions of largest variance, each layer turned to lie like the one before; edges are the "
        "pairs with the largest attention among the instances shown. Attention in units of the uniform one, 1/N.",
    ),
)
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def draw(summary: Summary, folder: Path) -> Any:
    """A row a data set and system, a panel a layer or snapshot."""
    from difformer.experiments.drawing import empty, head, legend_below, panels

    pictures = [
        (f"{section.data.label}, {row.system.label}, seed {line['seed']}", picture)
        for section in summary.sections
        for row in section.rows
        for line in row.lines[:1]
        if (picture := line["measures"].get("pictures"))
    ]
    if not pictures:
        return empty(f"{summary.experiment.title}: nothing was run yet")
    across = max(len(picture) for _, picture in pictures)
    fig, axes = panels(across * len(pictures), width=3.1, height=3.2, across=across)
    for place, (title, picture) in enumerate(pictures):
        row = axes[across * place : across * (place + 1)]
        for ax in row[len(picture) :]:
            ax.set_axis_off()
        drawn = None
        seen = [value for panel in picture for value in panel["values"] or ()]
        for ax, panel in zip(row, picture, strict=False):
            drawn = _panel(ax, panel, f"{fill(title, 42)}\n{panel['title']}", (min(seen), max(seen)) if seen else None)
        if drawn is not None:
            fig.colorbar(drawn, ax=row[len(picture) - 1], label="target", shrink=0.8)
    legend_below(fig, _marks([panel for _, picture in pictures for panel in picture]))
    head(fig, summary)
    return fig


def _marks(shown: list[Any]) -> list[Any]:
    """What points and lines of these panels are, for a legend."""
    from difformer.experiments.drawing import GREY, pyplot

    line = pyplot().Line2D
    classes = sorted({number for panel in shown if panel["values"] is None for number in panel["classes"] or ()})
    marks = [line([], [], ls="", label=f"class {number}", **_look(number)) for number in classes]
    if any(panel["values"] is not None for panel in shown):
        marks.append(line([], [], ls="", marker="o", mec="black", mfc="white", label="a node, coloured by its target"))
    if any(panel["pairs"] for panel in shown):
        said = "a pair with the largest attention, the darker the larger"
        marks.append(line([], [], color=GREY, lw=1.0, label=said))
    return marks


def _look(number: int) -> dict[str, str]:
    """Colour and marker of a class."""
    from difformer.experiments.drawing import CYCLE

    return {"color": CYCLE[number % len(CYCLE)], "marker": _MARKS[number % len(_MARKS)]}


def _panel(ax: Any, panel: Any, title: str, values: tuple[float, float] | None) -> Any:
    """States as points, pairs as lines; gives the points where their colour is a number."""
    from difformer.experiments.drawing import GREY
    from difformer.report.maps import GRID

    x, y = panel["x"], panel["y"]
    strongest = max((weight for _, _, weight in panel["pairs"]), default=1.0)
    for source, target, weight in panel["pairs"]:
        shade = 0.15 + 0.5 * weight / strongest
        ax.plot([x[source], x[target]], [y[source], y[target]], color=GREY, lw=0.5, alpha=shade)
    drawn = None
    if values is None:
        for number in sorted(set(panel["classes"])):
            chosen = [i for i, one in enumerate(panel["classes"]) if one == number]
            ax.scatter([x[i] for i in chosen], [y[i] for i in chosen], s=11, lw=0, zorder=2, **_look(number))
    else:
        low, high = values
        drawn = ax.scatter(
            x, y, s=36, c=panel["values"], cmap="cividis", vmin=low, vmax=high, edgecolors="black", lw=0.4, zorder=2
        )
    reach = (-0.05 * GRID, 1.05 * GRID)
    ax.set(xticks=[], yticks=[], xlim=reach, ylim=reach, aspect="equal")
    ax.spines[:].set(visible=True, color="#BBBBBB")
    ax.set_title(title, loc="left", fontsize=8)
    ax.grid(False)
    return drawn
