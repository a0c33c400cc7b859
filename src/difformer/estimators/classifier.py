"""Classification of rows, some of them labelled."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_consistent_length

from difformer.estimators.base import Array, DIFFormerEstimator
from difformer.estimators.labels import class_labels, known_labels


class DIFFormerClassifier(ClassifierMixin, DIFFormerEstimator):
    """Semi-supervised classification: labels travel over latent structure and, if there is one, over a graph.

    Args:
        class_weight: ``"balanced"`` weights classes by the inverse of their frequency among the labels, a dictionary
            gives the weight of each label, None weights all equally; as in scikit-learn. It acts in the loss.
        **options: See `DIFFormerEstimator`.

    Attributes:
        classes_: Labels in order.
        label_distributions_: ``[N, C]`` probabilities of the rows that were fitted.
        transduction_: ``[N]`` their most probable labels.
        graph_: ``"knn"``, ``"given"`` or None: what was used.
        temperature_: What logits are divided by before they become probabilities.
        n_features_in_, feature_names_in_: Columns that were fitted.
        n_iter_: Epochs of the longest run.
        loss_: Last training loss, mean over models.
        validation_loss_: Log loss on held-out labelled rows; None if there were too few labels to hold any out.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> partly = y.copy()
        >>> partly[np.arange(150) % 10 > 0] = -1
        >>> model = DIFFormerClassifier(random_state=0).fit(X, partly)
        >>> model.transduction_.shape
        (150,)
    """

    classes_: Array

    def __init__(self, *, class_weight: Mapping[Any, float] | str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.class_weight = class_weight

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> DIFFormerClassifier:
        """Train on the labelled rows, in the context of all.

        Args:
            X: ``[N, F]`` features: array, scipy sparse matrix, pandas or polars frame.
            y: ``[N]`` labels; -1, NaN or None where a row is unlabelled.
            sample_weight: ``[N]``: a row of weight 2 counts as two equal rows, one of weight 0 as none.
            graph: Overrides the option of this name: None, ``"knn"``, ``"auto"``, or edges among the rows, see
                `difformer.estimators.row_graph`.

        Raises:
            ValueError: As scikit-learn's classifiers do; and if `graph` has the wrong size.
        """
        x, weight = self._table(X, y, sample_weight)
        self.classes_, target = class_labels(y, x, type(self).__name__, weight)
        per_class = None
        if self.class_weight is not None:
            known = self.classes_[target[target >= 0]]
            per_class = compute_class_weight(self.class_weight, classes=self.classes_, y=known)
        self.label_distributions_ = self._fit(X, x, target, len(self.classes_), weight, graph, class_weight=per_class)
        self.temperature_ = float(self.fitted_.temperature)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(1)]
        return self

    def predict_proba(self, X: Any, *, graph: Any = None) -> Array:
        """``[M, C]`` probabilities of rows, each in the context of the fitted population only.

        Args:
            X: ``[M, F]`` features.
            graph: Where a graph was given to `fit`: edges from fitted rows to these, a sparse matrix ``[M, N]`` or an
                ``edge_index [2, E]`` with fitted rows above. Left out, fitted rows are recognised and keep their edges;
                others have none.
        """
        return self._outputs(X, graph)

    def predict(self, X: Any, *, graph: Any = None) -> Array:
        """``[M]`` most probable labels; see `predict_proba`."""
        probable = np.argmax(self._outputs(X, graph), axis=1)
        return self.classes_[probable]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> float:
        """Accuracy on the labelled rows; those marked as unlabelled are neither right nor wrong.

        Args:
            X: ``[M, F]`` features.
            y: ``[M]`` labels, -1, NaN or None where a row is unlabelled.
            sample_weight: ``[M]``.
            graph: See `predict_proba`.

        Raises:
            ValueError: If no row is labelled.
        """
        predicted = self.predict(X, graph=graph)
        known, labels = known_labels(y, self.classes_, type(self).__name__)
        check_consistent_length(predicted, known, sample_weight)
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(labels, predicted[known], sample_weight=weight))


# scikit-learn, and `help`, read the options off the signature.
_shared = inspect.signature(DIFFormerEstimator.__init__)
_own = inspect.Parameter("class_weight", inspect.Parameter.KEYWORD_ONLY, default=None)
setattr(  # noqa: B010
    DIFFormerClassifier.__init__, "__signature__", _shared.replace(parameters=[*_shared.parameters.values(), _own])
)
