"""What readers of published data sets share: checked choices, seeded splits, normalised rows, the tasks they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse as sp
from torch import Tensor

from difformer.data.edges import undirected
from difformer.data.errors import DataError
from difformer.data.knn import knn_graph
from difformer.data.scaling import Scaling
from difformer.data.sparse import checked_csr, feature_tensor
from difformer.data.split import Split, fraction_split, labels_per_class_split
from difformer.data.task import Task
from difformer.errors import UserError

Array = np.ndarray[Any, Any]


def choice(option: str, value: str, allowed: Sequence[str]) -> str:
    """`value`, if it is one of `allowed`."""
    if value not in allowed:
        raise UserError(f"{option} must be one of {', '.join(repr(a) for a in allowed)}; got {value!r}")
    return value


def seeded(make: Callable[[int], Split], *, num_splits: int, seed: int) -> tuple[Split, ...]:
    """`num_splits` splits, made from `seed`, `seed + 1`, …"""
    if num_splits < 1:
        raise UserError(f"num_splits must be at least 1, got {num_splits}")
    return tuple(make(seed + i) for i in range(num_splits))


def share_splits(y: Any, shares: str, *, num_splits: int, seed: int) -> tuple[Split, ...]:
    """Random shares of what is labelled, written as ``"50/25/25"``."""
    return seeded(lambda s: fraction_split(y, protocol=shares, seed=s), num_splits=num_splits, seed=seed)


def few_label_splits(y: Any, per_class: int, *, num_splits: int, seed: int) -> tuple[tuple[Split, ...], str]:
    """The paper's splits of images and texts, and their protocol: few labels per class, 1000 for validation."""
    splits = seeded(
        lambda s: labels_per_class_split(y, per_class=per_class, num_valid=1000, seed=s),
        num_splits=num_splits,
        seed=seed,
    )
    said = f"paper: {per_class} labels a class, 1000 for validation, the rest test, {seeds_of(num_splits, seed)}"
    return splits, said


def seeds_of(num_splits: int, seed: int) -> str:
    """How a protocol speaks of the seeds of its splits."""
    return f"seed {seed}" if num_splits == 1 else f"{num_splits} splits, seeds {seed} to {seed + num_splits - 1}"


def class_task(
    name: str,
    *,
    x: Any,
    y: Any,
    edges: Any,
    splits: tuple[Split, ...],
    num_classes: int | None = None,
    self_loops: bool,
    sparse: bool | None,
    steps: str,
    protocol: str,
    notes: Sequence[str] = (),
    class_names: Sequence[str] = (),
    metric: str = "accuracy",
) -> Task:
    """Classification of the nodes of one undirected graph; `edges` are ``[2, E]`` in any direction.

    `steps` says what was done to the features, `protocol` which split and which seeds.
    """
    labels = torch.as_tensor(y).long()
    loops = "self-loops added" if self_loops else "self-loops removed"
    return Task(
        name=name,
        kind="nodes",
        problem="multiclass",
        metric=metric,
        protocol=sentence([protocol, steps, f"edges undirected, {loops}", metric]),
        x=feature_tensor(x, as_sparse=sparse),
        y=labels,
        splits=splits,
        num_outputs=int(labels.max()) + 1 if num_classes is None else num_classes,
        edge_index=undirected(edges, len(labels), self_loops=self_loops),
        class_names=tuple(class_names),
        notes=tuple(notes),
    )


def table_task(
    name: str,
    *,
    x: Tensor,
    y: Tensor,
    splits: tuple[Split, ...],
    knn: int | None,
    steps: str,
    protocol: str,
    notes: Sequence[str] = (),
    class_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    scaling: Scaling | None = None,
) -> Task:
    """Classification of instances without a graph, or with that of their `knn` nearest ones, themselves counted."""
    edge_index = None
    if knn is not None:
        edge_index = knn_graph(x, knn, metric="euclidean", include_self=True, symmetric=True)
    graph = "no graph" if knn is None else f"graph of {knn} nearest neighbours (self counted), undirected"
    return Task(
        name=name,
        kind="nodes",
        problem="multiclass",
        metric="accuracy",
        protocol=sentence([protocol, steps, graph, "accuracy"]),
        x=x,
        y=y.long(),
        splits=splits,
        num_outputs=int(y.max()) + 1,
        edge_index=edge_index,
        class_names=tuple(class_names),
        feature_names=tuple(feature_names),
        notes=tuple(notes),
        scaling=scaling,
    )


def check_graph(x: Any, y: Array, edges: Array) -> None:
    """Refuse a graph as a file holds it, ``x [N, F]``, ``y [N]``, ``edges [2, E]``, whose parts do not fit."""
    num_nodes = x.shape[0]
    if y.shape != (num_nodes,):
        raise DataError(f"{num_nodes} rows of features, but labels of shape {list(y.shape)}")
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise DataError(f"edges must be pairs of whole numbers, got {edges.dtype} of shape {list(edges.shape)}")
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        at = int(np.flatnonzero(((edges < 0) | (edges >= num_nodes)).any(axis=0))[0])
        raise DataError(f"edge {tuple(edges[:, at].tolist())} names a node outside 0 … {num_nodes - 1}", row=at)


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


def csr_of(arrays: Any, prefix: str = "x") -> Any:
    """The scipy CSR matrix stored as ``<prefix>_data``, ``_indices``, ``_indptr`` and ``_shape``, checked."""
    data, indices, ptr, shape = (arrays[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    return checked_csr(data, indices, ptr, shape).astype(np.float32, copy=False)


def csr_arrays(matrix: Any, prefix: str = "x") -> dict[str, Array]:
    """The arrays that `csr_of` reads."""
    return {
        f"{prefix}_data": matrix.data,
        f"{prefix}_indices": matrix.indices,
        f"{prefix}_indptr": matrix.indptr,
        f"{prefix}_shape": np.asarray(matrix.shape, dtype=np.int64),
    }


def one_hot_columns(table: Array) -> Any:
    """One indicator column for every value that occurs in every column of `table`, side by side, as scipy CSR."""
    blocks = []
    for column in table.T:
        values, code = np.unique(column, return_inverse=True)
        ones = np.ones(len(column), dtype=np.float32)
        blocks.append(sp.csr_matrix((ones, (np.arange(len(column)), code)), shape=(len(column), len(values))))
    return sp.hstack(blocks, format="csr")


def sentence(parts: Sequence[str | None]) -> str:
    """Parts of a protocol's description, joined; None is left out."""
    return "; ".join(part for part in parts if part)
