"""Cora, CiteSeer and PubMed: papers, the words in them, and who cites whom.

Every split has 20 labels per class, 500 nodes for validation and 1000 for test. CiteSeer has 15 nodes without features,
which get the label 0: they may be drawn for ``"authors"`` and ``"public-code"``, but not for the other protocols.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse as sp

from difformer.data.datasets.common import Arrays, GraphReader, Splits, csr_arrays, seeded
from difformer.data.datasets.pickles import read_pickle
from difformer.data.download import Found
from difformer.data.split import AUTHORS_SEED, authors_split, index_split, per_class_split
from difformer.data.task import Task
from difformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Planetoid(GraphReader):
    """One of the three citation graphs.

    Args:
        protocol: ``"random"`` (seeded splits), ``"authors"`` (the one split, seed 123, of their figures), ``"public"``
            (published with the data) or ``"public-code"`` (drawn as the authors' code does; the first is theirs).
        num_splits: Number of splits of ``"random"`` and ``"public-code"``: 10 and 1 by default.
        seed: Seed of the first of them: 0 for ``"random"``, 123 for ``"public-code"`` by default.
        features: ``"row"`` divides every row by its sum, ``"raw"`` leaves features as published.
    """

    protocol: str = "random"
    num_splits: int | None = None
    seed: int | None = None
    features: str = "row"
    choices = (("features", ("row", "raw")),)

    def task(self, content: Any) -> Task:
        bare = np.flatnonzero(np.diff(content["x"].indptr) == 0)
        splits = self._splits(content, bare)
        parts = (part for split in splits[0] for part in split.parts().values())
        drawn = sum(int(np.isin(part, bare).sum()) for part in parts)
        fate = f"{drawn} of them are in the splits, with the filler label 0" if drawn else "they are in no split"
        notes = (f"{len(bare)} nodes have no features; {fate}.",) if len(bare) else ()
        return self.node_task(content, splits, notes=notes)

    def _splits(self, content: Any, bare: Any) -> Splits:
        if self.protocol == "public":
            published = (content[f"{part}_idx"] for part in ("train", "val", "test"))
            return (index_split("public", *published),), "public: the published split"
        y = torch.from_numpy(content["y"])
        if self.protocol == "authors":
            return (authors_split(y),), "authors: 20 labels per class, 500, 1000, one split, seed 123"
        random = self.protocol == "random"
        count, first = (10, 0) if random else (1, AUTHORS_SEED)
        exclude = bare if random and len(bare) else None
        return seeded(
            lambda s: per_class_split(y, seed=s, exclude=exclude, name=f"{self.protocol}/seed={s}"),
            count if self.num_splits is None else self.num_splits,
            first if self.seed is None else self.seed,
            f"{self.protocol}: 20 labels per class, 500, 1000",
        )

    def read(self, found: Found) -> Arrays:
        """The eight ``ind.*`` files as one set of arrays.

        Nodes 0 … a-1 are the rows of ``allx``, in order; the first of them are the training nodes. The rows of ``tx``
        belong to the nodes that ``test.index`` lists, which is not sorted. CiteSeer's list has gaps: nodes without a
        description; they get no features and the label 0, and are in no part of the published split.
        """
        part = {path.name.removeprefix(f"ind.{found.name}."): path for path in found.paths}
        loaded = {key: read_pickle(path.read_bytes()) for key, path in part.items() if key != "test.index"}
        y, ty, ally, tx, allx, graph = (loaded[key] for key in ("y", "ty", "ally", "tx", "allx", "graph"))
        tables = all(isinstance(table, np.ndarray) and table.ndim == 2 for table in (y, ty, ally))
        lists = isinstance(graph, dict) and all(isinstance(others, list) for others in graph.values())
        if not tables or not sp.issparse(tx) or not sp.issparse(allx) or not lists:
            problem = "y, ty and ally must hold tables, tx and allx matrices, and graph a list per node"
            raise DataError(problem, path=found.path.parent)
        pairs = [(node, other) for node, others in graph.items() for other in others]
        if not all(type(node) is int for pair in pairs for node in pair):
            raise DataError("must hold whole numbers", path=part["graph"])
        test = np.loadtxt(part["test.index"], dtype=np.int64)
        known = allx.shape[0]
        n = max(int(test.max()) + 1, known)
        if test.min() < known or n != len(graph):  # before memory is allocated in proportion to a wrong number
            problem = f"test nodes {test.min()} … {test.max()} do not fit {known} others in a graph of {len(graph)}"
            raise DataError(problem, path=part["test.index"])
        x = sp.lil_matrix((n, allx.shape[1]), dtype=np.float32)
        x[:known], x[test] = allx, tx
        onehot = np.zeros((n, ally.shape[1]))
        onehot[:known], onehot[test] = ally, ty
        ends = np.sort(np.asarray(pairs, dtype=np.int64), axis=1)
        return {
            **csr_arrays(x.tocsr()),
            "y": onehot.argmax(axis=1).astype(np.int64),
            "edge_index": np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0).T.astype(np.int32),
            "train_idx": np.arange(len(y)),
            "val_idx": np.arange(len(y), len(y) + 500),
            "test_idx": np.sort(test),
        }
