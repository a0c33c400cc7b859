"""Graphs whose nodes are classified, published as one file each.

Edges lose direction, duplicates and self-loops, then every node gets a self-loop.

* Chameleon, Squirrel and Actor: neighbours tend to differ; ten published splits each. The first two are Wikipedia's
  pages on one subject, by traffic; the filtered ones lack the duplicated nodes that let test labels leak into training.
  Actor joins actors who are named on one page. Features are divided by their row's sum.
* Roman-empire, Amazon-ratings, Minesweeper, Tolokers and Questions (Platonov et al., "A critical look at the evaluation
  of GNNs under heterophily", 2023): ten published splits each, accuracy for the first two, ROC-AUC for the others.
* Amazon's goods bought together and Microsoft's co-authors: counts of words become 0 and 1, rows are divided by their
  sum. Protocol ``"20/30"`` draws 20 nodes per class for training and 30 per class for validation, the rest is test;
  ``"60/20/20"`` draws shares of all nodes.
* Friends at American colleges in 2005: gender from friends and profile. Features are one-hot, a column for every value
  of every column of the profile but gender, a missing one being a value like any other. Nodes of unknown gender take
  part in propagation and are in no split.
* Friends on Deezer in Europe: gender from the artists they like.
"""

from __future__ import annotations

import io
import json
import os
from typing import Any

import numpy as np
import torch
from scipy import sparse as sp

from difformer.data.archives import read_mat, read_npz, read_zip
from difformer.data.catalogue import ENTRIES
from difformer.data.datasets.common import (
    check_graph,
    choice,
    class_task,
    csr_arrays,
    csr_of,
    one_hot_columns,
    row_normalised,
    seeded,
    seeds_of,
    share_splits,
)
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, stored_arrays
from difformer.data.split import Split, masks_split, per_class_split
from difformer.data.task import Task

FEATURES = ("row", "raw")
GENDER = 1  # column of the profile


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
    choice("features", features, FEATURES)
    return _published(name, root, protocol, self_loops, sparse, features)


def heterophilous(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "published",
    self_loops: bool = True,
    sparse: bool | None = None,
) -> Task:
    """One of the five graphs of the "critical look" benchmark, with its ten splits; features as published.

    Args:
        name: ``"roman-empire"``, ``"amazon-ratings"``, ``"minesweeper"``, ``"tolokers"`` or ``"questions"``.
        root: Folder to search first.
        protocol: ``"published"``, the ten splits in the file.
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
    """
    return _published(name, root, protocol, self_loops, sparse, "raw")


