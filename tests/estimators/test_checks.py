"""scikit-learn's own checks, all of them, with no exception: LabelSpreading, the measure, needs none either."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.semi_supervised import LabelSpreading
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer

KINDS = (DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer)
# Checks that are expected to fail, of either. The tests below would fail if one of ours did.
EXPECTED_FAILURES: dict[str, str] = {}
# Small and short: the checks fit eighty models each. What the defaults do is looked at by the slow ones below.
QUICK = {"steps": 10, "learning_rate": 0.05, "hidden_channels": 8, "num_layers": 1, "n_models": 1, "graph": "knn"}
BETTER = {"steps": 15, "learning_rate": 0.1, "hidden_channels": 16}  # a score above one half is asked of regressors

pytestmark = pytest.mark.filterwarnings("ignore:y holds only -1 and 1", "ignore:the model is no better than")


def expected(estimator: Any) -> dict[str, str]:
    return EXPECTED_FAILURES


@parametrize_with_checks(
    [DIFFormerClassifier(**QUICK), DIFFormerRegressor(**{**QUICK, **BETTER}), DIFFormerTransformer(**QUICK)],
    expected_failed_checks=expected,
)
def test_check_estimator_passes(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_classifier_runs_all_checks_of_label_spreading() -> None:
    def names(estimator: Any) -> set[str]:
        return {getattr(check, "func", check).__name__ for _, check in estimator_checks_generator(estimator)}

    asked = names(DIFFormerClassifier())
    assert len(asked) > 40
    assert names(LabelSpreading()) <= asked


@pytest.mark.slow
@parametrize_with_checks([kind(steps=4) for kind in KINDS], expected_failed_checks=expected)
def test_check_estimator_passes_with_default_options(estimator: Any, check: Any) -> None:
    """Default options except for the number of steps."""
    if getattr(check, "func", check).__name__ == "check_regressors_train":
        estimator.set_params(steps=50)  # a score above one half is asked of it
    check(estimator)
