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
from difformer.data.split_rules import index_split, masks_split

ARRAY_ENDINGS = (".npz", ".npy")
# What the arrays of an NPZ file are called; the first name found counts.
ARRAY_NAMES = {
    "x": ("x", "X", "features", "node_features", "feat"),
    "y": ("y", "Y", "labels", "label", "node_labels", "targets", "target"),
    "edges": ("edge_index", "edges", "adj", "adjacency", "adj_matrix"),
    "weights": ("edge_weight", "edge_weights", "weights"),
    "ids": ("ids", "node_ids", "instance_names", "node_names"),
    "feature_names": ("feature_names", "columns"),
    "class_names": ("class_names",),
}
SPARSE_PARTS = ("data", "indices", "indptr", "shape")
SPLIT_FORMS = ("masks", "mask", "idx", "index", "indices")
SET_ASIDE = "pass splits= to set them aside"


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of an NPZ file by name; that of an NPY file, or one that is alone, is called ``"x"``.

    A matrix saved by ``scipy.sparse.save_npz``, or spread over ``x_data, x_indices, x_indptr, x_shape``, comes as scipy
    CSR. Pickled objects are refused: loading them can run anything.
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


def unused_arrays(arrays: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """A note on arrays that play no role."""
    splits = {f"{part}_{form}" for part in ("train", "val", "valid", "test") for form in SPLIT_FORMS}
    roles = {next((n for n in names if n in arrays), "") for names in ARRAY_NAMES.values()}
    unused = [name for name in arrays if name not in roles | splits]
    return (f"arrays of {Path(path).name} not used: {', '.join(unused)}",) if unused else ()


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


def stored_splits(arrays: Mapping[str, Any], rows: int, *, by_row: bool = True) -> tuple[Split, ...]:
    """Splits stored with the data: ``train_mask``, ``val_mask`` and ``test_mask``, one or several, or ``train_idx`` ….

    A validation part may be missing: `assemble` then takes it from the training part. Several masks are rows,
    ``[S, N]``, as in NPZ files, or columns, ``[N, S]``, as in PyG (`by_row` False).
    """
    found = {form: splits for form in SPLIT_FORMS if (splits := _stored(arrays, form, rows, by_row))}
    for form, splits in found.items():
        first, wanted = next(iter(found.items()))
        if len(splits) != len(wanted) or not all(a.same_as(b) for a, b in zip(splits, wanted, strict=True)):
            raise DataError(f"the splits of train_{first} and train_{form} differ; {SET_ASIDE}")
    return next(iter(found.values()), ())


def _stored(arrays: Mapping[str, Any], form: str, rows: int, by_row: bool) -> tuple[Split, ...]:
    names = [[f"{part}_{form}" for part in parts] for parts in (("train",), ("val", "valid"), ("test",))]
    train, valid, test = (next((arrays[n] for n in group if arrays.get(n) is not None), None) for group in names)
    called = "masks" if form.startswith("mask") else "indices"
    if train is None and test is None:
        if valid is not None:
            raise DataError(f"it has a validation {form} alone, no train_{form} and test_{form}; {SET_ASIDE}")
        return ()
    if train is None or test is None:
        lacks = f"{'train' if train is None else 'test'}_{form}"
        raise DataError(f"its {called} do not say what to train on and what to test: there is no {lacks}; {SET_ASIDE}")
    try:
        if called == "indices":
            split = index_split("indices", train, [] if valid is None else valid, test)
            split.check(rows)
            return (split,)
        masks = [np.asarray(mask) for mask in (train, np.zeros_like(train) if valid is None else valid, test)]
        for mask in masks:
            if mask.ndim not in (1, 2) or mask.shape[-1 if by_row else 0] != rows:
                raise DataError(f"shape {list(mask.shape)} where there are {rows} rows")
        return masks_split(*(mask if by_row else mask.T for mask in masks), name="masks")
    except (ValueError, TypeError) as error:
        raise DataError(f"its {called} are no splits: {error}; {SET_ASIDE}") from error
