"""Graphs as users have them: pairs of names, index arrays, adjacency matrices, tables of edges, PyG's objects.

Edges come out as given, as positions of nodes; `tidy_edges` does the rest.

A ``.pt`` file of ``torch.save`` is a pickle, and a pickle can call any function. It is read by torch's restricted
loader, which builds tensors, containers and the few classes that a PyG ``Data`` consists of, and refuses the rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from difformer.data.own.cell_values import number
from difformer.data.own.csv_files import ARRAY_ENDINGS, TextFormat, open_table
from difformer.data.own.features import SPLIT_ARRAYS, Features, Rows, features_from, named_array, needed_array
from difformer.data.own.table import LARGEST, Column, Path_, Table
from difformer.data.sparse_features import stack_rows, to_scipy
from difformer.errors import DataError, UserError, in_file
from difformer.sparse import check_scipy

HETERO = "graphs with several types of nodes or edges are not supported; pass one type as a Data, or to_homogeneous()"
Found = tuple[Tensor, Tensor | None, tuple[str, ...]]  # ends [2, E], weights [E], notes on what was guessed


def edge_ends(edges: Any) -> tuple[NDArray[Any], str | None]:
    """Sources and targets, ``[2, E]``, of edges given as an array, a tensor or nested lists, and a note on a guess.

    A list or tuple of pairs holds one edge per pair: ``[(0, 1), (2, 3)]`` is 0 → 1 and 2 → 3. An array or tensor is
    ``[2, E]``, sources above targets, as in PyG, or ``[E, 2]``. Two by two is ambiguous: an array is then read as
    ``[2, E]`` and a list as pairs, and the note says so.

    Raises:
        DataError: If the shape is neither.
    """
    array = _array(edges)
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


def _array(edges: Any) -> NDArray[Any]:
    try:
        return edges.numpy(force=True) if isinstance(edges, Tensor) else np.asarray(edges)
    except ValueError as error:
        raise DataError("edge_index: expected shape [2, E] or [E, 2], got rows of different lengths") from error


def edges_from(edges: Any, weights: Any, rows: Rows) -> Found:
    """Edges from a list or array, see `edge_ends`, an adjacency matrix, or a frame of two or three columns.

    Arrays of whole numbers hold positions; lists and frames hold ids if the `rows` have them.
    """
    if (found := _from_matrix(edges, rows.size)) is not None:
        return found
    notes: tuple[str, ...] = ()
    if hasattr(edges, "columns"):
        ends: Any = [np.asarray(edges[name]) for name in edges.columns]
        if len(ends) not in (2, 3):
            raise DataError(f"edge_index: a frame of edges has two columns, or three with weights; got {len(ends)}")
        ends, weights = ends[:2], ends[2] if len(ends) == 3 else weights
    else:
        ends, note = edge_ends(edges)
        notes = () if note is None else (note,)
        rows = Rows(rows.size) if isinstance(edges, (Tensor, np.ndarray)) and ends.dtype.kind in "iu" else rows
    rows.find_ids(ends, "ends of edges")
    try:
        index = np.stack([rows.positions(end) for end in ends])
        return torch.from_numpy(index), None if weights is None else _weights(weights, index.shape[1]), notes
    except DataError as error:
        place = "" if error.row is None else f"edge_index, edge {error.row}: "
        raise DataError(f"{place}{error.problem}", argument=error.argument) from error


def _from_matrix(edges: Any, num_nodes: int) -> Found | None:
    """The edges of an adjacency matrix, a dense one of at least three rows; None if `edges` is a list of edges."""
    if hasattr(edges, "tocoo") or (isinstance(edges, Tensor) and edges.layout != torch.strided):
        try:
            matrix = edges if hasattr(edges, "tocoo") else to_scipy(edges)
            check_scipy(matrix)
        except ValueError as error:
            raise DataError(f"edge_index: is not an adjacency matrix that can be used: {error}") from error
        matrix = matrix.tocoo(copy=True)
        matrix.sum_duplicates()
    else:
        array = _array(edges)
        if array.ndim != 2 or not array.shape[0] == array.shape[1] > 2 or array.dtype.kind not in "biuf":
            return None
        if hasattr(edges, "columns") and not len(array) == num_nodes > 3:  # three columns: ends and weights
            return None
        matrix = sparse.coo_array(array)
    if tuple(matrix.shape) != (num_nodes, num_nodes):
        square = f"edge_index: an adjacency matrix of {num_nodes} nodes is square, [{num_nodes}, {num_nodes}]"
        raise DataError(f"{square}, got {list(matrix.shape)}; a list of edges has shape [2, E] or [E, 2]")
    filled = matrix.data != 0
    index = np.stack([matrix.row, matrix.col])[:, filled].astype(np.int64)
    try:
        weight = _weights(matrix.data[filled], index.shape[1])
    except DataError as error:
        raise DataError(f"edge_index, entry {tuple(index[:, error.row].tolist())}: {error.problem}") from error
    return torch.from_numpy(index), None if bool((weight == 1).all()) else weight, ()


def edges_in(found: Features) -> Found | None:
    """The edges stored with the features in a file of arrays, or None."""
    edges, weights = named_array(found.arrays, "edges"), named_array(found.arrays, "weights")
    with in_file(found.path):
        return None if edges is None else edges_from(edges, weights, Rows(found.x.shape[0], found.index))


def read_edges(path: Path_, rows: Rows, columns: Sequence[Column] | None, format: TextFormat) -> Found:
    """Edges from a table of sources, targets and perhaps weights, or an NPZ."""
    if Path(path).suffix.lower() in ARRAY_ENDINGS:
        found, arrays = needed_array(path, "edges", "x")
        with in_file(path):
            return edges_from(found, named_array(arrays, "weights"), rows)
    table = open_table(path, format, role="edges", ids=rows.ids)
    roles, ends, weight, notes = _roles(table, columns), [], None, list(table.notes)
    unused = [i for i in range(len(table.names)) if i not in roles]
    first, second = (table.names[i] for i in roles[:2])
    taken = f"; columns {first!r} and {second!r} were taken as the ends of edges: pass edge_columns= if others are"
    taken = taken if columns is None and table.named and not table.named_like("source") else ""
    try:
        table.read([*unused, *(i for i in roles[:2] if rows.ids is not None or table.textual[i])])
        rows.find_ids([table.cells[i] for i in roles[:2]], "ends of edges")
        for i in roles[:2]:
            with table.locate({None: i}):
                ends.append(rows.positions(table.cells[i]))
    except DataError as error:
        raise DataError(f"{error.problem}{taken}", path=error.path, **error.place, argument=error.argument) from error
    if unused:
        notes.append(f"columns of {table.file} not used: {', '.join(table.names[i] for i in unused)}{taken}")
    if len(roles) == 3:
        name = table.names[roles[2]]
        with table.locate({None: roles[2]}):
            weight = _weights(table.cells[roles[2]], table.rows)
        if columns is None and roles[2] not in table.named_like("weight"):
            third = f"column {repr(name) if table.named else name} of {table.file}"
            notes.append(f"edges are weighted by {third}; pass edge_columns={first},{second} if it is not a weight")
    return torch.from_numpy(np.stack(ends)), weight, tuple(notes)


def _roles(table: Table, columns: Sequence[Column] | None) -> list[int]:
    """Positions of source, target and perhaps weight."""
    width = len(table.names)
    if columns is not None:
        if len(columns) not in (2, 3):
            raise UserError(f"edge_columns: expected source, target and perhaps weight, got {tuple(columns)}")
        return [table.find(column, "edge_columns") for column in columns]
    if width < 2:
        problem = "an edge has a source and a target, but there is one column"
        raise DataError(f"{problem}; pass delimiter= if cells are separated otherwise", path=table.path)
    source, target = table.named_like("source"), table.named_like("target")
    weight = table.named_like("weight")[:1]
    if len(source) == len(target) == 1:
        return [source[0], target[0], *weight]
    if weight and weight[0] > 1:
        return [0, 1, *weight]
    if width > 3 and not table.named:
        problem = f"expected 2 or 3 columns, got {width}; pass edge_columns=source,target,weight"
        problem += ", or save an adjacency matrix with numpy.save (.npy)"
        raise DataError(problem, path=table.path, argument="edge_columns")
    return [0, 1, 2] if width == 3 and not table.textual[2] else [0, 1]


def _weights(values: Any, count: int) -> Tensor:
    """Weights of `count` edges; errors name the row."""
    values = values.numpy(force=True) if isinstance(values, Tensor) else values
    try:
        weight = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        given = list(values) if hasattr(values, "__iter__") else [values]
        row = next((i for i, value in enumerate(given) if number(str(value)) is None), 0)
        raise DataError(f"a weight must be a finite number ≥ 0, got {given[row]!r}", row=row) from error
    if weight.shape != (count,):
        raise DataError(f"edge_weight: expected {count} numbers, one per edge, got shape {list(weight.shape)}")
    good = (weight >= 0) & (weight <= LARGEST)  # false for NaN
    if not good.all():
        row = int(np.argmin(good))
        remedy = "correct it, or leave the edge out"
        raise DataError(f"a weight must be a finite number ≥ 0, got {weight[row]:g}; {remedy}", row=row)
    return torch.from_numpy(weight.astype(np.float32))


def join_graphs(data: Any, *, directed: bool) -> tuple[Features, Tensor, Found | None]:
    """Features (with stored splits), targets and edges of PyG's objects; one ``Data`` has no ``node_ptr``."""
    items, parts = _graphs_of(data), list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]()
    alone = len(items) == 1 and not isinstance(data, (list, tuple))
    for i, item in enumerate(items):
        try:
            parts.append(_part(item, alone))
            x, y = parts[-1][:2]
            if x.shape[1] != (first := parts[0][0].shape[1]):
                raise DataError(f"has {x.shape[1]} features, graph 0 has {first}")
            if y.shape[1] != (first := parts[0][1].shape[1]) or not y.numel():
                counts = f"y holds {y.numel()} numbers, that of graph 0 {first}"
                raise DataError(f"{counts}; a graph has one target, or as many as the others")
        except DataError as error:
            raise DataError(f"{'data' if alone else f'graph {i}'}: {error}") from error
    features, targets, ends, weights = zip(*parts, strict=True)
    x, y, ptr = stack_rows(features), torch.cat(targets), [0, *accumulate(map(len, features))]
    edges = [(end + at, weight) for end, weight, at in zip(ends, weights, ptr[:-1], strict=True) if end is not None]
    graph = None
    if edges:
        index, weight, notes = torch.cat([end for end, _ in edges], 1), None, list[str]()
        if any(one is not None for _, one in edges):
            weight = torch.cat([torch.ones(end.shape[1]) if one is None else one for end, one in edges])
        attribute = getattr(items[0], "edge_attr", None)
        if attribute is not None and _weight_of(items[0]) is None:
            notes.append(f"edge_attr with {attribute.shape[1]} columns is not used: edges carry one weight at most")
        code = (index[0] * len(x) + index[1]).unique()
        if not directed and (single := int((~torch.isin(code % len(x) * len(x) + code // len(x), code)).sum())):
            count = f"{single} of {code.numel()} edges"
            notes.append(f"{count} came in one direction only; both are used: directed=true keeps them")
        graph = (index, weight, tuple(notes))
    stored = {name: getattr(items[0], name, None) for name in SPLIT_ARRAYS} if alone else {}
    arrays = {name: torch.as_tensor(mask).numpy(force=True).T for name, mask in stored.items() if mask is not None}
    found = Features(x, node_ptr=None if alone else torch.tensor(ptr), arrays=arrays)
    return found, y.squeeze(1) if y.shape[1] == 1 else y, graph


def _graphs_of(data: Any) -> list[Any]:
    """The graphs of a ``Data``, a list, a data set or a batch."""
    from torch_geometric.data import Batch, Data, Dataset, HeteroData

    if isinstance(data, Data):
        return list(data.to_data_list()) if isinstance(data, Batch) else [data]
    several = isinstance(data, (list, tuple, Dataset))
    items = [data[i] for i in range(len(data))] if several else [data]
    if any(isinstance(item, HeteroData) for item in items):
        raise DataError(f"data: {HETERO}")
    if strange := [type(item).__name__ for item in items if not isinstance(item, Data)]:
        got = f"a {type(data).__name__} with an item of type {strange[0]}" if several else strange[0]
        raise DataError(f"data: expected a PyG Data or a list of them, got {got}")
    if not items:
        raise DataError("data: an empty list, expected at least one Data")
    return items


def _part(data: Any, alone: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Features, targets, edges as given, and weights of one graph; its targets are one row unless it is `alone`."""
    x, y, pos, index = (getattr(data, name, None) for name in ("x", "y", "pos", "edge_index"))
    x = pos if x is None else x
    if x is None:
        raise DataError("has neither x nor pos, so there are no features")
    if not isinstance(x, Tensor):
        raise DataError(f"x and pos must be tensors, got {type(x).__name__}")
    x, _ = features_from(x.unsqueeze(1) if x.dim() == 1 else x, name="pos" if x is pos else "x")
    weight = _weight_of(data)
    if index is None and (matrix := getattr(data, "adj_t", None)) is not None:
        # PyG's ToSparseTensor has put the edges into adj_t: entry i, j is the edge j → i.
        if hasattr(matrix, "to_torch_sparse_coo_tensor"):  # the class of torch_sparse
            matrix = matrix.to_torch_sparse_coo_tensor()
        if not isinstance(matrix, Tensor):
            raise DataError(f"adj_t must be a sparse matrix, got {type(matrix).__name__}")
        index, weight = matrix.to_sparse_coo().t().coalesce(), None
    if index is not None:  # PyG's edge_index is [2, E], also where E = 2
        index, weight, _ = edges_from(index.cpu(), weight, Rows(x.shape[0]))
    if not isinstance(y, Tensor):
        got = "it has no y" if y is None else f"y is a {type(y).__name__}"
        raise DataError(f"expected a tensor y with the targets, but {got}")
    return x, y.reshape(y.shape[0], -1) if alone and y.dim() else y.reshape(1, -1), index, weight


def _weight_of(data: Any) -> Tensor | None:
    weight, attribute = getattr(data, "edge_weight", None), getattr(data, "edge_attr", None)
    if weight is None and attribute is not None and (attribute.dim() == 1 or attribute.shape[1] == 1):
        weight = attribute
    return None if weight is None else weight.cpu().reshape(-1)


def read_pyg(path: Path_) -> Any:
    """What a file holds: a ``Data``, a list of them, or a data set that PyG has processed, as a list."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {os.fspath(path)}")
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.separate import separate
    from torch_geometric.data.storage import GlobalStorage

    try:
        with torch.serialization.safe_globals([Data, GlobalStorage, DataEdgeAttr, DataTensorAttr]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors for damaged files
        if "storage.BaseStorage" in str(error):  # of HeteroData
            raise DataError(HETERO, path=path) from error
        problem = "is damaged, or holds more than tensors and PyG's Data, which is not read because it could run code; "
        problem += "save the Data object, or a list of them, with torch.save(data, path), or its arrays as NPZ "
        problem += f"({type(error).__name__}: {str(error).partition(chr(10))[0][:200]})"
        raise DataError(problem, path=path) from error

    def is_graph(item: Any) -> bool:  # a forged file may put anything into a Data
        store = vars(item).get("_store") if isinstance(item, Data) else None
        return isinstance(store, GlobalStorage) and isinstance(vars(store).get("_mapping"), dict)

    if is_graph(found) or (isinstance(found, list) and found and all(map(is_graph, found))):
        return found
    if isinstance(found, tuple) and found and isinstance(found[0], dict) and "_global_store" in found[0]:
        raise DataError(HETERO, path=path)
    # As InMemoryDataset.save writes it: all graphs end to end, where each begins, and (since PyG 2.4) the class.
    if isinstance(found, tuple) and len(found) >= 2 and (is_graph(found[0]) or isinstance(found[0], dict)):
        try:
            whole, slices = found[0] if isinstance(found[0], Data) else Data.from_dict(found[0]), found[1]
            count = len(next(iter(slices.values()))) - 1 if slices else 0
            graphs = [separate(Data, batch=whole, idx=i, slice_dict=slices, decrement=False) for i in range(count)]
            return graphs if slices else whole
        except Exception as error:  # of a damaged or forged file
            raise DataError(f"its graphs cannot be told apart ({type(error).__name__}: {error})", path=path) from error
    remedy = "load a data set of PyG in Python and save the list of its graphs, torch.save(list(dataset), path)"
    raise DataError(f"holds a {type(found).__name__}; expected a PyG Data or a list of them; {remedy}", path=path)
