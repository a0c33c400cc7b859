"""Labels as people write them, in files of their own or beside the features, turned into the targets of a task.

    texts, or whole numbers          → multiclass: classes in order, each called by its text
    one column with fractions        → regression
    several columns of 0 and 1       → multilabel
    several columns of other numbers → regression with several targets

Only a cell that is empty, None or NaN carries no label. Words such as ``none``, ``NA``, ``null`` or ``?`` are classes
like any other text, and a note points them out; where all other labels are numbers they cannot be meant for classes and
carry no label, and a note says so. -1 among classes carries no label, unless 1 is the only other one; a note says that
too. ``missing=`` overrides the rule: it lists exactly the texts, beside the empty one, that mean no label.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from difformer.data.errors import DataError, in_file
from difformer.data.own.arrays import ARRAY_ENDINGS, label_cells, named_array, read_arrays
from difformer.data.own.preprocessing import Values
from difformer.data.own.table import (
    GAP_WORDS,
    Column,
    Head,
    Table,
    canonical_id,
    is_missing,
    names_ids,
    near_misses,
    number,
)
from difformer.data.own.text import TextFormat, open_table
from difformer.data.split_rules import labelled
from difformer.data.task import Problem
from difformer.errors import UserError

METRICS = {"multiclass": "accuracy", "multilabel": "rocauc", "regression": "mse"}
MANY_CLASSES = 20

Where = Callable[[str, int, int], DataError]  # makes an error for a row and a position in the columns of labels


@dataclass(frozen=True)
class Labels:
    """Columns of labels in the order of the instances.

    Args:
        columns: Each with one cell per instance; empty if there is no label.
        names: Of the columns.
        where: Makes an error that names the place of a cell, for a row and a position in `columns`.
        notes: What had to be decided.
    """

    columns: Sequence[Sequence[Any]]
    names: tuple[str, ...] = ()
    where: Where | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Targets:
    """What `encode_targets` found: the parts of a `Task`, and notes."""

    y: Tensor
    problem: Problem
    num_outputs: int
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def encode_targets(
    columns: Sequence[Sequence[Any]],
    *,
    names: Sequence[str] = (),
    problem: Problem | None = None,
    class_names: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    where: Where | None = None,
) -> Targets:
    """Targets from columns of cells: texts, numbers, None.

    `class_names` are all the classes in the order wanted, instead of numerical or alphabetical order. `missing` lists
    texts that mean no label, case aside, instead of the rule above. `where` makes an error for a row and a column.
    """
    error = where or (lambda text, row, column: DataError(text, row=row, column=column + 1))
    if problem is not None and problem not in get_args(Problem):
        raise UserError(f"problem: expected one of {', '.join(get_args(Problem))}, got {problem!r}")
    cells = [[label_text(value) for value in column] for column in columns]
    unknown, notes = _no_label(cells, missing)
    spaced = [value for column in columns for value in column if isinstance(value, str) and value.strip() != value]
    if spaced := [value for value in spaced if value.strip()]:
        notes += (f"blanks around {len(spaced)} labels were left out, such as those of {spaced[0]!r}",)
    if len(cells) == 1 and problem != "multilabel":
        found = _one_column(cells[0], problem, class_names, unknown, missing is None, error, notes)
    else:
        found = _several_columns(cells, tuple(names), problem, unknown, missing is None, error)
    return replace(found, notes=(*found.notes, *notes))


def _no_label(cells: list[list[str]], missing: Sequence[str] | None) -> tuple[set[str], tuple[str, ...]]:
    """The cells that carry no label, and notes on words that may or may not mean that."""
    found = {cell for column in cells for cell in column}
    if missing is not None:
        words = {word.lower() for word in missing}
        return {"", *(cell for cell in found if cell.lower() in words)}, ()
    doubtful, others = gap_words(found)
    if not doubtful:
        return {""}, ()
    shown = ", ".join(f"{word!r} ({sum(column.count(word) for column in cells)} rows)" for word in doubtful)
    if others:
        return {"", *doubtful}, (f"labels {shown} were read as unlabelled, since all others are {others}",)
    listed = ",".join(doubtful)
    return {""}, (f"labels {shown} were read as classes; pass missing={listed} if they mean that there is no label",)


def gap_words(cells: Collection[str]) -> tuple[list[str], str]:
    """Words such as ``none`` or ``NA`` among labels, and what all others are if such words then carry no label.

    All others are ``"numbers"``, ``"true or false"`` or both; an empty text says that the words are classes.
    """
    doubtful = sorted({cell for cell in cells if cell.lower() in GAP_WORDS})
    others = {cell.lower() for cell in cells if cell} - GAP_WORDS
    if not doubtful or not others or any(number(cell) is None for cell in others):
        return doubtful, ""
    truth = others & {"true", "false"}
    return doubtful, "true or false" if truth == others else "numbers, true or false" if truth else "numbers"


def label_text(value: Any) -> str:
    """The text of a cell; empty where there is none."""
    if is_missing(value):
        return ""
    text = canonical_id(value.item() if isinstance(value, np.generic) else value)
    return text[1:] if text[:1] == "+" and text[1:].isdigit() else text


def _one_column(
    cells: list[str],
    problem: Problem | None,
    class_names: Sequence[str],
    unknown: set[str],
    by_rule: bool,
    error: Where,
    decided: tuple[str, ...],
) -> Targets:
    values = {cell: number(cell) for cell in dict.fromkeys(cells) if cell not in unknown}
    texts = [cell for cell, value in values.items() if value is None]
    fractions = [c for c, v in values.items() if v is not None and v == v and not v.is_integer()]
    if problem is None and fractions and texts:
        raise error(
            f"{texts[0]!r} is not a number, while other labels have fractions ({fractions[0]}); correct it, or pass "
            f"missing={texts[0]} if it means no label, or problem=multiclass if all of them are names",
            cells.index(texts[0]),
            0,
        )
    if problem == "regression" or (problem is None and fractions):
        return _numbers([cells], (), "regression", unknown, error)
    notes: tuple[str, ...] = ()
    if by_rule and "-1" in values and not {*values} <= {"-1", "1"}:
        del values["-1"]
        notes = (f"label -1 was read as unlabelled ({cells.count('-1')} instances)",)
    found = _ordered(values)
    labelled = sum(cell in values for cell in cells)
    if problem is None and not class_names and len(found) > max(MANY_CLASSES, labelled / 2):
        raise DataError(
            f"labels: {len(found)} different ones in {labelled} labelled rows; pass problem=regression if they are "
            f"quantities, problem=multiclass if they are classes, or name another column",
            argument="problem",
        )
    order = [str(name) for name in class_names] or found
    strange = [cell for cell in found if cell not in order]
    if strange:
        raise error(f"label {strange[0]!r} is not among class_names {tuple(order)}", cells.index(strange[0]), 0)
    if len(order) < 2:
        said = "".join(f"; {note}" for note in (*decided, *notes) if "unlabelled" in note)
        remedy = "; pass missing= with the texts that mean no label, or with none, if these are classes" if said else ""
        raise DataError(
            f"labels: expected at least two classes, found {', '.join(map(repr, order)) or 'no label at all'}{said}"
            f"{remedy}"
        )
    code = {name: i for i, name in enumerate(order)}
    y = torch.tensor([code.get(cell, -1) if cell in values else -1 for cell in cells])
    if problem is None and not class_names and len(found) > MANY_CLASSES and not texts:
        notes += (
            f"{len(found)} different whole numbers were read as classes; pass problem=regression if they are "
            f"quantities",
        )
    return Targets(y, "multiclass", len(order), tuple(order), notes)


def _ordered(values: dict[str, float | None]) -> list[str]:
    """Numbers by size where all are numbers, texts by alphabet otherwise."""
    if any(value is None for value in values.values()):
        return sorted(values)
    return sorted(values, key=lambda cell: (values[cell], cell))


def _several_columns(
    cells: list[list[str]],
    names: tuple[str, ...],
    problem: Problem | None,
    unknown: set[str],
    by_rule: bool,
    error: Where,
) -> Targets:
    if problem == "multiclass":
        raise DataError(f"labels: a class is one column, got {len(cells)}; name the one, or pass problem=multilabel")
    unsaid = {*unknown, "-1"} if by_rule else unknown
    truth = {"0", "1", "true", "false"}

    def is_binary(cell: str) -> bool:
        return cell.lower() in truth or cell in unsaid

    two_valued = all(is_binary(cell) for column in cells for cell in set(column))
    if problem is None:
        problem = "multilabel" if two_valued else "regression"
    if problem == "multilabel" and not two_valued:
        column, row = next((c, r) for c, col in enumerate(cells) for r, v in enumerate(col) if not is_binary(v))
        raise error(f"several labels at a time must be 0 or 1, got {cells[column][row]!r}", row, column)
    return _numbers(cells, names, problem, unsaid if problem == "multilabel" else unknown, error)


def _numbers(
    cells: list[list[str]], names: tuple[str, ...], problem: Problem, unknown: set[str], error: Where
) -> Targets:
    y = np.full((len(cells[0]), len(cells)), np.nan)
    for column, texts in enumerate(cells):
        known = {text: number(text) for text in dict.fromkeys(texts) if text not in unknown}
        for text, value in known.items():
            if value is None or np.isinf(value):
                raise error(f"expected a number, got {text!r}", texts.index(text), column)
        y[:, column] = [known.get(text, np.nan) for text in texts]
    if np.isnan(y).all():
        raise DataError("labels: found no label at all")
    target = torch.from_numpy(y.astype(np.float32))
    alone = problem == "regression" and len(cells) == 1
    return Targets(target.squeeze(1) if alone else target, problem, len(cells), () if alone else names)


def read_labels(
    path: str | os.PathLike[str],
    *,
    size: int,
    ids: Mapping[str, int] | None = None,
    columns: Sequence[Column] | None = None,
    id_column: Column | bool | None = None,
    format: TextFormat = TextFormat(),  # noqa: B008  frozen
) -> Labels:
    """Read labels and bring them into the order of the features, by the `ids` of their rows or in order.

    `id_column` is True for the first, False if labels are in the order of the features; None finds out. `columns` None
    takes all but the ids.

    Raises:
        DataError: If a label is for a row that is not there, a row has two, or there are too few or too many.
    """
    if Path(path).suffix.lower() in ARRAY_ENDINGS:
        return _from_arrays(path, size)
    source = open_table(path, format, keep_blank=True)
    table = _with_unusual_header(source.read(range(len(source.head.names))), ids, format)
    head = Head(table.path, table.names, table.named, (), ())
    given = None if columns is None else [head.find(column, "label_columns") for column in columns]
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
    with in_file(path):
        columns, _ = label_cells(found, None, size)
    return Labels(
        columns,
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
        return head.find(id_column, "label_ids")
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
    """Rows of the table, one per row of the features: blank lines count as labels left out only if they must."""
    rows = list(range(len(table)))
    if len(rows) != size and len(table.names) == 1:
        rows = [row for row in rows if table.texts[0][row]]
    if len(rows) != size:
        blank = len(table) - len(rows)
        beside = f" beside {blank} blank line{'s' * (blank > 1)} (which may mean no label)" if blank else ""
        hint = ""
        if len(table) == size + 1 and not table.named:
            hint = "; pass header=true if the first row is a name"
        elif len(rows) == size - 1 and table.named:
            hint = "; pass header=false if the first row is a label"
        elif len(table) < size and len(table.names) == 1:
            hint = "; blank lines at the end do not count: give every label the id of its row, or pass missing= a word"
        raise DataError(
            f"has {len(rows)} rows{beside}, the features have {size}; give one label per row, or a column of ids{hint}",
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
            if ids is not None:
                there += near_misses([c for c in map(canonical_id, table.texts[at]) if c not in ids], ids)
            if row == 0 and not table.named and len(table) > 1 and position_of(table.texts[at][1]) >= 0:
                there += "; pass header=true if this row names the columns"
            elif ids is None and number(cell) is None:
                there = (
                    f"the features have no column of ids, their {there}; add one to them (ids= names it) or, if labels "
                    f"are in the order of the rows, pass label_ids=false and label_columns= with that of the labels"
                )
            raise table.error(f"a label for {cell!r}, but {there}", row, at)
        earlier = row_of[position]
        if earlier is not None:
            line = f"line {int(table.lines[earlier])}" if table.lines is not None else f"row {earlier}"
            raise table.error(f"a second label for {cell!r}, the first is on {line}", row, at)
        row_of[position] = row
    return row_of


FEW_ROWS = 10  # labelled rows below which a perfect association may well be chance
MOST_VALUES = 50


def copies_of_labels(columns: Sequence[tuple[str, Values]], targets: Targets) -> list[str]:
    """Columns that determine the label in every labelled row."""
    known = labelled(targets.y).numpy()
    if len(known) < FEW_ROWS or targets.y.dim() != 1:
        return []
    y = targets.y.numpy()[known]
    return [
        f"column {name!r} determines the label in all {len(known)} labelled rows; if it is a copy of the label, or is "
        f"known only afterwards, pass drop={name}"
        for name, values in columns
        if (_same_numbers(values, y, known) if targets.problem == "regression" else _determines(values, y, known))
    ]


def _same_numbers(values: Values, y: np.ndarray, known: np.ndarray) -> bool:
    if not isinstance(values, np.ndarray):
        return False
    x = values[known]
    if np.isnan(x).any() or not np.ptp(x) or not np.ptp(y):
        return False
    return bool(abs(np.corrcoef(x, y)[0, 1]) > 1 - 1e-9)


def _determines(values: Values, y: np.ndarray, known: np.ndarray) -> bool:
    cells = values[known].tolist() if isinstance(values, np.ndarray) else [values[i] for i in known.tolist()]
    label_of: dict[object, int] = {}
    for cell, label in zip(cells, y.tolist(), strict=True):
        if label_of.setdefault(cell, label) != label:
            return False
        if len(label_of) > min(MOST_VALUES, len(cells) // 2):
            return False
    return len(set(label_of.values())) > 1


def odd_labels(targets: Targets) -> list[str]:
    """Labels that differ in case or blanks only; labels that occur once, with one they may be a misspelling of."""
    if targets.problem != "multiclass":
        return []
    counts = Counter(targets.y[targets.y >= 0].tolist())
    return _alike(targets.class_names, counts) + _single(targets, counts)


def _alike(names: Sequence[str], counts: Counter[int]) -> list[str]:
    groups: dict[str, list[int]] = {}
    for code in sorted(counts):
        groups.setdefault("".join(names[code].split()).casefold(), []).append(code)
    alike = [group for group in groups.values() if len(group) > 1 and all(counts[code] > 1 for code in group)]
    return [
        "labels "
        + " and ".join(f"{names[code]!r} ({counts[code]:,} rows)" for code in group)
        + " differ only in case or blanks and are classes apart; write them alike if they mean the same"
        for group in alike[:5]
    ]


def _single(targets: Targets, counts: Counter[int]) -> list[str]:
    single = [targets.class_names[code] for code, count in sorted(counts.items()) if count == 1]
    if not single or len(single) == len(counts):
        return []
    often = [targets.class_names[code] for code, count in counts.items() if count > 1]
    notes = []
    for name in single[:5]:
        near = difflib.get_close_matches(name, often, n=1, cutoff=0.7)
        plain = {"".join(other.split()).casefold(): other for other in often}
        same = plain.get("".join(name.split()).casefold())
        guess = same or (near[0] if near and not name.replace(".", "").isdigit() else None)
        hint = f"did you mean {guess!r}?" if guess else "it cannot be both trained on and tested"
        notes.append(f"label {name!r} occurs once: {hint}")
    return notes


def constant_columns(columns: Sequence[tuple[str, Values]]) -> list[str]:
    """Columns of numbers that are the same in every row."""
    still = [n for n, v in columns if isinstance(v, np.ndarray) and len(v) > 1 and bool((v == v[0]).all())]
    if not still:
        return []
    shown = ", ".join(map(repr, still[:6])) + (", …" if len(still) > 6 else "")
    return [
        f"constant column{'s' * (len(still) > 1)}: {shown}; nothing can be learned from a column that never changes"
    ]
