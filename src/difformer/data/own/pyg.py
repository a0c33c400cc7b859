"""PyG's objects as tasks: one ``Data`` is a task of nodes, a list of them a task of graphs.

A ``.pt`` file of ``torch.save`` is a pickle, and a pickle can call any function. It is read here by torch's restricted
loader, which builds tensors, containers and the few classes that a PyG ``Data`` consists of, and refuses the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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
    alone = len(items) == 1 and not isinstance(data, (list, tuple))
    features, ends, weights, targets = [], [], [], []
    ptr, notes, weighted = [0], [], False
    for i, item in enumerate(items):
        place = "data" if alone else f"graph {i}"
        x, index, weight = _part(item, use_positions, place)
        y = getattr(item, "y", None)
        if not isinstance(y, Tensor):
            got = "it has no y" if y is None else f"y is a {type(y).__name__}"
            raise DataError(f"{place}: expected a tensor y with the targets, but {got}")
        features.append(x)
        targets.append(y.reshape(y.shape[0], -1) if alone and y.dim() else y.reshape(1, -1))
        if x.shape[1] != features[0].shape[1]:
            raise DataError(f"{place}: has {x.shape[1]} features, graph 0 has {features[0].shape[1]}")
        if targets[-1].shape[1] != targets[0].shape[1] or not y.numel():
            counts = f"y holds {y.numel()} numbers, that of graph 0 {targets[0].numel()}"
            raise DataError(f"{place}: {counts}; a graph has one target, or as many as the others")
        if index is not None:
            ends.append(index + ptr[-1])
            weights.append(torch.ones(index.shape[1]) if weight is None else weight)
            weighted |= weight is not None
        ptr.append(ptr[-1] + x.shape[0])
    graph, stored = None, tuple[Split, ...]()
    if ends:
        index = torch.cat(ends, 1)
        attribute = getattr(items[0], "edge_attr", None)
        if attribute is not None and _weight_of(items[0]) is None:
            notes.append(f"edge_attr with {attribute.shape[1]} columns is not used: edges carry one weight at most")
        code = (index[0] * ptr[-1] + index[1]).unique()
        single = int((~torch.isin(code % ptr[-1] * ptr[-1] + code // ptr[-1], code)).sum())
        if single and not choices.get("directed"):
            count = f"{single} of {code.numel()} edges"
            notes.append(f"{count} came in one direction only; both are used: directed=true keeps them")
        graph = (index, torch.cat(weights) if weighted else None, tuple(notes))
    if alone and choices.get("splits") is None:
        masks = {name: getattr(items[0], name, None) for name in SPLIT_ARRAYS}
        arrays = {name: np.asarray(torch.as_tensor(mask).cpu()) for name, mask in masks.items() if mask is not None}
        try:
            stored = stored_splits(arrays, ptr[-1], by_row=False)
        except DataError as error:
            raise DataError(f"data: {error}") from error
    y, rows = torch.cat(targets), ptr[-1] if alone else len(items)
    labels = Labels(*label_cells(y.squeeze(1) if y.shape[1] == 1 else y, None, rows))
    node_ptr = None if alone else torch.tensor(ptr)
    joined = features[0] if alone else torch.cat(features)
    return assemble(Features(joined), labels, graph, node_ptr=node_ptr, stored=stored, **choices)


def _graphs_of(data: Any) -> list[Any]:
    """The graphs of a ``Data``, a list, a data set or a batch."""
    from torch_geometric.data import Batch, Data, Dataset, HeteroData

    if isinstance(data, Data):
        return list(data.to_data_list()) if isinstance(data, Batch) else [data]
    if isinstance(data, HeteroData):
        raise DataError("data: graphs with several types of nodes or edges are not supported; pass one type as a Data")
    if not isinstance(data, (list, tuple, Dataset)):
        raise DataError(f"data: expected a PyG Data or a list of them, got {type(data).__name__}")
    items = [data[i] for i in range(len(data))]
    if strange := [type(item).__name__ for item in items if not isinstance(item, Data)]:
        raise DataError(f"data: expected a list of PyG Data, got a list with {strange[0]}")
    if not items:
        raise DataError("data: an empty list, expected at least one Data")
    return items


def _part(data: Any, use_positions: bool, place: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
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
            # PyG's ToSparseTensor has put the edges into adj_t: entry i, j is the edge j → i.
            index, weight = getattr(data, "adj_t", None), None
            if index is None:
                return joined, None, None
            if hasattr(index, "to_torch_sparse_coo_tensor"):  # torch_sparse's class, known by what it can do
                index = index.to_torch_sparse_coo_tensor()
            if not isinstance(index, Tensor):
                raise DataError(f"adj_t must be a sparse matrix, got {type(index).__name__}")
            index = index.to_sparse_coo().t().coalesce()
        # PyG's edge_index is [2, E], also where E = 2.
        return joined, *edges_from(index.cpu(), weight, num_nodes=joined.shape[0])[:2]
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def _weight_of(data: Any) -> Tensor | None:
    weight, attribute = getattr(data, "edge_weight", None), getattr(data, "edge_attr", None)
    if weight is None and attribute is not None and (attribute.dim() == 1 or attribute.shape[1] == 1):
        weight = attribute
    return None if weight is None else weight.cpu().reshape(-1)


def read_pyg(path: str | os.PathLike[str]) -> Any:
    """What a file holds: a ``Data``, a list of them, or a data set that PyG has processed (as a list)."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {os.fspath(path)}")
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.separate import separate
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

    def is_graph(item: Any) -> bool:
        """Whether a ``Data`` holds what its class would have put there: the file fills it as it likes."""
        store = vars(item).get("_store") if isinstance(item, Data) else None
        return isinstance(store, GlobalStorage) and isinstance(vars(store).get("_mapping"), dict)

    if is_graph(found) or (isinstance(found, list) and found and all(map(is_graph, found))):
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
    expected = "expected a PyG Data, a list of them, or a processed data set"
    raise DataError(f"holds a {type(found).__name__}; {expected}", path=path)
