"""ogbn-proteins: proteins of eight species and what associates them; 112 functions to predict, each yes or no.

Read from the files as OGB publishes them: ``proteins.zip``, or its folder as the `ogb` package unpacks it (that
package is not needed). Every association is listed once, with eight scores; the proteins themselves have no features,
so node i gets the mean of the scores of its associations, x_i = Σ_{e ∋ i} f_e / deg(i). Training, validation and test
are different species.

Two files of 39.6 million lines are read side by side in blocks, so that the scores, 2.5 GB of doubles, are never in
memory at once. What is kept, in the cache, is the edge list once a direction and the 132,534 × 8 means.
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

from difformer.data.archives import check_size, limit
from difformer.data.datasets.common import Array, Arrays, Reader, check_ends
from difformer.data.edges import undirected
from difformer.data.errors import DataError
from difformer.data.lookup import Found
from difformer.data.split import index_split
from difformer.data.task import Task
from difformer.data.textnumbers import number_blocks

NUM_SCORES, NUM_FUNCTIONS = 8, 112


@dataclass(frozen=True, kw_only=True)
class Proteins(Reader):
    """The protein associations.

    Args:
        protocol: ``"species"``, the published split.
        self_loops: Whether every node gets an edge to itself.
    """

    protocol: str = "species"
    self_loops: bool = True

    def task(self, content: Any) -> Task:
        y = torch.from_numpy(content["y"]).float()
        loops = "self-loops added" if self.self_loops else "no self-loops"
        said = f"species: OGB's split; features are means of the scores of edges; edges undirected, {loops}; ROC-AUC"
        return Task(
            name=self.name,
            kind="nodes",
            problem="multilabel",
            metric="rocauc",
            protocol=said,
            x=torch.from_numpy(content["x"]),
            y=y,
            splits=(index_split("species", *(content[f"{part}_idx"] for part in ("train", "val", "test"))),),
            num_outputs=y.shape[1],
            edge_index=undirected(content["edge_index"], len(y), self_loops=self.self_loops),
            notes=("Reported is the mean of 112 ROC-AUC values, one per function.",),
        )

    def read(self, found: Found) -> Arrays:
        num_nodes, num_edges = (int(_table(found, f"raw/num-{kind}-list.csv.gz")[0, 0]) for kind in ("node", "edge"))
        edges, seen = np.empty((2, num_edges), dtype=np.int32), 0
        total, degree = np.zeros((num_nodes, NUM_SCORES)), np.zeros(num_nodes)
        listed, scored = (_place(found, f"raw/{name}.csv.gz") for name in ("edge", "edge-feat"))
        with _member(found, "raw/edge.csv.gz") as pairs, _member(found, "raw/edge-feat.csv.gz") as scores:
            left = number_blocks(pairs, columns=2, dtype=np.int64, path=listed)
            right = number_blocks(scores, columns=NUM_SCORES, dtype=np.float64, path=scored)
            for ends, values in _in_step(left, right):
                if seen + len(ends) > num_edges:
                    raise DataError(f"more than the {num_edges} edges announced by num-edge-list", path=listed)
                check_ends(ends, num_nodes, path=listed, line=seen + 1)
                edges[:, seen : seen + len(ends)] = ends.T
                for end in ends.T:
                    degree += np.bincount(end, minlength=num_nodes)
                    for column in range(NUM_SCORES):
                        total[:, column] += np.bincount(end, weights=values[:, column], minlength=num_nodes)
                seen += len(ends)
        if seen != num_edges:
            raise DataError(f"{seen} edges, but num-edge-list announces {num_edges}", path=listed)
        parts = {"train_idx": "train", "val_idx": "valid", "test_idx": "test"}
        return {
            "edge_index": edges,
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
    with _member(found, name) as stream:
        text = stream.read(limit("MEMBER") + 1)
    check_size(len(text), name)
    columns = text.partition(b"\n")[0].count(b",") + 1
    blocks = number_blocks(io.BytesIO(text), columns=columns, dtype=np.int64, path=_place(found, name))
    return np.concatenate([np.empty((0, columns), dtype=np.int64), *blocks])


def _place(found: Found, name: str) -> Path:
    """A table's path: in the folder, whose first file is raw/edge.csv.gz, or as if the archive were one."""
    return (found.path.parent.parent if found.form == "folder" else found.path) / name


@contextmanager
def _member(found: Found, name: str) -> Iterator[IO[bytes]]:
    """A member of the archive, or a file of the folder, unpacked while it is read."""
    if found.form == "folder":
        with gzip.open(_place(found, name)) as stream:
            yield stream  # type: ignore[misc]
        return
    with zipfile.ZipFile(found.path) as archive:
        inside = {item.split("/", 1)[-1]: item for item in archive.namelist()}
        if name not in inside:
            raise DataError(f"the archive holds no {name}", path=found.path)
        with archive.open(inside[name]) as packed, gzip.open(packed) as stream:
            yield stream  # type: ignore[misc]
