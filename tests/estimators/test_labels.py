"""Targets in every form that people have them in, and scores of tables that are labelled in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from difformer.data import from_arrays
from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer
from difformer.estimators.labels import class_labels, known_labels, values

FAR = 2**60  # whole numbers beyond what floats tell apart
DAYS = np.array(["2020-01-01", "2021-06-01", "2022-01-01"], dtype="M8[D]")


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["b", float("nan"), "a"], ["a", "b"]),  # numpy alone would make a text "nan" of it
        (["b", -1, "a"], ["a", "b"]),
        (["b", None, ""], ["", "b"]),
        (np.array([True, None, False], dtype=object), [False, True]),
        (pd.Series([1, pd.NA, 0], dtype="Int64"), [0, 1]),
        (pd.Series([FAR + 1, None, FAR], dtype="Int64"), [FAR, FAR + 1]),
        (pl.Series([FAR + 1, None, FAR]), [FAR, FAR + 1]),
        (pd.Series([1, None, 0], dtype="category"), [0, 1]),
        (np.array(["2021-06-01", "NaT", "2020-01-01"], dtype="M8[D]"), DAYS[:2].tolist()),
    ],
)
def test_labels_keep_their_type_and_gaps_are_no_class(y: Any, classes: list[Any]) -> None:
    found, target = class_labels(y, np.zeros((3, 1)), "DIFFormerClassifier")
    assert found.tolist() == classes
    assert [type(label) for label in found.tolist()] == [type(label) for label in classes]
    assert target.tolist() == [1, -1, 0]


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 1 has no such texts")
def test_numpy_string_dtype_as_labels() -> None:
    y = np.array(["b", "a", "b"], dtype=np.dtypes.StringDType())
    assert class_labels(y, np.zeros((3, 1)), "DIFFormerClassifier")[0].tolist() == ["a", "b"]


def test_texts_among_numbers_are_refused() -> None:
    mixed = np.array(["a", 1, None, 2.5], dtype=object)
    with pytest.raises(ValueError, match="no common order: float, int, str"):
        class_labels(mixed, np.zeros((4, 1)), "DIFFormerClassifier")
    with pytest.raises(ValueError, match="no common order"):
        DIFFormerTransformer().fit(np.zeros((4, 1)), mixed)


def test_values_with_gaps_of_any_kind() -> None:
    x = np.zeros((3, 1))
    for y in ([0.5, None, 2], np.array([0.5, pd.NA, 2], dtype=object), pl.Series([0.5, None, 2])):
        np.testing.assert_array_equal(values(y, x, "DIFFormerRegressor"), [0.5, np.nan, 2])
    for y in (DAYS, np.array([1j, 2, 3])):
        with pytest.raises(ValueError, match="must hold numbers"):
            values(y, x, "DIFFormerRegressor")
    with pytest.raises(ValueError, match="only NaN in column 1 of 2"):
        values(np.array([[1, np.nan], [2, np.nan], [np.nan, np.nan]]), x, "DIFFormerRegressor")


def test_only_labelled_rows_are_scored(wine: Any, quick: dict[str, Any]) -> None:
    x, y, partly = wine
    model = DIFFormerClassifier(**{**quick, "graph": None}).fit(x, partly)
    known = partly >= 0
    wanted = (model.predict(x) == y)[known].mean()
    assert model.score(x, partly) == pytest.approx(wanted)
    assert model.score(x, np.where(known, partly, np.nan)) == pytest.approx(wanted)
    weight = np.arange(1.0, len(y) + 1)
    expected = np.average((model.predict(x) == y)[known], weights=weight[known])
    assert model.score(x, partly, sample_weight=weight) == pytest.approx(expected)
    with pytest.raises(ValueError, match="all 178 rows of y are unlabelled"):
        model.score(x, np.full(178, -1))
    with pytest.raises(ValueError, match="inconsistent"):
        model.score(x, partly[1:])


def test_minus_one_is_scored_where_it_is_a_class(wine: Any, quick: dict[str, Any]) -> None:
    x, y, _ = wine
    signs = np.where(y == 0, -1, 1)
    with pytest.warns(UserWarning, match="read as two classes"):
        model = DIFFormerClassifier(**{**quick, "graph": None}).fit(x, signs)
    assert model.score(x, signs) == (model.predict(x) == signs).mean()


def test_searches_over_partly_labelled_tables(wine: Any, quick: dict[str, Any]) -> None:
    x, y, _ = wine
    options = {**quick, "graph": None, "steps": 20}
    some = np.where(np.arange(len(y)) % 3 == 0, y, -1)
    search = GridSearchCV(DIFFormerClassifier(**options), {"hidden_channels": [8]}, cv=2).fit(x, some)
    assert search.best_score_ > 0.7  # unlabelled rows, two in three, would count as wrong
    texts = np.array([None if label < 0 else "abc"[label] for label in some], dtype=object)
    folds = KFold(2, shuffle=True, random_state=0)  # folds by class would have to put None and texts in order
    assert cross_val_score(DIFFormerClassifier(**options), x, texts, cv=folds, error_score="raise").mean() > 0.7


def test_values_are_scored_where_they_are_known(wine: Any, quick: dict[str, Any]) -> None:
    x, _, _ = wine
    both = x[:, :2].copy()
    both[::2, 0] = both[1::2, 1] = np.nan
    model = DIFFormerRegressor(**quick).fit(x, both)
    found = model.predict(x)
    each = []
    for column, rows in ((0, slice(1, None, 2)), (1, slice(0, None, 2))):
        target, value = both[rows, column], found[rows, column]
        each.append(1 - ((target - value) ** 2).sum() / ((target - target.mean()) ** 2).sum())
    assert model.score(x, both) == pytest.approx(np.mean(each))


@pytest.mark.parametrize(
    "y", [["none", "1", "2", "1"], np.array(["NA", "1", "2", "1"]), ["none", 1, 2, 1], ["nan", "true", "false", "true"]]
)
def test_words_for_gaps_among_numbers_are_unlabelled_with_a_warning(y: Any) -> None:
    with pytest.warns(UserWarning, match="of y were read as unlabelled, since all others are"):
        classes, target = class_labels(y, np.zeros((4, 1)), "DIFFormerClassifier")
    assert len(classes) == 2
    assert target[0] == -1
    assert (target[1:] >= 0).all()
    known, _ = known_labels(y, classes, "DIFFormerClassifier")
    assert known.tolist() == [False, True, True, True]
    # As in files and arrays
    assert from_arrays(np.eye(8), [*y, *y]).y.tolist()[:4] == target.tolist()


def test_words_for_gaps_among_names_are_classes() -> None:
    classes, target = class_labels(["none", "mild", "1", "mild"], np.zeros((4, 1)), "DIFFormerClassifier")
    assert classes.tolist() == ["1", "mild", "none"]
    assert (target >= 0).all()
    known, labels = known_labels(["none", "1"], classes, "DIFFormerClassifier")
    assert known.all()
    assert labels.tolist() == ["none", "1"]
