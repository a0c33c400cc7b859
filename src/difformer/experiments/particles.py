"""SynMol and ActsTrack: point sets, one yes-or-no answer each."""

from __future__ import annotations

from difformer.experiments.plan import Data, Experiment
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF, rivals

_NAMES = {"synmol": "SynMol", "actstrack": "ActsTrack"}
_MEASURES = ("batch-rocauc",)

EXPERIMENT = Experiment(
    name="particles",
    title="Properties of point sets",
    about="SynMol, ActsTrack where present: pooled AUROC, and the mean over batches",
    source="The paper's Table 7",
    data=tuple(
        Data(
            f"{name}{suffix}",
            name,
            f"{label}, {said}",
            options={"protocol": protocol},
            seeds=3,
            published=name,
            measures=_MEASURES,
        )
        for name, label in _NAMES.items()
        for suffix, protocol, said in (
            ("", "paper", "random 10/10/80"),
            ("-public-code", "public-code", "split and features of the authors' code"),
        )
    ),
    systems=(*rivals("mlp", "gcn", "gat", "glcn", "nodeformer"), DIFFORMER_S, DIFFORMER_A, OFF),
    untuned={"learning_rate": 0.005, "weight_decay": 1e-4, "dropout": 0.2, "hidden_channels": 64, "epochs": 150}
    | {"batch_size": 256},
    quick_data=(
        Data(
            "clouds-quick",
            "clouds",
            "small clouds of points",
            loader="difformer.experiments.quick:clouds",
            seeds=2,
            measures=_MEASURES,
        ),
    ),
    quick_systems=("mlp", "gcn", "difformer-s", "difformer-a", "off"),
    quick_settings={"epochs": 4, "hidden_channels": 8, "batch_size": 16},
    notes=(
        "AUROC is over all test sets together; the authors' code averages it over batches, which is shown beside it.",
        "GCN and GAT run over the five nearest points in space, the point itself counted: the paper's GCN-kNN and "
        "GAT-kNN.",
    ),
)
