r"""Graphs over the rows of a table: given by the user, carried into folds, or made of nearest neighbours.

Accepted are an adjacency matrix (scipy or torch sparse, or dense), whose entry i, j weighs the edge i → j; an
``edge_index`` array or tensor ``[2, E]``, senders above receivers; a list of pairs; a `difformer.Graph`. Unless
``directed=True``, an edge goes both ways, with the larger of the weights of the two directions. Inside the estimators
a graph is the CSR matrix of what is received: row i holds the weights with which i receives.

Rows to predict are weighted as in `difformer.graph`: with a_j the weights of a row's edges from fitted rows,
d = Σ_j a_j its own degree and d_j the degrees of the fitted rows among themselves, s_j = a_j / √(d d_j). With
``directed=True`` s_j = a_j / d: a sender that receives nothing has d_j = 0, and its edges would be lost.

In a neighbour graph a row receives from its k nearest fitted rows, each with weight 1/k; a fitted row is its own first
neighbour. The answer for a row does not depend on the other rows that are searched with it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_array
from torch import Tensor, nn

from difformer.data.knn import nearest
from difformer.data.own.graphs import edge_ends
from difformer.data.sparse_features import from_scipy, to_scipy
from difformer.errors import UserError
from difformer.estimators.population import Array, find_rows, row_digests
from difformer.graph import Graph
from difformer.sparse import check_scipy

CSR = ("data", "indices", "indptr")
FOLDS = "For folds of a table use graph=RowGraph(X, graph)"


class RowGraph:
    """A graph over all rows of a table, for estimators that are fitted to some of them.

    In `cross_val_score`, `GridSearchCV` or `CalibratedClassifierCV` an estimator sees some rows of the table at a time.
    With ``graph=RowGraph(X, graph)`` it finds each row in the whole table, by its features and, in pandas frames, by
    its index. It is fitted with the edges among the rows it sees, and predicts rows with their edges from those.

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
        if len(twins := np.flatnonzero(first != np.arange(len(first)))):
            problem = f"X: rows {first[twins[0]]} and {twins[0]} are equal, so their edges cannot be told apart"
            advice = "pass a pandas frame whose index names the rows, to RowGraph and to the estimator"
            raise UserError(f"{problem}; {advice}", argument="X")

    def __deepcopy__(self, memo: Any) -> RowGraph:
        return self  # never changed, so clones of an estimator share it

    def __repr__(self) -> str:
        return f"RowGraph({self.matrix.shape[0]} rows, {self.matrix.nnz} edges)"

    def rows(self, X: Any, x: Any) -> Array:
        """Positions of the rows of a table in the whole one, -1 for unknown rows."""
        return find_rows(_ids(X, x), self._ids)

    def fitted_rows(self, X: Any, x: Any) -> Array:
        """Positions of the rows to fit, all of which must be known."""
        rows = self.rows(X, x)
        if unknown := int((rows < 0).sum()):
            problem = f"{unknown} of {len(rows)} rows to fit are not in the table of the RowGraph"
            advice = "make it from the features (and index) that reach the estimator: preprocess before RowGraph"
            raise UserError(f"{problem}; {advice}, not in a pipeline", argument="graph")
        return rows


def _ids(X: Any, x: Any) -> Array:
    """``[N, 2]`` fingerprints of features and, for a pandas frame, of the index."""
    digests, index = row_digests(x), getattr(X, "index", None)
    if index is None or callable(index):
        return digests
    import pandas as pd

    return digests + pd.util.hash_pandas_object(index, index=False).to_numpy(np.uint64)[:, None]


def edges_of(matrix: Any, found: Array) -> Any:
    """Rows of a matrix at these positions; unknown rows (-1) have no edges, and a warning says so."""
    if unknown := int((found < 0).sum()):
        said = f"{unknown} of {len(found)} rows are new and have no edges, although the model was fitted with a graph"
        warnings.warn(f"{said}; pass graph= with their edges from fitted rows", UserWarning, stacklevel=5)
    known = sparse.diags_array((found >= 0).astype(np.float64))
    return sparse.csr_array(known @ matrix[np.maximum(found, 0)])


def receiving(matrix: Any, *, directed: bool) -> Any:
    """What each row receives, of an adjacency matrix ``[n, n]`` whose entry i, j weighs the edge i → j."""
    return sparse.csr_array(matrix.T) if directed else sparse.csr_array(matrix.maximum(matrix.T))


