"""Small tables for the tests of estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="session")
def wine() -> tuple[Array, Array, Array]:
    """Features, labels, and labels of which nine in ten are unknown (-1)."""
    x, y = load_wine(return_X_y=True)
    partly = np.where(np.random.RandomState(0).rand(len(y)) < 0.1, y, -1)
    return x, y, partly


@pytest.fixture
def quick() -> dict[str, Any]:
    """Options for models that are quickly fitted."""
    return {"steps": 5, "learning_rate": 0.05, "hidden_channels": 8, "num_layers": 2, "n_models": 1, "random_state": 0}
