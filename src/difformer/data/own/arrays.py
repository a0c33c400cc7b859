"""Objects in memory (numpy, scipy, torch, pandas, polars, plain lists) as the tensors and columns of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.errors import DataError
from difformer.data.own.table import ColumnSource, canonical_id, number
from difformer.data.sparse import from_scipy, sparse_to_scipy


def features_from(
    x: Any, *, name: str = "x", finite: bool = True, shape: str = "[N, F]"
) -> tuple[Tensor, tuple[str, ...]]:
    """Features as a tensor of float32, dense or CSR, and the names of their columns, if they have names.

    `name` and `shape` are for errors; `finite` refuses NaN and infinities.
    """
    names: tuple[str, ...] = ()
    if hasattr(x, "tocsr") or (isinstance(x, Tensor) and x.layout != torch.strided):
        try:
            tensor = from_scipy(x if hasattr(x, "tocsr") else sparse_to_scipy(x)).float()
        except ValueError as error:
            raise DataError(f"{name}: is not a sparse matrix that can be used: {error}") from error
    elif isinstance(x, Tensor):
        tensor = x.detach().cpu().float()
    elif hasattr(x, "columns"):
        table = ColumnSource(name, frame_columns(x)).read(())
        if finite:
            table.check_finite()
        names = table.names
        tensor = torch.from_numpy(table.numbers.astype(np.float32))
    else:
        tensor = torch.from_numpy(_numbers(x, name, shape))
    if tensor.dim() not in (2, 3) or 0 in tensor.shape:
        hint = "; a single column is x.reshape(-1, 1)" if tensor.dim() == 1 and name == "x" else ""
        raise DataError(f"{name}: expected rows and columns, {shape}, got shape {list(tensor.shape)}{hint}")
    values = tensor.values() if tensor.layout == torch.sparse_csr else tensor
    if finite and not bool(values.isfinite().all()):
        where = (~values.isfinite()).nonzero()[0].tolist()
        row = (
            int(torch.searchsorted(tensor.crow_indices(), where[0], right=True)) - 1
            if values is not tensor
            else where[0]
        )
        raise DataError(
            f"{name}: holds {values[tuple(where)].item()}; features must be finite numbers of single precision",
            row=row,
            column=where[-1] + 1 if values is tensor else int(tensor.col_indices()[where[0]]) + 1,
        )
    return tensor, names


def row_ids(x: Any) -> tuple[str, ...]:
    """Ids of the rows: the index of a pandas frame, unless it only counts them."""
    if not _is_pandas(x) or list(x.index) == list(range(len(x))):
        return ()
    return tuple(canonical_id(label) for label in x.index)


def frame_columns(frame: Any) -> list[tuple[str, Any]]:
    """The columns of a pandas or polars frame by name, as arrays; dates as texts."""
    return [(str(label), _column(frame, i)) for i, label in enumerate(frame.columns)]


def label_cells(y: Any, x: Any, size: int) -> tuple[list[Sequence[Any]], tuple[str, ...]]:
    """Labels as columns of `size` cells each, and the columns' names if there are several."""
    names: tuple[str, ...] = ()
    if y is None or isinstance(y, (Mapping, Set, str, bytes)) or not hasattr(y, "__iter__"):
        raise DataError(f"y: expected one label per row of x, in the order of the rows, got {type(y).__name__}")
    if hasattr(y, "columns"):
        names = tuple(str(label) for label in y.columns)
        columns: list[Sequence[Any]] = [_cells(_column(y, i)) for i in range(len(names))]
    else:
        array = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        array = array.toarray() if hasattr(array, "toarray") else array
        if isinstance(array, np.ndarray) or (isinstance(array, (list, tuple)) and array and _is_row(array[0])):
            array = np.asarray(array)
            if array.ndim not in (1, 2):
                raise DataError(
                    f"y: expected one label per row, [N], or several, [N, C]; got shape {list(array.shape)}"
                )
            columns = [array.tolist()] if array.ndim == 1 else [column.tolist() for column in array.T]
        else:
            columns = [_cells(array)]
    if _is_pandas(y) and _is_pandas(x) and list(y.index) != list(x.index):
        columns = _matched(columns, [canonical_id(i) for i in y.index], [canonical_id(i) for i in x.index])
    if not columns or len(columns[0]) != size:
        raise DataError(f"y: expected {size} labels, one per row of x, got {len(columns[0]) if columns else 0}")
    return columns, names


def _matched(columns: list[Sequence[Any]], labels: list[str], rows: list[str]) -> list[Sequence[Any]]:
    place = {label: i for i, label in enumerate(labels)}
    if len(place) != len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise DataError(f"y: its index holds {twice!r} twice, so its labels cannot be matched with x")
    absent = place.keys() - set(rows)
    if absent:
        raise DataError(f"y: its index holds {min(absent)!r}, which that of x does not")
    return [[column[place[row]] if row in place else None for row in rows] for column in columns]


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
    result = np.empty(array.shape, dtype=np.float32)
    for row, cells in enumerate(array.tolist()):
        for column, cell in enumerate(cells):
            value = None if cell is None else number(str(cell))
            if value is None:
                raise DataError(f"{name}: expected a number, got {cell!r}", row=row, column=column + 1)
            result[row, column] = value
    return result


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray, Tensor))


def _is_pandas(value: Any) -> bool:
    return hasattr(value, "iloc") and hasattr(value, "index")


def _column(frame: Any, position: int) -> Any:
    array = np.asarray(frame.iloc[:, position] if _is_pandas(frame) else frame[:, position])
    if array.dtype.kind == "M":
        return ["" if np.isnat(moment) else str(moment.astype("M8[s]")) for moment in array]
    return array


def _cells(column: Any) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)
