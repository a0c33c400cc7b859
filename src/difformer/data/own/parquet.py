"""Parquet files as tables; a column of equally long lists, as embeddings are kept, becomes as many columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.errors import DAMAGE, DataError, require
from difformer.data.own.table import ColumnSource

PARQUET_ENDINGS = (".parquet", ".pq")


def open_parquet(path: str | os.PathLike[str]) -> ColumnSource:
    """The columns of a Parquet file; errors name row and column."""
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
    parts: list[tuple[str, Any]] = []
    for label, column in zip(map(str, table.column_names), table.columns, strict=True):
        try:
            parts += _spread(name, label, column)
        except DataError:
            raise
        except (pyarrow.lib.ArrowException, *DAMAGE) as error:
            raise DataError(f"cannot be read ({type(error).__name__}: {error})", path=path, column=label) from error
    return ColumnSource(name, parts)


def _spread(path: str, label: str, column: Any) -> list[tuple[str, Any]]:
    """A column of lists as columns of numbers; any other as it is."""
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        rows = column.to_pylist()
        width = len(rows[0] or ()) if rows else 0
        for row, cells in enumerate(rows):
            if cells is None or len(cells) != width or not width:
                got = "none" if cells is None else len(cells)
                problem = f"expected a list of {width} numbers as in row 0, got {got}"
                raise DataError(problem, path=path, row=row, column=label)
        if types.is_integer(kind.value_type) or types.is_floating(kind.value_type):
            matrix = np.array(rows, dtype=np.float64)  # what is missing becomes NaN
            return [(f"{label}_{i}", matrix[:, i]) for i in range(width)]
        return [(f"{label}_{i}", [cells[i] for cells in rows]) for i in range(width)]
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        if types.is_decimal(kind):
            column = column.cast(pa.float64())  # what is missing becomes NaN
        if not column.null_count or types.is_floating(column.type):
            return [(label, column.combine_chunks().to_numpy(zero_copy_only=False))]
        return [(label, column.to_pylist())]
    if types.is_timestamp(kind) or types.is_date(kind):
        return [(label, [None if moment is None else moment.isoformat() for moment in column.to_pylist()])]
    is_view = getattr(types, "is_string_view", lambda _: False)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind) or is_view(kind):
        try:
            return [(label, column.to_pylist())]
        except UnicodeDecodeError as error:
            raise DataError(f"is damaged: not text in UTF-8 ({error})", path=path, column=label) from error
    raise DataError(f"holds {kind}, expected numbers, text, dates, or lists of numbers", path=path, column=label)
