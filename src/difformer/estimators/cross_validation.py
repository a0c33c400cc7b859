"""Cross-validation with a graph, and scores of tables that are labelled in part.

There are two ways to judge a model that sees a graph:

* **inductive**: held-out rows are not there when the model is fitted. scikit-learn's own `cross_val_score`,
  `GridSearchCV` and `CalibratedClassifierCV` do that; give the estimator ``graph=RowGraph(X, graph)``, so that every
  fold has the edges among its rows, and held-out rows their edges from fitted ones.
* **transductive**: held-out rows and their edges are there, and only their labels are hidden. `cross_validate` does
  that. It is the right question if the rows to predict are known when the model is fitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing

from difformer.errors import UserError
from difformer.estimators.labels import as_array, is_labelled, settled, signs_only

Array = np.ndarray[Any, Any]


def cross_validate(
    estimator: Any,
    X: Any,
    y: Any,
    graph: Any = None,
    *,
    cv: Any = 5,
    scoring: str | Iterable[str] | None = None,
    sample_weight: Any = None,
) -> dict[str, Array]:
    """Transductive cross-validation: every fit sees all rows and all edges, and the labels of one fold are hidden.

    Args:
        estimator: A `DIFFormerClassifier` or a `DIFFormerRegressor`; it is cloned.
        X: ``[N, F]`` features.
        y: ``[N]`` labels, or ``[N]`` or ``[N, T]`` values; unlabelled rows are in no fold.
        graph: Edges among the rows, see `DIFFormerClassifier.fit`; None for the estimator's option.
        cv: Number of folds (stratified for classes), or a splitter of scikit-learn's; it splits the labelled rows.
        scoring: Name of a scorer of scikit-learn's, or several; None is accuracy or R².
        sample_weight: ``[N]`` for the fits.

    Returns:
        ``"test_score"`` (or ``"test_NAME"`` for each of several), ``"fit_time"`` and ``"labelled"`` (rows that kept
        their label), each with one entry per fold.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.neighbors import kneighbors_graph
        >>> X, y = load_wine(return_X_y=True)
        >>> from difformer import DIFFormerClassifier
        >>> model = DIFFormerClassifier(steps=10, n_models=1, random_state=0)
        >>> found = cross_validate(model, X, y, kneighbors_graph(X, 5), cv=3)
        >>> found["test_score"].shape
        (3,)
    """
    classes = is_classifier(estimator)
    target = as_array(y)
    known = _known(target, classes)
    rows = np.flatnonzero(known)
    labels = settled(target[rows]) if classes else target[rows].astype(np.float64)
    default = "accuracy" if classes else "r2"
    names = [scoring or default] if scoring is None or isinstance(scoring, str) else list(scoring)
    found: dict[str, list[float]] = {}
    for kept, hidden in check_cv(cv, labels, classifier=classes).split(np.zeros((len(rows), 1)), labels):
        model = clone(estimator)
        started = time.perf_counter()
        model.fit(X, _hide(target, rows[hidden], classes), sample_weight=sample_weight, graph=graph)
        answers = (_Classes if classes else _Values)(model, rows[hidden])
        found.setdefault("fit_time", []).append(time.perf_counter() - started)
        found.setdefault("labelled", []).append(len(kept))
        for name in names:
            key = "test_score" if scoring is None or isinstance(scoring, str) else f"test_{name}"
            position = np.arange(len(hidden)).reshape(-1, 1)
            found.setdefault(key, []).append(get_scorer(name)(answers, position, labels[hidden]))
    return {name: np.array(values) for name, values in found.items()}


def labelled_scorer(scoring: str | Callable[..., float]) -> Callable[..., float]:
    """A scorer of scikit-learn's that leaves unlabelled rows out, for `cross_val_score` and `GridSearchCV`.

    The scorers of scikit-learn count the mark of an unlabelled row as one more class.

    Args:
        scoring: Name of a scorer, such as ``"roc_auc"``, or a scorer.

    Example:
        >>> import numpy as np
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.model_selection import KFold, cross_val_score
        >>> from difformer import DIFFormerClassifier
        >>> X, y = load_wine(return_X_y=True)
        >>> partly = np.where(np.arange(len(y)) % 3 == 0, y, -1)
        >>> model = DIFFormerClassifier(steps=10, n_models=1, graph=None, random_state=0)
        >>> folds = KFold(2, shuffle=True, random_state=0)
        >>> cross_val_score(model, X, partly, scoring=labelled_scorer("neg_log_loss"), cv=folds).shape
        (2,)
    """
    scorer = get_scorer(scoring)

    def score(estimator: Any, X: Any, y: Any, **options: Any) -> float:
        target = as_array(y)
        rows = np.flatnonzero(_known(target, is_classifier(estimator)))
        if not len(rows):
            raise UserError(f"all {len(target)} rows to score are unlabelled; use larger folds, or stratified ones")
        chosen = settled(target[rows]) if is_classifier(estimator) else target[rows].astype(np.float64)
        return float(scorer(estimator, _safe_indexing(X, rows), chosen, **options))

    return score


def _known(target: Array, classes: bool) -> Array:
    """Which rows are labelled; of several values all must be known."""
    if classes:
        return np.ones(len(target), dtype=bool) if signs_only(target) else is_labelled(target)
    known: Array = ~np.isnan(target.astype(np.float64)).reshape(len(target), -1)
    return np.asarray(known.all(1))


def _hide(target: Array, rows: Array, classes: bool) -> Array:
    """A copy of the targets in which some rows are unlabelled."""
    if not classes:
        hidden = target.astype(np.float64)
        hidden[rows] = np.nan
        return hidden
    hidden = target.astype(object)
    hidden[rows] = None
    return hidden


class _Values(RegressorMixin, BaseEstimator):
    """A fitted model whose features are positions among hidden rows: it answers with what it knows of them."""

    def __init__(self, model: Any, rows: Array) -> None:
        self.model, self.rows = model, rows

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Array:
        answers: Array = self.model.transduction_[self.rows[np.asarray(X)[:, 0]]]
        return answers


class _Classes(ClassifierMixin, _Values):
    @property
    def classes_(self) -> Array:
        labels: Array = self.model.classes_
        return labels

    def predict_proba(self, X: Any) -> Array:
        chances: Array = self.model.label_distributions_[self.rows[np.asarray(X)[:, 0]]]
        return chances
