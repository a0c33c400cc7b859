"""Columns and labels that look like mistakes, each as one sentence."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from difformer.data.own.preprocessing import Values
from difformer.data.own.targets import Targets
from difformer.data.split_rules import labelled

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
