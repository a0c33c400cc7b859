"""Sections that several tables share, and the values with which untuned systems run on them."""

from __future__ import annotations

from typing import Any

from difformer.experiments.plan import Data

# Kipf and Welling's values, which most of these systems' authors started from.
CUSTOMARY = {"learning_rate": 0.01, "weight_decay": 5e-4, "dropout": 0.5, "hidden_channels": 64, "epochs": 500}
CITATION_GRAPHS = {"cora": "Cora", "citeseer": "Citeseer", "pubmed": "Pubmed"}


def citation_graphs(said: str, protocol: str, seeds: int, **more: Any) -> tuple[Data, ...]:
    """The three citation graphs under one protocol, each under its own name.

    Args:
        said: What stands behind the name of each in a table.
        protocol: Of the splits.
        seeds: How many.
        more: Further fields of `Data`.
    """
    options = {"protocol": protocol}
    return tuple(
        Data(name, name, f"{label}, {said}", options=options, seeds=seeds, **more)
        for name, label in CITATION_GRAPHS.items()
    )


def small_blocks(num_nodes: int = 100, seeds: int = 2) -> Data:
    """A block model that is made in no time, for quick forms."""
    options = {"num_nodes": num_nodes, "num_splits": 2, "fractions": (0.2, 0.2, 0.6)}
    return Data("sbm-quick", "sbm", "a small block model", options=options, seeds=seeds)
