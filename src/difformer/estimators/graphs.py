"""Graphs as a user hands them over, as one sparse matrix: row i holds the weights with which i receives.

Accepted: a sparse matrix of that kind of scipy or torch, as `sklearn.neighbors.kneighbors_graph` makes it, or a dense
one; an ``edge_index`` array or tensor ``[2, E]``, senders above receivers; a `difformer.Graph`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from difformer.graph import Graph

KINDS = ("knn", "auto")


def as_matrix(graph: Any, rows: int, columns: int, *, name: str = "graph") -> Any:
    """``[rows, columns]`` scipy CSR, float64.

    Args:
        graph: See above.
        rows: Receivers.
        columns: Senders, the fitted rows.
        name: Of the argument, for errors.

    Raises:
        ValueError: If it is of another size, points outside the rows, or has negative or non-finite weights.
    """
    if isinstance(graph, Graph):
        if graph.num_nodes != rows or rows != columns:
            raise ValueError(_size(name, f"a Graph of {graph.num_nodes} nodes", rows, columns))
        index, weight = graph.edge_index.numpy(force=True), graph.weights().numpy(force=True)
        matrix = sparse.csr_array((weight, (index[1], index[0])), shape=(rows, columns))
    elif sparse.issparse(graph) or (isinstance(graph, Tensor) and graph.layout != torch.strided):
        graph = graph if sparse.issparse(graph) else _from_torch(graph)
        if graph.shape != (rows, columns):
            raise ValueError(_size(name, f"a matrix of shape {graph.shape}", rows, columns))
        matrix = sparse.csr_array(graph)
    else:
        array = np.asarray(graph.numpy(force=True) if isinstance(graph, Tensor) else graph)
        fits = array.shape == (rows, columns)
        if fits and rows == 2 and array.dtype.kind in "iu":
            raise ValueError(
                f"{name} of shape {array.shape} and {array.dtype} may be a matrix or an edge_index of {columns} edges; "
                f"pass a scipy sparse matrix, or a matrix of floats"
            )
        if fits:
            matrix = sparse.csr_array(array)
        elif array.ndim == 2 and array.shape[0] == 2 and array.dtype.kind in "iu":
            matrix = _from_index(array, rows, columns, name)
        else:
            raise ValueError(_size(name, f"an array of shape {array.shape}, {array.dtype}", rows, columns))
    matrix = matrix.astype(np.float64)
    matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise ValueError(
            f"{name} must have finite, non-negative weights, got {matrix.data.min()} … {matrix.data.max()}"
        )
    matrix.eliminate_zeros()
    return matrix


def _from_torch(graph: Tensor) -> Any:
    """A sparse tensor of any layout."""
    matrix = graph.detach().to_sparse_coo().coalesce().cpu()
    return sparse.csr_array((matrix.values().numpy(), tuple(matrix.indices().numpy())), shape=tuple(matrix.shape))


def _from_index(index: np.ndarray[Any, Any], rows: int, columns: int, name: str) -> Any:
    if index.size and (index.min() < 0 or index[0].max() >= columns or index[1].max() >= rows):
        raise ValueError(
            f"{name} as an edge_index must have senders in 0 … {columns - 1} and receivers in 0 … {rows - 1}, "
            f"got {index[0].min()} … {index[0].max()} and {index[1].min()} … {index[1].max()}"
        )
    return sparse.csr_array((np.ones(index.shape[1]), (index[1], index[0])), shape=(rows, columns))


def _size(name: str, got: str, rows: int, columns: int) -> str:
    return (
        f"{name} has the wrong size: got {got}; expected a matrix of shape ({rows}, {columns}) whose row i holds the "
        f"weights with which row i of X receives from the {columns} fitted rows, or an edge_index of shape (2, E)"
    )
