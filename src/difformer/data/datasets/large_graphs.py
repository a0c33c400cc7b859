"""Graphs of millions of edges, whose tables are read a block at a time: Pokec and ogbn-proteins.

**Pokec.** A Slovak social network of 1.6 million users; gender from friends and profile. Of two sources, ``"linkx"`` is
the file ``pokec.mat`` that the authors' code uses, with 65 features made from the profiles in an unpublished way;
``"snap"`` are the original tables, from which features are made here: profile public or not, share completed, age, time
of registration and of the last visit, one-hot the region's first part, and for each of the 51 free-text columns whether
the user filled it in. Results from the two sources are not comparable; the task says which was used. Protocols:
``"paper"``, random 10/10/80 of the users whose gender is known, and ``"public-code"``, random 50/25/25.

**ogbn-proteins.** Proteins of eight species and their associations; 112 functions to predict, each yes or no. Read from
OGB's ``proteins.zip``, or from the folder that the `ogb` package unpacks (the package is not needed). Every association
is listed once, with eight scores; the proteins themselves have no features, so node i gets the mean of the scores of
its associations, x_i = Σ_{e ∋ i} f_e / deg(i). Training, validation and test are different species. Two files of 39.6
million lines are read side by side in blocks: the scores, 2.5 GB of doubles, are never in memory at once.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from difformer.data.archives import check_size, limit, number_blocks, read_mat
from difformer.data.datasets import common
from difformer.data.datasets.common import Array, Arrays, GraphReader, Reader, SeededReader
from difformer.data.datasets.node_graphs import unknown_gender
from difformer.data.edges import undirected
from difformer.data.lookup import Found, locate
from difformer.data.own.csv_files import lines_of
from difformer.data.split import index_split
from difformer.data.task import Task
from difformer.errors import DataError

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

    protocol: str = "paper"
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
            notes += ("Features are not those of the published figures; how those were made was not published.",)
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
        common.node_graph(arrays)  # checked before it is kept
        return arrays


def read_snap(found: Found) -> Arrays:
    """SNAP's two tables. User u is node u - 1, whatever the order of the profiles."""
    profiles, path = found.paths
    x, y = read_profiles(profiles)
    with gzip.open(path, "rb") as stream:
        pairs = number_blocks(stream, columns=2, dtype=np.int64, path=path)  # type: ignore[arg-type]
        edges = np.concatenate([block.T.astype(np.int32) - 1 for block in pairs], axis=1)
    common.check_ends(edges.T, len(x), path=path)
    return {"x": x, "y": y, "edge_index": edges}


def read_profiles(path: Any) -> tuple[Array, Array]:
    """Features ``[N, F]`` and gender ``[N]`` by user."""
    rows = []
    for line_number, line in enumerate(lines_of(str(path), "utf-8", errors="replace", newline="\n"), start=1):
        fields = line.rstrip("\n").split("\t")
        try:
            if len(fields) not in (NUM_COLUMNS, NUM_COLUMNS + 1):
                raise ValueError(f"expected {NUM_COLUMNS} columns, got {len(fields)}")
            user, gender = int(fields[USER]), -1 if fields[GENDER] == "null" else int(fields[GENDER])
            public, completion, age = (
                0.0 if fields[i] == "null" else float(fields[i]) for i in (PUBLIC, COMPLETION, AGE)
            )
            dates = (_years(fields[REGISTRATION]), _years(fields[LAST_LOGIN]))
        except ValueError as error:
            raise DataError(str(error), path=path, line=line_number) from None
        numbers = (public, completion / 100, age / 100, float(fields[AGE] not in ("null", "0")), *dates)
        filled = bytes(field not in ("null", "") for field in fields[8:NUM_COLUMNS])
        rows.append((user, gender, numbers, fields[REGION].partition(",")[0].strip(), filled))
    rows.sort()
    n = len(rows)
    if n == 0 or [row[0] for row in rows] != list(range(1, n + 1)):
        raise DataError(f"the {n} users must be numbered 1 to {n}, each once", path=path, column="user_id")
    _, genders, table, regions, texts = zip(*rows, strict=True)
    flags = np.frombuffer(b"".join(texts), dtype=np.uint8).reshape(n, NUM_TEXTS)
    x = np.concatenate([np.asarray(table, dtype=np.float32), _one_hot_regions(regions), flags], axis=1)
    return x, np.asarray(genders, dtype=np.int8)


def _one_hot_regions(regions: Sequence[str]) -> Array:
    """A column for each of the most frequent regions (eight in the country, two abroad), one for others."""
    names, code, count = np.unique(np.asarray(regions), return_inverse=True, return_counts=True)
    rank = np.lexsort((names, -count)).argsort()
    return np.asarray(common.one_hot_columns(np.minimum(rank, MAX_REGIONS)[code][:, None]).toarray())


