"""Chameleon, Squirrel and Actor: graphs whose neighbours differ, over their ten published splits."""

from __future__ import annotations

from difformer.experiments.plan import Data, Experiment
from difformer.experiments.sections import CUSTOMARY
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF, rivals

EXPERIMENT = Experiment(
    name="heterophily",
    title="Node classification on heterophilous graphs",
    about="Chameleon, Squirrel, Actor × all systems of the table",
    source="The paper's Table 4",
    data=(
        Data("chameleon", "chameleon", "Chameleon, duplicates filtered out, ten published splits", seeds=10),
        Data("squirrel", "squirrel", "Squirrel, duplicates filtered out, ten published splits", seeds=10),
        Data(
            "actor",
            "actor",
            "Actor, ten published splits",
            seeds=10,
            note="The authors' code leaves the graph out on Actor; rows named public-code do so too.",
        ),
    ),
    systems=(
        *rivals("mlp", "sgc", "gcn", "gat", "h2gcn", "fsgnn", "cpgnn", "glognn"),
        DIFFORMER_S,
        DIFFORMER_A,
        OFF,
    ),
    untuned={**CUSTOMARY, "epochs": 300},
    quick_data=(
        Data(
            "sbm-heterophilous-quick",
            "sbm",
            "a small block model whose neighbours differ",
            options={"num_nodes": 120, "homophily": 0.1, "num_splits": 2, "fractions": (0.5, 0.25, 0.25)},
            seeds=2,
        ),
    ),
    quick_systems=("mlp", "h2gcn", "glognn", "difformer-s", "difformer-a", "off"),
    quick_settings={"epochs": 6, "hidden_channels": 8},
)
