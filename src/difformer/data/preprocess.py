"""The few steps between a file and a task: symmetric graphs, normalised rows, sparse features as torch wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from difformer.data.errors import DataError
from difformer.data.sparse import checked_csr, from_scipy

Array = np.ndarray[Any, Any]

# Below this share of non-zero entries features stay sparse. Index and value of an entry take three times the room of
# the value alone, and a sparse product has to be several times smaller before it is faster: one in ten pays on both
# counts.
SPARSE_BELOW = 0.1


def symmetric_edges(edges: Array, num_nodes: int, *, self_loops: bool) -> Tensor:
    """Both directions of every edge, once each, sorted by source: ``A ∨ Aᵀ``, then ``∨ I`` if asked for.

    Self-loops and duplicates in `edges` are removed first. Counting instead of sorting keeps thirty million edges
    within a few seconds and two gigabytes.

    Args:
        edges: ``[2, E]`` whole numbers in any order and direction.
        num_nodes: Number of nodes.
        self_loops: Whether every node gets an edge to itself.

    Returns:
        ``[2, E']`` int64.
    """
    source, target = np.asarray(edges[0]), np.asarray(edges[1])
    proper = source != target
    if not proper.all():
        source, target = source[proper], target[proper]
    ones = np.ones(len(source), dtype=bool)
    half = sparse.csr_matrix((ones, (source, target)), shape=(num_nodes, num_nodes))
    both = (half + half.T).tocsr()
    if self_loops:
        both = both + sparse.identity(num_nodes, dtype=bool, format="csr")
    both.sort_indices()
    return edges_of(both)


def check_graph(x: Any, y: Array, edges: Array) -> None:
    """Refuse a graph as a file holds it whose parts do not belong together.

    Args:
        x: ``[N, F]`` features.
        y: ``[N]`` labels.
        edges: ``[2, E]`` whole numbers.

    Raises:
        DataError: Saying which part contradicts which.
    """
    num_nodes = x.shape[0]
    if y.shape != (num_nodes,):
        raise DataError(f"{num_nodes} rows of features, but labels of shape {list(y.shape)}")
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise DataError(f"edges must be pairs of whole numbers, got {edges.dtype} of shape {list(edges.shape)}")
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        at = int(np.flatnonzero(((edges < 0) | (edges >= num_nodes)).any(axis=0))[0])
        raise DataError(f"edge {tuple(edges[:, at].tolist())} names a node outside 0 … {num_nodes - 1}", row=at)


def edges_of(matrix: Any) -> Tensor:
    """Edge list ``[2, nnz]`` int64 of a scipy CSR matrix: row → column, row by row."""
    result = torch.empty(2, matrix.nnz, dtype=torch.long)
    result[0] = torch.repeat_interleave(torch.from_numpy(np.diff(matrix.indptr).astype(np.int64)))
    result[1] = torch.from_numpy(matrix.indices)
    return result


def row_normalised(x: Any) -> Any:
    """Rows that sum to one, x_ij / Σ_k x_ik; rows of zeros stay as they are. Takes and gives scipy CSR, float32."""
    matrix = sparse.csr_matrix(x, dtype=np.float32, copy=True)
    # Summed one by one in double precision: scipy's own sum adds in an order and a precision that depend on its
    # version, and the last bit of a feature would tell one machine from another.
    wide = matrix.data.astype(np.float64)
    count = np.diff(matrix.indptr)
    total = np.bincount(np.repeat(np.arange(matrix.shape[0]), count), weights=wide, minlength=matrix.shape[0])
    wide /= np.repeat(np.where(total == 0, 1.0, total), count)
    matrix.data[:] = wide
    return matrix


def feature_tensor(x: Any, *, as_sparse: bool | None = None) -> Tensor:
    """Features as a torch tensor.

    Args:
        x: Scipy sparse matrix or dense array.
        as_sparse: CSR if True, dense if False; None takes CSR where fewer than one entry in ten is not zero.

    Returns:
        ``[N, F]`` float32, strided or sparse CSR.
    """
    if as_sparse is None:
        filled = x.nnz if sparse.issparse(x) else int(np.count_nonzero(x))
        as_sparse = filled < SPARSE_BELOW * x.shape[0] * x.shape[1]
    if not as_sparse:
        dense = x.toarray() if sparse.issparse(x) else np.asarray(x)
        return torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float32))
    return from_scipy(sparse.csr_matrix(x, dtype=np.float32))


def csr_of(arrays: Any, prefix: str = "x") -> Any:
    """The scipy CSR matrix stored as ``<prefix>_data``, ``_indices``, ``_indptr`` and ``_shape``.

    Raises:
        ValueError: If an index points outside the matrix, which torch would follow.
    """
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
        blocks.append(sparse.csr_matrix((ones, (np.arange(len(column)), code)), shape=(len(column), len(values))))
    return sparse.hstack(blocks, format="csr")


def sentence(parts: Sequence[str | None]) -> str:
    """Parts of a protocol's description, joined; None is left out."""
    return "; ".join(part for part in parts if part)
