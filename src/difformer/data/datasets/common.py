"""What readers of published data sets share.

A reader is a dataclass: its fields are the options that `load` takes, explained in its docstring and in those of its
bases, and `ENTRIES` lists its protocols. `content` says what its files hold, `task` what is made of that.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse as sp
from torch import Tensor

from difformer.data.archives import Contents, read_npz
from difformer.data.catalogue import ENTRIES
from difformer.data.edges import undirected
from difformer.data.errors import DAMAGE, DataError
from difformer.data.knn import knn_graph
from difformer.data.lookup import Found, cache_folder, locate, reading
from difformer.data.sparse import checked_csr, feature_tensor
from difformer.data.split import Split, fraction_split, labels_per_class_split
from difformer.data.task import Task
from difformer.errors import UserError
from difformer.files import atomic_write

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Splits = tuple[tuple[Split, ...], str]  # and how the protocol speaks of them


@dataclass(frozen=True)
class Reader:
    """A published data set."""

    name: str
    root: str | os.PathLike[str] | None = None
    _: KW_ONLY
    protocol: str = "paper"

    choices: ClassVar[tuple[tuple[str, tuple[str | None, ...]], ...]] = ()  # options that take one of a few words

    def load(self) -> Task:
        """Finds or downloads the files and makes the task."""
        for option, allowed in (("protocol", ENTRIES[self.name].protocols), *self.choices):
            if (value := getattr(self, option)) not in allowed:
                raise UserError(f"{option} must be one of {', '.join(repr(a) for a in allowed)}; got {value!r}")
        if not ENTRIES[self.name].forms:
            return self.task(None)
        found = self.locate()
        with reading(found):
            content = self.content(found)
        return self.task(content)

    def locate(self) -> Found:
        return locate(self.name, self.root)

    def content(self, found: Found) -> Any:
        """What the files hold, checked: arrays as they are, or what `read` makes of other forms, kept in the cache."""
        if found.form == "arrays":
            return read_npz(found.path)
        return processed(self.name, lambda: self.read(found), sources=found.paths)

    def read(self, found: Found) -> Arrays:
        raise NotImplementedError

    def task(self, content: Any) -> Task:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SeededReader(Reader):
    """With random splits.

    Args:
        num_splits: How many splits.
        seed: Of the first; the others follow.
    """

    num_splits: int = 5
    seed: int = 0

    def draw(self, make: Callable[[int], Split], said: str) -> Splits:
        return seeded(make, self.num_splits, self.seed, said)

    def shares(self, y: Array, shares: str, said: str) -> Splits:
        """Random shares of what is labelled, written as ``"50/25/25"``."""
        return self.draw(lambda s: fraction_split(torch.from_numpy(y), protocol=shares, seed=s), said)


@dataclass(frozen=True, kw_only=True)
class GraphReader(Reader):
    """Nodes of one graph, which are classified.

    Args:
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or whichever suits them (None).
    """

    self_loops: bool = True
    sparse: bool | None = None

    def content(self, found: Found) -> Any:
        return node_graph(super().content(found))

    def node_task(self, graph: Mapping[str, Any], splits: Splits, *, steps: str, **names: Any) -> Task:
        """A task of what `node_graph` gives; `steps` says what was done to the features."""
        parts, protocol = splits
        labels, metric = torch.from_numpy(graph["y"]), ENTRIES[self.name].metric
        loops = "self-loops added" if self.self_loops else "self-loops removed"
        return Task(
            name=self.name,
            kind="nodes",
            problem="multiclass",
            metric=metric,
            protocol=f"{protocol}; {steps}; edges undirected, {loops}; {metric}",
            x=feature_tensor(graph["x"], as_sparse=self.sparse),
            y=labels,
            splits=parts,
            num_outputs=max(int(labels.max()) + 1, 2),
            edge_index=undirected(graph["edge_index"], len(labels), self_loops=self.self_loops),
            **names,
        )


@dataclass(frozen=True, kw_only=True)
class InstanceReader(SeededReader):
    """Instances without a graph, few of them labelled.

    Args:
        per_class: Training labels per class.
        knn: Join every instance to its nearest ones, itself counted; None for no graph.
    """

    per_class: int = 100
    knn: int | None = None

    def few_labels(self, y: Tensor) -> Splits:
        """The paper's splits of images and texts: few labels per class, 1000 for validation."""
        said = f"paper: {self.per_class} labels per class, 1000 for validation, the rest test"
        return self.draw(lambda s: labels_per_class_split(y, per_class=self.per_class, num_valid=1000, seed=s), said)

    def instance_task(self, x: Tensor, y: Tensor, splits: Splits, *, steps: str, **names: Any) -> Task:
        parts, protocol = splits
        edge_index = None
        if self.knn is not None:
            edge_index = knn_graph(x, self.knn, metric="euclidean", include_self=True, symmetric=True)
        graph = "no graph" if self.knn is None else f"graph of {self.knn} nearest neighbours (self counted), undirected"
        return Task(
            name=self.name,
            kind="nodes",
            problem="multiclass",
            metric="accuracy",
            protocol=f"{protocol}; {steps}; {graph}; accuracy",
            x=x,
            y=y,
            splits=parts,
            num_outputs=int(y.max()) + 1,
            edge_index=edge_index,
            **names,
        )


