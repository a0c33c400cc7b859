"""Mini-batches on the largest graph at hand: what a small one costs in accuracy, and saves in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.experiments.plan import Data, Experiment, System
from difformer.experiments.systems import OFF

if TYPE_CHECKING:
    from difformer.experiments.summary import Row, Summary

PAPER = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
SMALLER = (500, 1_000, 2_000, 5_000, 10_000)
TINY = (25, 50)
WHOLE = System("whole", "whole graph", "difformer-s", "ours", settings={"batch_size": None})


def _system(size: int) -> System:
    return System(f"batch-{size}", f"batches of {size:,}", "difformer-s", "ours", settings={"batch_size": size})


def _keys(sizes: tuple[int, ...]) -> tuple[str, ...]:
    return (*(f"batch-{size}" for size in sizes), "whole", "off")


EXPERIMENT = Experiment(
    name="batch-size",
    title="Mini-batch size against accuracy and memory",
    about="mini-batch size against accuracy and memory, on Pokec where present and on the largest graph at hand",
    source="The paper's Table 10 (appendix)",
    data=(
        Data("pokec", "pokec", "Pokec", seeds=5, systems=_keys(PAPER), needs=12.0, published="pokec", alone=True),
        Data(
            "facebook100-cornell5",
            "facebook100-cornell5",
            "Facebook100, Cornell",
            seeds=5,
            systems=_keys(SMALLER),
            alone=True,
        ),
    ),
    systems=(*(_system(size) for size in sorted({*TINY, *SMALLER, *PAPER})), WHOLE, OFF),
    untuned={"learning_rate": 0.01, "weight_decay": 0.0, "dropout": 0.0, "hidden_channels": 64, "num_layers": 3}
    | {"epochs": 100, "transform": True},
    quick_data=(
        Data(
            "sbm-quick",
            "sbm",
            "a small block model",
            options={"num_nodes": 100, "fractions": (0.5, 0.25, 0.25)},
            seeds=1,
            systems=_keys(TINY),
            alone=True,
        ),
    ),
    quick_settings={"epochs": 3, "hidden_channels": 8},
    one_preset=True,
    figure="difformer.experiments.batch_size:draw",
    notes=(
        "Batches are induced subgraphs of a random partition, drawn anew every epoch; evaluation is exact.",
        "All are trained for as many epochs: a smaller batch means more steps, the whole graph one an epoch.",
        "Memory is the peak of an epoch of training, evaluation left out: of all that a GPU holds, features and edges "
        "among it where they have room there; on a CPU of what the epoch adds.",
    ),
)


def draw(summary: Summary, folder: Path) -> Any:
    """Accuracy on the left, memory on the right, over the size of batches; the whole graph at the right end."""
    from difformer.experiments.drawing import BLUE, ORANGE, ROLES, bars, empty, few, head, legend_below, panels, pyplot
    from difformer.experiments.summary import is_percent

    shown = [section for section in summary.sections if any(row.values() for row in section.rows)]
    if not shown:
        return empty(f"{summary.experiment.title}: nothing was run yet")
    fig, axes = panels(2 * len(shown), width=4.2, height=2.8, across=2)
    colour, shape = ROLES["off"]
    for place, section in enumerate(shown):
        accuracy, memory = axes[2 * place : 2 * place + 2]
        for role, line, point, dashed in (("ours", BLUE, "o-", "s--"), ("off", colour, shape, shape)):
            rows = [row for row in section.rows if row.system.role == role and row.values()]
            sizes = [_size(row) for row in rows]
            factor = 100 if rows and is_percent(rows[0].metric) else 1
            means, spread = [factor * (row.mean() or 0.0) for row in rows], [factor * row.deviation() for row in rows]
            accuracy.errorbar(sizes, means, yerr=spread, fmt=point, color=line, capsize=2)
            for row, size, mean in zip(rows, sizes, means, strict=True):
                said = few(row).removeprefix(", ")
                accuracy.annotate(said, (size, mean), (4, 4), textcoords="offset points", fontsize=7)
            peaks = [(row.median("peak_memory") or 0.0) / 1e6 for row in rows]
            memory.plot(sizes, peaks, dashed, color=ORANGE if role == "ours" else colour)
        accuracy.set(xlabel="nodes a batch", ylabel="test accuracy in %")
        accuracy.set_title(f"{section.data.label}; {section.counted}", loc="left")
        memory.set(xlabel="nodes a batch", ylabel="peak of memory in MB", ylim=(0, None))
        memory.set_title(" / ".join(dict.fromkeys(str(one["device"]) for one in section.lines)), loc="left")
    mark = pyplot().Line2D
    marks = [mark([], [], color=BLUE, marker="o", label="DIFFormer-s, score")]
    marks.append(mark([], [], color=ORANGE, marker="s", ls="--", label="DIFFormer-s, memory"))
    if any(row.system.role == "off" and row.values() for section in shown for row in section.rows):
        marks.append(mark([], [], color=colour, marker=shape, ls="", label="attention off"))
    if any(len(row.values()) > 1 for section in shown for row in section.rows):
        marks.append(bars())
    legend_below(fig, marks)
    head(fig, summary)
    return fig


def _size(row: Row) -> str:
    """Nodes of a batch, as a row's system says or as its settings did."""
    ran = row.lines[0].get("settings", {})
    return str({**ran, **row.system.settings}.get("batch_size") or "whole")
