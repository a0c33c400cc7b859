"""What a cell of a table means: a number, a missing value, an id, a label."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np

# Words that may mark a missing value. Among numbers they do; among texts they are texts like any other.
GAP_WORDS = frozenset(("na", "n/a", "<na>", "nan", "null", "none", "?"))

_WHOLE = re.compile(r"[+-]?\d+\.0+\Z")
_TRUTH = {"true": 1.0, "false": 0.0}


def number(cell: str) -> float | None:
    """The number a cell holds, or None: what Python reads as a float, and true and false."""
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return _TRUTH.get(cell.strip().lower())


def is_gap(cell: str) -> bool:
    """Whether a cell in a column of numbers marks a missing value."""
    return not cell or cell.strip().lower() in GAP_WORDS


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None; NaN, which differs from itself; pandas' NA, which does not compare."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        return str(value) == "<NA>"


def cell_text(value: Any) -> str:
    """A value as a text file would hold it; a missing value is empty."""
    return "" if is_missing(value) else str(value.item() if isinstance(value, np.generic) else value).strip()


def canonical_id(value: Any) -> str:
    """The text that identifies a node: spaces trimmed, and 7.0, as some programs write whole numbers, equal to 7."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    return str(int(float(text))) if _WHOLE.match(text) and len(text) < 16 else text


def label_text(value: Any) -> str:
    """The text of a cell; empty for a missing one."""
    if is_missing(value):
        return ""
    text = canonical_id(value.item() if isinstance(value, np.generic) else value)
    return text[1:] if text[:1] == "+" and text[1:].isdigit() else text


def loose_id(name: Any) -> str:
    """An id without blanks and case, for comparison."""
    return "".join(canonical_id(name).split()).casefold()


def gap_words(cells: Collection[str]) -> tuple[list[str], str]:
    """Words such as ``none`` or ``NA`` among labels, and what all others are, ``""`` if the words are classes too."""
    doubtful = sorted({cell for cell in cells if cell.lower() in GAP_WORDS})
    others = {cell.lower() for cell in cells if cell} - GAP_WORDS
    if not doubtful or not others or any(number(cell) is None for cell in others):
        return doubtful, ""
    truth = others & {"true", "false"}
    return doubtful, "true or false" if truth == others else "numbers, true or false" if truth else "numbers"
