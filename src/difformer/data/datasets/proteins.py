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
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from difformer.data.archives import check_size, limit
from difformer.data.datasets.common import choice
from difformer.data.edges import undirected
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, stored_arrays
from difformer.data.split import index_split
from difformer.data.task import Task
from difformer.data.textnumbers import number_blocks

PROTOCOLS = ("species",)
NUM_SCORES, NUM_FUNCTIONS = 8, 112


def proteins(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "species",
    self_loops: bool = True,
) -> Task:
    """The protein associations.

    Args:
        name: ``"ogbn-proteins"``.
        root: Folder to search first.
        protocol: ``"species"``, the published split.
        self_loops: Whether every node gets an edge to itself.
    """
    choice("protocol", protocol, PROTOCOLS)
    found = locate(name, root)
    with reading(found):
        arrays = stored_arrays(found, read_ogb)
    y = torch.from_numpy(arrays["y"]).float()
    loops = "self-loops added" if self_loops else "no self-loops"
    return Task(
        name=name,
        kind="nodes",
        problem="multilabel",
        metric="rocauc",
        protocol=f"species: OGB's split; features are means of the scores of edges; edges undirected, {loops}; ROC-AUC",
        x=torch.from_numpy(arrays["x"]),
        y=y,
        splits=(index_split("species", arrays["train_idx"], arrays["val_idx"], arrays["test_idx"]),),
        num_outputs=y.shape[1],
        edge_index=undirected(arrays["edge_index"], len(y), self_loops=self_loops),
        notes=("Reported is the mean of 112 ROC-AUC values, one per function.",),
    )


def read_ogb(found: Found) -> Arrays:
    """The published tables as arrays."""
    with _members(found, "raw/num-node-list.csv.gz") as (stream,):
        num_nodes = int(stream.read().split()[0])
    with _members(found, "raw/num-edge-list.csv.gz") as (stream,):
        num_edges = int(stream.read().split()[0])
    listed = _place(found, "raw/edge.csv.gz")
    edges = np.empty((2, num_edges), dtype=np.int32)
    total, degree, seen = np.zeros((num_nodes, NUM_SCORES)), np.zeros(num_nodes), 0
    with _members(found, "raw/edge.csv.gz", "raw/edge-feat.csv.gz") as (pairs, scores):
        left = number_blocks(pairs, columns=2, dtype=np.int64, path=listed)
        right = number_blocks(scores, columns=NUM_SCORES, dtype=np.float64, path=_place(found, "raw/edge-feat.csv.gz"))
        for ends, values in _in_step(left, right):
            if seen + len(ends) > num_edges:
                raise DataError(f"more than the {num_edges} edges announced by num-edge-list", path=listed)
            if ends.min() < 0 or ends.max() >= num_nodes:
                row = int(np.flatnonzero(((ends < 0) | (ends >= num_nodes)).any(axis=1))[0])
                raise DataError(
                    f"edge {tuple(ends[row].tolist())} names a node outside 0 … {num_nodes - 1}",
                    path=listed,
                    line=seen + row + 1,
                )
            edges[:, seen : seen + len(ends)] = ends.T
            for end in ends.T:
                degree += np.bincount(end, minlength=num_nodes)
                for column in range(NUM_SCORES):
                    total[:, column] += np.bincount(end, weights=values[:, column], minlength=num_nodes)
            seen += len(ends)
    if seen != num_edges:
        raise DataError(f"{seen} edges, but num-edge-list announces {num_edges}", path=listed)
    return {
        "edge_index": edges,
        "x": (total / np.maximum(degree, 1)[:, None]).astype(np.float32),
        "y": _table(found, "raw/node-label.csv.gz", None).astype(np.int8),
        "species": _table(found, "raw/node_species.csv.gz", 1)[:, 0],
        "train_idx": _table(found, "split/species/train.csv.gz", 1)[:, 0],
        "val_idx": _table(found, "split/species/valid.csv.gz", 1)[:, 0],
        "test_idx": _table(found, "split/species/test.csv.gz", 1)[:, 0],
    }


def _in_step(left: Iterator[Any], right: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Rows of two tables side by side, whatever the sizes of their blocks."""
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        rows = min(len(a), len(b))
        yield a[:rows], b[:rows]
        a = a[rows:] if len(a) > rows else next(left, None)
        b = b[rows:] if len(b) > rows else next(right, None)
    if a is not None or b is not None:
        raise DataError("edge.csv.gz and edge-feat.csv.gz have different numbers of lines; one is cut short")


def _table(found: Found, member: str, columns: int | None) -> Any:
    with _members(found, member) as (stream,):
        text = stream.read(limit("MEMBER") + 1)
    check_size(len(text), member)
    width = columns or text.partition(b"\n")[0].count(b",") + 1
    return np.concatenate(
        list(number_blocks(io.BytesIO(text), columns=width, dtype=np.int64, path=_place(found, member)))
    )


def _place(found: Found, member: str) -> Path:
    """A table's path: in the folder, whose first file is raw/edge.csv.gz, or as if the archive were one."""
    return (found.path.parent.parent if found.form == "folder" else found.path) / member


@contextmanager
def _members(found: Found, *names: str) -> Iterator[tuple[IO[bytes], ...]]:
    """Members of the archive, or files of the folder, open for reading and unpacked on the way."""
    with ExitStack() as stack:
        if found.form == "folder":
            packed: list[Any] = [stack.enter_context(open(_place(found, name), "rb")) for name in names]
        else:
            archive = stack.enter_context(zipfile.ZipFile(found.path))
            inside = {item.split("/", 1)[-1]: item for item in archive.namelist()}
            if absent := [name for name in names if name not in inside]:
                raise DataError(f"the archive holds no {absent[0]}", path=found.path)
            packed = [stack.enter_context(archive.open(inside[name])) for name in names]
        unpacked: list[Any] = [stack.enter_context(gzip.GzipFile(fileobj=stream)) for stream in packed]
        yield tuple(unpacked)
