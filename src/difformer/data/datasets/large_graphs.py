"""Graphs of millions of edges: Pokec and ogbn-proteins.

**Pokec.** A Slovak social network of 1.6 million users; gender from friends and profile, as the authors' code reads
them from ``pokec.mat``. Protocols: ``"paper"``, random 10/10/80 of the users whose gender is known, and
``"public-code"``, random 50/25/25.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from difformer.data.archives import check_size, limit, number_blocks, read_mat
from difformer.data.datasets import common
from difformer.data.datasets.common import Array, Arrays, GraphReader, Reader, SeededReader
from difformer.data.datasets.node_graphs import unknown_gender
from difformer.data.download import Found
from difformer.data.edges import undirected
from difformer.data.split import index_split
from difformer.data.task import Task
from difformer.errors import DataError

NUM_SCORES = 8


@dataclass(frozen=True, kw_only=True)
class Pokec(SeededReader, GraphReader):
    """The social network.

    Args:
        protocol: ``"paper"`` for 10/10/80, ``"public-code"`` for 50/25/25.
    """

    protocol: str = "paper"
    num_splits: int = 1
    sparse: bool | None = False

    def task(self, content: Any) -> Task:
        shares = "10/10/80" if self.protocol == "paper" else "50/25/25"
        splits = self.shares(content["y"], shares, f"{self.protocol}: random {shares}")
        notes = unknown_gender(content["y"], "users")
        return self.node_task(content, splits, steps="the 65 features of pokec.mat", notes=notes)

    def read(self, found: Found) -> Arrays:
        content = read_mat(found.path)
        x = np.ascontiguousarray(content["node_feat"], dtype=np.float32)
        y = np.asarray(content["label"]).ravel().astype(np.int8)  # 0, 1, or -1
        arrays: Arrays = {"x": x, "y": y, "edge_index": np.asarray(content["edge_index"], dtype=np.int32)}
        common.node_graph(arrays)  # checked before it is kept
        return arrays


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
    blocks = list(number_blocks(io.BytesIO(text), columns=columns, dtype=np.int64, path=place))
    if not blocks:
        raise DataError("empty", path=place)
    return np.concatenate(blocks)


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
