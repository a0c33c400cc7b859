"""Friendships at American colleges in 2005: Pokec's task, gender from friends and profile, at another size.

Features are one-hot: a column for every value of every column of the profile but gender (status, major, second major,
dorm, year, high school), 0 for "missing" being a value like any other. Gender -1 is unknown: such nodes take part in
propagation and stand in no split. Protocol ``"50/25/25"``: random shares of the nodes whose gender is known.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from difformer.data.archives import read_mat, read_npz
from difformer.data.datasets.common import check_graph, choice, class_task, one_hot_columns, seeded, seeds_of
from difformer.data.lookup import Found, locate, reading
from difformer.data.splitting import random_split
from difformer.data.task import Task

PROTOCOLS = ("50/25/25", "10/10/80")
GENDER = 1  # column of the profile


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
    choice("protocol", protocol, PROTOCOLS)
    found = locate(name, root)
    with reading(found):
        profile, edges = _read(found)
        y = torch.from_numpy(profile[:, GENDER].astype(np.int64) - 1)
        check_graph(profile, profile[:, GENDER], edges)
    fractions = tuple(int(part) / 100 for part in protocol.split("/"))
    splits = seeded(lambda s: random_split(y, fractions=fractions, seed=s), num_splits=num_splits, seed=seed)
    unknown = int((y < 0).sum())
    return class_task(
        name,
        x=one_hot_columns(np.delete(profile, GENDER, axis=1)),
        y=y,
        edges=edges,
        splits=splits,
        num_classes=2,
        self_loops=self_loops,
        sparse=sparse,
        steps="profile one-hot without gender",
        protocol=f"{protocol} of the nodes with known gender, {seeds_of(num_splits, seed)}",
        notes=[f"The gender of {unknown} nodes is unknown; they are in no split."] if unknown else [],
    )


def _read(found: Found) -> tuple[Any, Any]:
    """Profile ``[N, 7]`` and edges ``[2, E]``."""
    if found.form == "arrays":
        file = read_npz(found.path)
        return file["metadata"], file["edge_index"]
    content = read_mat(found.path)
    return content["local_info"], np.stack(content["A"].nonzero())
