"""Pokec: a Slovak social network of 1.6 million users; gender from friends and profile.

Two sources. ``"linkx"`` is the file ``pokec.mat`` that the authors' code uses, with 65 features made from the
profiles in a way that was not published. ``"snap"`` are the original tables, from which features are made here:
profile public or not, share completed, age, time of registration and of the last visit, one-hot the region's first
part, and for each of the 51 free-text columns whether the user filled it in. Figures from one source are not
comparable with those from the other; the task says which.

Protocols: ``"paper"``, random 10/10/80 of the users whose gender is known, and ``"public-code"``, random 50/25/25.
"""

from __future__ import annotations

import gzip
import os
from datetime import datetime
from typing import Any

import numpy as np
import torch

from difformer.data.archives import read_mat
from difformer.data.datasets.common import check_graph, choice, class_task, one_hot_columns, seeds_of, share_splits
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate, reading
from difformer.data.own.csv_files import lines_of
from difformer.data.processed import Arrays, stored_arrays
from difformer.data.task import Task
from difformer.data.textnumbers import number_blocks

SHARES = {"paper": "10/10/80", "public-code": "50/25/25"}
SOURCES = ("auto", "linkx", "snap")
# Columns of soc-pokec-profiles.txt: eight with a format, then 51 of free text; a tab also ends the line.
USER, PUBLIC, COMPLETION, GENDER, REGION, LAST_LOGIN, REGISTRATION, AGE = range(8)
NUM_TEXTS = 51
NUM_COLUMNS = 8 + NUM_TEXTS
MAX_REGIONS = 20


def pokec(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "paper",
    source: str = "auto",
    num_splits: int = 1,
    seed: int = 0,
    self_loops: bool = True,
) -> Task:
    """The social network.

    Args:
        name: ``"pokec"``.
        root: Folder to search first.
        protocol: ``"paper"`` for 10/10/80, ``"public-code"`` for 50/25/25.
        source: ``"linkx"``, ``"snap"``, or ``"auto"`` for whichever is on disk; if neither is, ``"linkx"`` is fetched.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        self_loops: Whether every node gets an edge to itself.
    """
    choice("protocol", protocol, tuple(SHARES))
    choice("source", source, SOURCES)
    found = locate(name, root, forms=None if source == "auto" else (source,))
    with reading(found):
        read = read_linkx if found.form == "linkx" else read_snap
        arrays = stored_arrays(found, read, name=f"{name}-{found.form}")
    y = torch.from_numpy(arrays["y"].astype(np.int64))
    shares = SHARES[protocol]
    made = "the 65 features of pokec.mat" if found.form == "linkx" else "features made here from SNAP's profiles"
    notes = (
        [f"The gender of {int((y < 0).sum())} users is unknown; they are in no split."] if bool((y < 0).any()) else []
    )
    if found.form == "snap":
        notes.append("Features are not those of the published figures, whose making was not published.")
    return class_task(
        name,
        x=arrays["x"],
        y=y,
        edges=arrays["edge_index"],
        splits=share_splits(y, shares, num_splits=num_splits, seed=seed),
        num_classes=2,
        self_loops=self_loops,
        sparse=False,
        steps=made,
        protocol=f"{protocol}: random {shares}, {seeds_of(num_splits, seed)}",
        notes=notes,
    )


def read_linkx(found: Found) -> Arrays:
    """``pokec.mat``: ``edge_index [2, E]``, ``node_feat [N, 65]``, ``label`` (0, 1, or -1) and ``num_nodes``."""
    content = read_mat(found.path)
    n = int(np.asarray(content["num_nodes"]).ravel()[0])
    x = np.ascontiguousarray(content["node_feat"], dtype=np.float32)
    y = np.asarray(content["label"]).ravel().astype(np.int8)
    if x.shape[0] != n:
        raise DataError(f"{n} nodes, but features of shape {list(x.shape)}", path=found.path)
    edges = np.asarray(content["edge_index"], dtype=np.int32)
    check_graph(x, y, edges)
    return {"x": x, "y": y, "edge_index": edges}


def read_snap(found: Found) -> Arrays:
    """SNAP's two tables. User u is node u - 1, whatever the order of the profiles."""
    x, y = _profiles(found["soc-pokec-profiles.txt.gz"])
    path = found["soc-pokec-relationships.txt.gz"]
    with gzip.open(path, "rb") as stream:
        blocks = [
            block.T.astype(np.int32) - 1
            for block in number_blocks(stream, columns=2, dtype=np.int64, path=path)  # type: ignore[arg-type]
        ]
    edges = np.concatenate(blocks, axis=1)
    try:
        check_graph(x, y, edges)
    except DataError as error:
        raise error.reworded(error.problem, path=path) from error
    return {"x": x, "y": y, "edge_index": edges}


def _profiles(path: Any) -> tuple[Any, Any]:
    users: list[int] = []
    genders: list[int] = []
    numbers: list[tuple[float, ...]] = []
    regions: list[str] = []
    filled: list[bytes] = []
    for line_number, line in enumerate(lines_of(str(path), "utf-8", errors="replace", newline="\n"), start=1):
        fields = line.rstrip("\n").split("\t")
        if len(fields) not in (NUM_COLUMNS, NUM_COLUMNS + 1):
            raise DataError(f"expected {NUM_COLUMNS} columns, got {len(fields)}", path=path, line=line_number)
        try:
            users.append(int(fields[USER]))
            genders.append(-1 if fields[GENDER] == "null" else int(fields[GENDER]))
            numbers.append(
                (
                    _number(fields[PUBLIC]),
                    _number(fields[COMPLETION]) / 100,
                    _number(fields[AGE]) / 100,
                    float(fields[AGE] not in ("null", "0")),
                    _years(fields[REGISTRATION]),
                    _years(fields[LAST_LOGIN]),
                )
            )
        except ValueError as error:
            raise DataError(str(error), path=path, line=line_number) from None
        regions.append(fields[REGION].partition(",")[0].strip())
        filled.append(bytes(field not in ("null", "") for field in fields[8:NUM_COLUMNS]))
    order = np.asarray(users, dtype=np.int64) - 1
    n = len(order)
    if n == 0 or not np.array_equal(np.sort(order), np.arange(n)):
        raise DataError(f"the {n} users must be numbered 1 to {n}, each once", path=path, column="user_id")
    flags = np.frombuffer(b"".join(filled), dtype=np.uint8).reshape(n, NUM_TEXTS)
    x = np.concatenate([np.asarray(numbers, dtype=np.float32), _one_hot_regions(regions), flags], axis=1)
    by_user = np.empty_like(x, dtype=np.float32)
    y = np.empty(n, dtype=np.int8)
    by_user[order], y[order] = x, genders
    return by_user, y


def _one_hot_regions(regions: list[str]) -> Any:
    """A column for each of the most frequent regions (eight in the country, two abroad), one for others."""
    names, code, count = np.unique(np.asarray(regions), return_inverse=True, return_counts=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.lexsort((names, -count))] = np.arange(len(names))
    return one_hot_columns(np.minimum(rank, MAX_REGIONS)[code][:, None]).toarray()


def _number(text: str) -> float:
    return 0.0 if text == "null" else float(text)


def _years(text: str) -> float:
    """Years from 2000 to a moment like ``2012-05-25 11:20:00.0``; 0 if the date is missing."""
    if text in ("null", ""):
        return 0.0
    return (datetime.fromisoformat(text[:19]) - datetime(2000, 1, 1)).days / 365.25
