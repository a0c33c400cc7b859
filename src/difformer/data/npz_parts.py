"""What an NPZ file may hold besides features: names of classes, masks, and kinds of data that files do not give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from difformer.data.columnar import named_array
from difformer.data.errors import DataError
from difformer.data.feature_files import Features
from difformer.data.split import Split
from difformer.data.splitting import masks_split
from difformer.data.tables import canonical_id


def refuse_other_kinds(found: Features) -> None:
    """Files hold instances of one table or graph; what else an NPZ may hold is for `from_arrays`."""
    ways = "load it with numpy.load and pass its arrays to difformer.data.from_arrays"
    if found.x.dim() == 3:
        raise DataError(f"x has shape {list(found.x.shape)}, a series of snapshots; {ways}", path=found.path)
    if "node_ptr" in found.arrays:
        raise DataError(f"holds many graphs (an array node_ptr); {ways}", path=found.path)


def class_names_of(arrays: Mapping[str, Any]) -> list[str]:
    """The classes in the order of the file, where it names them and its labels are names, or numbers of names."""
    names, y = named_array(arrays, "class_names"), named_array(arrays, "y")
    if not isinstance(names, np.ndarray) or not isinstance(y, np.ndarray) or names.ndim != 1:
        return []
    found = [canonical_id(name) for name in names.tolist()]
    if len(set(found)) != len(found) or "" in found:
        return []
    numbers = y.dtype.kind in "iu" and y.ndim == 1 and y.size > 0 and y.min() >= -1 and y.max() < len(found)
    return found if numbers or y.dtype.kind not in "biuf" else []


def labels_by_name(y: Any, arrays: Mapping[str, Any]) -> Any:
    """Labels by the names of their classes, where there are names; -1 stays no label."""
    names = class_names_of(arrays)
    return [names[i] if i >= 0 else "" for i in y.tolist()] if names and y.dtype.kind in "iu" else y


def mask_splits(found: Features) -> tuple[Split, ...]:
    """Splits from ``train_mask``, ``val_mask`` and ``test_mask``, ``[N]`` or one a row.

    Raises:
        DataError: If they are no masks of these rows.
    """
    for plural in ("s", ""):
        names = [[f"{part}_mask{plural}" for part in parts] for parts in (("train",), ("val", "valid"), ("test",))]
        train, valid, test = (next((found.arrays[n] for n in group if n in found.arrays), None) for group in names)
        if train is None and test is None:
            continue
        if train is None or test is None:
            lacks = f"{'train' if train is None else 'test'}_mask{plural}"
            raise DataError(
                f"its masks do not say what to train on and what to test: there is no {lacks}; pass splits= to set "
                f"masks aside",
                path=found.path,
            )
        if valid is None:  # `assemble` takes validation from the training part
            valid = np.zeros_like(train)
        try:
            for mask in (train, valid, test):
                if mask.shape[-1:] != found.x.shape[:1]:
                    raise ValueError(f"shape {list(mask.shape)} where there are {found.x.shape[0]} rows")
            return masks_split(train, valid, test, name="masks")
        except (ValueError, TypeError) as error:
            raise DataError(f"its masks are no splits: {error}", path=found.path) from error
    return ()
