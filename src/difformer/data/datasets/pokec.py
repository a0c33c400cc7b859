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
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from difformer.data.archives import read_mat
from difformer.data.datasets.common import (
    Array,
    Arrays,
    GraphReader,
    SeededReader,
    check_ends,
    node_graph,
    one_hot_columns,
)
from difformer.data.datasets.node_graphs import unknown_gender
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate
from difformer.data.own.csv_files import lines_of
from difformer.data.task import Task
from difformer.data.textnumbers import number_blocks

# Columns of soc-pokec-profiles.txt: eight with a format, then 51 of free text; a tab also ends the line.
USER, PUBLIC, COMPLETION, GENDER, REGION, LAST_LOGIN, REGISTRATION, AGE = range(8)
NUM_TEXTS = 51
NUM_COLUMNS = 8 + NUM_TEXTS
MAX_REGIONS = 20


@dataclass(frozen=True, kw_only=True)
class Pokec(SeededReader, GraphReader):
    """The social network.

    Args:
        protocol: ``"paper"`` for 10/10/80, ``"public-code"`` for 50/25/25.
        source: ``"linkx"``, ``"snap"``, or ``"auto"`` for whichever is on disk; if neither is, ``"linkx"`` is fetched.
    """

    num_splits: int = 1
    sparse: bool | None = False
    source: str = "auto"
    choices = (("source", ("auto", "linkx", "snap")),)

    def locate(self) -> Found:
        return locate(self.name, self.root, forms=None if self.source == "auto" else (self.source,))

    def content(self, found: Found) -> Any:
        return {**super().content(found), "form": found.form}

    def task(self, content: Any) -> Task:
        shares = "10/10/80" if self.protocol == "paper" else "50/25/25"
        splits = self.shares(content["y"], shares, f"{self.protocol}: random {shares}")
        steps, notes = "the 65 features of pokec.mat", unknown_gender(content["y"], "users")
        if content["form"] == "snap":
            steps = "features made here from SNAP's profiles"
            notes += ("Features are not those of the published figures, whose making was not published.",)
        return self.node_task(content, splits, steps=steps, notes=notes)

    def read(self, found: Found) -> Arrays:
        if found.form == "snap":
            return read_snap(found)
        content = read_mat(found.path)
        n = int(np.asarray(content["num_nodes"]).ravel()[0])
        x = np.ascontiguousarray(content["node_feat"], dtype=np.float32)
        y = np.asarray(content["label"]).ravel().astype(np.int8)  # 0, 1, or -1
        if x.shape[0] != n:
            raise DataError(f"{n} nodes, but features of shape {list(x.shape)}", path=found.path)
        arrays: Arrays = {"x": x, "y": y, "edge_index": np.asarray(content["edge_index"], dtype=np.int32)}
        node_graph(arrays)  # before it is kept
        return arrays


def read_snap(found: Found) -> Arrays:
    """SNAP's two tables. User u is node u - 1, whatever the order of the profiles."""
    x, y = read_profiles(found["soc-pokec-profiles.txt.gz"])
    path = found["soc-pokec-relationships.txt.gz"]
    with gzip.open(path, "rb") as stream:
        pairs = number_blocks(stream, columns=2, dtype=np.int64, path=path)  # type: ignore[arg-type]
        edges = np.concatenate([block.T.astype(np.int32) - 1 for block in pairs], axis=1)
    check_ends(edges.T, len(x), path=path)
    return {"x": x, "y": y, "edge_index": edges}


def read_profiles(path: Any) -> tuple[Array, Array]:
    """Features ``[N, F]`` and gender ``[N]`` by user."""
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
            public, completion, age = (
                0.0 if fields[i] == "null" else float(fields[i]) for i in (PUBLIC, COMPLETION, AGE)
            )
            known = float(fields[AGE] not in ("null", "0"))
            dates = (_years(fields[REGISTRATION]), _years(fields[LAST_LOGIN]))
        except ValueError as error:
            raise DataError(str(error), path=path, line=line_number) from None
        numbers.append((public, completion / 100, age / 100, known, *dates))
        regions.append(fields[REGION].partition(",")[0].strip())
        filled.append(bytes(field not in ("null", "") for field in fields[8:NUM_COLUMNS]))
    order = np.asarray(users, dtype=np.int64) - 1
    n = len(order)
    if n == 0 or not np.array_equal(np.sort(order), np.arange(n)):
        raise DataError(f"the {n} users must be numbered 1 to {n}, each once", path=path, column="user_id")
    flags = np.frombuffer(b"".join(filled), dtype=np.uint8).reshape(n, NUM_TEXTS)
    x = np.concatenate([np.asarray(numbers, dtype=np.float32), _one_hot_regions(regions), flags], axis=1)
    by_user, y = np.empty_like(x, dtype=np.float32), np.empty(n, dtype=np.int8)
    by_user[order], y[order] = x, genders
    return by_user, y


def _one_hot_regions(regions: list[str]) -> Array:
    """A column for each of the most frequent regions (eight in the country, two abroad), one for others."""
    names, code, count = np.unique(np.asarray(regions), return_inverse=True, return_counts=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.lexsort((names, -count))] = np.arange(len(names))
    columns: Array = one_hot_columns(np.minimum(rank, MAX_REGIONS)[code][:, None]).toarray()
    return columns


def _years(text: str) -> float:
    """Years from 2000 to a moment like ``2012-05-25 11:20:00.0``; 0 if the date is missing."""
    if text in ("null", ""):
        return 0.0
    return (datetime.fromisoformat(text[:19]) - datetime(2000, 1, 1)).days / 365.25