def _published(
    name: str,
    root: str | os.PathLike[str] | None,
    protocol: str,
    self_loops: bool,
    sparse: bool | None,
    features: str,
) -> Task:
    choice("protocol", protocol, ("published",))
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
        self_loops=self_loops,
        sparse=sparse,
        steps="rows of features sum to one" if features == "row" else "features as published",
        protocol=f"published: {len(splits)} splits",
        notes=notes,
        metric=ENTRIES[name].metric,
    )


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
        protocol: ``"20/30"`` (labels per class for training and validation) or ``"60/20/20"``.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
    """
    choice("protocol", protocol, ("20/30", "60/20/20"))
    found = locate(name, root)
    with reading(found):
        words, labels, edges = _read_benchmark(found)
        check_graph(words, labels, edges)
    words.data = (words.data > 0).astype(np.float32)
    y = torch.from_numpy(labels)
    if protocol == "20/30":
        splits = seeded(lambda s: _per_class(y, s), num_splits=num_splits, seed=seed)
        said = "20/30: 20 labels a class, 30 a class for validation, the rest test"
    else:
        splits = share_splits(y, protocol, num_splits=num_splits, seed=seed)
        said = "60/20/20: random shares of all nodes"
    return class_task(
        name,
        x=row_normalised(words),
        y=y,
        edges=edges,
        splits=splits,
        self_loops=self_loops,
        sparse=sparse,
        steps="features 0 or 1, then rows sum to one",
        protocol=f"{said}, {seeds_of(num_splits, seed)}",
    )


def _per_class(y: Any, seed: int) -> Split:
    """20 per class to train and 30 per class to valid: two draws, the second from what the first left."""
    first = per_class_split(y, per_class=20, num_valid=0, num_test=None, seed=seed)
    second = per_class_split(y, per_class=30, num_valid=0, num_test=None, seed=seed, exclude=first.train)
    return Split(f"20/30/seed={seed}", first.train, second.train, second.test)


def _read_benchmark(found: Found) -> tuple[Any, Any, Any]:
    file = read_npz(found.path)
    if found.form == "arrays":
        return csr_of(file), file["y"].astype(np.int64), file["edge_index"]
    words, links = csr_of(file, "attr"), csr_of(file, "adj")
    return words, file["labels"].astype(np.int64), np.stack(links.nonzero())


def facebook100(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "50/25/25",
    num_splits: int = 5,
    seed: int = 0,
    self_loops: bool = True,
    sparse: bool | None = None,
) -> Task:
    """One school.

    Args:
        name: ``"facebook100-reed98"``, ``"facebook100-johnshopkins55"``, ``"facebook100-cornell5"``, …
        root: Folder to search first.
        protocol: ``"50/25/25"``, or ``"10/10/80"`` as the paper splits Pokec.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
    """
    choice("protocol", protocol, ("50/25/25", "10/10/80"))
    found = locate(name, root)
    with reading(found):
        profile, edges = _read_profiles(found)
        y = torch.from_numpy(profile[:, GENDER].astype(np.int64) - 1)
        check_graph(profile, profile[:, GENDER], edges)
    unknown = int((y < 0).sum())
    return class_task(
        name,
        x=one_hot_columns(np.delete(profile, GENDER, axis=1)),
        y=y,
        edges=edges,
        splits=share_splits(y, protocol, num_splits=num_splits, seed=seed),
        num_classes=2,
        self_loops=self_loops,
        sparse=sparse,
        steps="profile one-hot without gender",
        protocol=f"{protocol} of the nodes with known gender, {seeds_of(num_splits, seed)}",
        notes=[f"The gender of {unknown} nodes is unknown; they are in no split."] if unknown else [],
    )


def _read_profiles(found: Found) -> tuple[Any, Any]:
    """Profile ``[N, 7]`` and edges ``[2, E]``."""
    if found.form == "arrays":
        file = read_npz(found.path)
        return file["metadata"], file["edge_index"]
    content = read_mat(found.path)
    return content["local_info"], np.stack(content["A"].nonzero())


def deezer_europe(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "50/25/25",
    num_splits: int = 5,
    seed: int = 0,
    self_loops: bool = True,
    sparse: bool | None = None,
) -> Task:
    """Deezer's friends.

    Args:
        name: ``"deezer-europe"``.
        root: Folder to search first.
        protocol: ``"50/25/25"``.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
    """
    choice("protocol", protocol, ("50/25/25",))
    found = locate(name, root)
    with reading(found):
        arrays = stored_arrays(found, read_archive)
        likes, y = csr_of(arrays), torch.from_numpy(arrays["y"].astype(np.int64))
        check_graph(likes, arrays["y"], arrays["edge_index"])
    return class_task(
        name,
        x=likes,
        y=y,
        edges=arrays["edge_index"],
        splits=share_splits(y, protocol, num_splits=num_splits, seed=seed),
        num_classes=2,
        self_loops=self_loops,
        sparse=sparse,
        steps="features 0 or 1",
        protocol=f"50/25/25: random shares, {seeds_of(num_splits, seed)}",
    )


def read_archive(found: Found) -> Arrays:
    """``deezer_europe.zip`` as published: edges and targets as CSV with a header, artists as JSON, a list per user."""
    names = [f"deezer_europe_{part}" for part in ("edges.csv", "target.csv", "features.json")]
    first, second, third = read_zip(found.path, names).values()
    edges, target, liked = _csv(first), _csv(second), json.loads(third)
    if not isinstance(liked, dict) or not all(isinstance(artists, list) for artists in liked.values()):
        raise DataError("features.json must hold a list of artists per user")
    if not all(type(artist) in (int, str) for artists in liked.values() for artist in artists):
        raise DataError("features.json must name artists by number")
    n = len(target)
    y = np.empty(n, dtype=np.int64)
    y[target[:, 0]] = target[:, 1]
    rows = np.repeat(np.array([int(user) for user in liked]), [len(artists) for artists in liked.values()])
    columns = np.array([int(artist) for artists in liked.values() for artist in artists])
    x = sp.csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=(n, int(columns.max()) + 1))
    x.sum_duplicates()
    x.data[:] = 1
    return {**csr_arrays(x), "y": y, "edge_index": edges.T.astype(np.int32)}


def _csv(text: bytes) -> Any:
    return np.loadtxt(io.BytesIO(text), delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
