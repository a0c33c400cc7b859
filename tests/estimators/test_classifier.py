from __future__ import annotations

import dataclasses
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from difformer.estimators import DIFFormerClassifier, fitting
from difformer.estimators.judging import accuracy_then_likelihood


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Three clouds far apart, which two labels each suffice to tell."""
    return make_blobs(90, centers=[[0, 0], [9, 0], [0, 9]], random_state=0)


def two_a_class(y: np.ndarray) -> np.ndarray:
    partly = np.full(len(y), -1)
    for label in np.unique(y):
        partly[np.flatnonzero(y == label)[:2]] = label
    return partly


def test_two_labels_a_class_label_the_rest(blobs: Any) -> None:
    x, y = blobs
    model = DIFFormerClassifier(random_state=0, steps=40, n_models=1).fit(x, two_a_class(y))
    assert (model.transduction_ == y).all()
    assert model.label_distributions_.shape == (90, 3)
    np.testing.assert_allclose(model.label_distributions_.sum(1), 1)
    assert model.score(x + 0.1, y) == 1.0
    assert model.n_iter_ == 40


def test_marks_of_the_unlabelled(blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    partly = two_a_class(y)
    names = np.array(["ash", "beech", "cedar"])
    forms = {
        "whole numbers": partly,
        "floats": np.where(partly < 0, np.nan, partly.astype(float)),
        "texts and None": np.array([None if p < 0 else names[p] for p in partly], dtype=object),
        "texts and NaN": np.array([np.nan if p < 0 else names[p] for p in partly], dtype=object),
        "texts and -1": np.array([-1 if p < 0 else names[p] for p in partly], dtype=object),
        "pandas": pd.Series([pd.NA if p < 0 else names[p] for p in partly], dtype="string"),
        "polars": pl.Series([None if p < 0 else str(names[p]) for p in partly]),
    }
    found = {}
    for form, labels in forms.items():
        model = DIFFormerClassifier(graph=None, **quick).fit(x, labels)
        found[form] = model.label_distributions_
        assert len(model.classes_) == 3, form
        if "numbers" not in form and form != "floats":
            assert set(model.predict(x)) <= set(names), form
    for distributions in found.values():
        assert (distributions == found["whole numbers"]).all()


def test_a_text_minus_one_is_refused(blobs: Any) -> None:
    x, y = blobs
    with pytest.raises(ValueError, match="dtype object"):
        DIFFormerClassifier().fit(x, np.where(y == 0, "-1", "a"))


def test_minus_one_and_one_alone_are_two_classes(blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    with pytest.warns(UserWarning, match="taken for classes"):
        model = DIFFormerClassifier(**quick).fit(x, np.where(y == 0, -1, 1))
    assert list(model.classes_) == [-1, 1]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_give_their_columns_names(frame: Any, wine: Any, quick: dict[str, Any]) -> None:
    x, _y, partly = wine
    names = [f"column {i}" for i in range(x.shape[1])]
    table = frame(dict(zip(names, x.T, strict=True)))
    model = DIFFormerClassifier(**quick).fit(table, partly)
    assert list(model.feature_names_in_) == names
    assert model.n_features_in_ == 13
    np.testing.assert_array_equal(model.predict(table), model.predict(pd.DataFrame(x, columns=names)))
    shortened = table.drop(columns="column 3") if frame is pd.DataFrame else table.drop("column 3")
    with pytest.raises(ValueError, match=r"now missing:\n- column 3"):
        model.predict(shortened)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(x)


def test_errors_are_those_of_scikit_learn(wine: Any, quick: dict[str, Any]) -> None:
    x, y, partly = wine
    model = DIFFormerClassifier(**quick)
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(NotFittedError):
        model.save_pretrained("nowhere")
    with pytest.raises(ValueError, match="all 178 rows of y are unlabelled"):
        model.fit(x, np.full(178, -1))
    with pytest.raises(ValueError, match="only one class: "):
        model.fit(x, np.where(y == 2, 2, -1))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(np.where(x > 1000, np.nan, x), y)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        model.fit(x, x[:, 0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(x, y[:-1])
    with pytest.raises(ValueError, match="weight zero"):
        model.fit(x, partly, sample_weight=(partly < 0).astype(float))
    with pytest.raises(ValueError, match="Negative values"):
        model.fit(x, y, sample_weight=-np.ones(178))
    model.fit(x, partly)
    with pytest.raises(ValueError, match="X has 12 features, but DIFFormerClassifier is expecting 13"):
        model.predict(x[:, 1:])
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.predict(np.where(x > 1000, np.inf, x))


def test_graphs_of_the_wrong_size_are_named(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    model = DIFFormerClassifier(**quick)
    with pytest.raises(ValueError, match=r"graph has the wrong size: got a matrix of shape \(5, 5\)"):
        model.fit(x, partly, graph=sparse.eye(5))
    with pytest.raises(ValueError, match="receivers in 0 … 177"):
        model.fit(x, partly, graph=np.array([[0], [178]]))
    with pytest.raises(ValueError, match="non-negative weights"):
        model.fit(x, partly, graph=-sparse.eye(178))
    with pytest.raises(ValueError, match="may be a matrix or an edge_index of 178 edges"):
        model.fit(x, partly, graph=sparse.eye(178)).predict(x[:2], graph=np.eye(2, 178, dtype=int))
    with pytest.raises(ValueError, match="'knn', 'auto'"):
        model.fit(x, partly, graph="neighbours")
    model.fit(x, partly, graph=sparse.eye(178))
    with pytest.raises(ValueError, match=r"expected a matrix of shape \(2, 178\)"):
        model.predict(x[:2], graph=sparse.eye(2))
    with pytest.raises(ValueError, match="fit was given none"):
        DIFFormerClassifier(**quick).fit(x, partly).predict(x[:2], graph=sparse.eye(2, 178))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", 0),
        ("neighbours", 1.5),
        ("n_models", True),
        ("landmarks", 0),
        ("validation_fraction", 1.0),
        ("validation_fraction", "a tenth"),
        ("standardize", "no"),
        ("transform_values", None),
    ],
)
def test_options_out_of_range_are_named_when_fitted(option: str, value: Any, wine: Any) -> None:
    x, y, _ = wine
    model = DIFFormerClassifier(**{option: value})  # to be stored, not judged
    with pytest.raises(ValueError, match=option):
        model.fit(x, y)


def test_a_class_with_one_label_is_trained_on_and_never_held_out(blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    labels = y.copy()
    labels[np.flatnonzero(y == 2)[1:]] = -1
    # graph="auto": a cross-validation is made.
    model = DIFFormerClassifier(**{**quick, "steps": 30}).fit(x, labels)
    assert (model.transduction_ == y).mean() > 0.9


def test_pipelines_searches_clones_and_pickles(wine: Any, quick: dict[str, Any]) -> None:
    x, y, partly = wine
    model = DIFFormerClassifier(**{**quick, "graph": None, "steps": 15})
    scores = cross_val_score(make_pipeline(StandardScaler(), model), x, y, cv=3)
    assert scores.mean() > 0.85
    search = GridSearchCV(model, {"hidden_channels": [4, 8], "diffusivity": ["simple", "sigmoid"]}, cv=2).fit(x, y)
    assert search.best_params_["diffusivity"] in ("simple", "sigmoid")
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert not hasattr(again, "fitted_")
    model.fit(x, partly)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict_proba(x) == model.predict_proba(x)).all()


def test_a_pipeline_hands_on_weights_and_edges(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    edges, weight = sparse.eye_array(len(x), format="csr"), np.arange(1.0, len(x) + 1)
    line = make_pipeline(StandardScaler(), DIFFormerClassifier(**quick))
    line.fit(x, partly, difformerclassifier__sample_weight=weight, difformerclassifier__graph=edges)
    alone = DIFFormerClassifier(**quick).fit(StandardScaler().fit_transform(x), partly, weight, graph=edges)
    assert line[-1].graph_ == "given"
    np.testing.assert_array_equal(line[-1].label_distributions_, alone.label_distributions_)


def test_the_package_names_the_estimators() -> None:
    import difformer

    assert difformer.DIFFormerClassifier is DIFFormerClassifier
    assert {"DIFFormerClassifier", "DIFFormerRegressor", "DIFFormerTransformer"} <= set(difformer.__all__)


def test_the_same_seed_gives_the_same_model(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    first, second, third = (
        DIFFormerClassifier(**{**quick, "random_state": seed}).fit(x, partly).label_distributions_
        for seed in (0, 0, np.random.RandomState(5))
    )
    assert (first == second).all()
    assert (first != third).any()


@pytest.mark.parametrize(("with_graph", "without", "chosen"), [(0.7, 0.8, None), (0.8, 0.8, "knn"), (0.9, 0.8, "knn")])
def test_the_graph_is_chosen_on_held_out_labels(
    with_graph: float, without: float, chosen: str | None, wine: Any, quick: dict[str, Any], monkeypatch: Any
) -> None:
    x, y, _ = wine
    train, judged = fitting.train, []

    def measured(problem: Any, recipe: Any, edges: Any, weight: Any, splits: Any, runs: Any) -> Any:
        records = train(problem, recipe, edges, weight, splits, runs)
        if len(splits) == 1:  # the models themselves
            return records
        held_out = np.concatenate([split.valid.numpy() for split in splits])
        assert len(np.unique(held_out)) == len(held_out) == problem.x.shape[0]
        judged.append(edges is not None)
        return [dataclasses.replace(r, valid=without if edges is None else with_graph) for r in records]

    monkeypatch.setattr(fitting, "train", measured)
    assert DIFFormerClassifier(**quick).fit(x, y).graph_ == chosen
    assert judged == [True, False]


def test_the_graph_is_cross_validated_where_nothing_may_be_held_out(
    wine: Any, quick: dict[str, Any], monkeypatch: Any
) -> None:
    x, y, _ = wine
    monkeypatch.setattr(fitting, "ENOUGH", 100)
    train, judged = fitting.train, []

    def measured(problem: Any, recipe: Any, edges: Any, weight: Any, splits: Any, runs: Any) -> Any:
        judged.append([split.valid.numel() for split in splits])
        return train(problem, recipe, edges, weight, splits, runs)

    monkeypatch.setattr(fitting, "train", measured)
    DIFFormerClassifier(**quick, validation_fraction=0).fit(x, y)
    assert judged == [[60, 59, 59], [60, 59, 59], [0]]


def test_too_few_labels_or_rows_are_not_asked(wine: Any, blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    assert DIFFormerClassifier(**quick).fit(x, two_a_class(y)).graph_ == "knn"
    assert DIFFormerClassifier(**quick).fit(x[:20], y[:20]).graph_ is None


def test_many_labels_hold_some_out(monkeypatch: pytest.MonkeyPatch, wine: Any, quick: dict[str, Any]) -> None:
    x, y, _ = wine
    monkeypatch.setattr(fitting, "ENOUGH", 100)
    model = DIFFormerClassifier(**{**quick, "graph": None, "steps": 30}).fit(x, y)
    assert 1 <= model.n_iter_ <= 90  # up to three times as many steps, or until patience ends
    assert model.score(x, y) > 0.9
    held = fitting.hold_out(
        fitting.Problem(torch.zeros(178, 1), torch.from_numpy(y), 3, np.arange(178), None),
        model._recipe(),
    )
    assert held.valid.numel() == 18
    assert len(np.unique(y[held.valid.numpy()])) == 3


def test_of_equally_accurate_epochs_the_surest_is_kept() -> None:
    classes = torch.tensor([0, 1, 1, 0])
    right = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [2.0, 0.0]])
    wrong = right.clone()
    wrong[0] = wrong[0].flip(0)
    values = [float(accuracy_then_likelihood(o, classes)) for o in (9 * wrong, wrong, 0.1 * right, right, 9 * right)]
    assert values == sorted(values)
    assert len(set(values)) == 5
    assert [f"{v:.4f}" for v in values] == ["0.7500", "0.7500", "1.0000", "1.0000", "1.0000"]


def test_no_warning_in_ordinary_use(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")  # hidden by the package, until "error"
        DIFFormerClassifier(**quick).fit(x, partly).predict(x)
        DIFFormerClassifier(**quick).fit(sparse.csr_array(x), partly).predict(sparse.csr_array(x))
