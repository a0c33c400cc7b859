"""Tables and arrays that come in columns already: Parquet, NPZ and NPY."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.archives import check_size, read_npy, read_npz
from difformer.data.errors import DAMAGE, DataError, require
from difformer.data.sparse import checked_csr
from difformer.data.tables import Choose, Head, Table, is_missing, number

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
        if {"data", "indices", "indptr", "shape", "format"} <= arrays.keys():
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


def read_parquet(path: str | os.PathLike[str], *, text: Choose) -> Table:
    """Read a Parquet file; a column of equally long lists, as embeddings are kept, becomes as many columns.

    Args:
        path: The file.
        text: Which columns to keep as text; told the `Head`.

    Raises:
        DataError: If the file is broken, or a column is neither numbers nor text; with row and column.
        ImportError: If pyarrow is not installed.
    """
    name = os.fspath(path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {name}")
    pyarrow = require("pyarrow", extra="frames", purpose="reading Parquet")
    parquet = require("pyarrow.parquet", extra="frames", purpose="reading Parquet")
    try:
        table = parquet.ParquetFile(path).read()
    except Exception as error:  # pyarrow has a dozen errors for a damaged file
        raise DataError(
            f"is not a Parquet file that can be read ({type(error).__name__}: {error})", path=path
        ) from error
    columns = [(str(label), column) for label, column in zip(table.column_names, table.columns, strict=True)]
    parts: list[tuple[str, Any]] = []
    for label, column in columns:
        try:
            parts += _spread(name, label, column)
        except DataError:
            raise
        except (pyarrow.lib.ArrowException, *DAMAGE) as error:
            raise DataError(f"cannot be read ({type(error).__name__}: {error})", path=path, column=label) from error
    return table_of(name, parts, text)


def table_of(path: str, columns: Sequence[tuple[str, Any]], text: Choose) -> Table:
    """A table from named columns (arrays or lists of numbers, texts and None)."""
    if not columns or not len(columns[0][1]):
        raise DataError("holds no rows", path=path)
    names = tuple(label for label, _ in columns)
    check_size(len(names), "the table", "COLUMNS")
    if len(set(names)) != len(names):
        twice = next(label for label, count in Counter(names).items() if count > 1)
        raise DataError(f"two columns are called {twice!r}; names must differ", path=path)
    first = tuple(_cell(values[0]) for _, values in columns)
    textual = tuple(not _is_numeric(v) and any(isinstance(cell, str) for cell in v) for _, v in columns)
    head = Head(path, names, True, first, textual)
    kept = set(text(head))
    numbered = [i for i in range(len(columns)) if i not in kept]
    result = Table(
        path=path,
        names=names,
        named=True,
        numbers=np.empty((len(columns[0][1]), len(numbered))),
        number_columns=tuple(numbered),
        texts={i: [_cell(value) for value in columns[i][1]] for i in sorted(kept)},
    )
    for place, i in enumerate(numbered):
        result.numbers[:, place] = _as_numbers(columns[i][1], result, i)
    return result


def _as_numbers(values: Any, table: Table, column: int) -> NDArray[np.float64]:
    if _is_numeric(values):
        return np.asarray(values, dtype=np.float64)
    converted = np.empty(len(values))
    for row, value in enumerate(values):
        cell = _cell(value)
        found = number(cell)
        if found is None:
            missing = "a number is missing here; fill it in, or leave the row or the column out"
            problem = f"expected a number, got {cell!r}" if cell else missing
            raise table.error(problem, row, column)
        converted[row] = found
    return converted


def _is_numeric(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf"


def _cell(value: Any) -> str:
    """A value as a text file would hold it; what is missing is empty."""
    if is_missing(value):
        return ""
    return str(value.item() if isinstance(value, np.generic) else value).strip()


def _spread(path: str, label: str, column: Any) -> list[tuple[str, Any]]:
    """A column of lists as columns of numbers; any other as it is."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        rows = column.to_pylist()
        width = len(rows[0] or ()) if rows else 0
        for row, cells in enumerate(rows):
            if cells is None or len(cells) != width or not width:
                problem = (
                    f"expected a list of {width} numbers as in row 0, got {'none' if cells is None else len(cells)}"
                )
                raise DataError(problem, path=path, row=row, column=label)
        if pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type):
            matrix = np.array(rows, dtype=np.float64)  # what is missing becomes NaN
            return [(f"{label}_{i}", matrix[:, i]) for i in range(width)]
        return [(f"{label}_{i}", [cells[i] for cells in rows]) for i in range(width)]
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        if types.is_decimal(kind):
            column = column.cast(pa.float64())  # what is missing becomes NaN
        if not column.null_count or types.is_floating(column.type):
            return [(label, column.combine_chunks().to_numpy(zero_copy_only=False))]
        return [(label, column.to_pylist())]
    is_view = getattr(types, "is_string_view", lambda _: False)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind) or is_view(kind):
        try:
            return [(label, column.to_pylist())]
        except UnicodeDecodeError as error:
            raise DataError(f"is damaged: not text in UTF-8 ({error})", path=path, column=label) from error
    raise DataError(f"holds {kind}, expected numbers, text, or lists of numbers", path=path, column=label)
