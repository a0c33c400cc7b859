"""Graphs as people hand them over: pairs of names, index arrays, adjacency matrices, tables of edges.

Whatever the form, what comes out are the edges as given, in positions of nodes; `tidy_edges` does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from difformer.data.errors import DataError, in_file
from difformer.data.own.arrays import ARRAY_ENDINGS, named_array, needed_array
from difformer.data.own.csv_files import TextFormat, open_table
from difformer.data.own.table import SOURCE_NAMES, TARGET_NAMES, WEIGHT_NAMES, Table, canonical_id, near_misses, number
from difformer.data.sparse_features import to_scipy
from difformer.errors import UserError
from difformer.sparse import check_scipy

Found = tuple[Tensor, Tensor | None, tuple[str, ...]]  # ends [2, E], weights [E], notes on what was guessed
Ids = Mapping[str, int]


def edge_ends(edges: Any) -> tuple[NDArray[Any], str | None]:
    """Sources and targets, ``[2, E]``, of edges given as an array, a tensor or nested lists; and a note on a guess.

    A list or tuple of pairs holds one edge per pair: ``[(0, 1), (2, 3)]`` is 0 → 1 and 2 → 3. An array or tensor is
    ``[2, E]``, sources above targets, as in PyG, or ``[E, 2]``. Two by two is ambiguous: an array is then read as
    ``[2, E]``, a list as pairs, and the note says so.

    Raises:
        DataError: If the shape is neither.
    """
    try:
        array = edges.numpy(force=True) if isinstance(edges, Tensor) else np.asarray(edges)
    except ValueError as error:
        raise DataError("edge_index: expected shape [2, E] or [E, 2], got rows of different lengths") from error
    array = array if array.size else np.empty((2, 0), dtype=np.int64)
    if array.ndim != 2 or 2 not in array.shape:
        raise DataError(f"edge_index: expected shape [2, E] or [E, 2], got {list(array.shape)}")
    listed = isinstance(edges, (list, tuple)) and not any(isinstance(row, (Tensor, np.ndarray)) for row in edges)
    pairs = listed and array.shape[1] == 2
    ends = array if array.shape[0] == 2 and not pairs else array.T
    if array.shape != (2, 2) or array[0, 1] == array[1, 0]:
        return ends, None
    first = " and ".join(f"{a} → {b}" for a, b in ends.T.tolist())
    how, other = ("two pairs", "an array of shape [2, E]") if pairs else ("sources above targets", "a list of pairs")
    return ends, f"edge_index of shape [2, 2] was read as {how}: {first}; pass {other} if it is meant otherwise"


def edges_from(edges: Any, weights: Any = None, *, num_nodes: int, ids: Ids | None = None) -> Found:
    """Edges from an object in memory.

    `edges` are ``[2, E]`` or pairs, see `edge_ends`; an adjacency matrix (scipy or torch sparse, or dense ``[N, N]``)
    whose entry i, j weighs the edge i → j; or a data frame of two columns, or three with weights. Arrays and tensors of
    whole numbers hold positions of nodes; lists and frames hold `ids` if nodes have them.
    """
    matrix = _matrix(edges, num_nodes)
    if matrix is not None:
        return _from_matrix(matrix, num_nodes)
    note: str | None = None
    ends: Any
    if hasattr(edges, "columns"):
        columns = [np.asarray(edges[name]) for name in edges.columns]
        if len(columns) not in (2, 3):
            raise DataError(f"edge_index: a frame of edges has two columns, or three with weights; got {len(columns)}")
        ends, weights = columns[:2], columns[2] if len(columns) == 3 else weights
    else:
        ends, note = edge_ends(edges)
        ids = None if isinstance(edges, (Tensor, np.ndarray)) and ends.dtype.kind in "iu" else ids
    try:
        index = np.stack([_positions(end, num_nodes, ids) for end in ends])
        weight = None if weights is None else _weights(weights, index.shape[1])
    except DataError as error:
        place = "" if error.row is None else f"edge_index, edge {error.row}: "
        raise DataError(f"{place}{error.problem}", argument=error.argument) from error
    return torch.from_numpy(index), weight, () if note is None else (note,)


def _matrix(edges: Any, num_nodes: int) -> Any:
    """An adjacency matrix in scipy's COO form, dense ones if they have three rows at least; None for lists of edges."""
    if hasattr(edges, "columns"):
        return sparse.coo_array(np.asarray(edges)) if len(edges) == len(edges.columns) == num_nodes > 3 else None
    if hasattr(edges, "tocoo") or (isinstance(edges, Tensor) and edges.layout != torch.strided):
        try:
            matrix = edges if hasattr(edges, "tocoo") else to_scipy(edges)
            check_scipy(matrix)
        except ValueError as error:
            raise DataError(f"edge_index: is not an adjacency matrix that can be used: {error}") from error
        coo = matrix.tocoo(copy=True)
        coo.sum_duplicates()
        return coo
    try:
        if len(edges) < 3 or not all(len(row) == len(edges) for row in edges):
            return None
    except TypeError:  # a number, or a row of numbers
        return None
    array = edges.numpy(force=True) if isinstance(edges, Tensor) else np.asarray(edges)
    return sparse.coo_array(array) if array.ndim == 2 and array.dtype.kind in "biuf" else None


