"""Labels from a file of their own: one a row of the features, or with the id of the row they belong to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from difformer.data.arrays import label_columns
from difformer.data.columnar import named_array, read_arrays, read_parquet
from difformer.data.errors import DataError
from difformer.data.readers import read_csv
from difformer.data.tables import Head, Table, canonical_id, every_column, looks_like_header, names_ids, number
from difformer.data.targets import Where
from difformer.data.text_files import TextFormat

Column = str | int


@dataclass(frozen=True)
class Labels:
    """Columns of labels in the order of the features.

    Args:
        columns: Each with one cell a row of the features; empty where there is no label.
        names: Of the columns.
        where: Makes an error that names the line in the file, for a row of the features and a column of these.
        notes: What had to be decided.
    """

    columns: list[list[str]]
    names: tuple[str, ...]
    where: Where
    notes: tuple[str, ...] = ()


def read_labels(
    path: str | os.PathLike[str],
    *,
    size: int,
    ids: Mapping[str, int] | None = None,
    columns: Sequence[Column] | None = None,
    id_column: Column | bool | None = None,
    format: TextFormat = TextFormat(),  # noqa: B008  frozen
) -> Labels:
    """Read labels and bring them into the order of the features.

    Args:
        path: CSV and relatives, Parquet, NPZ or NPY.
        size: Rows of the features.
        ids: Position of every row's id, where rows have ids.
        columns: The columns of labels, by name or number counted from one; None takes all but the ids.
        id_column: The column of ids likewise; True for the first, False where labels are in the order of the features;
            None finds out.
        format: Of a text file.

    Raises:
        DataError: If a label is for a row that is not there, a row has two, or there are too few or too many.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".npz", ".npy"):
        return _from_arrays(path, size)
    if suffix in (".parquet", ".pq"):
        table = read_parquet(path, text=every_column)
    else:
        table = read_csv(path, text=every_column, format=format, is_header=looks_like_header, keep_blank=True)
    table = _with_unusual_header(table, ids, format)
    head = Head(table.path, table.names, table.named, (), ())
    given = None if columns is None else [head.find(column) for column in columns]
    at = _ids_at(table, head, size, ids, id_column, given)
    chosen = [i for i in range(len(table.names)) if i != at] if given is None else given
    if not chosen:
        raise DataError("has no column of labels", path=path)
    names = tuple(table.names[i] for i in chosen)
    if at is None:
        rows = _rows_in_order(table, size)
        columns_in_order = [[table.texts[i][row] for row in rows] for i in chosen]
        return Labels(
            columns_in_order, names, lambda text, row, c: table.error(text, rows[row], chosen[c]), table.notes
        )
    row_of = _rows_by_id(table, at, size, ids)
    cells = [["" if row is None else table.texts[i][row] for row in row_of] for i in chosen]
    return Labels(cells, names, lambda text, row, c: table.error(text, row_of[row], chosen[c]), table.notes)


def _from_arrays(path: str | os.PathLike[str], size: int) -> Labels:
    arrays = read_arrays(path)
    found = named_array(arrays, "y")
    found = arrays.get("x") if found is None else found
    if found is None:
        raise DataError(f"holds no array called y or labels; it has {', '.join(arrays)}", path=path)
    try:
        columns, _ = label_columns(found, None, size)
    except DataError as error:
        raise DataError(str(error), path=path) from error
    return Labels(
        [list(column) for column in columns],
        tuple(str(i + 1) for i in range(len(columns))),
        lambda text, row, column: DataError(text, path=path, row=row, column=column + 1),
    )


