"""PyG's objects as tasks: one ``Data`` is a task of nodes, a list of them a task of graphs.

A ``.pt`` file of ``torch.save`` is a pickle, and a pickle can call any function. It is read here by torch's restricted
loader, which builds tensors, containers and the few classes that a PyG ``Data`` consists of, and refuses the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from difformer.data.errors import DataError
from difformer.data.own.arrays import SPLIT_ARRAYS, features_from, label_cells, stored_splits
from difformer.data.own.assembly import Choices, assemble, check_names
from difformer.data.own.feature_tables import Features
from difformer.data.own.graphs import edges_from
from difformer.data.own.targets import Labels
from difformer.data.split import Split
from difformer.data.task import Task

if TYPE_CHECKING:
    from typing_extensions import Unpack

PYG_ENDINGS = (".pt", ".pth")


def from_pyg(
    data: Any,
    *,
    use_positions: bool = False,
    **choices: Unpack[Choices],
) -> Task:
    """A task from a PyG ``Data``, a list or data set of them, or a ``Batch``.

    PyG lists both directions of an undirected edge. Where an edge comes in one direction only, the other one is added
    unless `directed` is true, and a note says so. ``edge_weight``, or an ``edge_attr`` of one column, weighs the edges.
    The masks of a single ``Data`` (one split per column), or its ``train_idx``, ``val_idx`` and ``test_idx``, are its
    splits, unless `splits` is given.

    Args:
        data: What to take over.
        use_positions: Append ``pos`` to the features; where there is no ``x``, ``pos`` is taken in any case.
        **choices: ``name``, ``problem``, ``metric``, ``splits``, ``fractions``, ``seeds``, ``directed``,
            ``self_loops``, ``duplicates``, ``missing``, ``class_names`` and ``standardize`` as in `from_arrays`;
            self-loops are kept as they are unless ``self_loops`` says otherwise.

    Raises:
        DataError: If something is absent or contradicts the rest; the message says in which graph.
    """
    check_names("from_pyg", choices)
    choices.setdefault("self_loops", "keep")
    items = _graphs_of(data)
    if not items:
        raise DataError("data: an empty list, expected at least one Data")
    alone = len(items) == 1 and not isinstance(data, (list, tuple))
    parts = [_part(item, use_positions, "data" if alone else f"graph {i}") for i, item in enumerate(items)]
    widths = [x.shape[1] for x, _, _ in parts]
    odd = next((i for i, width in enumerate(widths) if width != widths[0]), None)
    if odd is not None:
        raise DataError(f"graph {odd}: has {widths[odd]} features, graph 0 has {widths[0]}")
    sizes = torch.tensor([x.shape[0] for x, _, _ in parts])
    ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    edges = _joined_edges(parts, ptr)
    notes = _notes(items[0])
    if edges is not None and not choices.get("directed"):
        size = int(ptr[-1])
        code = (edges[0][0] * size + edges[0][1]).unique()
        single = int((~torch.isin(code % size * size + code // size, code)).sum())
        if single:
            count = f"{single} of {code.numel()} edges"
            notes.append(f"{count} came in one direction only; both are used: directed=true keeps them")
    x = parts[0][0] if alone else torch.cat([features for features, _, _ in parts])
    y = _attribute(items[0], "y", "data") if alone else _graph_targets(items)
    cells = label_cells(
        y.squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y, None, x.shape[0] if alone else len(items)
    )
    stored = _stored_splits(items[0], x.shape[0]) if alone and choices.get("splits") is None else ()
    node_ptr = None if alone else ptr
    return assemble(Features(x), Labels(*cells), edges, node_ptr=node_ptr, stored=stored, notes=notes, **choices)


Part = tuple[Tensor, Tensor | None, Tensor | None]


def _graphs_of(data: Any) -> list[Any]:
    """The graphs of a ``Data``, a list, a data set or a batch."""
    from torch_geometric.data import Batch, Data, Dataset, HeteroData

    if isinstance(data, Data):
        return list(data.to_data_list()) if isinstance(data, Batch) else [data]
    if isinstance(data, HeteroData):
        raise DataError("data: graphs with several types of nodes or edges are no task of this package")
    if not isinstance(data, (list, tuple, Dataset)):
        raise DataError(f"data: expected a PyG Data or a list of them, got {type(data).__name__}")
    items = [data[i] for i in range(len(data))]
    strange = next((type(item).__name__ for item in items if not isinstance(item, Data)), None)
    if strange is not None:
        raise DataError(f"data: expected a list of PyG Data, got a list with {strange}")
    return items


def _part(data: Any, use_positions: bool, place: str) -> Part:
    """Features, edges as given, and weights of one graph."""
    x, pos = getattr(data, "x", None), getattr(data, "pos", None)
    found = [part for part in ((x, pos) if use_positions else (pos,) if x is None else (x,)) if part is not None]
    if not found:
        raise DataError(f"{place}: has neither x nor pos, so there are no features")
    if strange := [type(part).__name__ for part in found if not isinstance(part, Tensor)]:
        raise DataError(f"{place}: x and pos must be tensors, got {strange[0]}")
    try:
        features = [features_from(part.unsqueeze(1) if part.dim() == 1 else part)[0] for part in found]
        joined = features[0] if len(features) == 1 else torch.cat([part.to_dense() for part in features], 1)
        index, weight = getattr(data, "edge_index", None), _weight_of(data)
        if index is None:
            index, weight = _adjacency(data), None
        if index is None:
            return joined, None, None
        # PyG's edge_index is [2, E], also where E = 2.
        return joined, *edges_from(index.cpu(), weight, num_nodes=joined.shape[0])[:2]
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def _adjacency(data: Any) -> Any:
    """``adj_t``, where PyG's ToSparseTensor has put the edges: entry i, j is the edge j → i."""
    matrix = getattr(data, "adj_t", None)
    if matrix is not None and not isinstance(matrix, Tensor):  # torch_sparse's class, known by what it can do
        if not hasattr(matrix, "to_torch_sparse_coo_tensor"):
            raise DataError(f"adj_t must be a sparse matrix, got {type(matrix).__name__}")
        matrix = matrix.to_torch_sparse_coo_tensor()
    return None if matrix is None else matrix.to_sparse_coo().t().coalesce()