def as_matrix(graph: Any, rows: int, fitted: int | None = None) -> Any:
    """A user's graph among `rows` rows as a scipy CSR matrix, float64, after checks of its size, ends and weights.

    For new rows, `fitted` is the number of fitted ones. The matrix is then ``[rows, fitted]``, and its row i holds the
    weights of the edges from fitted rows to new row i; an ``edge_index`` has fitted rows above.
    """
    shape = (rows, rows if fitted is None else fitted)
    if isinstance(graph, Graph):
        index, weight = graph.edge_index.numpy(force=True), graph.weights().numpy(force=True)
        matrix: Any = sparse.csr_array((weight, (index[0], index[1])), shape=(graph.num_nodes,) * 2)
    elif isinstance(graph, Tensor):
        matrix = graph.numpy(force=True) if graph.layout == torch.strided else to_scipy(graph)
    else:
        matrix = graph if sparse.issparse(graph) else np.asarray(graph)
    if not sparse.issparse(matrix) and matrix.ndim == 2 and matrix.size and isinstance(matrix[0, 0], str):
        problem = f"graph holds names, such as {str(matrix[0, 0])!r}, but its ends must be positions of rows"
        advice = "with pandas, index.get_indexer(names) finds those of names in the index of the rows, for either end"
        raise UserError(f"{problem}; {advice}", argument="graph")
    if not sparse.issparse(matrix) and matrix.ndim == 2 and 2 in matrix.shape:
        listed = matrix.dtype.kind in "iu" or not matrix.size
        if listed and matrix.shape == shape and rows == 2:
            problem = f"graph of shape {shape} and {matrix.dtype} may be a matrix or an edge_index of {shape[1]} edges"
            raise UserError(f"{problem}; pass a scipy sparse matrix, or a matrix of floats", argument="graph")
        if listed and matrix.shape != shape:
            matrix = _from_index(graph, shape, fitted)
    if matrix.shape != shape or (fitted is not None and isinstance(graph, Graph)):
        described = matrix.ndim == 2 and not isinstance(graph, Graph)
        kind = f"a matrix of shape {matrix.shape} and {matrix.dtype}" if described else f"a {type(graph).__name__}"
        meaning = "entry i, j weighs the edge i → j" if fitted is None else "row i holds the weights from fitted rows"
        matrices = f"a matrix of shape {shape} (array or scipy sparse matrix) whose {meaning}"
        expected = f"expected {matrices}, or an edge_index of shape (2, E) of whole numbers. {FOLDS}"
        raise UserError(f"graph has the wrong size: got {kind}; {expected}", argument="graph")
    if sparse.issparse(matrix):
        check_scipy(matrix, "graph")
    matrix = sparse.csr_array(matrix).astype(np.float64)
    matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        got = f"{matrix.data.min()} … {matrix.data.max()}"
        raise UserError(f"graph must have finite, non-negative weights, got {got}", argument="graph")
    if fitted is None:
        matrix = sparse.csr_array(matrix - sparse.diags_array(matrix.diagonal()))  # without self-loops
    matrix.eliminate_zeros()
    return matrix


def _from_index(graph: Any, shape: tuple[int, int], fitted: int | None) -> Any:
    """The matrix of an ``edge_index`` or pairs; new rows receive, and are the rows of the matrix."""
    ends, note = edge_ends(graph)
    if note is not None:
        warnings.warn(note.replace("edge_index", "graph"), UserWarning, stacklevel=5)
    if ((ends < 0) | (ends >= np.array(shape[::-1])[:, None])).any():
        expected = f"senders in 0 … {shape[1] - 1} and receivers in 0 … {shape[0] - 1}"
        got = " and ".join(f"{end.min()} … {end.max()}" for end in ends)
        raise UserError(f"graph as an edge_index must have {expected}, got {got}. {FOLDS}", argument="graph")
    matrix = sparse.csr_array((np.ones(ends.shape[1]), tuple(ends if fitted is None else ends[::-1])), shape=shape)
    matrix.data[:] = 1.0  # an edge that is listed twice is one edge
    return matrix


