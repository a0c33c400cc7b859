"""Targets as users mark them: which rows are labelled, and what their labels are.

Unlabelled is -1 among whole numbers, NaN among floats, NaT among dates, and -1, None, NaN or ``pandas.NA`` among
objects such as texts. Any text is a class; but if all other labels are numbers, words such as ``"none"`` are marks, by
the rule of `difformer.data.own.targets`. If -1 and 1 are the only labels they are two classes, as support vector
machines write them. Plain arrays of texts (numpy's ``U``) cannot hold a mark: an ``"-1"`` in one is most likely a -1
that numpy turned into text, and is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, column_or_1d

from difformer.data import is_missing
from difformer.data.own.cell_values import gap_words, label_text
from difformer.errors import UserError
from difformer.estimators.population import Array

UNLABELLED = -1


def class_labels(y: Any, x: Any, name: str, weight: Array | None = None) -> tuple[Array, Array]:
    """Classes in order, and for every row the number of its class or -1, also for rows of weight zero."""
    labels = column_or_1d(as_array(y), warn=True)
    check_consistent_length(x, labels)
    known = is_labelled(labels, warn=True) & (True if weight is None else weight > 0)
    if not known.any():
        problem = f"all {len(labels)} rows of y are unlabelled (-1, NaN or None) or have weight zero"
        raise UserError(f"{name} needs labelled rows: {problem}; label at least one row of each of two classes")
    found = with_common_dtype(labels[known])
    check_classification_targets(found)
    classes, numbers = np.unique(found, return_inverse=True)
    if len(classes) < 2:
        problem = f"at least 2 classes in the data, but the data contains only one class: {classes.tolist()[0]!r}"
        raise UserError(f"{name} needs {problem} (-1 marks unlabelled rows)")
    target = np.full(len(labels), UNLABELLED, dtype=np.int64)
    target[known] = numbers
    return classes, target


def known_labels(y: Any, classes: Array, name: str) -> tuple[Array, Array]:
    """Which rows are labelled ``[N]``, and their labels; -1 marks nothing if it is one of the fitted classes."""
    labels = column_or_1d(as_array(y), warn=True)
    known = is_labelled(labels, classes)
    if not known.any():
        raise UserError(f"{name} is scored on labelled rows: all {len(labels)} rows of y are unlabelled")
    return known, with_common_dtype(labels[known])


def has_classes(y: Any) -> bool:
    """Whether targets are classes rather than values."""
    array = as_array(y)
    if array.ndim != 1 and array.shape[1:] != (1,):
        return False
    known = with_common_dtype(array.ravel()[is_labelled(array.ravel())])
    return known.size == 0 or type_of_target(known, input_name="y") in ("binary", "multiclass")


def values(y: Any, x: Any, name: str) -> Array:
    """``[N]`` or ``[N, T]`` float64, as many axes as `y` has, NaN where unknown."""
    array = as_array(y)
    if array.ndim not in (1, 2):
        raise UserError(f"y must have shape (n_samples,) or (n_samples, n_targets), got {array.shape}")
    try:
        if array.dtype.kind in "cmM":
            raise TypeError(f"got {array.dtype}")
        if array.dtype.kind == "O":
            array = np.array([np.nan if is_missing(v) else v for v in array.ravel()]).reshape(array.shape)
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"y must hold numbers, NaN where a row is unlabelled: {error}") from error
    check_consistent_length(x, array)
    if np.isinf(array).any():
        raise UserError("Input y contains infinity or a value too large for dtype('float64').")
    unknown = np.flatnonzero(np.isnan(array).reshape(len(array), -1).all(0)).tolist()
    if unknown:
        where = f": all {len(array)} rows are unlabelled"
        if array.ndim == 2:
            where = f" in column {', '.join(map(str, unknown))} of {array.shape[1]}; leave such a column out"
        raise UserError(f"Input y contains only NaN{where}. {name} needs a labelled row for every target")
    return array


def is_labelled(labels: Array, classes: Array | None = None, *, warn: bool = False) -> Array:
    """``[N]`` bool; `classes` are those of a fitted model, which count with the labels; `warn` says what is guessed."""
    kind, fitted, said = labels.dtype.kind, [] if classes is None else classes.tolist(), ""
    if kind in "mM":
        return ~np.isnat(labels)
    if kind == "b" or UNLABELLED in fitted:
        return np.ones(len(labels), dtype=bool)
    if kind in "iuf":
        known = (labels != UNLABELLED) & ~np.isnan(labels)
        # If -1 marked unlabelled rows there would be one class only.
        if classes is None and np.array_equal(np.unique(labels), [-1, 1]):
            known[:] = True
            said = "y holds only -1 and 1, which are read as two classes; to mark unlabelled rows here, write NaN"
    else:
        listed = labels.tolist()
        if kind in "US" and {"-1", b"-1"} & set(listed):
            advice = "to mark unlabelled rows among texts, pass an array of dtype object with -1, None or NaN in it"
            raise UserError(f"y holds the text '-1'; {advice}: numpy.array([...], dtype=object)")
        # Words such as "none" mark unlabelled rows if all other labels are numbers.
        given = [label for label in listed if not _is_mark(label)]
        texts = {label for label in given if isinstance(label, str | bytes) and label not in fitted}
        words = gap_words([label_text(label) for label in texts])[0]
        others = gap_words([*words, *map(label_text, [*given, *fitted])])[1] if words else ""
        known = np.array([not _is_mark(label, words if others else ()) for label in listed], dtype=bool)
        said = others and (
            f"labels {', '.join(map(repr, words))} of y were read as unlabelled, since all others are {others}; "
            f"write None to mark unlabelled rows without this warning, or another name if it is a class"
        )
    if said and warn:
        warnings.warn(said, UserWarning, stacklevel=6)
    return known


def _is_mark(label: Any, words: Collection[str] = ()) -> bool:
    """Whether a label marks an unlabelled row; `words` are texts that do."""
    if isinstance(label, str | bytes):
        return bool(words) and label_text(label) in words
    return is_missing(label) or bool(label == UNLABELLED)


def with_common_dtype(labels: Array) -> Array:
    """Objects in their common dtype: texts, whole numbers, …; a mixture of texts and others is refused."""
    if labels.dtype.kind != "O":
        return labels
    if 0 < sum(isinstance(label, str) for label in labels) < len(labels):
        kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
        advice = "make them all texts or all numbers (None, NaN or -1 marks unlabelled rows)"
        raise UserError(f"labels in y are of kinds that have no common order: {kinds}; {advice}")
    return np.array(labels.tolist())


def as_array(y: Any) -> Array:
    """Targets as an array; as objects where numpy would turn NaN into a text, or a series whole numbers into floats."""
    array = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if isinstance(y, list | tuple):
        return np.asarray(y, dtype=object) if array.dtype.kind in "US" else array
    if array.dtype.kind == "f" and hasattr(y, "to_list") and any(isinstance(label, int) for label in y.to_list()):
        return np.array(y.to_list(), dtype=object)
    return array.astype(object) if array.dtype.kind == "T" else array
