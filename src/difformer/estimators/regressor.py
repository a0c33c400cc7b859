"""Regression of rows, some of them labelled."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from difformer.estimators.base import Array, DIFFormerEstimator
from difformer.estimators.labels import values


class DIFFormerRegressor(RegressorMixin, DIFFormerEstimator):
    """Semi-supervised regression, of one target or several; NaN marks what is unknown.

    A prediction is the sum of a ridge regression and of what the models add to it, see `difformer.estimators.ridge`.

    Args:
        See `DIFFormerEstimator`.

    Attributes:
        transduction_: ``[N]`` or ``[N, T]`` values of the rows that were fitted.
        graph_, n_features_in_, feature_names_in_, n_iter_, loss_: As in `DIFFormerClassifier`.
        validation_loss_: Squared error of scaled targets on held-out rows; None if none were held out.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> y[::2] = float("nan")
        >>> DIFFormerRegressor(random_state=0).fit(X, y).transduction_.shape
        (442,)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> DIFFormerRegressor:
        """Train on the labelled rows, in the context of all; see `DIFFormerClassifier.fit`.

        Args:
            X: ``[N, F]`` features.
            y: ``[N]`` or ``[N, T]`` values, NaN where unknown.
            sample_weight: ``[N]``.
            graph: Overrides the option of this name.
        """
        x, weight = self._table(X, y, sample_weight)
        target = values(y, x, type(self).__name__)
        self.one_column_ = target.ndim == 1
        target = target.reshape(len(target), -1)
        self.transduction_ = self._shaped(self._fit(X, x, target, target.shape[1], weight, graph))
        return self

    def predict(self, X: Any, *, graph: Any = None) -> Array:
        """``[M]`` or ``[M, T]`` values of rows, each in the context of the fitted population only.

        Args:
            X: ``[M, F]`` features.
            graph: See `DIFFormerClassifier.predict_proba`.
        """
        return self._shaped(self._outputs(X, graph))

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> float:
        """R² on what is known of `y`; of several targets the mean, each on the rows that know it.

        Args:
            X: ``[M, F]`` features.
            y: ``[M]`` or ``[M, T]`` values, NaN where unknown.
            sample_weight: ``[M]``.
            graph: See `DIFFormerClassifier.predict_proba`.
        """
        predicted = self.predict(X, graph=graph)
        wanted = values(y, predicted, type(self).__name__).reshape(len(predicted), -1)
        weight = np.ones(len(predicted)) if sample_weight is None else np.asarray(sample_weight)
        each = []
        for value, target in zip(predicted.reshape(wanted.shape).T, wanted.T, strict=True):
            known = ~np.isnan(target)
            each.append(r2_score(target[known], value[known], sample_weight=weight[known]))
        return float(np.mean(each))

    def _shaped(self, outputs: Array) -> Array:
        return outputs[:, 0] if self.one_column_ else outputs
