"""Graphs as users give them, and graphs that follow the rows of a table into folds.

Accepted are an adjacency matrix (scipy or torch sparse, or dense), whose entry i, j weighs the edge i → j; an
``edge_index`` array or tensor ``[2, E]``, senders above receivers; a list of pairs; a `difformer.Graph`. An edge goes
both ways unless the estimator is told ``directed=True``: its weight is then the larger of those of the two directions.

Inside the estimators a graph is the CSR matrix of what is received: row i holds the weights with which i receives.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_array
from torch import Tensor

from difformer.data.own.graphs import edge_ends
from difformer.errors import UserError
from difformer.estimators.population import find_rows, row_digests
from difformer.graph import Graph
from difformer.sparse import check_scipy

Array = np.ndarray[Any, Any]

KINDS = ("knn", "auto")


class RowGraph:
    """A graph over all rows of a table, for estimators that are fitted to some of them.

    In `cross_val_score`, `GridSearchCV` or `CalibratedClassifierCV` an estimator sees some rows of the table at a time.
    With ``graph=RowGraph(X, graph)`` it finds each row in the whole table, by its features and, if tables are pandas
    frames, by its index; it is fitted with the edges among the rows it sees, and predicts rows with their edges from
    those.

    Args:
        X: ``[N, F]`` the whole table, as it reaches the estimator.
        graph: Edges among its rows.

    Raises:
        UserError: If two rows cannot be told apart.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.model_selection import cross_val_score
        >>> from sklearn.neighbors import kneighbors_graph
        >>> from difformer import DIFFormerClassifier
        >>> X, y = load_iris(return_X_y=True, as_frame=True)
        >>> model = DIFFormerClassifier(graph=RowGraph(X, kneighbors_graph(X, 5)), steps=10, n_models=1, random_state=0)
        >>> cross_val_score(model, X, y, cv=2).shape
        (2,)
    """

    def __init__(self, X: Any, graph: Any) -> None:
        if sparse.issparse(X):
            check_scipy(X, "X")
        x = check_array(X, accept_sparse="csr", dtype=np.float64)
        self.matrix = as_matrix(graph, x.shape[0])
        self._ids = _ids(X, x)
        first = find_rows(self._ids, self._ids)
        if len(np.unique(first)) < len(first):
            twin = int(np.flatnonzero(first != np.arange(len(first)))[0])
            raise UserError(
                f"X: rows {int(first[twin])} and {twin} are equal, so their edges cannot be told apart; pass a pandas "
                f"frame whose index names the rows, to RowGraph and to the estimator",
                argument="X",
            )

    def __deepcopy__(self, memo: Any) -> RowGraph:
        return self  # never changed, so clones of an estimator share it

    def __repr__(self) -> str:
        return f"RowGraph({self.matrix.shape[0]} rows, {self.matrix.nnz} edges)"

    def rows(self, X: Any, x: Any) -> Array:
        """Positions of the rows of a table; every one of them must be known.

        Raises:
            UserError: If a row is not in the graph's table.
        """
        found = find_rows(_ids(X, x), self._ids)
        if (found < 0).any():
            raise UserError(
                f"{int((found < 0).sum())} of {len(found)} rows to fit are not in the table of the RowGraph; it has to "
                f"be made from the features that reach the estimator: preprocess before RowGraph, not in a pipeline "
                f"(for frames, the index has to be the same too)",
                argument="graph",
            )
        return found

    def edges(self, X: Any, x: Any, fitted: Array, *, directed: bool) -> Any:
        """``[M, n]`` CSR: what rows receive from fitted ones; unknown rows receive nothing."""
        found = find_rows(_ids(X, x), self._ids)
        note_rows_without_edges(found)
        received = receiving(self.matrix, directed=directed)[np.maximum(found, 0)][:, fitted]
        return sparse.csr_array(sparse.diags_array((found >= 0).astype(np.float64)) @ received)


def note_rows_without_edges(found: Array) -> None:
    """Warns of rows that are not known (-1), and so have no edges in a model that was fitted with a graph."""
    unknown = int((found < 0).sum())
    if unknown:
        warnings.warn(
            f"{unknown} of {len(found)} rows are new and have no edges, although the model was fitted with a graph; "
            f"pass graph= to say how they are joined to the fitted rows",
            UserWarning,
            stacklevel=5,
        )


def _ids(X: Any, x: Any) -> Array:
    """``[N, 2]`` fingerprints of features and, for a pandas frame, of the index."""
    digests = row_digests(x)
    index = getattr(X, "index", None)
    if index is None or callable(index):
        return digests
    import pandas as pd

    return digests + pd.util.hash_pandas_object(index, index=False).to_numpy(np.uint64)[:, None]


def receiving(matrix: Any, *, directed: bool) -> Any:
    """What each row receives, of an adjacency matrix ``[n, n]`` whose entry i, j weighs the edge i → j."""
    return sparse.csr_array(matrix.T) if directed else sparse.csr_array(matrix.maximum(matrix.T))


def as_matrix(graph: Any, rows: int, fitted: int | None = None) -> Any:
    """A user's graph as a scipy CSR matrix, float64.

    Args:
        graph: See above.
        rows: Rows of the table.
        fitted: Where `rows` are new: the number of fitted rows. The matrix is then ``[rows, fitted]``, and its row i
            holds the weights of the edges from fitted rows to new row i; an ``edge_index`` has fitted rows above.

    Raises:
        UserError: If it is of another size, points outside the rows, or has negative or non-finite weights.
    """
    shape = (rows, rows) if fitted is None else (rows, fitted)
    if isinstance(graph, Graph):
        if fitted is not None or graph.num_nodes != rows:
            raise UserError(_size(f"a Graph of {graph.num_nodes} nodes", shape, fitted), argument="graph")
        index, weight = graph.edge_index.numpy(force=True), graph.weights().numpy(force=True)
        matrix = sparse.csr_array((weight, (index[0], index[1])), shape=shape)
    elif sparse.issparse(graph) or (isinstance(graph, Tensor) and graph.layout != torch.strided):
        graph = graph if sparse.issparse(graph) else _from_torch(graph)
        if graph.shape != shape:
            raise UserError(_size(f"a matrix of shape {graph.shape}", shape, fitted), argument="graph")
        check_scipy(graph, "graph")
        matrix = sparse.csr_array(graph)
    else:
        matrix = _from_array(graph, shape, fitted)
    matrix = matrix.astype(np.float64)
    matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise UserError(
            f"graph must have finite, non-negative weights, got {matrix.data.min()} … {matrix.data.max()}",
            argument="graph",
        )
    matrix.eliminate_zeros()
    return matrix


def _from_array(graph: Any, shape: tuple[int, int], fitted: int | None) -> Any:
    """A dense matrix, an ``edge_index``, or a list of pairs."""
    array = np.asarray(graph.numpy(force=True) if isinstance(graph, Tensor) else graph)
    whole = array.dtype.kind in "iu" or not array.size
    if array.shape == shape and shape[0] == 2 and whole:
        raise UserError(
            f"graph of shape {array.shape} and {array.dtype} may be a matrix or an edge_index of {shape[1]} edges; "
            f"pass a scipy sparse matrix, or a matrix of floats",
            argument="graph",
        )
    if array.shape == shape:
        return sparse.csr_array(array)
    if whole and array.ndim == 2 and 2 in array.shape:
        ends, note = edge_ends(graph)
        if note is not None:
            warnings.warn(note.replace("edge_index", "graph"), UserWarning, stacklevel=5)
        return _from_index(ends, shape, fitted)
    got = f"an array of shape {array.shape} and {array.dtype}" if array.ndim == 2 else f"a {type(graph).__name__}"
    raise UserError(_size(got, shape, fitted), argument="graph")


def _from_torch(graph: Tensor) -> Any:
    """A sparse tensor of any layout."""
    matrix = graph.detach().to_sparse_coo().coalesce().cpu()
    return sparse.csr_array((matrix.values().numpy(), tuple(matrix.indices().numpy())), shape=tuple(matrix.shape))


def _from_index(index: Array, shape: tuple[int, int], fitted: int | None) -> Any:
    """Of senders above receivers; new rows receive, and are the rows of the matrix."""
    senders, receivers = (shape[0], shape[0]) if fitted is None else (fitted, shape[0])
    if index.size and (index.min() < 0 or index[0].max() >= senders or index[1].max() >= receivers):
        raise UserError(
            f"graph as an edge_index must have senders in 0 … {senders - 1} and receivers in 0 … {receivers - 1}, "
            f"got {index[0].min()} … {index[0].max()} and {index[1].min()} … {index[1].max()}",
            argument="graph",
        )
    ends = (index[0], index[1]) if fitted is None else (index[1], index[0])
    return sparse.csr_array((np.ones(index.shape[1]), ends), shape=shape)


def _size(got: str, shape: tuple[int, int], fitted: int | None) -> str:
    if fitted is not None:
        return (
            f"graph has the wrong size: got {got}; expected a matrix of shape {shape} whose row i holds the weights of "
            f"the edges from the {fitted} fitted rows to row i of X, or an edge_index (2, E), fitted rows first"
        )
    return (
        f"graph has the wrong size: got {got}; expected a matrix of shape {shape} (array or scipy sparse matrix) whose "
        f"entry i, j weighs the edge i → j, or an edge_index of shape (2, E) of whole numbers. For folds of a table "
        f"use graph=RowGraph(X, graph)"
    )
