"""Labels as people write them, turned into the targets of a task.

    texts, or whole numbers          → multiclass: classes in order, each called by its text
    one column with fractions        → regression
    several columns of 0 and 1       → multilabel
    several columns of other numbers → regression with several targets

Only a cell that is empty, None or NaN carries no label. Words such as ``none``, ``NA``, ``null`` or ``?`` are classes
like any other text, and a note points them out; where all other labels are numbers they cannot be meant for classes and
carry no label, and a note says so. -1 among classes carries no label, unless 1 is the only other one; a note says that
too. ``missing=`` overrides the rule: it lists exactly the texts, beside the empty one, that stand for no label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from difformer.data.errors import DataError
from difformer.data.tables import canonical_id, is_missing, number
from difformer.data.task import Problem

DOUBTFUL = frozenset(("na", "n/a", "<na>", "nan", "null", "none", "?"))  # words that may mean: no label
METRICS = {"multiclass": "accuracy", "multilabel": "rocauc", "regression": "mse"}
MANY_CLASSES = 20

Where = Callable[[str, int, int], DataError]


@dataclass(frozen=True)
class Targets:
    """What `encode_targets` found.

    Args:
        y: As `Task` has it.
        problem: As `Task` has it.
        num_outputs: Classes or columns.
        class_names: Of the classes, or of the columns where there are several.
        notes: What had to be decided.
    """

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

    Args:
        columns: One or several, all of one length.
        names: Of the columns, where there are several.
        problem: Instead of finding out from the cells.
        class_names: All the classes in the order wanted, instead of those found in numerical or alphabetical order.
        missing: Texts that stand for no label, case aside, instead of the rule above.
        where: Makes an error for a row and a column; given as position in `columns`.

    Raises:
        DataError: If the cells contradict each other, or it is not clear what is meant.
    """
    error = where or (lambda text, row, column: DataError(text, row=row, column=column + 1))
    if problem is not None and problem not in get_args(Problem):
        raise ValueError(f"problem: expected one of {', '.join(get_args(Problem))}, got {problem!r}")
    cells = [[_text(value) for value in column] for column in columns]
    unknown, notes = _no_label(cells, missing)
    if len(cells) == 1 and problem != "multilabel":
        found = _one_column(cells[0], problem, class_names, unknown, missing is None, error)
    else:
        found = _several_columns(cells, tuple(names), problem, unknown, missing is None, error)
    return replace(found, notes=(*found.notes, *notes))


def _no_label(cells: list[list[str]], missing: Sequence[str] | None) -> tuple[set[str], tuple[str, ...]]:
    """The cells that carry no label, and notes on words that may or may not mean that."""
    found = {cell for column in cells for cell in column}
    if missing is not None:
        words = {word.lower() for word in missing}
        return {"", *(cell for cell in found if cell.lower() in words)}, ()
    doubtful = sorted(cell for cell in found if cell.lower() in DOUBTFUL)
    if not doubtful:
        return {""}, ()
    shown = ", ".join(f"{word!r} ({sum(column.count(word) for column in cells)} rows)" for word in doubtful)
    others = {cell for cell in found if cell and cell not in doubtful}
    if others and all(number(cell) is not None for cell in others):
        return {"", *doubtful}, (f"labels {shown} were read as unlabelled, since all others are numbers",)
    listed = ",".join(doubtful)
    return {""}, (f"labels {shown} were read as classes; pass missing={listed} if they mean that there is no label",)


def _text(value: Any) -> str:
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
) -> Targets:
    values = {cell: number(cell) for cell in dict.fromkeys(cells) if cell not in unknown}
    texts = [cell for cell, value in values.items() if value is None]
    fractions = [c for c, v in values.items() if v is not None and v == v and not v.is_integer()]
    if problem is None and fractions and texts:
        raise error(
            f"{texts[0]!r} is not a number, while other labels have fractions ({fractions[0]}); correct it, or pass "
            f"missing=({texts[0]!r},) if it means no label, or problem='multiclass' if all of them are names",
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
            f"labels: {len(found)} different ones in {labelled} labelled rows; pass problem='regression' if they are "
            f"quantities, problem='multiclass' if they are classes, or name another column"
        )
    order = [str(name) for name in class_names] or found
    strange = [cell for cell in found if cell not in order]
    if strange:
        raise error(f"label {strange[0]!r} is none of class_names {tuple(order)}", cells.index(strange[0]), 0)
    if len(order) < 2:
        raise DataError(
            f"labels: expected at least two classes, found {', '.join(map(repr, order)) or 'no label at all'}"
        )
    code = {name: i for i, name in enumerate(order)}
    y = torch.tensor([code.get(cell, -1) if cell in values else -1 for cell in cells])
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
        raise DataError(f"labels: a class is one column, got {len(cells)}; name the one, or pass problem='multilabel'")
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
