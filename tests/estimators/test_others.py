"""The regressor and the transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.datasets import make_friedman1
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from difformer.estimators import DIFFormerRegressor, DIFFormerTransformer
from difformer.estimators.selection import LinearPart, best_share


@pytest.fixture(scope="module")
def friedman() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = make_friedman1(300, n_features=6, random_state=0)
    return x, y, np.where(np.arange(300) % 3 == 0, np.nan, y)


def test_unlabelled_values_are_predicted(friedman: Any) -> None:
    x, y, partly = friedman
    model = DIFFormerRegressor(random_state=0, steps=80, n_models=1, graph=None, hidden_channels=32).fit(x, partly)
    unknown = np.isnan(partly)
    error = np.mean((model.transduction_ - y)[unknown] ** 2)
    assert error < 0.35 * y.var()
    np.testing.assert_allclose(model.predict(x), model.transduction_)


def test_scale_and_shift_of_targets_do_not_matter(friedman: Any, quick: dict[str, Any]) -> None:
    x, _, partly = friedman
    plain = DIFFormerRegressor(**quick).fit(x, partly).transduction_
    moved = DIFFormerRegressor(**quick).fit(x, 1000 * partly - 5e6).transduction_
    np.testing.assert_allclose((moved + 5e6) / 1000, plain, rtol=1e-3)


def test_several_targets_each_with_gaps_of_its_own(friedman: Any, quick: dict[str, Any]) -> None:
    x, y, partly = friedman
    both = np.stack([partly, np.where(np.arange(300) % 2 == 0, np.nan, -y)], 1)
    model = DIFFormerRegressor(**{**quick, "steps": 40, "graph": None}).fit(x, both)
    assert model.transduction_.shape == model.predict(x).shape == (300, 2)
    assert np.corrcoef(model.predict(x).T)[0, 1] < -0.8
    one = DIFFormerRegressor(**quick).fit(x, partly[:, None])
    assert one.predict(x).shape == (300, 1)


def test_two_targets_are_predicted_no_worse_than_by_ridge() -> None:
    rng = np.random.RandomState(0)
    x = rng.rand(400, 6)
    linear = x @ rng.randn(6) + 0.1 * rng.randn(400)
    curved = np.sin(6 * x[:, 0]) * x[:, 1] + 0.05 * rng.randn(400)
    y = np.stack([linear, curved], 1)
    ridge = make_pipeline(StandardScaler(), Ridge()).fit(x[:200], y[:200]).predict(x[200:])
    model = DIFFormerRegressor(random_state=0, n_models=1).fit(x[:200], y[:200])
    ours, theirs = (((found - y[200:]) ** 2).mean(0) for found in (model.predict(x[200:]), ridge))
    assert ours[0] <= 1.03 * theirs[0]
    assert ours[1] < 0.7 * theirs[1]
    assert model.fitted_.share is not None
    assert model.fitted_.share[0] < model.fitted_.share[1]


def test_models_count_only_beyond_three_standard_errors() -> None:
    generator = torch.Generator().manual_seed(1)
    left, noise = torch.randn(2, 200, 1, generator=generator, dtype=torch.float64)
    weight = torch.ones(200, dtype=torch.float64)
    assert best_share(0.35 * left + noise, left, weight) == 0  # 2.6 standard errors, as on tables that are linear
    assert best_share(0.6 * left + noise, left, weight) > 0.3


def test_the_linear_part_is_that_of_scikit_learn_with_weights_gaps_and_constant_columns() -> None:
    rng = np.random.RandomState(0)
    x = np.column_stack([rng.randn(50, 3) * [1, 10, 0.1] + [0, 5, 1], np.ones(50)])
    y = np.stack([x[:, 0] - x[:, 1], rng.randn(50)], 1)
    y[::5, 1] = np.nan
    weight = rng.randint(1, 4, 50).astype(float)
    part = LinearPart.of(x, torch.from_numpy(y), torch.arange(40), torch.from_numpy(weight))
    for t, rows in ((0, np.arange(40)), (1, np.flatnonzero(~np.isnan(y[:40, 1])))):
        repeated = rows.repeat(weight[rows].astype(int))
        wanted = make_pipeline(StandardScaler(), Ridge()).fit(x[repeated], y[repeated, t]).predict(x)
        np.testing.assert_allclose(part.predict(x)[:, t].numpy(), wanted, atol=1e-9)
    columns = sparse.csr_array(np.where(x > 0, x, 0))
    found = LinearPart.of(columns, torch.from_numpy(y), torch.arange(40), None).predict(columns)
    np.testing.assert_allclose(found[:, 0].numpy(), Ridge().fit(columns[:40], y[:40, 0]).predict(columns), atol=1e-6)


def test_regressor_refuses_invalid_targets(friedman: Any, quick: dict[str, Any]) -> None:
    x, y, _ = friedman
    model = DIFFormerRegressor(**quick)
    with pytest.raises(ValueError, match="all 300 rows are unlabelled"):
        model.fit(x, np.full(300, np.nan))
    with pytest.raises(ValueError, match="contains infinity"):
        model.fit(x, np.where(y > 20, np.inf, y))
    with pytest.raises(ValueError, match="must hold numbers"):
        model.fit(x, np.array(["a"] * 300))


def test_missing_values_of_pandas_are_unknown(friedman: Any, quick: dict[str, Any]) -> None:
    x, _, partly = friedman
    nullable = pd.Series(partly).astype("Float64")
    assert nullable.isna().any()
    expected = DIFFormerRegressor(**quick).fit(x, partly).transduction_
    assert (DIFFormerRegressor(**quick).fit(x, nullable).transduction_ == expected).all()


def test_embeddings_and_their_names(wine: Any, quick: dict[str, Any]) -> None:
    x, _y, partly = wine
    model = DIFFormerTransformer(**{**quick, "n_models": 2})
    fitted = model.fit_transform(x, partly)
    assert fitted.shape == (178, 16)
    np.testing.assert_allclose(model.transform(x), fitted)
    assert model.get_feature_names_out()[0] == "difformertransformer0"
    frame = model.set_output(transform="pandas").transform(x[:4])
    assert list(frame.columns) == [f"difformertransformer{i}" for i in range(16)]
    assert model.set_output(transform="polars").transform(x[:4]).shape == (4, 16)
    model.set_params(hidden_channels=5)  # for the next fit
    assert len(model.get_feature_names_out()) == 16


def test_embeddings_in_a_pipeline(wine: Any, quick: dict[str, Any]) -> None:
    x, y, _ = wine
    line = make_pipeline(DIFFormerTransformer(**{**quick, "steps": 20}), LogisticRegression())
    assert line.fit(x[::2], y[::2]).score(x[1::2], y[1::2]) > 0.9


def test_embeddings_for_values(friedman: Any, quick: dict[str, Any]) -> None:
    x, _, partly = friedman
    model = DIFFormerTransformer(**quick).fit(x, partly)
    assert model.fitted_.softmax is False
    assert model.transform(x[:3]).shape == (3, 8)
