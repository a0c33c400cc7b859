"""CIFAR-10, STL-10 and 20News with few labels: instances without a graph."""

from __future__ import annotations

from difformer.experiments.plan import Data, Experiment, System
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF, rivals

# Name, label, training labels a class; there are ten classes in each.
_SETS = (
    ("cifar10", "CIFAR-10", (10, 50, 100)),
    ("stl10", "STL-10", (10, 50, 100)),
    ("20news", "20News", (100, 200, 400)),
)
# Systems that start from a graph get that of the five nearest, the instance itself counted, as in the paper.
_NEIGHBOURS = {"graph": "knn:5"}

EXPERIMENT = Experiment(
    name="unobserved",
    title="Images and texts with few labels",
    about="CIFAR (SimCLR features), STL where present, 20News × 3 numbers of labels",
    source="The paper's Table 6",
    data=tuple(
        Data(
            f"{name}-{10 * labels}",
            name,
            f"{label}, {10 * labels} labels ({labels} a class)",
            options={"per_class": labels},
            variant=f"per_class={labels}",
        )
        for name, label, counts in _SETS
        for labels in counts
    ),
    systems=(
        *rivals("mlp", "label-spreading"),
        System("manireg", "ManiReg", "manireg", settings=_NEIGHBOURS),
        *rivals("gcn-knn", "gat-knn"),
        System("glcn", "GLCN", "glcn", settings=_NEIGHBOURS),
        System("nodeformer", "NodeFormer", "nodeformer", settings=_NEIGHBOURS),
        DIFFORMER_S,
        DIFFORMER_A,
        OFF,
    ),
    untuned={"learning_rate": 5e-4, "weight_decay": 0.01, "dropout": 0.2, "hidden_channels": 200, "epochs": 600},
    quick_data=(
        Data(
            "wine-quick",
            "wine",
            "wines, five labels a class",
            options={"per_class": 5, "num_splits": 2},
            seeds=2,
        ),
    ),
    quick_systems=("mlp", "manireg", "gcn-knn", "difformer-s", "difformer-a", "off"),
    quick_settings={"epochs": 6, "hidden_channels": 8},
    notes=(
        "Features of CIFAR-10 are a SimCLR encoder's of this project, not the paper's, which were not published: "
        "differences between systems can be compared, levels less so.",
        "Rows of `best` bring a graph of nearest neighbours. Without one, attention off leaves an encoder in which no "
        "instance learns from another.",
    ),
)