def _weight_of(data: Any) -> Tensor | None:
    weight, attribute = getattr(data, "edge_weight", None), getattr(data, "edge_attr", None)
    if weight is None and attribute is not None and (attribute.dim() == 1 or attribute.shape[1] == 1):
        weight = attribute
    return None if weight is None else weight.cpu().reshape(-1)


def _notes(data: Any) -> list[str]:
    attribute = getattr(data, "edge_attr", None)
    if attribute is None or _weight_of(data) is not None:
        return []
    return [f"edge_attr with {attribute.shape[1]} columns is not used: edges carry one weight at most"]


def _joined_edges(parts: list[Part], ptr: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """The edges of all graphs as given, moved to where their nodes are."""
    given = [
        (index + start, weight) for (_, index, weight), start in zip(parts, ptr, strict=False) if index is not None
    ]
    if not given:
        return None
    indices = torch.cat([index for index, _ in given], 1)
    if all(weight is None for _, weight in given):
        return indices, None
    return indices, torch.cat([torch.ones(index.shape[1]) if weight is None else weight for index, weight in given])


def _attribute(data: Any, name: str, place: str) -> Tensor:
    value = getattr(data, name, None)
    if not isinstance(value, Tensor):
        raise DataError(f"{place}: has no tensor {name}, got {type(value).__name__}")
    return value


def _graph_targets(items: list[Any]) -> Tensor:
    """One row of targets per graph."""
    rows = [_attribute(item, "y", f"graph {i}").reshape(-1) for i, item in enumerate(items)]
    for i, row in enumerate(rows):
        if row.numel() != rows[0].numel() or not row.numel():
            raise DataError(
                f"graph {i}: y holds {row.numel()} numbers, that of graph 0 {rows[0].numel()}; a graph has one target, "
                f"or as many as the others"
            )
    return torch.stack(rows)


def _stored_splits(data: Any, num_nodes: int) -> tuple[Split, ...]:
    found = {name: value for name in SPLIT_ARRAYS if (value := getattr(data, name, None)) is not None}
    try:
        arrays = {name: _attribute(data, name, "split").numpy(force=True) for name in found}
        return stored_splits(arrays, num_nodes, by_row=False)
    except DataError as error:
        raise DataError(f"data: {error}") from error


def read_pyg(path: str | os.PathLike[str]) -> Any:
    """What a file holds: a ``Data``, a list of them, or a data set that PyG has processed (as a list)."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {os.fspath(path)}")
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with torch.serialization.safe_globals([Data, GlobalStorage, DataEdgeAttr, DataTensorAttr]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the loader finds wrong is the file's fault, and is named so
        raise DataError(
            "is damaged, or holds more than tensors and PyG's Data, which is not read because it could run code; save "
            "the Data object, or a list of them, with torch.save(data, path), or its arrays as NPZ "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0][:200]})",
            path=path,
        ) from error
    return _graphs(found, path)


def _graphs(found: Any, path: str | os.PathLike[str]) -> Any:
    from torch_geometric.data import Data
    from torch_geometric.data.separate import separate
    from torch_geometric.data.storage import GlobalStorage

    def is_graph(item: Any) -> bool:
        """Whether a ``Data`` holds what its class would have put there: the file fills it as it likes."""
        store = vars(item).get("_store") if isinstance(item, Data) else None
        return isinstance(store, GlobalStorage) and isinstance(vars(store).get("_mapping"), dict)

    if is_graph(found):
        return found
    if isinstance(found, list) and found and all(map(is_graph, found)):
        return found
    # As InMemoryDataset.save writes it: all graphs end to end, where each begins, and the class.
    # Before PyG 2.4 the whole itself comes first.
    if isinstance(found, tuple) and len(found) >= 2 and (is_graph(found[0]) or isinstance(found[0], dict)):
        whole, slices = found[0] if isinstance(found[0], Data) else Data.from_dict(found[0]), found[1]
        if not slices:
            return whole
        try:
            count = len(next(iter(slices.values()))) - 1
            return [separate(Data, batch=whole, idx=i, slice_dict=slices, decrement=False) for i in range(count)]
        except Exception as error:  # whatever PyG finds wrong is the file's fault, and is named so
            raise DataError(f"its graphs cannot be told apart ({type(error).__name__}: {error})", path=path) from error
    raise DataError(
        f"holds a {type(found).__name__}; expected a PyG Data, a list of them, or a processed data set", path=path
    )
