"""What the readers of published data sets, and the generators, share.

A reader is a dataclass. Its fields are the options of `load`, explained in its docstring and in those of its bases;
`ENTRIES` lists its protocols. `content` reads the files, `task` turns what they hold into a task.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse as sp
from torch import Tensor

from difformer.data.archives import Contents, read_npz
from difformer.data.catalogue import ENTRIES
from difformer.data.download import Found, cache_folder, locate, reading
from difformer.data.edges import undirected
from difformer.data.sparse_features import checked_csr, feature_tensor
from difformer.data.split import Split, fraction_split
from difformer.data.task import Problem, Task
from difformer.errors import DAMAGE, DataError, UserError
from difformer.files import atomic_write

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Splits = tuple[tuple[Split, ...], str]  # and their description in the protocol


@dataclass(frozen=True)
class Reader:
    """A published data set.

    Args:
        protocol: How data are prepared and split; `difformer datasets NAME` lists the choices.
    """

    name: str
    root: str | os.PathLike[str] | None = None

    choices: ClassVar[tuple[tuple[str, tuple[str | None, ...]], ...]] = ()  # options with a fixed set of values

    def load(self) -> Task:
        """Finds or downloads the files and makes the task."""
        protocols, forms = ENTRIES[self.name].protocols, ENTRIES[self.name].forms
        for option, allowed in (("protocol", protocols), *self.choices):
            if allowed and (value := getattr(self, option)) not in allowed:
                raise UserError(f"{option} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
        for option in ("num_nodes", "num_classes", "num_features", "num_splits"):
            if (size := getattr(self, option, None)) is not None and size < 1:
                raise UserError(f"{option}: expected at least 1, got {size}")
        content = None
        if forms:
            found = self.locate()
            with reading(found):
                content = self.content(found)
        return self.task(content)

    def locate(self) -> Found:
        return locate(self.name, self.root)

    def content(self, found: Found) -> Any:
        """What the files hold, checked: prepared arrays, or what `read` makes of other forms, kept in the cache."""
        if found.form == "arrays":
            return read_npz(found.path)
        return processed(self.name, lambda: self.read(found), sources=found.paths)

    def read(self, found: Found) -> Arrays:
        raise NotImplementedError

    def task(self, content: Any) -> Task:
        raise NotImplementedError

    def make_task(self, x: Tensor, y: Tensor, splits: Splits, *said: str, problem: Problem, **parts: Any) -> Task:
        """A task of these parts; the protocol is the description of the splits, followed by `said`."""
        entry = ENTRIES[self.name]
        outputs = max(int(y.max()) + 1, 2) if problem == "multiclass" else y.shape[1] if problem == "multilabel" else 1
        about: Any = {"name": self.name, "kind": entry.kind, "problem": problem, "metric": entry.metric}
        about |= {"protocol": "; ".join([splits[1], *said]), "notes": (*parts.pop("notes", ()), *entry.notes)}
        about |= {"class_names": entry.class_names, "num_outputs": outputs, **parts}
        return Task(x=x, y=y, splits=splits[0], **about)


@dataclass(frozen=True, kw_only=True)
class SeededReader(Reader):
    """With random splits.

    Args:
        num_splits: Number of splits.
        seed: Seed of the first split; the others use the seeds that follow.
    """

    num_splits: int = 5
    seed: int = 0

    def draw(self, make: Callable[[int], Split], said: str) -> Splits:
        return seeded(make, self.num_splits, self.seed, said)

    def shares(self, y: Array, shares: str, said: str) -> Splits:
        """Random shares of the labelled instances, written as ``"50/25/25"``."""
        return self.draw(lambda s: fraction_split(y, protocol=shares, seed=s), said)


@dataclass(frozen=True, kw_only=True)
class GraphReader(Reader):
    """Node classification on one graph.

    Args:
        self_loops: Whether every node gets an edge to itself.
        sparse: Features as sparse CSR (True), dense (False), or chosen by their density (None).
    """

    self_loops: bool = True
    sparse: bool | None = None

    def content(self, found: Found) -> Any:
        return node_graph(super().content(found))

    def node_task(self, graph: Mapping[str, Any], splits: Splits, *, steps: str = "", **parts: Any) -> Task:
        """A task of what `node_graph` gives; `steps` describes how the features were made."""
        x, row = graph["x"], getattr(self, "features", "raw") == "row"
        steps = steps or ("rows of features sum to one" if row else "features as published")
        loops = "self-loops added" if self.self_loops else "self-loops removed"
        said = (steps, f"edges undirected, {loops}", ENTRIES[self.name].metric)
        features = feature_tensor(row_normalised(x) if row else x, as_sparse=self.sparse)
        parts["edge_index"] = undirected(graph["edge_index"], x.shape[0], self.self_loops)
        return self.make_task(features, torch.from_numpy(graph["y"]), splits, *said, problem="multiclass", **parts)


def seeded(make: Callable[[int], Split], num_splits: int, seed: int, said: str) -> Splits:
    """Splits made from `seed`, `seed + 1`, …; the protocol names them."""
    seeds = f"seed {seed}" if num_splits == 1 else f"{num_splits} splits, seeds {seed} to {seed + num_splits - 1}"
    return tuple(make(seed + i) for i in range(num_splits)), f"{said}, {seeds}"


def shuffled(count: int, seed: int) -> Array:
    """0 … count - 1 as the legacy numpy generator shuffles them: published splits and orders were drawn by it."""
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    return order


def node_graph(arrays: Mapping[str, Any]) -> Contents:
    """Arrays with ``x [N, F]``, dense or sparse, ``y [N]`` and ``edge_index [2, E]``, checked against each other."""
    x = arrays["x"] if "x" in arrays else csr_of(arrays)
    y, edges, num_nodes = arrays["y"], arrays["edge_index"], x.shape[0]
    if y.shape != (num_nodes,):
        raise DataError(f"{num_nodes} rows of features, but labels of shape {list(y.shape)}")
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise DataError(f"edges must be pairs of whole numbers, got {edges.dtype} of shape {list(edges.shape)}")
    check_ends(edges.T, num_nodes)
    return Contents(arrays, x=x, y=y.astype(np.int64))


def check_ends(pairs: Array, num_nodes: int, *, path: object = None, line: int | None = None) -> None:
    """Refuses edges ``[E, 2]`` of nodes that do not exist; `line` is the line of the first edge in a text file."""
    if pairs.size and (pairs.min() < 0 or pairs.max() >= num_nodes):
        row = int(((pairs < 0) | (pairs >= num_nodes)).any(axis=1).argmax())
        place: dict[str, Any] = {"row": row} if line is None else {"line": line + row}
        ends = tuple(pairs[row].tolist())
        raise DataError(f"edge {ends} names a node outside 0 … {num_nodes - 1}", path=path, **place)


def row_normalised(x: Any) -> Any:
    """Rows that sum to one, x_ij / Σ_k x_ik; rows with sum zero stay as they are. Scipy CSR, float32."""
    matrix = sp.csr_matrix(x, dtype=np.float32, copy=True)
    # Order and precision of scipy's own sum depend on its version; this one is bit-identical on every machine.
    wide = matrix.data.astype(np.float64)
    count = np.diff(matrix.indptr)
    total = np.bincount(np.repeat(np.arange(matrix.shape[0]), count), weights=wide, minlength=matrix.shape[0])
    matrix.data[:] = wide / np.repeat(np.where(total == 0, 1.0, total), count)
    return matrix


def csr_of(arrays: Mapping[str, Any], prefix: str = "x") -> Any:
    """The scipy CSR matrix stored as ``<prefix>_data``, ``_indices``, ``_indptr`` and ``_shape``, checked."""
    parts = (arrays[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    return checked_csr(*parts).astype(np.float32, copy=False)


def csr_arrays(matrix: Any) -> Arrays:
    """The arrays that `csr_of` reads."""
    shape = np.asarray(matrix.shape, dtype=np.int64)
    return {"x_data": matrix.data, "x_indices": matrix.indices, "x_indptr": matrix.indptr, "x_shape": shape}


def processed(name: str, build: Callable[[], Arrays], *, sources: Sequence[Path]) -> Arrays:
    """The arrays that `build` makes, cached for the next call; nothing is written beside their source.

    The key is all they depend on: `name`, and path, size and modification time of every source file. If the cache
    cannot be written, a warning says so.
    """
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    text = json.dumps([name, 1, {}, stats])  # earlier versions had options in the braces
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = cache_folder() / "processed" / f"{name}-{key}.npz"
    if path.is_file():
        try:
            return read_npz(path)
        except DAMAGE as error:
            warnings.warn(f"{path} cannot be read ({error}) and is rebuilt", stacklevel=2)
    arrays = build()
    try:
        with atomic_write(path) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        said = f"the processed form of {name!r} cannot be cached ({error}) and will be rebuilt next time"
        warnings.warn(f"{said}; set DIFFORMER_CACHE to a writable folder", stacklevel=2)
    return arrays
