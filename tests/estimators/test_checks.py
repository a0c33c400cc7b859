"""scikit-learn's own checks, all of them, with no exception."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer

KINDS = (DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer)
# Small and short: the checks fit a hundred models each. What the defaults do is looked at by the slow ones below.
QUICK = {"steps": 10, "learning_rate": 0.05, "hidden_channels": 16, "num_layers": 2, "n_models": 1, "graph": "knn"}

pytestmark = pytest.mark.filterwarnings("ignore:y holds -1 and 1 alone")


@parametrize_with_checks([kind(**{**QUICK, "steps": 40 if kind is DIFFormerRegressor else 10}) for kind in KINDS])
def test_scikit_learn_finds_nothing_to_object_to(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([kind() for kind in KINDS])
def test_nor_with_default_options(estimator: Any, check: Any) -> None:
    check(estimator)
