"""Pickled pandas tables and PyG data, read without pandas, without PyG, and without running anything.

A pickled `DataFrame` is a few arrays, each holding several columns, and two indices. Stand-ins for pandas' classes
collect them as they come out of the safe unpickler; so the file can neither run code nor fail because pandas has
moved its classes since. Likewise for `torch_geometric.data.Data`, which is a dictionary of tensors.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from types import ModuleType
from typing import IO, Any

import numpy as np
import torch

from difformer.data.errors import DataError
from difformer.data.unpickle import SafeUnpickler, safe_load

Array = np.ndarray[Any, Any]


class Frame:
    """Columns of a table by name."""

    columns: dict[str, Array]

    def __setstate__(self, state: dict[str, Any]) -> None:
        manager = state.get("_mgr", state.get("_data"))  # the second name is pandas' before 1.1
        if not isinstance(manager, _Manager):
            raise pickle.UnpicklingError("a table without a block manager")
        self.columns = {}
        names = manager.axes[0]
        for values, place in manager.blocks:
            where = np.arange(len(names))[place]
            for name, column in zip(np.asarray(names)[where], np.atleast_2d(values), strict=True):
                self.columns[str(name)] = column

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


class _Manager:
    """pandas' BlockManager: blocks of columns, and the two indices."""

    def __init__(self, blocks: Any = (), axes: Any = (), *_: Any) -> None:
        self.blocks, self.axes = list(blocks), list(axes)

    def __setstate__(self, state: Any) -> None:  # before pandas 1.3
        inner = state[3]["0.14.1"]
        self.axes = list(inner["axes"])
        self.blocks = [(block["values"], block["mgr_locs"]) for block in inner["blocks"]]


class _Kind:
    """A class of indices, of which only the name matters."""


def _block(values: Any, place: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    return values, place


def _index(kind: type, state: dict[str, Any]) -> Array:
    if "data" in state:
        return np.asarray(state["data"])
    return np.arange(state["start"], state["stop"], state["step"])


_INDICES = (
    *((module, name) for module in ("pandas", "pandas.core.indexes.base") for name in ("Index", "RangeIndex")),
    ("pandas.core.indexes.range", "RangeIndex"),
    *(("pandas.core.indexes.numeric", name) for name in ("Int64Index", "UInt64Index", "Float64Index", "NumericIndex")),
)
PANDAS: Mapping[tuple[str, str], object] = {
    ("pandas", "DataFrame"): Frame,
    ("pandas.core.frame", "DataFrame"): Frame,
    ("pandas.core.internals.managers", "BlockManager"): _Manager,
    ("pandas._libs.internals", "_unpickle_block"): _block,
    ("pandas.core.indexes.base", "_new_Index"): _index,
    **dict.fromkeys(_INDICES, _Kind),
}


def load_frames(source: IO[bytes]) -> Any:
    """A pickle of containers of `DataFrame`s, with `Frame`s in their place."""
    return safe_load(source, extra=PANDAS)


class _Bag:
    """An object of which only the attributes matter."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


_GEOMETRIC: Mapping[tuple[str, str], object] = {
    ("torch_geometric.data.data", "Data"): _Bag,
    ("torch_geometric.data.storage", "GlobalStorage"): _Bag,
    ("torch_geometric.data.data", "DataTensorAttr"): _Bag,
    ("torch_geometric.data.data", "DataEdgeAttr"): _Bag,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
}


class _TensorUnpickler(SafeUnpickler):
    def __init__(self, file: IO[bytes], *, encoding: str = "utf-8") -> None:
        super().__init__(file, encoding=encoding, extra=_GEOMETRIC)


def load_collated(source: IO[bytes]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What an `InMemoryDataset` saves: all graphs' tensors end to end, and where each graph's part begins and ends.

    Args:
        source: A file written by ``torch.save((data, slices, …))``.
    """
    content = io.BytesIO(source.read())
    if zipfile.is_zipfile(content):
        with zipfile.ZipFile(content) as archive:
            # By this member torch.load knows a TorchScript program, and would hand it over to another loader.
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                raise DataError("is a TorchScript program, not a file of tensors; it was not loaded")
    content.seek(0)
    module = ModuleType("safe_pickle")
    module.Unpickler, module.load = _TensorUnpickler, safe_load  # type: ignore[attr-defined]
    loaded = torch.load(content, map_location="cpu", pickle_module=module, weights_only=False)
    data, slices = loaded[0], loaded[1]
    stored = data._store._mapping if hasattr(data, "_store") else data.__dict__
    return dict(stored), dict(slices)
