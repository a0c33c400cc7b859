"""Cora, CiteSeer and PubMed: papers, the words in them, and who cites whom.

Features are divided by their row's sum, x_ij / Σ_k x_ik; citations lose direction, duplicates and self-loops; then
every node gets a self-loop. Protocols, all with 20 labels per class, 500 nodes for validation and 1000 for test:

* ``"random"``: seeded splits. Nodes without features are never drawn.
* ``"authors"``: the one split, seed 123, on which the authors' code reports its figures.
* ``"public"``: the split published with the data.
* ``"public-code"``: as the authors' code does it, one split for all runs, which is that of ``"authors"``. It also draws
  nodes without features: CiteSeer has 15, which carry the filler label 0. With ``num_splits`` more are drawn in the
  same way, from the seeds that follow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse as sp

from difformer.data.datasets.common import (
    check_graph,
    choice,
    class_task,
    csr_arrays,
    csr_of,
    row_normalised,
    seeded,
    seeds_of,
)
from difformer.data.datasets.pickles import read_pickle
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, stored_arrays
from difformer.data.split import AUTHORS_SEED, Split, authors_split, index_split, per_class_split
from difformer.data.task import Task

PROTOCOLS = ("random", "authors", "public", "public-code")
FEATURES = ("row", "raw")


def planetoid(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "random",
    num_splits: int | None = None,
    seed: int | None = None,
    self_loops: bool = True,
    sparse: bool | None = None,
    features: str = "row",
) -> Task:
    """One of the three citation graphs.

    Args:
        name: ``"cora"``, ``"citeseer"`` or ``"pubmed"``.
        root: Folder to search first.
        protocol: ``"random"`` (seeded splits), ``"authors"`` (their one split), ``"public"`` or ``"public-code"``.
        num_splits: How many splits ``"random"`` and ``"public-code"`` make: 10 and 1 by default.
        seed: Of the first of them: 0 for ``"random"``, 123 for ``"public-code"`` by default.
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
        features: ``"row"`` divides every row by its sum, ``"raw"`` leaves features as published.
    """
    choice("protocol", protocol, PROTOCOLS)
    choice("features", features, FEATURES)
    found = locate(name, root)
    with reading(found):
        arrays = stored_arrays(found, read_raw)
        words, y = csr_of(arrays), torch.from_numpy(np.asarray(arrays["y"], dtype=np.int64))
        check_graph(words, arrays["y"], arrays["edge_index"])
    featureless = np.flatnonzero(np.diff(words.indptr) == 0)
    splits, said = _splits(protocol, y, arrays, featureless, num_splits, seed)
    drawn = torch.isin(torch.cat([torch.cat(list(s.parts().values())) for s in splits]), torch.from_numpy(featureless))
    notes = []
    if len(featureless):
        fate = (
            f"{int(drawn.sum())} of them are in the splits, with the filler label 0"
            if bool(drawn.any())
            else "they are in no split"
        )
        notes.append(f"{len(featureless)} nodes have no features; {fate}.")
    return class_task(
        name,
        x=row_normalised(words) if features == "row" else words,
        y=y,
        edges=arrays["edge_index"],
        splits=splits,
        self_loops=self_loops,
        sparse=sparse,
        steps="rows of features sum to one" if features == "row" else "features as published",
        protocol=said,
        notes=notes,
    )


def _splits(
    protocol: str, y: Any, arrays: Mapping[str, Any], featureless: Any, num_splits: int | None, seed: int | None
) -> tuple[tuple[Split, ...], str]:
    if protocol == "public":
        split = index_split("public", arrays["train_idx"], arrays["val_idx"], arrays["test_idx"])
        return (split,), "public: the published split"
    if protocol == "authors":
        return (authors_split(y),), "authors: 20 labels a class, 500, 1000, one split, seed 123"
    first = seed if seed is not None else (0 if protocol == "random" else AUTHORS_SEED)
    count = num_splits if num_splits is not None else (10 if protocol == "random" else 1)
    exclude = featureless if protocol == "random" and len(featureless) else None
    splits = seeded(
        lambda s: per_class_split(y, seed=s, exclude=exclude, name=f"{protocol}/seed={s}"),
        num_splits=count,
        seed=first,
    )
    return splits, f"{protocol}: 20 labels a class, 500, 1000, {seeds_of(count, first)}"


def read_raw(found: Found) -> Arrays:
    """The eight ``ind.*`` files as one set of arrays.

    Nodes 0 … a-1 are the rows of ``allx``, in order, of which the first are the training nodes. The rows of ``tx``
    belong to the nodes that ``test.index`` lists, which is not sorted. CiteSeer's list has gaps: nodes without a
    description; they get no features and the label 0, and are in no part of the published split.
    """
    stem = f"ind.{found.name}."
    part = {path.name.removeprefix(stem): path for path in found.paths}
    loaded = {}
    for key in ("x", "tx", "allx", "y", "ty", "ally", "graph"):
        with open(part[key], "rb") as file:
            loaded[key] = read_pickle(file)
    if not all(isinstance(loaded[key], np.ndarray) and loaded[key].ndim == 2 for key in ("y", "ty", "ally")):
        raise DataError("the files y, ty and ally must hold tables", path=found.path.parent)
    if not all(sp.issparse(loaded[key]) for key in ("x", "tx", "allx")) or not isinstance(loaded["graph"], dict):
        raise DataError(
            "the files x, tx and allx must hold matrices, and graph a list per node", path=found.path.parent
        )
    test = np.loadtxt(part["test.index"], dtype=np.int64)
    known = loaded["allx"].shape[0]
    n = max(int(test.max()) + 1, known)
    if test.min() < known or n != len(loaded["graph"]):  # before memory is asked for in proportion to a wrong number
        raise DataError(
            f"test nodes {test.min()} … {test.max()} do not fit {known} others in a graph of {len(loaded['graph'])}",
            path=part["test.index"],
        )
    x = sp.lil_matrix((n, loaded["allx"].shape[1]), dtype=np.float32)
    x[:known], x[test] = loaded["allx"], loaded["tx"]
    onehot = np.zeros((n, loaded["ally"].shape[1]))
    onehot[:known], onehot[test] = loaded["ally"], loaded["ty"]
    if not all(isinstance(others, list) for others in loaded["graph"].values()):
        raise DataError("must hold a list of nodes per node", path=part["graph"])
    pairs = [(node, other) for node, others in loaded["graph"].items() for other in others]
    if not all(type(node) is int for pair in pairs for node in pair):
        raise DataError("must hold whole numbers", path=part["graph"])
    ends = np.sort(np.asarray(pairs, dtype=np.int64), axis=1)
    ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    num_train = loaded["y"].shape[0]
    return {
        **csr_arrays(x.tocsr()),
        "y": onehot.argmax(axis=1).astype(np.int64),
        "edge_index": ends.T.astype(np.int32),
        "train_idx": np.arange(num_train),
        "val_idx": np.arange(num_train, num_train + 500),
        "test_idx": np.sort(test),
    }