def _from_matrix(matrix: Any, num_nodes: int) -> Found:
    if tuple(matrix.shape) != (num_nodes, num_nodes):
        raise DataError(
            f"edge_index: an adjacency matrix of {num_nodes} nodes is square, [{num_nodes}, {num_nodes}], got "
            f"{list(matrix.shape)}; a list of edges has shape [2, E] or [E, 2]"
        )
    filled = matrix.data != 0
    index = np.stack([matrix.row, matrix.col])[:, filled].astype(np.int64)
    try:
        weight = _weights(matrix.data[filled], index.shape[1])
    except DataError as error:
        raise DataError(f"edge_index, entry {tuple(index[:, error.row].tolist())}: {error.problem}") from error
    return torch.from_numpy(index), None if bool((weight == 1).all()) else weight, ()


def read_edges(
    path: str | os.PathLike[str],
    *,
    num_nodes: int,
    ids: Ids | None = None,
    columns: Sequence[str | int] | None = None,
    format: TextFormat = TextFormat(),  # noqa: B008  frozen
) -> Found:
    """Edges from a file: a table of sources, targets and perhaps weights, or an NPZ.

    Without `ids` nodes are known by their row, counted from zero. `columns` are source, target and perhaps weight; None
    finds them by their usual names, or takes the first two, and a third that is all there is left for weights.
    """
    if Path(path).suffix.lower() in ARRAY_ENDINGS:
        found, arrays = needed_array(path, "edges", "x")
        with in_file(path):
            return edges_from(found, named_array(arrays, "weights"), num_nodes=num_nodes, ids=ids)
    table = open_table(path, format, ids=ids)
    roles = _roles(table, columns)
    unused = [i for i in range(len(table.names)) if i not in roles]
    table.read([*unused, *(i for i in roles[:2] if ids is not None or table.textual[i])])
    ends = []
    for i in roles[:2]:
        with table.locate(i):
            ends.append(_positions(table.cells[i], num_nodes, ids))
    notes = list(table.notes)
    if unused:
        notes.append(f"columns of {table.file} not used: {', '.join(table.names[i] for i in unused)}")
    index, weight = torch.from_numpy(np.stack(ends)), None
    if len(roles) == 3:
        with table.locate(roles[2]):
            weight = _weights(table.cells[roles[2]], index.shape[1])
        if columns is None and table.names[roles[2]].strip().lower() not in WEIGHT_NAMES:
            third = repr(table.names[roles[2]]) if table.named else roles[2] + 1
            ends_ = ",".join(table.names[i] for i in roles[:2])
            notes.append(
                f"edges are weighted by column {third} of {table.file}; pass edge_columns={ends_} if it is no weight"
            )
    return index, weight, tuple(notes)


