"""Amazon's goods bought together and Microsoft's co-authors: four homophilous graphs of middle size.

Counts of words become 0 and 1, rows are divided by their sum, edges lose direction, duplicates and self-loops, then
every node gets a self-loop. Protocols: ``"20/30"`` draws 20 nodes a class for training and 30 a class for validation,
the rest is test; ``"60/20/20"`` draws shares of all nodes.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from difformer.data.archives import read_npz
from difformer.data.datasets.common import check_graph, choice, class_task, csr_of, row_normalised, seeded, seeds_of
from difformer.data.lookup import Found, locate, reading
from difformer.data.split import Split
from difformer.data.splitting import per_class_split, random_split
from difformer.data.task import Task

PROTOCOLS = ("20/30", "60/20/20")


def gnn_benchmark(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "20/30",
    num_splits: int = 10,
    seed: int = 0,
    self_loops: bool = True,
    sparse: bool | None = None,
) -> Task:
    """One of the four graphs.

    Args:
        name: ``"amazon-photo"``, ``"amazon-computers"``, ``"coauthor-cs"`` or ``"coauthor-physics"``.
        root: Folder to search first.
        protocol: ``"20/30"`` (labels a class for training and validation) or ``"60/20/20"``.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
    """
    choice("protocol", protocol, PROTOCOLS)
    found = locate(name, root)
    with reading(found):
        words, labels, edges = _read(found)
        check_graph(words, labels, edges)
    words.data = (words.data > 0).astype(np.float32)
    y = torch.from_numpy(labels)
    num_classes = int(y.max()) + 1
    if protocol == "20/30":
        splits = seeded(lambda s: _per_class(y, s), num_splits=num_splits, seed=seed)
        said = "20/30: 20 labels a class, 30 a class for validation, the rest test"
    else:
        splits = seeded(lambda s: random_split(y, fractions=(0.6, 0.2, 0.2), seed=s), num_splits=num_splits, seed=seed)
        said = "60/20/20: random shares of all nodes"
    return class_task(
        name,
        x=row_normalised(words),
        y=y,
        edges=edges,
        splits=splits,
        num_classes=num_classes,
        self_loops=self_loops,
        sparse=sparse,
        steps="features 0 or 1, then rows sum to one",
        protocol=f"{said}, {seeds_of(num_splits, seed)}",
    )


def _per_class(y: Any, seed: int) -> Split:
    """20 a class to train and 30 a class to valid: two draws, the second from what the first left."""
    first = per_class_split(y, per_class=20, num_valid=0, num_test=None, seed=seed)
    second = per_class_split(y, per_class=30, num_valid=0, num_test=None, seed=seed, exclude=first.train)
    return Split(f"20/30/seed={seed}", first.train, second.train, second.test)


def _read(found: Found) -> tuple[Any, Any, Any]:
    file = read_npz(found.path)
    if found.form == "arrays":
        return csr_of(file), file["y"].astype(np.int64), file["edge_index"]
    words, links = csr_of(file, "attr"), csr_of(file, "adj")
    return words, file["labels"].astype(np.int64), np.stack(links.nonzero())
