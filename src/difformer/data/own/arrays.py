"""Arrays as features, labels and splits: objects in memory (numpy, scipy, torch, frames, lists), NPZ and NPY files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.archives import read_npy, read_npz
from difformer.data.errors import DAMAGE, DataError
from difformer.data.own.table import MemoryTable, canonical_id, frame_column, is_pandas, number
from difformer.data.sparse_features import checked_csr, from_scipy, to_scipy
from difformer.data.split import Split, index_split, masks_split

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
SPLIT_ARRAYS = frozenset(f"{part}_{form}" for part in ("train", "val", "valid", "test") for form in SPLIT_FORMS)
SET_ASIDE = "pass splits= to set them aside"


def features_from(
    x: Any, *, name: str = "x", finite: bool = True, shape: str = "[N, F]"
) -> tuple[Tensor, tuple[str, ...]]:
    """Features as a tensor of float32, dense or CSR, and the names of their columns, if they have names.

    `name` and `shape` are for errors; `finite` refuses NaN and infinities.
    """
    names: tuple[str, ...] = ()
    if hasattr(x, "tocsr") or (isinstance(x, Tensor) and x.layout != torch.strided):
        try:
            tensor = from_scipy(x if hasattr(x, "tocsr") else to_scipy(x)).float()
        except ValueError as error:
            raise DataError(f"{name}: is not a sparse matrix that can be used: {error}") from error
    elif isinstance(x, Tensor):
        tensor = x.detach().cpu().float()
    elif hasattr(x, "columns"):
        table = MemoryTable.of_frame(x, name).read(())
        if finite:
            table.check_finite()
        names = table.names
        tensor = torch.from_numpy(np.stack([np.asarray(v, dtype=np.float32) for v in table.cells.values()], 1))
    else:
        tensor = torch.from_numpy(_numbers(x, name, shape))
    if tensor.dim() not in (2, 3) or 0 in tensor.shape:
        hint = "; a single column is x.reshape(-1, 1)" if tensor.dim() == 1 and name == "x" else ""
        raise DataError(f"{name}: expected rows and columns, {shape}, got shape {list(tensor.shape)}{hint}")
    sparse = tensor.layout == torch.sparse_csr
    values = tensor.values() if sparse else tensor
    if finite and not bool(values.isfinite().all()):
        where = (~values.isfinite()).nonzero()[0].tolist()
        row, column = where[0], where[-1]
        if sparse:
            row, column = int((tensor.crow_indices() <= row).sum()) - 1, int(tensor.col_indices()[row])
        problem = f"{name}: holds {values[tuple(where)].item()}; features must be finite numbers of single precision"
        raise DataError(problem, row=row, column=column + 1)
    return tensor, names


def _numbers(x: Any, name: str, shape: str) -> Any:
    """A numpy array of float32, from an array or nested lists."""
    try:
        array = np.asarray(x)
    except ValueError:
        array = np.asarray(x, dtype=object)
    if array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            return np.array(array, dtype=np.float32)
    if array.ndim != 2:
        lengths = [len(row) if _is_row(row) else None for row in x] if array.ndim else []
        odd = next((i for i, length in enumerate(lengths) if length != lengths[0]), None)
        if odd is not None:
            raise DataError(f"{name}: has {lengths[odd]} columns, expected {lengths[0]} as in row 0", row=odd)
        raise DataError(f"{name}: expected rows of numbers, {shape}, got {array.dtype} of shape {list(array.shape)}")
    cells = [None if cell is None else number(str(cell)) for cell in array.ravel().tolist()]
    if None in cells:
        row, column = divmod(cells.index(None), array.shape[1])
        raise DataError(f"{name}: expected a number, got {array.tolist()[row][column]!r}", row=row, column=column + 1)
    return np.array(cells, dtype=np.float32).reshape(array.shape)


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray, Tensor))


def row_ids(x: Any) -> tuple[str, ...]:
    """Ids of the rows: the index of a pandas frame, unless it only counts them."""
    if not is_pandas(x) or list(x.index) == list(range(len(x))):
        return ()
    return tuple(canonical_id(label) for label in x.index)


def label_cells(y: Any, x: Any, size: int) -> tuple[list[Sequence[Any]], tuple[str, ...]]:
    """Labels as columns of `size` cells each, and the columns' names if there are several.

    Labels and rows that come from pandas are matched by index.
    """
    if y is None or isinstance(y, (Mapping, Set, str, bytes)) or not hasattr(y, "__iter__"):
        raise DataError(f"y: expected one label per row of x, in the order of the rows, got {type(y).__name__}")
    names: tuple[str, ...] = ()
    if hasattr(y, "columns"):
        names = tuple(str(label) for label in y.columns)
        given: Any = [frame_column(y, i) for i in range(len(names))]
    else:
        array = y.detach().cpu().numpy() if isinstance(y, Tensor) else y.toarray() if hasattr(y, "toarray") else y
        if isinstance(array, (list, tuple)) and array and _is_row(array[0]):
            array = np.asarray(array)
        given = [array]
        if isinstance(array, np.ndarray):
            if array.ndim not in (1, 2):
                shape = list(array.shape)
                raise DataError(f"y: expected one label per row, [N], or several, [N, C]; got shape {shape}")
            given = [array] if array.ndim == 1 else list(array.T)
    columns = [column.tolist() if hasattr(column, "tolist") else list(column) for column in given]
    if is_pandas(y) and is_pandas(x) and list(y.index) != list(x.index):
        labels, rows = ([canonical_id(i) for i in each.index] for each in (y, x))
        place = {label: i for i, label in enumerate(labels)}
        if len(place) != len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise DataError(f"y: its index holds {twice!r} twice, so its labels cannot be matched with x")
        if absent := place.keys() - set(rows):
            raise DataError(f"y: its index holds {min(absent)!r}, which that of x does not")
        columns = [[column[place[row]] if row in place else None for row in rows] for column in columns]
    if not columns or len(columns[0]) != size:
        raise DataError(f"y: expected {size} labels, one per row of x, got {len(columns[0]) if columns else 0}")
    return columns, names


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
            form = str(arrays["format"].astype(str))
            if form not in ("csr", "csc"):
                raise DataError(f"holds a sparse matrix in the format {form!r}; save it as CSR: matrix.tocsr()")
            data, indices, ptr, shape = (arrays[part] for part in SPARSE_PARTS)
            matrix = checked_csr(data, indices, ptr, shape if form == "csr" else np.asarray(shape)[::-1])
            return {"x": matrix if form == "csr" else matrix.T.tocsr()}
        for prefix in [key[: -len("_indptr")] for key in arrays if key.endswith("_indptr")]:
            arrays[prefix] = checked_csr(*(arrays[f"{prefix}_{part}"] for part in SPARSE_PARTS))
            for part in SPARSE_PARTS:
                del arrays[f"{prefix}_{part}"]
    except DAMAGE as error:
        said = error.problem if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise DataError(f"is not an array file that can be read ({said})", path=path) from error
    return {"x": next(iter(arrays.values()))} if len(arrays) == 1 else arrays


def named_array(arrays: Mapping[str, Any], *roles: str) -> Any:
    """The array that plays a role (a key of `ARRAY_NAMES`), the first of several; or None."""
    return next((arrays[name] for role in roles for name in ARRAY_NAMES[role] if name in arrays), None)


def needed_array(path: str | os.PathLike[str], *roles: str) -> tuple[Any, dict[str, Any]]:
    """The array of a file that plays one of the roles, and all of them."""
    arrays = read_arrays(path)
    found = named_array(arrays, *roles)
    if found is None:
        usual = " or ".join(ARRAY_NAMES[roles[0]][0:3:2])
        raise DataError(f"holds no array called {usual}; it has {', '.join(arrays)}", path=path)
    return found, arrays


def unused_arrays(arrays: Mapping[str, Any], path: str) -> list[str]:
    """A note on arrays that play no role."""
    roles = {next((n for n in names if n in arrays), "") for names in ARRAY_NAMES.values()}
    unused = [name for name in arrays if name not in roles | SPLIT_ARRAYS]
    return [f"arrays of {Path(path).name} not used: {', '.join(unused)}"] if unused else []


def labels_by_name(arrays: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The labels of a file, and its classes in order, where it names them; labels are then names, -1 unlabelled."""
    names, y = named_array(arrays, "class_names"), named_array(arrays, "y")
    if not isinstance(names, np.ndarray) or not isinstance(y, np.ndarray) or names.ndim != 1:
        return y, []
    found = [canonical_id(name) for name in names.tolist()]
    if len(set(found)) != len(found) or "" in found or y.dtype.kind in "bf":
        return y, []
    if y.dtype.kind not in "iu":
        return y, found
    if y.ndim != 1 or not y.size or y.min() < -1 or y.max() >= len(found):
        return y, []
    return [found[i] if i >= 0 else "" for i in y.tolist()], found


