"""The scikit-learn front: estimators for tables some of whose rows are labelled, and for rows never seen."""

from difformer.estimators.base import DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer
from difformer.estimators.cross_validation import cross_validate, labelled_scorer
from difformer.estimators.row_graph import RowGraph

__all__ = [
    "DIFFormerClassifier",
    "DIFFormerRegressor",
    "DIFFormerTransformer",
    "RowGraph",
    "cross_validate",
    "labelled_scorer",
]
