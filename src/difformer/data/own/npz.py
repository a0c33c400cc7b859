"""NPZ and NPY files: arrays by their usual names, sparse matrices, masks."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.archives import read_npy, read_npz
from difformer.data.errors import DAMAGE, DataError
from difformer.data.own.table import canonical_id
from difformer.data.sparse import checked_csr
from difformer.data.split import Split
from difformer.data.split_rules import masks_split

ARRAY_ENDINGS = (".npz", ".npy")
# What the arrays of an NPZ file are called; the first name found counts.
ARRAY_NAMES = {
    "x": ("x", "X", "features", "node_features", "feat"),
    "y": ("y", "Y", "labels", "label", "node_labels", "targets", "target"),
    "edges": ("edge_index", "edges"),
    "weights": ("edge_weight", "edge_weights", "weights"),
    "ids": ("ids", "node_ids", "instance_names", "node_names"),
    "feature_names": ("feature_names", "columns"),
    "class_names": ("class_names",),
}
SPARSE_PARTS = ("data", "indices", "indptr", "shape")
SET_ASIDE = "pass splits= to set masks aside"


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of an NPZ file by name; that of an NPY file, or one that is alone, is called ``"x"``.

    A matrix saved by ``scipy.sparse.save_npz``, or spread over ``x_data, x_indices, x_indptr, x_shape``, comes as scipy
    CSR. Pickled objects are refused: loading them can run anything.

    Raises:
        DataError: If the file is broken.
        FileNotFoundError: If there is none.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {os.fspath(path)}")
    try:
        if not zipfile.is_zipfile(path):
            return {"x": read_npy(path)}
        arrays: dict[str, Any] = read_npz(path)
        if {*SPARSE_PARTS, "format"} <= arrays.keys():
            return {"x": _saved_matrix(arrays)}
        for prefix in [key[: -len("_indptr")] for key in arrays if key.endswith("_indptr")]:
            arrays[prefix] = checked_csr(*(arrays.pop(f"{prefix}_{part}") for part in SPARSE_PARTS))
    except DAMAGE as error:
        said = error.problem if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise DataError(f"is not an array file that can be read ({said})", path=path) from error
    return {"x": next(iter(arrays.values()))} if len(arrays) == 1 else arrays


def _saved_matrix(arrays: Mapping[str, Any]) -> Any:
    """What ``scipy.sparse.save_npz`` wrote, as CSR."""
    form = bytes(arrays["format"].reshape(-1)[:1].astype("S")[0]).decode() if arrays["format"].size else ""
    data, indices, ptr, shape = (arrays[part] for part in SPARSE_PARTS)
    if form == "csr":
        return checked_csr(data, indices, ptr, shape)
    if form == "csc":
        return checked_csr(data, indices, ptr, np.asarray(shape)[::-1]).T.tocsr()
    raise DataError(f"holds a sparse matrix in the format {form!r}; save it as CSR: matrix.tocsr()")


def named_array(arrays: Mapping[str, Any], role: str) -> Any:
    """The array that plays a role (a key of `ARRAY_NAMES`), or None."""
    return next((arrays[name] for name in ARRAY_NAMES[role] if name in arrays), None)


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
    """Labels by the names of their classes, where there are names; -1 stays unlabelled."""
    names = class_names_of(arrays)
    return [names[i] if i >= 0 else "" for i in y.tolist()] if names and y.dtype.kind in "iu" else y


def mask_splits(masks: Mapping[str, Any], rows: int, *, by_row: bool = True) -> tuple[Split, ...]:
    """Splits from ``train_mask``, ``val_mask`` and ``test_mask``, one or several; none where there are no masks.

    A validation mask may be missing: `assemble` then takes validation from the training part.

    Args:
        masks: Everything that may be a mask, by name.
        rows: Entries that each must have.
        by_row: Whether several masks are rows, ``[S, N]``, as in NPZ files, or columns, ``[N, S]``, as in PyG.

    Raises:
        DataError: If they are not masks of these rows, or say only what to train on or only what to test.
    """
    for plural in ("s", ""):
        names = [[f"{part}_mask{plural}" for part in parts] for parts in (("train",), ("val", "valid"), ("test",))]
        train, valid, test = (next((masks[n] for n in group if masks.get(n) is not None), None) for group in names)
        if train is None and test is None:
            if valid is not None:
                raise DataError(
                    f"it has a validation mask alone, no train_mask{plural} and test_mask{plural}; {SET_ASIDE}"
                )
            continue
        if train is None or test is None:
            lacks = f"{'train' if train is None else 'test'}_mask{plural}"
            raise DataError(f"its masks do not say what to train on and what to test: there is no {lacks}; {SET_ASIDE}")
        given = [np.asarray(mask) for mask in (train, np.zeros_like(train) if valid is None else valid, test)]
        for mask in given:
            if mask.ndim not in (1, 2) or mask.shape[-1 if by_row else 0] != rows:
                raise DataError(f"its masks are no splits: shape {list(mask.shape)} where there are {rows} rows")
        try:
            return masks_split(*(mask if by_row else mask.T for mask in given), name="masks")
        except (ValueError, TypeError) as error:
            raise DataError(f"its masks are no splits: {error}; {SET_ASIDE}") from error
    return ()