def _with_unusual_header(table: Table, ids: Mapping[str, int] | None, format: TextFormat) -> Table:
    """Take the first row for names if it alone has an unknown id, and labels that no other row has."""
    if table.named or format.header is not None or ids is None or len(table.names) < 2 or len(table) < 2:
        return table
    first = [table.texts[i][0] for i in range(len(table.names))]
    known = [canonical_id(cell) in ids for cell in table.texts[0]]
    if known[0] or not all(known[1:]) or any(first[i] in table.texts[i][1:] for i in range(1, len(first))):
        return table
    if not all(first) or len(set(first)) != len(first) or table.lines is None:
        return table
    return replace(
        table,
        names=tuple(first),
        named=True,
        numbers=table.numbers[1:],
        texts={i: cells[1:] for i, cells in table.texts.items()},
        lines=table.lines[1:],
        notes=(*table.notes, f"line {int(table.lines[0])} of {Path(table.path).name} was read as a header"),
    )


def _ids_at(
    table: Table,
    head: Head,
    size: int,
    ids: Mapping[str, int] | None,
    id_column: Column | bool | None,
    labels: list[int] | None,
) -> int | None:
    """Position of the column of ids; None where labels are in the order of the features."""
    if id_column is False or (id_column is None and len(table.names) == 1):
        return None
    if id_column is True:
        return 0
    if id_column is not None:
        return head.find(id_column)
    usual = [i for i, name in enumerate(head.names) if head.named and names_ids(name)]
    usual = [i for i in usual if labels is None or i not in labels]
    if usual:
        return usual[0]
    first = 0 if labels is None or 0 not in labels else None
    if first is None:
        return None
    cells = [canonical_id(cell) for cell in table.texts[first]]
    if ids is not None:
        known = sum(cell in ids for cell in cells)
        return first if 2 * known >= len(cells) or len(table) != size else None
    # Several columns of 0 and 1, one row each: labels, not numbers of rows.
    plain = len(table) == size and all(set(column) <= {"0", "1", ""} for column in table.texts.values())
    return None if plain and size > 2 else first


def _rows_in_order(table: Table, size: int) -> list[int]:
    """Rows of the table, one a row of the features: blank lines count as labels left out only if they must."""
    rows = list(range(len(table)))
    if len(rows) != size and len(table.names) == 1:
        rows = [row for row in rows if table.texts[0][row]]
    if len(rows) != size:
        blank = len(table) - len(rows)
        beside = f" beside {blank} blank line{'s' * (blank > 1)} (which may stand for no label)" if blank else ""
        hint = ""
        if len(table) == size + 1 and not table.named:
            hint = "; pass header=True if the first row is a name"
        elif len(rows) == size - 1 and table.named:
            hint = "; pass header=False if the first row is a label"
        elif len(table) < size and len(table.names) == 1:
            hint = "; blank lines at the end do not count: give every label the id of its row, or pass missing= a word"
        raise DataError(
            f"has {len(rows)} rows{beside}, the features have {size}; give one label a row, or a column of ids{hint}",
            path=table.path,
        )
    return rows


def _rows_by_id(table: Table, at: int, size: int, ids: Mapping[str, int] | None) -> list[int | None]:
    """For every row of the features the row of the table that labels it."""
    row_of: list[int | None] = [None] * size

    def position_of(cell: str) -> int:
        name = canonical_id(cell)
        if ids is not None:
            return ids.get(name, -1)
        # A number of thousands of digits is one that Python will not even read.
        return int(name) if name.isdecimal() and len(name) < 19 and int(name) < size else -1

    for row, cell in enumerate(table.texts[at]):
        position = position_of(cell)
        if position < 0:
            there = "no row of the features has this id" if ids is not None else f"rows go from 0 to {size - 1}"
            if row == 0 and not table.named and len(table) > 1 and position_of(table.texts[at][1]) >= 0:
                there += "; pass header=True if this row names the columns"
            elif ids is None and number(cell) is None:
                there = (
                    f"the features have no column of ids, their {there}; add one to them (ids= names it) or, if labels "
                    f"are in the order of the rows, pass label_ids=False and label_columns= with that of the labels"
                )
            raise table.error(f"a label for {cell!r}, but {there}", row, at)
        earlier = row_of[position]
        if earlier is not None:
            line = f"line {int(table.lines[earlier])}" if table.lines is not None else f"row {earlier}"
            raise table.error(f"a second label for {cell!r}, the first is on {line}", row, at)
        row_of[position] = row
    return row_of
