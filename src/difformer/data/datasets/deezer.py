"""Friends on Deezer in Europe: gender from the artists they like. Protocol ``"50/25/25"``: random shares."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import numpy as np
import torch
from scipy import sparse as sp

from difformer.data.archives import read_npz, read_zip
from difformer.data.datasets.common import check_graph, choice, class_task, csr_arrays, csr_of, seeded, seeds_of
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, processed
from difformer.data.splitting import random_split
from difformer.data.task import Task

PROTOCOLS = ("50/25/25",)
_FORMAT = 1


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
    choice("protocol", protocol, PROTOCOLS)
    found = locate(name, root)
    with reading(found):
        if found.form == "arrays":
            arrays: Any = read_npz(found.path)
        else:
            arrays = processed(name, lambda: read_archive(found), sources=found.paths, version=_FORMAT)
        likes, y = csr_of(arrays), torch.from_numpy(arrays["y"].astype(np.int64))
        check_graph(likes, arrays["y"], arrays["edge_index"])
    splits = seeded(lambda s: random_split(y, fractions=(0.5, 0.25, 0.25), seed=s), num_splits=num_splits, seed=seed)
    return class_task(
        name,
        x=likes,
        y=y,
        edges=arrays["edge_index"],
        splits=splits,
        num_classes=2,
        self_loops=self_loops,
        sparse=sparse,
        steps="features 0 or 1",
        protocol=f"50/25/25: random shares, {seeds_of(num_splits, seed)}",
    )


def read_archive(found: Found) -> Arrays:
    """``deezer_europe.zip`` as published: edges and targets as CSV with a header, artists as JSON, a list a user."""
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