@dataclass(frozen=True)
class RowEdges:
    """Normalised edges from fitted rows to some rows."""

    row: Tensor  # [E] which of the rows receives
    source: Tensor  # [E] the fitted row that sends
    weight: Tensor  # [E] s_j
    count: int  # of rows

    @staticmethod
    def nearest(index: Tensor) -> RowEdges:
        """Of ``[M, k]`` neighbours, each with weight 1/k."""
        count, k = index.shape
        row = torch.arange(count, device=index.device).repeat_interleave(k)
        return RowEdges(row, index.reshape(-1), torch.full_like(row, 1.0 / k, dtype=torch.float64), count)

    @staticmethod
    def normalised(row: Tensor, source: Tensor, weight: Tensor, count: int, degree: Tensor | None) -> RowEdges:
        """Of weights a_j, with the fitted rows' own degrees ``[n]``; without degrees, s_j = a_j / d."""
        own = weight.new_zeros(count).index_add(0, row, weight)
        square = own[row].square() if degree is None else own[row] * degree[source]
        share = torch.where(square > 0, weight * torch.where(square > 0, square, 1.0).rsqrt(), 0.0)
        return RowEdges(row, source, share, count)

    def __call__(self, sent: Tensor) -> Tensor:
        """Σ_j s_j v_j for each row, of the values ``[n, c]`` that fitted rows send."""
        messages = self.weight.unsqueeze(1) * sent[self.source].to(self.weight.dtype)
        return messages.new_zeros(self.count, sent.shape[1]).index_add(0, self.row, messages)


class MatrixBuffers(nn.Module):
    """A matrix kept in buffers: a scipy sparse matrix as CSR of float64, a dense one as ``points`` of float32."""

    def __init__(self, matrix: Any) -> None:
        super().__init__()
        self.shape, self.is_sparse = matrix.shape, sparse.issparse(matrix)
        if self.is_sparse:
            rows = sparse.csr_array(matrix, dtype=np.float64)
            for name in CSR:
                self.register_buffer(name, torch.from_numpy(np.array(getattr(rows, name))))
        else:
            self.points = nn.Buffer(torch.as_tensor(matrix).float())

    @property
    def matrix(self) -> Any:
        """The sparse matrix."""
        return sparse.csr_array(tuple(getattr(self, name).numpy() for name in CSR), shape=self.shape)


class GivenGraph(MatrixBuffers):
    """Edges among the fitted rows, as the matrix of what each receives, and the fingerprints of the rows."""

    def __init__(self, matrix: Any, digests: Any, *, directed: bool = False) -> None:
        super().__init__(matrix)
        self.directed = directed
        self.digests = nn.Buffer(torch.from_numpy(np.array(digests).view(np.int64)))
        self.degree = nn.Buffer(torch.from_numpy(np.asarray(matrix.sum(1), dtype=np.float64).ravel()))

    def recognise(self, x: Any) -> Any:
        """``[M, n]`` edges of rows equal to a fitted one, with a warning if to several; none for others."""
        digests = self.digests.numpy().view(np.uint64)
        found, first = find_rows(row_digests(x), digests), find_rows(digests, digests)
        several = (found >= 0) & (np.bincount(first, minlength=len(first))[np.maximum(found, 0)] > 1)
        if several.any():
            said = f"{int(several.sum())} rows have the features of more than one fitted row, and get the edges of"
            warnings.warn(f"{said} the first; pass graph= to say which are theirs", UserWarning, stacklevel=2)
        return edges_of(self.matrix, found)

    def edges(self, matrix: Any) -> RowEdges:
        """Normalised edges of rows whose weights from fitted rows are ``matrix [M, n]``."""
        coo = sparse.csr_array(matrix).tocoo()
        row, source = (torch.from_numpy(part.astype(np.int64)) for part in (coo.row, coo.col))
        weight, degree = torch.from_numpy(coo.data.astype(np.float64)), None if self.directed else self.degree
        return RowEdges.normalised(row, source, weight, matrix.shape[0], degree)


class RowSearch(MatrixBuffers):
    """Search for the k nearest of fitted rows, scaled, ``[n, F]``: dense ones by distance, sparse ones by cosine."""

    def __init__(self, points: Any, k: int) -> None:
        super().__init__(points)
        self.k = k

    def forward(self, x: Any) -> Tensor:
        """``[M, k]`` indices of the nearest fitted rows of scaled features ``[M, F]``, nearest first."""
        if self.is_sparse:
            return nearest(from_scipy(self.matrix), self.k, "cosine", from_scipy(sparse.csr_array(x)))[0]
        wide = torch.from_numpy(np.ascontiguousarray(x.toarray() if sparse.issparse(x) else x))
        rows = wide.float()  # the precision of the points: a fitted row is at distance 0 from itself
        if not rows.isfinite().all():
            problem = f"X holds values up to {float(wide.abs().max()):.3g} after scaling, too large for a search"
            raise UserError(f"{problem} of neighbours; check the units of these rows", argument="X")
        return nearest(self.points, self.k, "euclidean", rows)[0]
