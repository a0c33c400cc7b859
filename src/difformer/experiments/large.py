"""ogbn-proteins and Pokec where their files are, Facebook100 schools, and random graphs of the same sizes for cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.experiments.cost import HOW
from difformer.experiments.plan import Data, Experiment
from difformer.experiments.sections import CUSTOMARY
from difformer.experiments.systems import DIFFORMER_S, OFF, rivals

if TYPE_CHECKING:
    from difformer.experiments.summary import Summary

_SCHOOLS = {"reed98": "Reed", "amherst41": "Amherst", "johnshopkins55": "Johns Hopkins", "cornell5": "Cornell"}
_SCHOOLS |= {"penn94": "Penn"}
_COST = {"num_layers": 3, "hidden_channels": 64, "dropout": 0.0}
_LARGE = {"learning_rate": 0.01, "weight_decay": 0.0, "dropout": 0.0, "num_layers": 3, "transform": True}
_MEASURED = ("mlp", "gcn", "gat", "sgc", "difformer-s", "off")


def _size(key: str, label: str, options: dict[str, int], batch: int | None, needs: float) -> Data:
    return Data(
        key,
        "random-graph",
        label,
        options=options,
        seeds=3,
        mode="cost",
        settings={**_COST, "batch_size": batch},
        compare="epoch_seconds",
        systems=_MEASURED,
        needs=needs,
    )


_PROTEINS = {"num_nodes": 132_534, "num_edges": 39_561_252, "num_features": 8, "num_classes": 112}
_POKEC = {"num_nodes": 1_632_803, "num_edges": 22_301_964, "num_features": 65, "num_classes": 2}

EXPERIMENT = Experiment(
    name="large",
    title="Large graphs",
    about="ogbn-proteins, Pokec where present; Facebook100 schools; graphs of the same sizes for time and memory",
    source="The paper's Table 3",
    data=(
        Data(
            "ogbn-proteins",
            "ogbn-proteins",
            "ogbn-proteins",
            untuned={**_LARGE, "batch_size": 10_000, "epochs": 1000},
            published="ogbn-proteins",
            needs=10.0,
        ),
        Data(
            "pokec",
            "pokec",
            "Pokec",
            untuned={**_LARGE, "hidden_channels": 128, "batch_size": 100_000, "epochs": 500},
            published="pokec",
            needs=12.0,
        ),
        *(
            Data(f"facebook100-{name}", f"facebook100-{name}", f"Facebook100, {label}, five random splits 50/25/25")
            for name, label in _SCHOOLS.items()
        ),
        _size("proteins-size", "cost on a random graph of ogbn-proteins' size, whole", _PROTEINS, None, 14.0),
        _size("proteins-size-batches", "the same in batches of 10,000", _PROTEINS, 10_000, 12.0),
        _size("pokec-size", "cost on a random graph of Pokec's size, whole", _POKEC, None, 20.0),
        _size("pokec-size-batches", "the same in batches of 100,000", _POKEC, 100_000, 12.0),
        _size(
            "cornell-size",
            "cost on a random graph of Cornell's size, whole",
            {"num_nodes": 18_660, "num_edges": 790_777, "num_features": 64},
            None,
            1.0,
        ),
    ),
    systems=(*rivals("mlp", "lp", "sgc", "gcn", "gat", "nodeformer"), DIFFORMER_S, OFF),
    untuned={**CUSTOMARY, "epochs": 300},
    quick_data=(
        Data(
            "sbm-quick",
            "sbm",
            "a block model of 300 nodes",
            options={"num_nodes": 300, "fractions": (0.5, 0.25, 0.25), "num_splits": 2},
            seeds=2,
        ),
        _size(
            "random-graph-quick",
            "cost on a small random graph",
            {"num_nodes": 1000, "num_edges": 5000, "num_features": 8},
            None,
            0.0,
        ),
    ),
    quick_systems=("mlp", "gcn", "difformer-s", "off"),
    quick_settings={"epochs": 4, "hidden_channels": 8},
    figure="difformer.experiments.large:draw",
    notes=(
        "The paper trains GCN, GAT, NodeFormer and DIFFormer-s in batches of 10,000 (Proteins) and 100,000 (Pokec).",
        "Accuracy on random graphs means nothing; they are there for time and memory alone.",
        HOW,
    ),
)


def draw(summary: Summary, folder: Path) -> Any:
    """Scores, and under them cost, two panels a section."""
    from difformer.experiments.costs import cost_panels, measured
    from difformer.experiments.costs import draw as draw_cost
    from difformer.experiments.drawing import head, panels
    from difformer.experiments.figures import dots, score_panels, scored, size

    scores, costs = scored(summary), measured(summary)
    if not costs:
        return dots(summary, folder)
    if not scores:
        return draw_cost(summary, folder)
    width, height = size(scores)
    begun = len(scores) + len(scores) % 2  # cost begins with a row of its own
    fig, axes = panels(begun + 2 * len(costs), width=width, height=height, across=2)
    for spare in axes[len(scores) : begun]:
        spare.set_axis_off()
    score_panels(fig, axes[: len(scores)], scores, summary)
    cost_panels(axes[begun:], costs)
    head(fig, summary)
    return fig
