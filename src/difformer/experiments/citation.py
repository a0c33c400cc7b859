"""Cora, Citeseer and Pubmed: all systems of the paper's main table, on the authors' split and on ten random ones."""

from __future__ import annotations

from difformer.experiments.plan import Data, Experiment
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF, rivals

# Kipf and Welling's values, which most of these systems' authors started from.
CUSTOMARY = {"learning_rate": 0.01, "weight_decay": 5e-4, "dropout": 0.5, "hidden_channels": 64, "epochs": 500}
NAMES = {"cora": "Cora", "citeseer": "Citeseer", "pubmed": "Pubmed"}

EXPERIMENT = Experiment(
    name="citation",
    title="Node classification on citation graphs",
    about="Cora, Citeseer, Pubmed × all systems of the paper's main table",
    source="The paper's Table 2",
    data=tuple(
        Data(
            f"{name}-{protocol}",
            name,
            f"{label}, {said}",
            options={"protocol": protocol},
            seeds=seeds,
            published=name,
        )
        for name, label in NAMES.items()
        for protocol, said, seeds in (("authors", "the authors' one split", 5), ("random", "ten random splits", 10))
    ),
    systems=(
        *rivals("mlp", "lp", "manireg", "gcn", "gat", "sgc", "grand-l", "grand", "grand++", "gdc", "graphheat"),
        *rivals("gcn-knn", "gat-knn", "dense-gat", "lds", "glcn", "graphormer", "graphgps", "nodeformer"),
        DIFFORMER_S,
        DIFFORMER_A,
        OFF,
    ),
    untuned=CUSTOMARY,
    quick_data=(
        Data(
            "sbm-quick",
            "sbm",
            "a small block model",
            options={"num_nodes": 120, "num_splits": 2, "fractions": (0.2, 0.2, 0.6)},
            seeds=2,
        ),
    ),
    quick_systems=("mlp", "lp", "gcn", "difformer-s", "difformer-a", "off"),
    quick_settings={"epochs": 6, "hidden_channels": 8},
    notes=(
        "The paper's figures are over five initialisations on one split; one split can lie two points off the mean of "
        "many, so both are shown, and systems are compared over ten.",
    ),
)
