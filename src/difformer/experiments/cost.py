"""Time and memory of an epoch: GCN, GAT, Dense GAT, DIFFormer-s and DIFFormer-a, of one depth and width each time."""

from __future__ import annotations

from difformer.experiments.plan import Data, Experiment
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF, rivals

# GCN and GAT need a graph where there is none: that of the five nearest, the instance itself counted, as in the paper.
_NEIGHBOURS = {"graph": "knn:5"}

HOW = (
    "Seconds an epoch are of training without evaluation: ten epochs in a row are timed after two that do not count "
    "(one where an epoch takes over ten seconds); three repeats. Megabytes are the peak of all that the device holds, "
    "on a CPU of what was added, from the building of the model on; on a GPU libraries hold 110 to 140 of them "
    "whatever is trained."
)


def _data(key: str, label: str, layers: int, hidden: int = 64, **rest: object) -> Data:
    settings = {"num_layers": layers, "hidden_channels": hidden, "dropout": 0.0, **rest.pop("settings", {})}  # type: ignore[dict-item]
    return Data(
        key,
        str(rest.pop("dataset", key)),
        f"{label}: {layers} layers of {hidden}",
        seeds=int(str(rest.pop("seeds", 3))),
        mode="cost",
        settings=settings,
        compare="epoch_seconds",
        published=key,
        **rest,  # type: ignore[arg-type]
    )


EXPERIMENT = Experiment(
    name="cost",
    title="Time and memory of an epoch",
    about="time and memory an epoch of GCN, GAT, Dense GAT, DIFFormer-s, DIFFormer-a",
    source="The paper's Table 11 (appendix)",
    data=(
        _data("cora", "Cora", 8, options={"protocol": "authors"}),
        _data("citeseer", "Citeseer", 4, options={"protocol": "authors"}),
        _data(
            "pubmed",
            "Pubmed",
            4,
            options={"protocol": "authors"},
            note="DIFFormer-a trains in batches of 10,000 nodes, as the authors' settings say, all others on the whole "
            "graph.",
        ),
        _data("pokec", "Pokec in batches of 100,000", 3, 128, settings={"batch_size": 100_000}, needs=12.0),
        _data("stl10", "STL-10", 2, 400, untuned=_NEIGHBOURS),
        _data(
            "cifar10",
            "CIFAR-10",
            2,
            300,
            untuned=_NEIGHBOURS,
            note="GCN and GAT have a graph of the five nearest, the instance itself counted.",
        ),
        _data("wikimath", "WikiMath", 2, 4),
        _data("chickenpox", "Chickenpox", 2, 4),
        _data(
            "pokec-size",
            "a random graph of Pokec's size, batches of 100,000",
            3,
            64,
            dataset="random-graph",
            options={"num_nodes": 1_632_803, "num_edges": 22_301_964, "num_features": 65},
            settings={"batch_size": 100_000},
            needs=12.0,
        ),
    ),
    systems=(*rivals("gcn", "gat", "dense-gat"), DIFFORMER_S, DIFFORMER_A, OFF),
    quick_data=(
        _data(
            "random-graph-quick",
            "a small random graph",
            2,
            8,
            dataset="random-graph",
            options={"num_nodes": 200, "num_edges": 800, "num_features": 8},
            seeds=1,
        ),
    ),
    only_presets=("public-code",),
    figure="difformer.experiments.costs:draw",
    notes=(
        HOW,
        "Devices differ from the paper's (a GPU with 16 GB), so the ratio to GCN is what can be compared.",
    ),
)
