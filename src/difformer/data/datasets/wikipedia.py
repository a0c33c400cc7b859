"""Chameleon, Squirrel and Actor: graphs whose neighbours tend to differ, each with ten published splits.

Chameleon and Squirrel are Wikipedia's pages on one subject, by traffic; the filtered ones lack the duplicated nodes
that let test labels leak into training. Actor joins actors who are named on one page. Features are divided by their
row's sum, edges lose direction, duplicates and self-loops, then every node gets a self-loop.
"""

from __future__ import annotations

import os

from difformer.data.archives import read_npz
from difformer.data.datasets.common import check_graph, choice, class_task, row_normalised
from difformer.data.lookup import locate, reading
from difformer.data.splitting import masks_split
from difformer.data.task import Task

PROTOCOLS = ("published",)
FEATURES = ("row", "raw")


def wikipedia(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "published",
    self_loops: bool = True,
    sparse: bool | None = None,
    features: str = "row",
) -> Task:
    """One of the heterophilous graphs, with its ten splits.

    Args:
        name: ``"chameleon"``, ``"squirrel"``, ``"chameleon-unfiltered"``, ``"squirrel-unfiltered"`` or ``"actor"``.
        root: Folder to search first.
        protocol: ``"published"``, the ten splits in the file.
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
        features: ``"row"`` divides every row by its sum, ``"raw"`` leaves features as published.
    """
    choice("protocol", protocol, PROTOCOLS)
    choice("features", features, FEATURES)
    found = locate(name, root)
    with reading(found):
        file = read_npz(found.path)
        x, y, edges = file["node_features"], file["node_labels"], file["edges"].T
        check_graph(x, y, edges)
        splits = masks_split(file["train_masks"], file["val_masks"], file["test_masks"])
    bare = int((x.sum(axis=1) == 0).sum())
    notes = [f"{bare} nodes have no features; the published splits hold them nevertheless."] if bare else []
    if name.endswith("-unfiltered"):
        notes.append("Holds duplicated nodes, so that test labels leak into training; the filtered graph does not.")
    if name == "actor":
        notes.append("The paper's code runs Actor without its graph.")
    return class_task(
        name,
        x=row_normalised(x) if features == "row" else x,
        y=y,
        edges=edges,
        splits=splits,
        num_classes=int(y.max()) + 1,
        self_loops=self_loops,
        sparse=sparse,
        steps="rows of features sum to one" if features == "row" else "features as published",
        protocol=f"published: {len(splits)} splits",
        notes=notes,
    )
