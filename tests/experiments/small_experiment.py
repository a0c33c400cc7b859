"""A small experiment with one block model, and made-up lines of its ledger."""

from __future__ import annotations

from difformer.experiments.ledger import DONE
from difformer.experiments.spec import Data, Experiment, shared_systems

BLOCKS = Data(
    "blocks", "sbm", "blocks", options={"num_nodes": 60, "num_splits": 3, "fractions": (0.3, 0.2, 0.5)}, seeds=3
)
ABSENT = Data("absent", "pokec", "a graph that is not here", seeds=2)
GCN, MLP, DIFFORMER_S, OFF = (shared_systems()[key] for key in ("gcn", "mlp", "difformer-s", "off"))
SMALL = Experiment(
    name="citation",  # published figures of that name are found
    title="A small experiment",
    about="for tests",
    source="nowhere",
    data=(BLOCKS, ABSENT),
    systems=(MLP, GCN, DIFFORMER_S, OFF),
    untuned={"epochs": 2, "hidden_channels": 4},
    quick_data=(BLOCKS,),
    quick_systems=("mlp", "off"),
)


def line(system: str, seed: int, test: float, *, valid: float = 0.5, data: str = "blocks", **rest):
    """A finished run."""
    return {
        "status": DONE,
        "id": f"{system}{seed}",
        "key": f"{system}{seed}",
        "settings_id": system,
        "data": data,
        "dataset": "sbm",
        "protocol": "made up",
        "system": system,
        "preset": "untuned",
        "trials": None,
        "seed": seed,
        "split": f"split {seed}",
        "sizes": [18, 12, 30],
        "metric": "accuracy",
        "higher_is_better": True,
        "valid": valid,
        "test": test,
        "train": 1.0,
        "measures": {},
        "seconds": 1.0,
        "peak_memory": 5_000_000,
        "device": "a machine",
        **rest,
    }
