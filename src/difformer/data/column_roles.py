"""Which column of a table of features is what: the rows' ids, labels, the split, features, or nothing.

Columns are given by name, or by number counted from one; what is not said is found by the usual names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from difformer.data.assemble import PART_WORDS
from difformer.data.errors import DataError
from difformer.data.tables import LABEL_NAMES, SPLIT_NAMES, Head, names_ids

Column = str | int


def several(given: Column | Sequence[Column]) -> tuple[Column, ...]:
    """One column, or several: a text is one name, not its letters."""
    return (given,) if isinstance(given, (str, int)) else tuple(given)


def column_roles(
    head: Head,
    ids: Column | bool | None,
    labels: Sequence[Column] | None,
    labels_here: bool,
    split: Column | None,
    drop: Sequence[Column],
    wanted: tuple[str, ...],
    id_name: str | None = None,
) -> dict[str, Any]:
    """Which column is what: ``ids``, ``labels``, ``split``, ``unused``; and notes.

    A column called `id_name` holds the ids, wherever it stands and whatever `ids` says, unless that is False.
    """
    unused = [head.find(column) for column in drop]
    label_at = [head.find(column) for column in labels or ()]
    taken = {*unused, *label_at}
    if id_name and ids is not False and head.named and id_name in head.names:
        ids = id_name
    asked = set(wanted)
    id_at = _id_column(head, ids, taken | {i for i, name in enumerate(head.names) if head.named and name in asked})
    taken |= set() if id_at is None else {id_at}
    split_at = head.find(split) if split is not None else None
    if split is None and not wanted:
        likely = [i for i in head.named_like(SPLIT_NAMES) if i not in taken and head.first[i].lower() in PART_WORDS]
        split_at = likely[0] if likely else None
    taken |= set() if split_at is None else {split_at}
    notes = []
    if not wanted:
        for i in head.named_like(SPLIT_NAMES):
            if i not in {*taken, *label_at}:
                notes.append(
                    f"column {head.names[i]!r} of {Path(head.path).name} is used as a feature; it does not say train "
                    f"and test: pass drop=[{head.names[i]!r}] if it is no property of its row"
                )
    if labels_here and labels is not None and not wanted:
        for i in head.named_like(LABEL_NAMES):
            if i not in {*taken, *label_at}:
                notes.append(
                    f"column {head.names[i]!r} of {Path(head.path).name} is used as a feature, although its name is "
                    f"usual for labels; pass drop={head.names[i]} if it tells the answer"
                )
    if labels_here and labels is None:
        label_at = _find_labels(head, taken)
        notes += [f"labels are in column {head.names[i]!r} of {Path(head.path).name}" for i in label_at]
    elif labels is None and not wanted:
        _refuse_leak(head, taken)
    if wanted and head.named:
        there = set(head.names)
        absent = [name for name in wanted if name not in there]
        if absent:
            raise DataError(
                f"lacks {len(absent)} of the {len(wanted)} columns wanted: {', '.join(map(repr, absent[:8]))}; "
                f"it has {', '.join(map(repr, head.names[:8]))}",
                path=head.path,
            )
        asked = set(wanted)
        unused += [i for i, name in enumerate(head.names) if name not in asked and i not in taken]
    return {"ids": id_at, "labels": label_at, "split": split_at, "unused": unused, "notes": tuple(notes)}


def _id_column(head: Head, ids: Column | bool | None, taken: set[int]) -> int | None:
    if ids is False:
        return None
    if ids is True:
        return 0
    if ids is not None:
        return head.find(ids)
    if head.named:
        written = [i for i, name in enumerate(head.names) if name == "__index_level_0__"]
        if written:
            return written[0]
    usual = head.named and names_ids(head.names[0])
    # A table of one column holds features, whatever they look like.
    return 0 if 0 not in taken and len(head.names) > 1 and (usual or head.textual[0]) else None


def _find_labels(head: Head, taken: set[int]) -> list[int]:
    likely = [i for i in head.named_like(LABEL_NAMES) if i not in taken]
    if len(likely) == 1:
        return likely
    last = len(head.names) - 1
    if not head.named and last > 0 and last not in taken and head.textual[last]:
        return [last]  # as data sets for learning have been kept for decades
    have = ", ".join(map(repr, head.names[:20])) if head.named else f"{len(head.names)} unnamed columns"
    which = "which of its columns are the labels is not clear" if likely else "no column of it is called label or class"
    raise DataError(f"{which}; pass labels=FILE, or label_columns= with some of {have}", path=head.path)


def _refuse_leak(head: Head, taken: set[int]) -> None:
    for i in head.named_like(LABEL_NAMES - {"y"}):
        if i not in taken:
            raise DataError(
                f"column {head.names[i]!r} looks like labels and would be used as a feature, while labels come from "
                f"elsewhere; pass drop=[{head.names[i]!r}] or rename it",
                path=head.path,
            )
