"""The scikit-learn front: estimators for tables some of whose rows are labelled, and for rows never seen."""

from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.cross_validation import cross_validate, labelled_scorer
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.estimators.row_graph import RowGraph
from difformer.estimators.transformer import DIFFormerTransformer

__all__ = [
    "DIFFormerClassifier",
    "DIFFormerRegressor",
    "DIFFormerTransformer",
    "RowGraph",
    "cross_validate",
    "labelled_scorer",
]
