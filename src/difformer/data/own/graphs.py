"""Graphs as people hand them over: pairs of names, index arrays, adjacency matrices, tables of edges.

Whatever the form, what comes out are the edges as given, in positions of nodes; `tidy_edges` does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.data.errors import DataError, in_file
from difformer.data.own.arrays import ARRAY_ENDINGS, named_array, read_arrays
from difformer.data.own.table import (
    SOURCE_NAMES,
    TARGET_NAMES,
    WEIGHT_NAMES,
    Head,
    Table,
    canonical_id,
    near_misses,
    number,
)
from difformer.data.own.text import TextFormat, open_table
from difformer.data.sparse import sparse_to_scipy
from difformer.errors import UserError
from difformer.sparse import check_scipy

Edges = tuple[Tensor, Tensor | None]
Found = tuple[Tensor, Tensor | None, tuple[str, ...]]
Ids = Mapping[str, int]
Where = Callable[[str, int], DataError]


def edge_ends(edges: Any) -> tuple[NDArray[Any], str | None]:
    """Sources and targets, ``[2, E]``, of edges given as an array, a tensor or nested lists; and a note on a guess.

    A list or tuple of pairs holds one edge per pair: ``[(0, 1), (2, 3)]`` is 0 → 1 and 2 → 3. An array or tensor is
    ``[2, E]``, sources above targets, as in PyG, or ``[E, 2]``. Two by two is ambiguous: an array is then read as
    ``[2, E]``, a list as pairs, and the note says so.

    Raises:
        DataError: If the shape is neither.
    """
    listed = isinstance(edges, (list, tuple))
    try:
        array = edges.numpy(force=True) if isinstance(edges, Tensor) else np.asarray(edges)
    except ValueError as error:
        raise DataError("edge_index: expected shape [2, E] or [E, 2], got rows of different lengths") from error
    array = array if array.size else np.empty((2, 0), dtype=np.int64)
    if array.ndim != 2 or 2 not in array.shape:
        raise DataError(f"edge_index: expected shape [2, E] or [E, 2], got {list(array.shape)}")
    pairs = listed and array.shape[1] == 2 and not any(isinstance(row, (Tensor, np.ndarray)) for row in edges)
    by_rows = array.shape[0] == 2 and not pairs
    note = None
    if array.shape == (2, 2) and array[0, 1] != array[1, 0]:
        first = " and ".join(f"{a} → {b}" for a, b in (array.T if by_rows else array).tolist())
        how = "as two pairs" if pairs else "as sources above targets"
        other = "pass an array of shape [2, E]" if pairs else "pass a list of pairs"
        note = f"edge_index of shape [2, 2] was read {how}: {first}; {other} if it is meant otherwise"
    return array if by_rows else array.T, note


def edges_from(edges: Any, weights: Any = None, *, num_nodes: int, ids: Ids | None = None) -> Found:
    """Edges from an object in memory, their weights, and notes on what was guessed.

    `edges` are ``[2, E]`` or pairs, see `edge_ends`; an adjacency matrix (scipy or torch sparse, or dense ``[N, N]``)
    whose entry i, j weighs the edge i → j; or a data frame of two columns, or three with weights. Arrays and tensors of
    whole numbers hold positions of nodes; lists and frames hold `ids` if nodes have them.
    """
    if hasattr(edges, "tocoo") or (isinstance(edges, Tensor) and edges.layout != torch.strided):
        try:
            matrix = edges if hasattr(edges, "tocoo") else sparse_to_scipy(edges)
            check_scipy(matrix)
        except ValueError as error:
            raise DataError(f"edge_index: is not an adjacency matrix that can be used: {error}") from error
        coo = matrix.tocoo(copy=True)
        coo.sum_duplicates()
        return *_from_matrix(np.stack([coo.row, coo.col]), coo.data, coo.shape, num_nodes), ()
    note = None
    if hasattr(edges, "columns") and len(edges) == len(edges.columns) == num_nodes > 3:
        edges = np.asarray(edges)
    if hasattr(edges, "columns"):
        columns = [np.asarray(edges[name]) for name in edges.columns]
        if len(columns) not in (2, 3):
            raise DataError(f"edge_index: a frame of edges has two columns, or three with weights; got {len(columns)}")
        ends, weights = columns[:2], columns[2] if len(columns) == 3 else weights
    else:
        positions = isinstance(edges, (Tensor, np.ndarray))
        matrix = _dense_matrix(edges)
        if matrix is not None:
            at = np.nonzero(matrix)
            return *_from_matrix(np.stack(at), matrix[at], matrix.shape, num_nodes), ()
        array, note = edge_ends(edges)
        ends = list(array)
        ids = None if positions and array.dtype.kind in "iu" else ids

    def where(text: str, row: int) -> DataError:
        return DataError(f"edge_index, edge {row}: {text}")

    index = np.stack([_positions(end, num_nodes, ids, where) for end in ends])
    notes = () if note is None else (note,)
    if weights is None:
        return torch.from_numpy(index), None, notes
    weight = _floats(weights.numpy(force=True) if isinstance(weights, Tensor) else weights, where)
    if weight.shape != (index.shape[1],):
        raise DataError(f"edge_weight: expected {index.shape[1]} numbers, one per edge, got shape {list(weight.shape)}")
    return torch.from_numpy(index), _weights(weight, where), notes


def _dense_matrix(edges: Any) -> NDArray[Any] | None:
    """Edges as a dense adjacency matrix, if they are as many rows as columns of numbers, three at least."""
    try:
        size = len(edges)
        if size < 3 or not all(len(row) == size for row in edges):
            return None
    except TypeError:  # a number, or a row of numbers
        return None
    array = edges.numpy(force=True) if isinstance(edges, Tensor) else np.asarray(edges)
    return array if array.ndim == 2 and array.dtype.kind in "biuf" else None


def read_edges(
    path: str | os.PathLike[str],
    *,
    num_nodes: int,
    ids: Ids | None = None,
    columns: Sequence[str | int] | None = None,
    format: TextFormat = TextFormat(),  # noqa: B008  frozen
) -> Found:
    """Edges from a file, their weights, and notes: a table of sources, targets and perhaps weights, or an NPZ.

    Without `ids` nodes are known by their row, counted from zero. `columns` are source, target and perhaps weight; None
    finds them by their usual names, or takes the first two, and a third that is all there is left for weights.
    """
    if Path(path).suffix.lower() in ARRAY_ENDINGS:
        arrays = read_arrays(path)
        found = named_array(arrays, "edges")
        found = arrays.get("x") if found is None else found
        if found is None:
            raise DataError(f"holds no array called edge_index; it has {', '.join(arrays)}", path=path)
        with in_file(path):
            return edges_from(found, named_array(arrays, "weights"), num_nodes=num_nodes, ids=ids)
    source = open_table(path, format, ids=ids)
    head = source.head
    if columns is None and not head.named and len(head.names) == num_nodes > 3 and not any(head.textual):
        raise DataError(
            f"has {num_nodes} columns of numbers, as many as there are nodes, and looks like an adjacency matrix; save "
            f"it with numpy.save (.npy), or list its edges: one row per edge, with source, target and perhaps weight",
            path=path,
        )
    roles = _roles(head, columns)
    ignored = [name for i, name in enumerate(head.names) if i not in roles]
    table = source.read([i for i in range(len(head.names)) if i not in roles or (ids is not None and i in roles[:2])])
    index = np.stack([_positions(table.column(i), num_nodes, ids, _at(table, i)) for i in roles[:2]])
    notes: tuple[str, ...] = (f"columns of {Path(path).name} not used: {', '.join(ignored)}",) if ignored else ()
    if len(roles) == 3 and columns is None and table.names[roles[2]].strip().lower() not in WEIGHT_NAMES:
        third = repr(table.names[roles[2]]) if table.named else roles[2] + 1
        ends = ",".join(table.names[i] if table.named else str(i + 1) for i in roles[:2])
        notes += (
            f"edges are weighted by column {third} of {Path(path).name}; pass edge_columns={ends} if it is no weight",
        )
    weight = _weights(table.column(roles[2]), _at(table, roles[2])) if len(roles) == 3 else None
    return torch.from_numpy(index), weight, (*table.notes, *notes)


def _roles(head: Head, columns: Sequence[str | int] | None) -> list[int]:
    """Positions of source, target and perhaps weight."""
    width = len(head.names)
    if columns is not None:
        if len(columns) not in (2, 3):
            raise UserError(f"edge_columns: expected source, target and perhaps weight, got {tuple(columns)}")
        return [head.find(column, "edge_columns") for column in columns]
    if width < 2:
        raise DataError(
            "an edge has a source and a target, but here is one column; pass delimiter= if cells are parted otherwise",
            path=head.path,
        )
    source, target = head.named_like(SOURCE_NAMES), head.named_like(TARGET_NAMES)
    weight = head.named_like(WEIGHT_NAMES)[:1]
    if len(source) == len(target) == 1:
        return [source[0], target[0], *weight]
    if weight and weight[0] > 1:
        return [0, 1, *weight]
    if width > 3 and not head.named:
        raise DataError(
            f"expected 2 or 3 columns, got {width}; pass edge_columns=source,target,weight",
            path=head.path,
            argument="edge_columns",
        )
    return [0, 1, 2] if width == 3 and not head.textual[2] else [0, 1]


def _at(table: Table, column: int) -> Where:
    return lambda text, row: table.error(text, row, column)


def _positions(values: Any, num_nodes: int, ids: Ids | None, where: Where) -> NDArray[np.int64]:
    """Positions of the nodes that `values` names."""
    if ids is not None:
        return _by_id(values if isinstance(values, list) else values.tolist(), ids, num_nodes, where)
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        cells = [number(str(value)) for value in array.tolist()]
        strange = next((row for row, cell in enumerate(cells) if cell is None), None)
        if strange is not None:
            raise where(f"{str(values[strange])!r} is not the number of a row, and the nodes have no ids", strange)
        array = np.array(cells, dtype=np.float64)
    if array.dtype.kind == "f":
        wrong = array != np.floor(array)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise where(f"{array[row]} is not the number of a row", row)
    wrong = (array < 0) | (array >= num_nodes)
    if wrong.any():
        row = int(np.argmax(wrong))
        hint = "; yours seem to count from 1" if array.min() == 1 and array.max() == num_nodes else ""
        raise where(f"there is no node {array[row]:.0f}: rows are counted from 0 to {num_nodes - 1}{hint}", row)
    return array.astype(np.int64)


def _by_id(values: list[Any], ids: Ids, num_nodes: int, where: Where) -> NDArray[np.int64]:
    found = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        position = ids.get(value) if isinstance(value, str) else None
        if position is None:
            position = ids.get(canonical_id(value))
        if position is None:
            some = ", ".join(repr(name) for name in list(ids)[:3])
            close = near_misses([name for name in map(canonical_id, values) if name not in ids], ids)
            raise where(f"no node is called {str(value)!r}; the {num_nodes} there are begin with {some}{close}", row)
        found[row] = position
    return found


def _floats(values: Any, where: Where) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        for row, value in enumerate(values if hasattr(values, "__iter__") else [values]):
            if number(str(value)) is None:
                raise where(f"a weight must be a finite number ≥ 0, got {value!r}", row) from error
        raise DataError("edge_weight: expected one number per edge, got lists of different lengths") from error


def _weights(values: Any, where: Where) -> Tensor:
    weight = _floats(values, where)
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise where(f"a weight must be a finite number ≥ 0, got {weight[row]:g}", row)
    return torch.from_numpy(weight.astype(np.float32))


def _from_matrix(index: NDArray[Any], data: NDArray[Any], shape: Sequence[int], num_nodes: int) -> Edges:
    if tuple(shape) != (num_nodes, num_nodes):
        raise DataError(
            f"edge_index: an adjacency matrix of {num_nodes} nodes is square, [{num_nodes}, {num_nodes}], got "
            f"{list(shape)}; a list of edges has shape [2, E] or [E, 2]"
        )
    index, data = index[:, data != 0].astype(np.int64), data[data != 0]
    weight = _weights(data, lambda text, at: DataError(f"edge_index, entry {tuple(index[:, at].tolist())}: {text}"))
    return torch.from_numpy(index), None if bool((weight == 1).all()) else weight