def seeded(make: Callable[[int], Split], num_splits: int, seed: int, said: str) -> Splits:
    """Splits made from `seed`, `seed + 1`, …; the protocol names them."""
    if num_splits < 1:
        raise UserError(f"num_splits must be at least 1, got {num_splits}")
    seeds = f"seed {seed}" if num_splits == 1 else f"{num_splits} splits, seeds {seed} to {seed + num_splits - 1}"
    return tuple(make(seed + i) for i in range(num_splits)), f"{said}, {seeds}"


def node_graph(arrays: Mapping[str, Any]) -> Contents:
    """Arrays with ``x [N, F]``, perhaps sparse, ``y [N]`` and ``edge_index [2, E]``, which fit each other."""
    x = arrays["x"] if "x" in arrays else csr_of(arrays)
    y, edges, num_nodes = arrays["y"], arrays["edge_index"], x.shape[0]
    if y.shape != (num_nodes,):
        raise DataError(f"{num_nodes} rows of features, but labels of shape {list(y.shape)}")
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise DataError(f"edges must be pairs of whole numbers, got {edges.dtype} of shape {list(edges.shape)}")
    check_ends(edges.T, num_nodes)
    return Contents(arrays, x=x, y=y.astype(np.int64))


def check_ends(pairs: Array, num_nodes: int, *, path: object = None, line: int | None = None) -> None:
    """Refuse edges ``[E, 2]`` of nodes that are not there; `line` is that of the first in a text file."""
    if pairs.size and (pairs.min() < 0 or pairs.max() >= num_nodes):
        row = int(np.flatnonzero(((pairs < 0) | (pairs >= num_nodes)).any(axis=1))[0])
        place: dict[str, Any] = {"row": row} if line is None else {"line": line + row}
        ends = tuple(pairs[row].tolist())
        raise DataError(f"edge {ends} names a node outside 0 … {num_nodes - 1}", path=path, **place)


def row_normalised(x: Any) -> Any:
    """Rows that sum to one, x_ij / Σ_k x_ik; rows of zeros stay as they are. Takes and gives scipy CSR, float32."""
    matrix = sp.csr_matrix(x, dtype=np.float32, copy=True)
    # Summed one by one in double precision: scipy's own sum adds in an order and a precision that depend on its
    # version, and the last bit of a feature would tell one machine from another.
    wide = matrix.data.astype(np.float64)
    count = np.diff(matrix.indptr)
    total = np.bincount(np.repeat(np.arange(matrix.shape[0]), count), weights=wide, minlength=matrix.shape[0])
    wide /= np.repeat(np.where(total == 0, 1.0, total), count)
    matrix.data[:] = wide
    return matrix


def csr_of(arrays: Mapping[str, Any], prefix: str = "x") -> Any:
    """The scipy CSR matrix stored as ``<prefix>_data``, ``_indices``, ``_indptr`` and ``_shape``, checked."""
    parts = (arrays[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    return checked_csr(*parts).astype(np.float32, copy=False)


def csr_arrays(matrix: Any) -> Arrays:
    """The arrays that `csr_of` reads."""
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    return {**{f"x_{key}": part for key, part in parts.items()}, "x_shape": np.asarray(matrix.shape, dtype=np.int64)}


def one_hot_columns(table: Array) -> Any:
    """One indicator column for every value that occurs in every column of `table`, side by side, as scipy CSR."""
    blocks = []
    for column in table.T:
        values, code = np.unique(column, return_inverse=True)
        ones = np.ones(len(column), dtype=np.float32)
        blocks.append(sp.csr_matrix((ones, (np.arange(len(column)), code)), shape=(len(column), len(values))))
    return sp.hstack(blocks, format="csr")


def processed(
    name: str, build: Callable[[], Arrays], *, sources: Sequence[Path], options: Mapping[str, object] | None = None
) -> Arrays:
    """The arrays that `build` makes; they are kept in the cache, never beside their source, and found there next time.

    The key is all they depend on: `name`, `options`, and place, size and time of change of every source file. When one
    of them changes, the old arrays are not found. No array may hold Python objects. If the cache cannot be written, a
    warning says so.
    """
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    text = json.dumps([name, 1, dict(options or {}), stats], sort_keys=True, default=str)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = cache_folder() / "processed" / f"{name}-{key}.npz"
    if path.is_file():
        try:
            return read_npz(path)
        except DAMAGE as error:  # what it was made from is still there
            warnings.warn(f"{path} cannot be read ({error}) and is made anew", stacklevel=2)
    arrays = build()
    try:
        with atomic_write(path) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(
            f"the processed form of {name!r} cannot be kept ({error}) and will be made anew next time; "
            f"set DIFFORMER_CACHE to a folder that can be written",
            stacklevel=2,
        )
    return arrays