def stored_splits(arrays: Mapping[str, Any], rows: int, *, by_row: bool = True) -> tuple[Split, ...]:
    """Splits stored with the data: ``train_mask``, ``val_mask`` and ``test_mask``, one or several, or ``train_idx`` ….

    A validation part may be missing: it is then taken from the training part. Several masks are rows, ``[S, N]``, as in
    NPZ files, or columns, ``[N, S]``, as in PyG (`by_row` False).
    """
    found: dict[str, tuple[Split, ...]] = {}
    for form in SPLIT_FORMS:
        named = {"train": ("train",), "valid": ("val", "valid"), "test": ("test",)}
        given = {
            part: [arrays[f"{n}_{form}"] for n in names if f"{n}_{form}" in arrays] for part, names in named.items()
        }
        if not any(given.values()):
            continue
        called = "masks" if form.startswith("mask") else "indices"
        if lacking := [part for part in ("train", "test") if not given[part]]:
            problem = f"its {called} do not say what to train on and what to test: there is no {lacking[0]}_{form}"
            raise DataError(f"{problem}; {SET_ASIDE}")
        train, test = np.asarray(given["train"][0]), np.asarray(given["test"][0])
        valid = (
            np.asarray(given["valid"][0])
            if given["valid"]
            else np.zeros_like(train[:0] if called == "indices" else train)
        )
        try:
            if called == "indices":
                found[form] = (index_split("indices", train, valid, test),)
                found[form][0].check(rows)
                continue
            for mask in (train, valid, test):
                if mask.ndim not in (1, 2) or mask.shape[-1 if by_row else 0] != rows:
                    raise DataError(f"shape {list(mask.shape)} where there are {rows} rows")
            found[form] = masks_split(*(mask if by_row else mask.T for mask in (train, valid, test)), name="masks")
        except (ValueError, TypeError) as error:
            raise DataError(f"its {called} are no splits: {error}; {SET_ASIDE}") from error
    first = next(iter(found), "")
    for form, splits in found.items():
        if len(splits) != len(found[first]) or not all(map(Split.same_as, splits, found[first])):
            raise DataError(f"the splits of train_{first} and train_{form} differ; {SET_ASIDE}")
    return found.get(first, ())
