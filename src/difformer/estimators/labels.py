"""Targets as users mark them: which rows are labelled, and what their labels are.

Unlabelled is -1 among whole numbers, NaN among floats, NaT among dates, and -1, None, NaN or ``pandas.NA`` among
objects such as texts. Any text is a class, also ``""``, ``"none"``, ``"NA"`` and ``"nan"``; but where all other labels
are numbers, words such as ``"none"`` mark unlabelled rows, and a warning says so: the rule of
`difformer.data.own.targets`. Where -1 and 1 are the only labels they are two classes, as support vector machines write
them, and a warning says so. Plain arrays of texts (numpy's ``U``) cannot hold a mark: an ``"-1"`` in one is most likely
a -1 that numpy turned into text, and is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length

from difformer.data.own.targets import gap_words, label_text
from difformer.errors import UserError

Array = np.ndarray[Any, Any]

UNLABELLED = -1
NO_VALUE = ("NAType", "NaTType")  # pandas' marks, known by name: pandas itself is not needed


def class_labels(y: Any, x: Any, name: str, weight: Array | None = None) -> tuple[Array, Array]:
    """Classes in order, and for every row the number of its class or -1, also for rows of weight zero."""
    labels = _column(y, name)
    check_consistent_length(x, labels)
    known = np.ones(len(labels), dtype=bool) if are_signs(labels) else is_labelled(labels)
    words, others = _words(labels)
    if others:
        warnings.warn(
            f"labels {', '.join(map(repr, words))} of y were read as unlabelled, since all others are {others}; "
            f"write None to mark unlabelled rows without this warning, or another name if it is a class",
            UserWarning,
            stacklevel=3,
        )
    if weight is not None:
        known &= weight > 0
    if not known.any():
        raise UserError(
            f"{name} needs labelled rows: all {len(labels)} rows of y are unlabelled (-1, NaN or None) or have weight "
            f"zero; label at least one row of each of two classes"
        )
    kind = type_of_target(settled(labels[known]), input_name="y")
    if kind not in ("binary", "multiclass"):
        raise UserError(
            f"Unknown label type: {kind}. Maybe you are trying to fit a classifier, which expects discrete classes on "
            f"a regression target with continuous values."
        )
    classes, numbers = np.unique(settled(labels[known]), return_inverse=True)
    if len(classes) < 2:
        raise UserError(
            f"{name} needs samples of at least 2 classes in the data, but the data contains only one class: "
            f"{classes[0]!r} (-1 marks unlabelled rows)"
        )
    target = np.full(len(labels), UNLABELLED, dtype=np.int64)
    target[known] = numbers
    return classes, target


def known_labels(y: Any, classes: Array, name: str) -> tuple[Array, Array]:
    """Which rows are labelled ``[N]``, and their labels; -1 marks nothing if it is one of the fitted classes."""
    labels = _column(y, name)
    known = np.ones(len(labels), dtype=bool) if UNLABELLED in classes.tolist() else is_labelled(labels, classes)
    if not known.any():
        raise UserError(f"{name} is scored on labelled rows: all {len(labels)} rows of y are unlabelled")
    return known, settled(labels[known])


def values(y: Any, x: Any, name: str) -> Array:
    """``[N]`` or ``[N, T]`` float64, as many axes as `y` has, NaN where unknown."""
    array = as_array(y)
    if array.dtype.kind == "O":
        filled = [np.nan if type(value).__name__ in NO_VALUE else value for value in array.ravel()]
        array = np.array(filled, dtype=object).reshape(array.shape)
    if array.ndim == 0 or array.ndim > 2:
        raise UserError(f"y must have shape (n_samples,) or (n_samples, n_targets), got {array.shape}")
    try:
        if array.dtype.kind in "cmM":
            raise TypeError(f"got {array.dtype}")
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"y must hold numbers, NaN where a row is unlabelled: {error}") from error
    check_consistent_length(x, array)
    if np.isinf(array).any():
        raise UserError("Input y contains infinity or a value too large for dtype('float64').")
    if np.isnan(array).all():
        raise UserError(
            f"Input y contains NaN alone: {name} needs labelled rows, and all {len(array)} rows are unlabelled"
        )
    unknown = np.flatnonzero(np.isnan(array).all(0)) if array.ndim == 2 else np.empty(0)
    if len(unknown):
        raise UserError(
            f"Input y contains NaN alone in column {', '.join(map(str, unknown))} of {array.shape[1]}: {name} needs a "
            f"labelled row for every target; leave such a column out"
        )
    return array


def signs_only(labels: Array) -> bool:
    """Whether labels are -1 and 1 alone: two classes, then, since with -1 for unlabelled only one would be left."""
    return labels.dtype.kind in "if" and np.array_equal(np.unique(labels), [-1, 1])


def are_signs(labels: Array) -> bool:
    """`signs_only`, with a warning."""
    if not signs_only(labels):
        return False
    warnings.warn(
        "y holds -1 and 1 alone: both are taken for classes. Where there is any other label, -1 marks unlabelled rows; "
        "to mark them here, write NaN",
        UserWarning,
        stacklevel=4,
    )
    return True


def is_labelled(labels: Array, classes: Array | None = None) -> Array:
    """``[N]`` bool; `classes` are those of a fitted model, which count with the labels."""
    if labels.dtype.kind in "iu":
        return labels != UNLABELLED
    if labels.dtype.kind == "f":
        return ~np.isnan(labels) & (labels != UNLABELLED)
    if labels.dtype.kind in "mM":
        return ~np.isnat(labels)
    if labels.dtype.kind in "US" and (labels == np.asarray("-1", dtype=labels.dtype)).any():
        raise UserError(
            "y holds the text '-1'; to mark unlabelled rows among texts pass an array of dtype object with -1, "
            "None or NaN in it: numpy.array([...], dtype=object)"
        )
    if labels.dtype.kind in "USO":
        words, others = _words(labels, classes)
        return np.array([not _is_mark(label, words if others else ()) for label in labels.tolist()], dtype=bool)
    return np.ones(len(labels), dtype=bool)


def _words(labels: Array, classes: Array | None = None) -> tuple[list[str], str]:
    """Words such as ``none`` among texts, and what all other labels are where such words mark unlabelled rows."""
    if labels.dtype.kind not in "USO":
        return [], ""
    fitted = [] if classes is None else classes.tolist()
    known = [label for label in labels.tolist() if not _is_mark(label)]
    texts = {label for label in known if isinstance(label, str | bytes)}
    words, _ = gap_words([label_text(label) for label in texts if label not in fitted])
    if not words:
        return [], ""
    return words, gap_words([*words, *(label_text(label) for label in [*known, *fitted])])[1]


def _is_mark(label: Any, words: Collection[str] = ()) -> bool:
    """Whether a label says that there is none; `words` are texts that say so."""
    if label is None or type(label).__name__ in NO_VALUE:
        return True
    if isinstance(label, str | bytes):
        return bool(words) and label_text(label) in words
    return bool(label == UNLABELLED) or bool(label != label)


def settled(labels: Array) -> Array:
    """Objects as what they all are: texts, whole numbers, …; texts among others are refused."""
    if labels.dtype.kind != "O":
        return labels
    kinds = sorted({type(label).__name__ for label in labels})
    texts = sum(isinstance(label, str) for label in labels)
    if 0 < texts < len(labels):
        raise UserError(
            f"labels in y are of kinds that have no common order: {', '.join(kinds)}; make them all texts or all "
            f"numbers (None, NaN or -1 marks unlabelled rows)"
        )
    return np.array(labels.tolist())


def as_array(y: Any) -> Array:
    """Targets as an array, no value of which was converted.

    Numpy turns a NaN among texts in a list into the text ``"nan"``, and series with gaps turn whole numbers into
    floats; such targets are returned as objects.
    """
    if isinstance(y, list | tuple):
        array = np.asarray(y)
        return np.asarray(y, dtype=object) if array.dtype.kind in "US" else array
    array = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if array.dtype.kind == "f" and hasattr(y, "to_list"):
        listed = y.to_list()
        if any(isinstance(label, int) for label in listed):
            return np.array(listed, dtype=object)
    return array.astype(object) if array.dtype.kind == "T" else array


def _column(y: Any, name: str) -> Array:
    """One label per row."""
    array = as_array(y)
    if array.ndim == 2 and array.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
            "(n_samples, ), for example using ravel().",
            DataConversionWarning,
            stacklevel=4,
        )
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"y should be a 1d array, got an array of shape {array.shape} instead.")
    return array
