"""Which column of a table of features is what: the rows' ids, labels, the split, features, or nothing.

Columns are given by name, or by number counted from one; what is not said is found by the usual names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from difformer.data.errors import DataError
from difformer.data.own.table import LABEL_NAMES, PART_WORDS, SPLIT_NAMES, Column, Head, names_ids


@dataclass(frozen=True)
class Roles:
    """Positions of columns; `guessed` says that ids were found by their looks alone: a first column of texts."""

    ids: int | None
    guessed: bool
    labels: list[int]
    split: int | None
    features: list[int]
    notes: tuple[str, ...] = ()


def several(given: Column | Sequence[Column]) -> tuple[Column, ...]:
    """One column, or several: a text is one name, not its letters."""
    return (given,) if isinstance(given, (str, int)) else tuple(given)


def column_roles(
    head: Head,
    *,
    ids: Column | bool | None = None,
    labels: Sequence[Column] | None = None,
    labels_here: bool = False,
    split: Column | None = None,
    drop: Sequence[Column] = (),
    wanted: Sequence[str] = (),
    id_name: str | None = None,
) -> Roles:
    """What each column is; what is None is found by the usual names.

    `ids` is True for the first column and False for none. `labels_here` says that the labels must be in this table.
    `wanted` are the features by name; others are left out. A column called `id_name` holds the ids wherever it is,
    unless `ids` is False.
    """
    asked = set(wanted) if head.named else set()
    unused = {head.find(column, "drop") for column in drop}
    label_at = [head.find(column, "label_columns") for column in labels or ()]
    if id_name and ids is not False and head.named and id_name in head.names:
        ids = id_name
    taken = {*unused, *label_at}
    id_at, guessed = _id_column(head, ids, taken | {i for i, name in enumerate(head.names) if name in asked})
    taken |= set() if id_at is None else {id_at}
    split_at = head.find(split, "split_column") if split is not None else None
    if split is None and not wanted:
        likely = [i for i in head.named_like(SPLIT_NAMES) if i not in taken and head.first[i].lower() in PART_WORDS]
        split_at = likely[0] if likely else None
    taken |= set() if split_at is None else {split_at}
    notes = []
    file = Path(head.path).name
    if not wanted:
        for i in head.named_like(SPLIT_NAMES):
            if i not in taken:
                notes.append(
                    f"column {head.names[i]!r} of {file} is used as a feature; it does not say train and test: pass "
                    f"drop={head.names[i]} if it is no property of its row"
                )
    if labels_here and labels is None:
        label_at = _find_labels(head, taken)
        notes += [f"labels are in column {head.names[i]!r} of {file}" for i in label_at]
    elif not wanted:
        for i in head.named_like(LABEL_NAMES if labels_here else LABEL_NAMES - {"y"}):
            if i in taken:
                continue
            if not labels_here:
                raise DataError(
                    f"column {head.names[i]!r} looks like labels and would be used as a feature, while labels come "
                    f"from elsewhere; pass drop={head.names[i]} or rename it",
                    path=head.path,
                    argument="drop",
                )
            notes.append(
                f"column {head.names[i]!r} of {file} is used as a feature, although its name is usual for labels; "
                f"pass drop={head.names[i]} if it tells the answer"
            )
    taken |= set(label_at)
    features = [i for i in range(len(head.names)) if i not in taken]
    if asked:
        there = {head.names[i]: i for i in range(len(head.names))}
        absent = [name for name in wanted if name not in there]
        if absent:
            raise DataError(
                f"lacks {len(absent)} of the {len(wanted)} columns wanted: {', '.join(map(repr, absent[:8]))}; "
                f"it has {', '.join(map(repr, head.names[:8]))}",
                path=head.path,
            )
        extra = [head.names[i] for i in features if head.names[i] not in asked]
        if extra:
            shown = ", ".join(map(repr, extra[:6])) + (", …" if len(extra) > 6 else "")
            notes.append(f"columns of {file} that training did not have are left out: {shown}")
        features = [there[name] for name in wanted]
    return Roles(id_at, guessed, label_at, split_at, features, tuple(notes))


def _id_column(head: Head, ids: Column | bool | None, taken: set[int]) -> tuple[int | None, bool]:
    if ids is False:
        return None, False
    if ids is not None:
        return (0 if ids is True else head.find(ids, "ids")), False
    if head.named and "__index_level_0__" in head.names:
        return head.names.index("__index_level_0__"), False
    # A table of one column holds features, whatever they look like.
    if 0 in taken or len(head.names) < 2:
        return None, False
    if head.named and names_ids(head.names[0]):
        return 0, False
    return (0, True) if head.textual[0] else (None, False)


def _find_labels(head: Head, taken: set[int]) -> list[int]:
    likely = [i for i in head.named_like(LABEL_NAMES) if i not in taken]
    if len(likely) == 1:
        return likely
    last = len(head.names) - 1
    if not head.named and last > 0 and last not in taken and head.textual[last]:
        return [last]  # as data sets for learning have been kept for decades
    have = ", ".join(map(repr, head.names[:20])) if head.named else f"{len(head.names)} unnamed columns"
    which = "which of its columns are the labels is not clear" if likely else "no column of it is called label or class"
    raise DataError(
        f"{which}; pass labels=FILE, or label_columns= with some of {have}", path=head.path, argument="label_columns"
    )
