"""Mini-batches on the largest graph at hand: what a small one costs in accuracy, and saves in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.experiments.plan import Data, Experiment, System
from difformer.experiments.systems import OFF

if TYPE_CHECKING:
    from difformer.experiments.summary import Summary

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
    notes=("Batches are induced subgraphs of a random partition, drawn anew every epoch; evaluation is exact.",),
)


def draw(summary: Summary, folder: Path) -> Any:
    """Accuracy above, memory below; the whole graph at the right end."""
    from difformer.experiments.drawing import BLUE, ORANGE, empty, head, panels
    from difformer.experiments.summary import is_percent

    shown = [section for section in summary.sections if any(row.system.role == "ours" for row in section.rows)]
    shown = [section for section in shown if section.lines]
    if not shown:
        return empty(f"{summary.experiment.title}: nothing was run yet")
    fig, axes = panels(2 * len(shown), width=4.2, height=2.4, across=2)
    for place, section in enumerate(shown):
        rows = [row for row in section.rows if row.system.role == "ours" and row.values()]
        names = [f"{row.system.settings['batch_size'] or 'whole'}" for row in rows]
        accuracy, memory = axes[2 * place : 2 * place + 2]
        factor = 100 if rows and is_percent(rows[0].metric) else 1
        means = [factor * (row.mean() or 0.0) for row in rows]
        spread = [factor * row.deviation() for row in rows]
        accuracy.errorbar(names, means, yerr=spread, fmt="o-", color=BLUE, capsize=2)
        accuracy.set(xlabel="nodes a batch", ylabel="test accuracy in %")
        accuracy.set_title(f"{section.data.label}; {section.counted}", loc="left")
        memory.plot(names, [(row.median("peak_memory") or 0.0) / 1e6 for row in rows], "s--", color=ORANGE)
        memory.set(xlabel="nodes a batch", ylabel="peak of memory in MB", ylim=(0, None))
        memory.set_title(section.lines[0]["device"], loc="left")
    head(fig, summary)
    return fig
