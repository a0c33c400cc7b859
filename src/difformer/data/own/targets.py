"""Labels as users write them, in files of their own or beside the features, turned into the targets of a task.

    texts, or whole numbers          → multiclass: classes in order, each called by its text
    one column with fractions        → regression, as for more than 30 whole numbers that are mostly rare
    several columns of 0 and 1       → multilabel
    several columns of other numbers → regression with several targets

Only a cell that is empty, None or NaN carries no label. Words such as ``none``, ``NA``, ``null`` or ``?`` are classes
like any other text, and a note points them out; if all other labels are numbers, they mark unlabelled rows, and a note
says so. -1 among classes marks unlabelled rows, unless 1 is the only other label; a note says that too. ``missing=``
overrides the rule: it lists exactly the texts, beside the empty one, that mean no label.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from difformer.data.own.cell_values import canonical_id, gap_words, label_text, loose_id
from difformer.data.own.cell_values import number as number_of
from difformer.data.own.csv_files import ARRAY_ENDINGS, TextFormat, open_table
from difformer.data.own.features import ROWS, Features, Rows, named_array, needed_array
from difformer.data.own.preprocessing import LARGE
from difformer.data.own.table import Column, Columns, Ids, Path_, Table, Values, frame_column
from difformer.data.split import labelled
from difformer.data.task import Problem
from difformer.errors import DataError, UserError, in_file

MANY_CLASSES = 20
MANY_NUMBERS, OFTEN = 30, 5  # more whole numbers than this, most of which occur less often than this, are quantities
FEW_ROWS = 10  # with fewer labelled rows a perfect association may be chance
NEAR_ROWS = 20  # with at least this many, a nearly perfect one gets a note too
MOST_VALUES = 50  # different values of a column that may be a copy of the label
DETERMINES = "determines the label in"  # what a note on such a column says


@dataclass(frozen=True)
class Labels:
    """Columns of labels in the order of the instances."""

    columns: Sequence[Sequence[Any]]  # each with one cell per instance; empty if there is no label
    names: tuple[str, ...] = ()  # of the columns
    classes: Sequence[str] = ()  # in order, if the file names them
    notes: Sequence[str] = ()  # what was guessed about a file of labels
    #: Makes errors name the place in the file instead of an instance and a column of labels.
    locate: Callable[[], AbstractContextManager[None]] = nullcontext


def _labels_of(table: Table, at: Sequence[int], rows: Sequence[int | None], notes: Sequence[str] = ()) -> Labels:
    """The labels in the columns `at` of a table, whose `rows` are in the order of the instances."""
    cells = [["" if row is None else table.cells[i][row] for row in rows] for i in at]
    locate = partial(table.locate, {i + 1: place for i, place in enumerate(at)}, rows)
    return Labels(cells, tuple(table.names[i] for i in at), (), notes, locate)


def labels_in(found: Features) -> Labels:
    """The labels in the file of the features."""
    if (table := found.table) is not None:
        if not table.labels:
            raise DataError("label_columns: expected at least one column", path=found.path, argument="label_columns")
        return _labels_of(table, table.labels, range(table.rows))
    names, y, classes = named_array(found.arrays, "class_names"), named_array(found.arrays, "y"), list[str]()
    if y is None:
        problem = f"holds no labels (an array called y); pass labels=FILE; it has {', '.join(found.arrays)}"
        raise DataError(problem, path=found.path, argument="labels")
    if isinstance(names, np.ndarray) and isinstance(y, np.ndarray) and names.ndim == 1 and y.dtype.kind not in "bf":
        known = [canonical_id(name) for name in names.tolist()]
        distinct, whole = len({"", *known}) > len(known), y.dtype.kind in "iu"
        if distinct and (not whole or (y.ndim == 1 and {*y.tolist()} <= {*range(-1, len(known))})):  # -1 is unlabelled
            y, classes = [known[i] if i >= 0 else "" for i in y.tolist()] if whole else y, known
    return replace(labels_from(y, None, found.x.shape[0], found.path), classes=classes)


def labels_from(y: Any, x: Any, size: int, path: Path_ | None = None, *, ids: str | None = None) -> Labels:
    """Labels of `size` rows from memory, matched with `x` by index if both are from pandas, or from the file `path`.

    If a column of `x` holds `ids`, labels with another index are refused: it may hold these.
    """
    if y is None or isinstance(y, (Mapping, Set, str, bytes)) or not hasattr(y, "__iter__"):
        hint = "; from_frame takes the name of a column" if isinstance(y, str) else ""
        raise DataError(f"y: expected one label per row of x, in the order of the rows, got {type(y).__name__}{hint}")
    if hasattr(y, "iloc") and hasattr(x, "iloc") and not y.index.equals(x.index):  # both are from pandas
        if ids is not None:
            remedy = f"pass label.reindex(frame[{ids!r}]).to_numpy() if the labels are indexed by ids"
            raise DataError(f"label: its index is not that of the frame, whose ids are in column {ids!r}; {remedy}")
        if not y.index.is_unique:
            twice = y.index[y.index.duplicated()][0]
            raise DataError(f"y: its index holds {twice!r} twice, so its labels cannot be matched with x")
        if len(absent := y.index.difference(x.index, sort=False)):
            one, other, remedy = absent[0], x.index[0], "pass y.to_numpy() if the labels are in the order of the rows"
            kinds = "" if type(one) is type(other) else f": it begins with {other!r}, {type(other).__name__} and not "
            kinds += type(one).__name__ * bool(kinds)
            raise DataError(f"y: its index holds {one!r}, which that of x does not{kinds}; {remedy}")
        y = y.astype(object).reindex(x.index)
    names: tuple[str, ...] = ()
    if hasattr(y, "columns"):
        names = tuple(str(label) for label in y.columns)
        given: Any = [frame_column(y, i) for i in range(len(names))]
    else:
        array: Any = y.numpy(force=True) if isinstance(y, Tensor) else y.toarray() if hasattr(y, "toarray") else y
        if isinstance(array, (list, tuple)) and array and isinstance(array[0], ROWS):
            array = np.asarray(array)
        shape = list(array.shape) if isinstance(array, np.ndarray) else [size]
        if len(shape) not in (1, 2):
            raise DataError(f"y: expected one label per row, [N], or several, [N, C]; got shape {shape}")
        given = [array] if len(shape) == 1 else list(array.T)
    columns = [column.tolist() if hasattr(column, "tolist") else list(column) for column in given]
    if not columns or len(columns[0]) != size:
        raise DataError(f"y: expected {size} labels, one per row of x, got {len(columns[0]) if columns else 0}")
    if path is not None:
        names = tuple(map(str, range(1, len(columns) + 1)))
    return Labels(columns, names, locate=partial(in_file, path))


def _are_quantities(given: Sequence[Any], cells: Sequence[str], values: Mapping[str, float | int | None]) -> bool:
    """Whether the whole numbers in a column of a table are quantities: many, and most of them rare.

    Arrays of whole numbers hold classes, and so do codes from 0 or 1 and labels in which -1 marks a gap.
    """
    found = [v for v in values.values() if v is not None and v != -1 and abs(v) < LARGE]
    if not MANY_NUMBERS < len(found) == len(values) or any(isinstance(value, int | float) for value in given):
        return False
    if min(found) in (0, 1) and max(found) - min(found) < len(found):
        return False
    counts = Counter(cells)
    return 2 * sum(counts[cell] < OFTEN for cell in values) > len(found)


@dataclass(frozen=True)
class Targets:
    """Parts of a `Task`, and notes."""

    y: Tensor
    problem: Problem
    num_outputs: int
    class_names: tuple[str, ...]
    notes: Sequence[str] = ()

    @property
    def known(self) -> Tensor:
        """The instances with a label."""
        return labelled(self.y)


def encode_targets(
    columns: Sequence[Sequence[Any]],
    *,
    names: Sequence[str] = (),
    problem: Problem | None = None,
    class_names: Sequence[str] = (),
    missing: Sequence[str] | None = None,
) -> Targets:
    """Targets from columns of texts, numbers and None by the rules above; errors name row and column of the labels."""
    if problem not in (None, *get_args(Problem)):
        raise UserError(f"problem: expected one of {', '.join(get_args(Problem))}, got {problem!r}")
    if isinstance(class_names, str):
        raise UserError(f"class_names: expected the names of all classes, in order, got the text {class_names!r}")
    missing = [missing] if isinstance(missing, str) else missing
    cells = [[label_text(value) for value in column] for column in columns]
    unknown, notes = _no_label(cells, missing)
    strings = (value for column in columns for value in column if isinstance(value, str))
    if spaced := [text for text in strings if text.strip() not in ("", text)]:
        notes.append(f"blanks around {len(spaced)} labels were left out, such as those of {spaced[0]!r}")
    values = [{c: number_of(c) for c in dict.fromkeys(column) if c not in unknown} for column in cells]
    if len(cells) == 1 and problem != "multilabel":
        fractions = [c for c, v in values[0].items() if v is not None and v == v and not v.is_integer()]
        if problem is None and fractions:
            if texts := [cell for cell, value in values[0].items() if value is None]:
                said = f"{texts[0]!r} is not a number, while other labels have fractions ({fractions[0]}); correct it, "
                said += f"or pass missing={texts[0]} if it means no label, or problem=multiclass if all are names"
                raise DataError(said, row=cells[0].index(texts[0]), column=1)
            problem = "regression"
        guess = problem is None and not len(class_names)
        if guess and _are_quantities(columns[0], cells[0], values[0]):
            said = f"labels: {len(values[0])} different whole numbers, most in fewer than {OFTEN} rows, were read as"
            notes.append(f"{said} quantities (regression); pass problem=multiclass if they are classes")
            problem = "regression"
        if problem != "regression":
            if missing is None and "-1" in values[0] and not {*values[0]} <= {"-1", "1"}:
                del values[0]["-1"]
                notes.append(f"label -1 was read as unlabelled ({cells[0].count('-1')} instances)")
            return _classes(cells[0], values[0], class_names, guess, notes)
    elif problem == "multiclass":
        said = f"labels: a class is one column, got {len(cells)}"
        raise DataError(f"{said}; name the one, or pass problem=multilabel")
    else:
        truth = {"0", "1", "true", "false", *(["-1"] if missing is None else [])}
        other = [(i, text) for i, known in enumerate(values) for text in known if text.lower() not in truth]
        if problem == "multilabel" and other:
            said = f"several labels at a time must be 0 or 1, got {other[0][1]!r}"
            raise DataError(said, row=cells[other[0][0]].index(other[0][1]), column=other[0][0] + 1)
        problem = problem or ("regression" if other else "multilabel")
        for known in values if problem == "multilabel" and missing is None else ():
            known.pop("-1", None)
    y = np.full((len(cells[0]), len(cells)), np.nan)
    for i, (texts, known) in enumerate(zip(cells, values, strict=True)):
        if wrong := [text for text, value in known.items() if value is None or np.isinf(value)]:
            raise DataError(f"expected a number, got {wrong[0]!r}", row=texts.index(wrong[0]), column=i + 1)
        y[:, i] = [known.get(text, np.nan) for text in texts]
    if np.isnan(y).all():
        raise DataError("labels: found no label at all")
    target = torch.from_numpy(y.astype(np.float32))
    alone = problem == "regression" and len(cells) == 1
    return Targets(target.squeeze(1) if alone else target, problem, len(cells), () if alone else tuple(names), notes)


def _no_label(cells: list[list[str]], missing: Sequence[str] | None) -> tuple[set[str], list[str]]:
    """The cells that carry no label, and notes on words that may or may not mean that."""
    found = {cell for column in cells for cell in column}
    if missing is not None:
        words = {word.lower() for word in missing}
        return {"", *(cell for cell in found if cell.lower() in words)}, []
    doubtful, others = gap_words(found)
    if not doubtful:
        return {""}, []
    shown = ", ".join(f"{word!r} ({sum(column.count(word) for column in cells)} rows)" for word in doubtful)
    if others:
        return {"", *doubtful}, [f"labels {shown} were read as unlabelled, since all others are {others}"]
    how = f"pass missing={','.join(doubtful)} if they mean that there is no label"
    return {""}, [f"labels {shown} were read as classes; {how}"]


def _classes(
    cells: list[str], values: dict[str, float | None], class_names: Sequence[str], guess: bool, notes: list[str]
) -> Targets:
    """Classes: in numerical order if all are numbers, otherwise in alphabetical order."""
    texts = None in values.values()
    found = sorted(values) if texts else sorted(values, key=lambda cell: (values[cell], cell))
    known = sum(cell in values for cell in cells)
    if guess and len(found) > max(MANY_CLASSES, known / 2):
        said = f"labels: {len(found)} different ones in {known} labelled rows; pass problem=regression if they are "
        said += "quantities, problem=multiclass if they are classes, or name another column"
        raise DataError(said, argument="problem")
    order = [str(name) for name in class_names] or found
    if strange := [cell for cell in found if cell not in order]:
        said = f"label {strange[0]!r} is not among class_names {tuple(order)}"
        raise DataError(said, row=cells.index(strange[0]), column=1)
    if len(order) < 2:
        said = "".join(f"; {note}" for note in notes)
        said += "; pass missing= with the texts that mean no label, or with none, if these are classes" if said else ""
        got = ", ".join(map(repr, order)) or "no label at all"
        raise DataError(f"labels: expected at least two classes, found {got}{said}")
    if guess and len(found) > MANY_CLASSES and not texts:
        count = f"{len(found)} different whole numbers"
        notes.append(f"{count} were read as classes; pass problem=regression if they are quantities")
    code = {name: i for i, name in enumerate(order) if name in values}
    y = torch.tensor([code.get(cell, -1) for cell in cells])
    return Targets(y, "multiclass", len(order), tuple(order), notes)


def read_labels(
    path: Path_, rows: Rows, columns: Columns | None, key: Column | bool | None, format: TextFormat
) -> Labels:
    """Labels in the order of the features, by the names of their rows or in order; None means detect it."""
    if Path(path).suffix.lower() in ARRAY_ENDINGS:
        return labels_from(needed_array(path, "y", "x")[0], None, rows.size, path)
    table = open_table(path, format, role="labels", ids=rows.ids)
    table.read(range(len(table.names)))
    given = None if columns is None else table.find_all(columns, "label_columns")
    at = _ids_at(table, rows.size, rows.ids, key, given)
    chosen = [i for i in range(len(table.names)) if i != at] if given is None else given
    if not chosen:
        raise DataError("has no column of labels", path=path)
    order: Sequence[int | None] = _rows_in_order(table, rows.size) if at is None else _rows_by_id(table, at, rows)
    return _labels_of(table, chosen, order, table.notes)


def _ids_at(
    table: Table, size: int, ids: Ids | None, id_column: Column | bool | None, labels: list[int] | None
) -> int | None:
    """Position of the column of ids; None where labels are in the order of the features."""
    if isinstance(id_column, bool):
        return 0 if id_column else None
    if id_column is not None:
        return table.find(id_column, "label_ids")
    if usual := [i for i in table.named_like("ids") if i not in (labels or ()) and len(table.names) > 1]:
        return usual[0]
    if len(table.names) == 1 or 0 in (labels or ()):
        return None
    if ids is not None:
        loose = {loose_id(name) for name in ids}
        known = sum(loose_id(cell) in loose for cell in table.cells[0])
        return 0 if 2 * known >= table.rows or table.rows != size else None
    # Several columns of 0 and 1, one row each: labels, not numbers of rows.
    plain = all(set(table.cells[i]) <= {"0", "1", ""} for i in range(len(table.names)))
    return None if plain and table.rows == size > 2 else 0


def _rows_in_order(table: Table, size: int) -> list[int]:
    """Rows of the table, one per row of the features; blank lines are missing labels only if the count requires it."""
    rows, alone = list(range(table.rows)), len(table.names) == 1
    if len(rows) != size and alone:
        rows = [row for row in rows if table.cells[0][row]]
    if len(rows) == size:
        return rows
    blank, hint = table.rows - len(rows), "one label per row, or a column of ids"
    beside = f" beside {blank} blank line{'s' * (blank > 1)} (which may mean no label)" if blank else ""
    if table.rows == size + 1 and not table.named:
        hint += "; pass header=true if the first row is a name"
    elif len(rows) == size - 1 and table.named:
        hint += "; pass header=false if the first row is a label"
    elif table.rows < size and alone:
        hint += "; blank lines at the end do not count: give every label the id of its row, or pass missing= a word"
    raise DataError(f"has {len(rows)} rows{beside}, the features have {size}; give {hint}", path=table.path)


def _rows_by_id(table: Table, at: int, rows: Rows) -> list[int | None]:
    """For every row of the features, the row of the table that labels it."""
    cells, hint = table.cells[at], ""
    rows.find_ids([cells], "labelled rows")
    known = [number_of(cell) is not None if rows.ids is None else canonical_id(cell) in rows.ids for cell in cells[:2]]
    if known == [False, True] and not table.named:
        hint = "; pass header=true if this row names the columns"
    elif rows.ids is None:
        hint = "; add a column of ids to the features (ids= names it) or, if labels are in the order of the rows, pass "
        hint += "label_ids=false and label_columns= with that of the labels"
    row_of: dict[int, int] = {}
    with table.locate({None: at}):
        for row, place in enumerate(rows.positions(cells, what="row", hint=hint).tolist()):
            if (first := row_of.setdefault(place, row)) != row:
                problem = f"a second label for {cells[row]!r}, the first is on {table.place(first)}"
                raise DataError(problem, row=row)
    return [row_of.get(place) for place in range(rows.size)]


def suspicions(columns: Sequence[tuple[str, Values]], targets: Targets) -> list[str]:
    """Notes on labels that look misspelt, and on columns that determine the label in nearly every labelled row."""
    notes = _odd_labels(targets) if targets.problem == "multiclass" else []
    known = targets.known.numpy()
    if len(known) < FEW_ROWS or targets.y.dim() != 1:
        return notes
    y = targets.y.numpy()[known]
    for name, values in columns:
        if targets.problem == "multiclass":
            how, count = _determined(values, y, known)
        else:
            x = values[known] if isinstance(values, np.ndarray) else np.zeros(1)
            changing = not np.isnan(x).any() and np.ptp(x) > 0 and np.ptp(y) > 0
            how, count = "", len(known) * bool(changing and abs(np.corrcoef(x, y)[0, 1]) > 1 - 1e-9)
        if count:
            rows = f"all {count}" if count == len(known) else f"{count} of the {len(known)}"
            copy = f"if it is a copy of the label, or is known only afterwards, pass drop={name}"
            notes.append(f"{how}column {name!r} {DETERMINES} {rows} labelled rows; {copy}")
    return notes


def _determined(values: Values, y: np.ndarray, known: np.ndarray) -> tuple[str, int]:
    """How a column determines the class, and in how many rows; 0 if it does not."""
    numeric = isinstance(values, np.ndarray)
    cells = values[known].tolist() if isinstance(values, np.ndarray) else [values[row] for row in known.tolist()]
    size, different, classes = len(known), len(set(cells)), np.unique(y, return_counts=True)[1]
    rest = size - int(classes.max())
    if different <= min(MOST_VALUES, size // 2):  # each value stands for its most frequent class
        best: dict[object, tuple[int, int]] = {}
        for (value, label), count in Counter(zip(cells, y.tolist(), strict=True)).items():
            best[value] = max(best.get(value, (0, 0)), (count, label))
        wrong = size - sum(count for count, _ in best.values())
        many = size >= NEAR_ROWS and different <= (2 * len(classes) if numeric else size // 5)
        if len({label for _, label in best.values()}) > 1 and wrong <= many * min(0.05 * size, 0.2 * rest):
            return "", size - wrong
    if numeric and size >= NEAR_ROWS and rest >= 5 and different > size // 5:  # one interval of numbers per class
        changes = int((np.diff(y[np.argsort(cells, kind="stable")]) != 0).sum())
        wrong = (changes - len(classes) + 2) // 2  # a row among others of another class makes two changes
        if wrong <= min(0.02 * size, 0.2 * rest):
            return "the size of the numbers in ", size - wrong
    return "", 0


def _odd_labels(targets: Targets) -> list[str]:
    """Labels that differ in case or blanks only; labels that occur once, with one they may be a misspelling of."""
    codes = Counter(targets.y[targets.y >= 0].tolist())
    counts = {targets.class_names[code]: codes[code] for code in sorted(codes)}
    often = [name for name, count in counts.items() if count > 1]
    alike, notes = defaultdict[str, list[str]](list), []
    for name in often:
        alike[loose_id(name)].append(name)
    how = "differ only in case or blanks and are separate classes; write them alike if they mean the same"
    for group in [group for group in alike.values() if len(group) > 1][:5]:
        notes.append(f"labels {' and '.join(f'{name!r} ({counts[name]:,} rows)' for name in group)} {how}")
    for name in [name for name, count in counts.items() if count == 1 and often][:5]:
        near = difflib.get_close_matches(name, often, n=1, cutoff=0.7) if not name.replace(".", "").isdigit() else []
        near = alike.get(loose_id(name), near)
        hint = f"did you mean {near[0]!r}?" if near else "it cannot be both trained on and tested"
        notes.append(f"label {name!r} occurs once: {hint}")
    return notes
