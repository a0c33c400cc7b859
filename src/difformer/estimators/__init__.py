"""The scikit-learn front: estimators for rows of a table, some of them labelled, and for rows never seen."""

from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.estimators.transformer import DIFFormerTransformer

__all__ = ["DIFFormerClassifier", "DIFFormerRegressor", "DIFFormerTransformer"]
