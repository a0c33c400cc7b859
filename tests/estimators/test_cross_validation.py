"""Model selection with a graph: scikit-learn's tools slice it per fold; a transductive one hides labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_score
from sklearn.neighbors import kneighbors_graph
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, RowGraph, cross_validate, labelled_scorer


@pytest.fixture(scope="module")
def told_by_the_graph() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features that say nothing; edges within one of two classes."""
    rng = np.random.RandomState(0)
    y = np.repeat([0, 1], 60)
    ends = [rng.choice(np.flatnonzero(y == c), (2, 400)) for c in (0, 1)]
    return rng.randn(120, 3), y, np.concatenate(ends, 1)


OPTIONS: dict[str, Any] = {
    "steps": 40, "learning_rate": 0.03, "hidden_channels": 8, "n_models": 1, "random_state": 0, "source_weight": 0.0,
}  # fmt: skip


def test_folds_have_the_edges_among_their_rows(told_by_the_graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, index = told_by_the_graph
    graph = RowGraph(x, index)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(DIFFormerClassifier(graph=graph, **OPTIONS), x, y, cv=folds, error_score="raise")
    alone = cross_val_score(DIFFormerClassifier(graph=None, **OPTIONS), x, y, cv=folds, error_score="raise")
    assert scores.mean() > 0.85
    assert alone.mean() < 0.7
    train, test = next(iter(folds.split(x, y)))
    model = DIFFormerClassifier(graph=graph, **OPTIONS).fit(x[train], y[train])
    both = graph.matrix.maximum(graph.matrix.T)
    assert (model.fitted_.given.matrix != both[train][:, train]).nnz == 0
    expected = model.predict_proba(x[test], graph=both[test][:, train])
    np.testing.assert_allclose(model.predict_proba(x[test]), expected)
    given_to_fit = DIFFormerClassifier(**OPTIONS).fit(x[train], y[train], graph=graph)
    np.testing.assert_allclose(given_to_fit.predict_proba(x[test]), expected)
    by_hand = DIFFormerClassifier(**OPTIONS).fit(x[train], y[train], graph=both[train][:, train])
    np.testing.assert_allclose(by_hand.predict_proba(x[test], graph=both[test][:, train]), expected)


def test_searches_and_calibration_with_a_graph(told_by_the_graph: Any) -> None:
    x, y, index = told_by_the_graph
    model = DIFFormerClassifier(graph=RowGraph(x, index), **OPTIONS)
    search = GridSearchCV(model, {"hidden_channels": [4, 8]}, cv=2, error_score="raise").fit(x, y)
    assert search.best_score_ > 0.8
    assert search.best_estimator_.graph is model.graph
    calibrated = CalibratedClassifierCV(model, cv=2).fit(x, y)
    assert calibrated.predict_proba(x).shape == (120, 2)
    assert clone(model).graph is model.graph


def test_rows_of_frames_are_recognised_by_their_index(told_by_the_graph: Any) -> None:
    x, y, index = told_by_the_graph
    x = x.copy()
    x[7] = x[100]  # of two classes
    with pytest.raises(ValueError, match="rows 7 and 100 are equal"):
        RowGraph(x, index)
    frame = pd.DataFrame(x, index=[f"row {i}" for i in range(120)], columns=list("abc"))
    graph = RowGraph(frame, index)
    model = DIFFormerClassifier(graph=graph, **OPTIONS).fit(frame.iloc[10:], y[10:])
    found = model.predict_proba(frame.iloc[:10])
    both = graph.matrix.maximum(graph.matrix.T)
    np.testing.assert_allclose(found, model.predict_proba(frame.iloc[:10], graph=both[:10][:, 10:]))
    # The same index over other features is another row: it has no edges.
    with pytest.raises(ValueError, match="110 of 110 rows to fit are not in the table"):
        DIFFormerClassifier(graph=graph, **OPTIONS).fit(frame.iloc[10:] + 1, y[10:])


def test_a_pipeline_that_changes_features_gets_an_error_with_a_remedy(told_by_the_graph: Any) -> None:
    x, y, index = told_by_the_graph
    line = make_pipeline(StandardScaler(), DIFFormerClassifier(graph=RowGraph(x, index), **OPTIONS))
    with pytest.raises(ValueError, match="preprocess before RowGraph"):
        line.fit(x, y)


def test_a_graph_of_all_rows_is_refused_for_some_with_a_remedy(told_by_the_graph: Any) -> None:
    x, y, index = told_by_the_graph
    for graph in (RowGraph(x, index).matrix, index, index.T.tolist()):
        with pytest.raises(ValueError, match=r"graph=RowGraph\(X, graph\)"):
            DIFFormerClassifier(graph=graph, **OPTIONS).fit(x[30:90], y[30:90])


def test_transductive_folds_keep_all_rows_and_hide_labels(
    told_by_the_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, index = told_by_the_graph
    names = np.where(np.arange(120) % 4 == 3, None, np.array(["ash", "beech"], dtype=object)[y])
    seen = []
    fit = DIFFormerClassifier.fit

    def watched(self: Any, X: Any, y: Any, *arguments: Any, **options: Any) -> Any:
        seen.append((len(X), sum(label is None for label in y)))
        return fit(self, X, y, *arguments, **options)

    monkeypatch.setattr(DIFFormerClassifier, "fit", watched)
    model = DIFFormerClassifier(**OPTIONS)
    found = cross_validate(model, x, names, index, cv=3, scoring=["accuracy", "neg_log_loss"])
    assert seen == [(120, 60)] * 3  # thirty are unlabelled anyway
    assert found["labelled"].tolist() == [60, 60, 60]
    assert found["test_accuracy"].mean() > 0.8
    assert (found["test_neg_log_loss"] < 0).all()
    assert not hasattr(model, "classes_")


def test_transductive_values(wine: Any) -> None:
    x, _, _ = wine
    target = np.where(np.arange(178) % 5 == 0, np.nan, x[:, 0])
    found = cross_validate(DIFFormerRegressor(**OPTIONS), x, target, kneighbors_graph(x, 4), cv=KFold(3, shuffle=True))
    assert found["test_score"].shape == (3,)
    assert (found["test_score"] > 0).all()
    assert found["labelled"].sum() == 2 * (~np.isnan(target)).sum()


def test_scorers_by_name_skip_unlabelled_rows(wine: Any, quick: dict[str, Any]) -> None:
    x, y, _ = wine
    some = np.where(np.arange(178) % 3 == 0, y, -1)
    model = DIFFormerClassifier(**{**quick, "graph": None}).fit(x, some)
    known = some >= 0
    wanted = -log_loss(y[known], model.predict_proba(x[known]))
    assert labelled_scorer("neg_log_loss")(model, x, some) == pytest.approx(wanted)
    assert labelled_scorer("accuracy")(model, x, some) == pytest.approx(model.score(x, some))
    frame = pd.DataFrame(x)
    fitted = DIFFormerClassifier(**{**quick, "graph": None}).fit(frame, some)
    assert labelled_scorer("roc_auc_ovr")(fitted, frame, some) > 0.5
    with pytest.raises(ValueError, match="are unlabelled"):
        labelled_scorer("accuracy")(model, x, np.full(178, -1))
    scores = cross_val_score(model, x, some, scoring=labelled_scorer("accuracy"), cv=KFold(3, shuffle=True))
    assert scores.shape == (3,)
