"""Embeddings of rows: the states behind the output layer of a model that was trained on the labelled ones."""

from __future__ import annotations

from typing import Any

from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.multiclass import type_of_target

from difformer.estimators.base import Array, DIFFormerEstimator
from difformer.estimators.labels import as_array, class_labels, is_labelled, settled, values


class DIFFormerTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DIFFormerEstimator):
    """Features diffused over the population: supervised embeddings for the next step of a pipeline.

    Targets are classes or values; which of the two is inferred from `y`, as scikit-learn does
    (``sklearn.utils.multiclass.type_of_target``).

    Args:
        See `DIFFormerEstimator`; the embeddings of `n_models` models are concatenated.

    Attributes:
        graph_, n_features_in_, feature_names_in_, n_iter_, loss_: As in `DIFFormerClassifier`.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> X, y = load_wine(return_X_y=True)
        >>> DIFFormerTransformer(hidden_channels=16, random_state=0).fit_transform(X, y).shape
        (178, 48)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> DIFFormerTransformer:
        """Train on the labelled rows, in the context of all; see `DIFFormerClassifier.fit`.

        Args:
            X: ``[N, F]`` features.
            y: Labels, -1, NaN or None where unknown; or values, NaN where unknown.
            sample_weight: ``[N]``.
            graph: Overrides the option of this name.
        """
        self._embed(X, y, sample_weight, graph)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None, *, graph: Any = None) -> Array:
        """`fit`, and the embeddings of the rows it was given."""
        return self._embed(X, y, sample_weight, graph)

    def transform(self, X: Any, *, graph: Any = None) -> Array:
        """``[M, n_models · hidden_channels]`` states of rows, each in the context of the fitted population alone.

        Args:
            X: ``[M, F]`` features.
            graph: See `DIFFormerClassifier.predict_proba`.
        """
        x, edges = self._asked(X, graph)
        return self.fitted_.states(x, edges)

    def _embed(self, X: Any, y: Any, sample_weight: Any, graph: Any) -> Array:
        x, weight = self._table(X, y, sample_weight)
        if has_classes(y):
            classes, target = class_labels(y, x, type(self).__name__, weight)
            return self._fit(X, x, target, len(classes), weight, graph, embed=True)
        target = values(y, x, type(self).__name__).reshape(x.shape[0], -1)
        return self._fit(X, x, target, target.shape[1], weight, graph, embed=True)

    @property
    def _n_features_out(self) -> int:
        # Of the models that were fitted: options may have been set to something else since.
        return sum(self.fitted_.widths())


def has_classes(y: Any) -> bool:
    """Whether targets are classes rather than values."""
    array = as_array(y)
    if array.ndim != 1 and not (array.ndim == 2 and array.shape[1] == 1):
        return False
    known = settled(array.ravel()[is_labelled(array.ravel())])
    return known.size == 0 or type_of_target(known, input_name="y") in ("binary", "multiclass")