def _roles(table: Table, columns: Sequence[str | int] | None) -> list[int]:
    """Positions of source, target and perhaps weight."""
    width = len(table.names)
    if columns is not None:
        if len(columns) not in (2, 3):
            raise UserError(f"edge_columns: expected source, target and perhaps weight, got {tuple(columns)}")
        return [table.find(column, "edge_columns") for column in columns]
    if width < 2:
        raise DataError(
            "an edge has a source and a target, but here is one column; pass delimiter= if cells are parted otherwise",
            path=table.path,
        )
    source, target = table.named_like(SOURCE_NAMES), table.named_like(TARGET_NAMES)
    weight = table.named_like(WEIGHT_NAMES)[:1]
    if len(source) == len(target) == 1:
        return [source[0], target[0], *weight]
    if weight and weight[0] > 1:
        return [0, 1, *weight]
    if width > 3 and not table.named:
        problem = f"expected 2 or 3 columns, got {width}; pass edge_columns=source,target,weight"
        problem += ", or save an adjacency matrix with numpy.save (.npy)"
        raise DataError(problem, path=table.path, argument="edge_columns")
    return [0, 1, 2] if width == 3 and not table.textual[2] else [0, 1]


def _positions(values: Any, num_nodes: int, ids: Ids | None) -> NDArray[np.int64]:
    """Positions of the nodes that `values` names; errors name the row."""
    if ids is not None:
        names = values if isinstance(values, list) else values.tolist()
        found = [ids.get(name if name in ids else canonical_id(name), -1) for name in names]
        if -1 in found:
            row, some = found.index(-1), ", ".join(map(repr, list(ids)[:3]))
            close, nearly = near_misses(names, ids)
            if nearly is not None:
                raise DataError(close, row=nearly)
            problem = f"no node is called {str(names[row])!r}; the {num_nodes} there are begin with {some}"
            raise DataError(f"{problem}; {close}" if close else problem, row=row)
        return np.array(found, dtype=np.int64)
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        cells = [number(str(value)) for value in array.tolist()]
        if None in cells:
            row = cells.index(None)
            problem = f"{str(values[row])!r} is not the number of a row, and the nodes have no ids"
            raise DataError(problem, row=row, argument="ids")
        array = np.array(cells, dtype=np.float64)
    outside = ~((array >= 0) & (array < num_nodes))
    wrong = outside | (array != np.floor(array))
    if wrong.any():
        row = int(np.argmax(wrong))
        if not outside[row] or not np.isfinite(array[row]):
            raise DataError(f"{array[row]} is not the number of a row", row=row)
        hint = "; yours seem to count from 1" if array.min() == 1 and array.max() == num_nodes else ""
        problem = f"there is no node {array[row]:.0f}: rows are counted from 0 to {num_nodes - 1}{hint}"
        raise DataError(problem, row=row)
    return array.astype(np.int64)


def _weights(values: Any, count: int) -> Tensor:
    """Weights of `count` edges; errors name the row."""
    values = values.numpy(force=True) if isinstance(values, Tensor) else values
    try:
        weight = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        listed = list(values) if hasattr(values, "__iter__") else [values]
        row = next((i for i, value in enumerate(listed) if number(str(value)) is None), 0)
        raise DataError(f"a weight must be a finite number ≥ 0, got {listed[row]!r}", row=row) from error
    if weight.shape != (count,):
        raise DataError(f"edge_weight: expected {count} numbers, one per edge, got shape {list(weight.shape)}")
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"a weight must be a finite number ≥ 0, got {weight[row]:g}", row=row)
    return torch.from_numpy(weight.astype(np.float32))
