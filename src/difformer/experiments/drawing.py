"""How figures look, and how they are saved: SVG for pages and papers, PNG for everything else.

Colours are Okabe and Ito's, which the colour-blind can tell apart; shape says again what colour says.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from difformer.data.errors import require
from difformer.files import write_whole

if TYPE_CHECKING:
    from difformer.experiments.summary import Row, Summary

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
SKY, YELLOW, BLACK, GREY = "#56B4E9", "#F0E442", "#000000", "#767676"
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)), (0, (1, 1)), "-")
# Roles in tables: ours, rivals, attention off, variants.
ROLES = {"ours": (BLUE, "o"), "rival": (GREY, "s"), "off": (RED, "X"), "variant": (GREEN, "^")}
FORMATS = ("svg", "png")
QUICK = "quick form: no number here means anything"
LETTERS_AN_INCH = 13  # of a heading; letters of a proportional font differ, and this many fit of most

_STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E2E2E2",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.hashsalt": "difformer",  # names inside the file do not change from one drawing to the next
    "svg.fonttype": "none",
}


def pyplot() -> Any:
    """Matplotlib without a screen, in this package's style.

    Raises:
        ImportError: If it is not installed, naming the extra.
    """
    matplotlib = require("matplotlib", extra="figures", purpose="drawing figures")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot", extra="figures", purpose="drawing figures")
    plt.rcParams.update(_STYLE)
    return plt


def panels(count: int, *, width: float = 3.2, height: float = 2.8, across: int = 3, **options: Any) -> tuple[Any, Any]:
    """A figure with `count` panels, `across` beside each other; gives the figure and a flat list of its axes."""
    columns = min(across, max(count, 1))
    rows = -(-max(count, 1) // columns)
    fig, grid = pyplot().subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained", **options
    )
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return fig, axes[:count]


def empty(said: str) -> Any:
    """A figure that says why there is nothing to see."""
    fig, (ax,) = panels(1, width=6, height=1.2)
    ax.set_axis_off()
    ax.text(0.5, 0.5, said, ha="center", va="center", transform=ax.transAxes, wrap=True)
    return fig


def head(fig: Any, summary: Summary) -> None:
    """What the experiment is, over all panels, and that its numbers mean nothing where they do not."""
    lines = [summary.experiment.title, *([QUICK] if summary.quick else [])]
    wide = int(LETTERS_AN_INCH * fig.get_figwidth())
    fig.suptitle("\n".join(fill(line, wide) for line in lines), fontsize=10)


def legend_below(fig: Any, handles: Sequence[Any]) -> None:
    """One legend for all panels, in as many rows as the figure's width asks for."""
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        legend = fig.legend(handles=handles, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent(fig.canvas.get_renderer()).width <= fig.bbox.width:
            return
        legend.remove()


def bars() -> Any:
    """What error bars are, for a legend."""
    said = "bars: ± standard deviation over seeds and splits"
    return pyplot().Line2D([], [], color=GREY, marker="|", ms=6, lw=1.1, label=said)


def few(row: Row, what: str = "test") -> str:
    """How many runs a row has where the protocol asks for more, as it stands behind a name."""
    count = len(row.values(what))
    return "" if count >= row.data.seeds else f", {count} of {row.data.seeds} runs"


def save(fig: Any, folder: Path, name: str = "figure") -> list[Path]:
    """Writes the figure in both formats, each whole or not at all, and forgets it."""
    written = []
    for kind in FORMATS:
        content = io.BytesIO()
        # Tight: a title that is longer than its panel widens the picture, where it would be cut off otherwise.
        fig.savefig(
            content,
            format=kind,
            bbox_inches="tight",
            pad_inches=0.06,
            metadata={"Date": None} if kind == "svg" else None,
        )
        path = folder / f"{name}.{kind}"
        write_whole(path, content.getvalue())
        written.append(path)
    pyplot().close(fig)
    return written
