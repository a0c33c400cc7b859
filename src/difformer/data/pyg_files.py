"""PyG objects from a ``.pt`` file, read without running anything that stands in it.

A file of ``torch.save`` is a pickle, and a pickle can call any function. It is read here by torch's restricted loader,
which builds tensors, containers and the few classes that a PyG ``Data`` consists of, and refuses the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from difformer.data.errors import DataError

ENDINGS = (".pt", ".pth")


def read_pyg(path: str | os.PathLike[str]) -> Any:
    """What a file holds: a ``Data``, a list of them, or a data set that PyG has processed (as a list).

    Raises:
        DataError: If the file is broken, holds something else, or needs more than the restricted loader builds.
        FileNotFoundError: If there is none.
    """
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
            "cannot be read without running code that stands in it, or is no file of torch.save; if you trust it, "
            "load it yourself from Python: difformer.data.from_pyg(torch.load(path, weights_only=False))",
            path=path,
        ) from error
    return _graphs(found, path)


def _graphs(found: Any, path: str | os.PathLike[str]) -> Any:
    from torch_geometric.data import Data
    from torch_geometric.data.separate import separate

    if isinstance(found, Data):
        return found
    if isinstance(found, list) and found and all(isinstance(item, Data) for item in found):
        return found
    # As InMemoryDataset.save writes it: all graphs end to end, where each begins, and the class.
    # Before PyG 2.4 the whole itself stands first.
    if isinstance(found, tuple) and len(found) >= 2 and isinstance(found[0], (dict, Data)):
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
