"""Cross-validation with a graph, and scores of tables that are labelled in part.

* **inductive**: the model is fitted without the held-out rows, as in scikit-learn's `cross_val_score`, `GridSearchCV`
  and `CalibratedClassifierCV`; give the estimator ``graph=RowGraph(X, graph)``.
* **transductive**: the model is fitted with the held-out rows and their edges, and only their labels are hidden, as in
  `cross_validate`. This is right if the rows to predict are known when the model is fitted.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing

from difformer.errors import UserError
from difformer.estimators.labels import as_array, is_labelled, with_common_dtype
from difformer.estimators.population import Array


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
        >>> from difformer import DIFFormerClassifier
        >>> X, y = load_wine(return_X_y=True)
        >>> model = DIFFormerClassifier(steps=10, n_models=1, random_state=0)
        >>> cross_validate(model, X, y, kneighbors_graph(X, 5), cv=3)["test_score"].shape
        (3,)
    """
    classes, target = is_classifier(estimator), as_array(y)
    rows, labels = _known(target, classes)
    names = {"test_score": scoring or ("accuracy" if classes else "r2")}
    if not (scoring is None or isinstance(scoring, str)):
        names = {f"test_{name}": name for name in scoring}
    found: list[dict[str, float]] = []
    for kept, hidden in check_cv(cv, labels, classifier=classes).split(np.zeros((len(rows), 1)), labels):
        model, started = clone(estimator), time.perf_counter()
        partly = target.astype(object if classes else np.float64)
        partly[rows[hidden]] = None if classes else np.nan
        model.fit(X, partly, sample_weight=sample_weight, graph=graph)
        found.append({"fit_time": time.perf_counter() - started, "labelled": len(kept)})
        answers = _by_number(model)
        found[-1] |= {key: get_scorer(name)(answers, rows[hidden], labels[hidden]) for key, name in names.items()}
    return {key: np.array([fold[key] for fold in found]) for key in found[0]}


def labelled_scorer(scoring: str | Callable[..., float]) -> Callable[..., float]:
    """A scorer of scikit-learn's that leaves unlabelled rows out, for `cross_val_score` and `GridSearchCV`.

    The scorers of scikit-learn count the mark of an unlabelled row as one more class. `scoring` is the name of one,
    such as ``"roc_auc"``, or a scorer.

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
        rows, labels = _known(as_array(y), is_classifier(estimator))
        if not len(rows):
            raise UserError(f"all {len(as_array(y))} rows to score are unlabelled; use larger, or stratified, folds")
        return float(scorer(estimator, _safe_indexing(X, rows), labels, **options))

    return score


def _by_number(model: Any) -> Any:
    """A fitted model whose features are the numbers of fitted rows, and whose answers are what `fit` stored of them."""

    def predict(rows: Array) -> Any:  # scikit-learn goes by the names of these functions
        return model.transduction_[rows]

    def predict_proba(rows: Array) -> Any:
        return model.label_distributions_[rows]

    answers = copy.copy(model)
    answers.predict, answers.predict_proba = predict, predict_proba
    return answers


def _known(target: Array, classes: bool) -> tuple[Array, Array]:
    """Numbers of the labelled rows and their labels; of several values all must be known."""
    if classes:
        rows = np.flatnonzero(is_labelled(target))
        return rows, with_common_dtype(target[rows])
    values = target.astype(np.float64)
    rows = np.flatnonzero(~np.isnan(values).reshape(len(values), -1).any(1))
    return rows, values[rows]