def _years(text: str) -> float:
    """Years from 2000 to a moment like ``2012-05-25 11:20:00.0``; 0 if the date is missing."""
    if text in ("null", ""):
        return 0.0
    return (datetime.fromisoformat(text[:19]) - datetime(2000, 1, 1)).days / 365.25


NUM_SCORES = 8


@dataclass(frozen=True, kw_only=True)
class Proteins(Reader):
    """The protein associations.

    Args:
        self_loops: Whether every node gets an edge to itself.
    """

    protocol: str = "species"
    self_loops: bool = True

    def task(self, content: Any) -> Task:
        x, y = torch.from_numpy(content["x"]), torch.from_numpy(content["y"]).float()
        loops = "self-loops added" if self.self_loops else "no self-loops"
        split = index_split("species", *(content[f"{part}_idx"] for part in ("train", "val", "test")))
        said = ("features are means of the scores of edges", f"edges undirected, {loops}", "ROC-AUC")
        edge_index = undirected(content["edge_index"], len(y), self.self_loops)
        splits = (split,), "species: OGB's split"
        return self.make_task(x, y, splits, *said, problem="multilabel", edge_index=edge_index)

    def read(self, found: Found) -> Arrays:
        num_nodes, num_edges = (int(_table(found, f"raw/num-{kind}-list.csv.gz")[0, 0]) for kind in ("node", "edge"))
        edges, seen = [np.empty((2, 0), dtype=np.int32)], 0
        total, degree = np.zeros((num_nodes, NUM_SCORES)), np.zeros(num_nodes)
        listed, scored = (_place(found, f"raw/{name}.csv.gz") for name in ("edge", "edge-feat"))
        with _unpacked(listed) as pairs, _unpacked(scored) as scores:
            left = number_blocks(pairs, columns=2, dtype=np.int64, path=listed)
            right = number_blocks(scores, columns=NUM_SCORES, dtype=np.float64, path=scored)
            for ends, values in _in_step(left, right):
                common.check_ends(ends, num_nodes, path=listed, line=seen + 1)
                edges.append(ends.T.astype(np.int32))
                for end in ends.T:
                    degree += np.bincount(end, minlength=num_nodes)
                    for column in range(NUM_SCORES):
                        total[:, column] += np.bincount(end, weights=values[:, column], minlength=num_nodes)
                seen += len(ends)
        if seen != num_edges:
            raise DataError(f"{seen} edges, but num-edge-list announces {num_edges}", path=listed)
        parts = {"train_idx": "train", "val_idx": "valid", "test_idx": "test"}
        return {
            "edge_index": np.concatenate(edges, axis=1),
            "x": (total / np.maximum(degree, 1)[:, None]).astype(np.float32),
            "y": _table(found, "raw/node-label.csv.gz").astype(np.int8),
            **{key: _table(found, f"split/species/{part}.csv.gz")[:, 0] for key, part in parts.items()},
        }


def _in_step(left: Iterator[Array], right: Iterator[Array]) -> Iterator[tuple[Array, Array]]:
    """Rows of two tables side by side, whatever the sizes of their blocks."""
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        rows = min(len(a), len(b))
        yield a[:rows], b[:rows]
        a = a[rows:] if len(a) > rows else next(left, None)
        b = b[rows:] if len(b) > rows else next(right, None)
    if a is not None or b is not None:
        raise DataError("edge.csv.gz and edge-feat.csv.gz have different numbers of lines; one is cut short")


def _table(found: Found, name: str) -> Array:
    place = _place(found, name)
    with _unpacked(place) as stream:
        text = stream.read(limit("MEMBER") + 1)
    check_size(len(text), name)
    columns = text.partition(b"\n")[0].count(b",") + 1
    blocks = number_blocks(io.BytesIO(text), columns=columns, dtype=np.int64, path=place)
    return np.concatenate([np.empty((0, columns), dtype=np.int64), *blocks])


def _place(found: Found, name: str) -> Path | zipfile.Path:
    """Where a table is: in the folder, whose first file is raw/edge.csv.gz, or in the archive of that folder."""
    if found.form == "folder":
        return found.path.parent.parent / name
    archive = zipfile.Path(found.path)
    place = next(archive.iterdir(), archive) / name
    if not place.is_file():
        raise DataError(f"the archive holds no {name}", path=found.path)
    return place


@contextmanager
def _unpacked(place: Path | zipfile.Path) -> Iterator[IO[bytes]]:
    with place.open("rb") as packed, gzip.open(packed) as stream:
        yield stream  # type: ignore[misc]
