from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.estimators import DIFFormerClassifier
from difformer.estimators.population import RowScaling, find_rows, make_population, row_digests
from difformer.estimators.row_graph import RowGraph
from difformer.nn import DIFFormer
from difformer.training.feeds import NodesFeed


def table(rows: int = 40, columns: int = 5, seed: int = 0) -> np.ndarray:
    x = np.random.RandomState(seed).randn(rows, columns)
    x[x < -0.5] = 0
    return x


def test_equal_rows_have_equal_digests_dense_or_sparse() -> None:
    x = np.vstack([table(), table()[:3]])
    digests = row_digests(x)
    assert (row_digests(sparse.csr_array(x)) == digests).all()
    assert (digests[40:] == digests[:3]).all()
    assert len(np.unique(digests[:40], axis=0)) == 40
    minus_zero = np.where(x == 0, -0.0, x)
    assert (row_digests(minus_zero) == digests).all()


def test_whole_numbers_and_swapped_columns_do_not_collide() -> None:
    # Floats of small whole numbers share almost all their bits.
    grid = np.stack(np.meshgrid(np.arange(60), np.arange(60), np.arange(10)), -1).reshape(-1, 3).astype(float)
    assert len(np.unique(row_digests(grid), axis=0)) == len(grid)


def test_find_rows_returns_positions_or_minus_one() -> None:
    x = table()
    wanted = np.array([7, 0, 39])
    assert (find_rows(row_digests(x[wanted]), row_digests(x)) == wanted).all()
    assert (find_rows(row_digests(x[:2] + 1), row_digests(x)) == -1).all()


def test_repeated_rows_and_weighted_rows_are_one_population() -> None:
    x, y = table(), np.arange(40) % 3
    weight = np.random.RandomState(1).randint(0, 4, 40)
    shuffled = np.random.RandomState(2).permutation(40)
    weighted = make_population(x[shuffled], y[shuffled], weight[shuffled].astype(float), join=True)
    repeated = make_population(x.repeat(weight, 0), y.repeat(weight), None, join=True)
    assert (weighted.x == repeated.x).all()
    assert (weighted.mass == repeated.mass).all()
    assert (weighted.target == repeated.target).all()
    assert len(weighted.x) == (weight > 0).sum()
    assert (weighted.place < 0).sum() == (weight == 0).sum()
    kept = weight[shuffled] > 0
    assert (weighted.x[weighted.place[kept]] == x[shuffled][kept]).all()


def test_rows_that_differ_only_in_target_are_not_joined() -> None:
    x = np.zeros((3, 2))
    assert make_population(x, np.array([0, 1, -1]), None, join=True).mass.size == 3
    assert make_population(x, np.array([[0.5], [0.5], [np.nan]]), None, join=True).mass.size == 2


def test_mass_equals_repetition_in_a_layer() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, dtype=torch.float64)
    times = torch.tensor([1, 3, 2, 1, 1, 4])
    for diffusivity in ("simple", "sigmoid", "constant", "gaussian:0.5", "identity"):
        for options in ({"num_heads": 2}, {"transform": False}, {"source_weight": 0.3, "step_size": 0.7}):
            model = DIFFormer(4, 8, 2, diffusivity=diffusivity, **options).double()
            wanted = model(x.repeat_interleave(times, 0))
            split = Split("all", torch.arange(6), torch.arange(0), torch.arange(0))
            task = Task("rows", "nodes", "multiclass", "accuracy", "", x, torch.zeros(6, dtype=torch.long), (split,), 2)
            feed = NodesFeed(task, split, torch.device("cpu"), times.double())
            found = feed.outputs(model).repeat_interleave(times, 0)
            torch.testing.assert_close(found, wanted)


def test_scaling_lies_between_own_and_common_units() -> None:
    x = np.random.RandomState(0).randn(500, 3) * [1.0, 10.0, 0.0] + [5.0, -3.0, 2.0]
    scaling = RowScaling.of(x, np.ones(500))
    scaled = scaling(x)
    own = x.std(0)[:2]
    common = np.sqrt((own**2).mean())
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(0)[:2], own * np.sqrt((1 / own**2 + 1 / common**2) / 2))
    np.testing.assert_allclose(scaled[:, 2], 0, atol=1e-12)
    mass = np.random.RandomState(1).randint(1, 4, 500)
    again = RowScaling.of(x.repeat(mass, 0), np.ones(mass.sum()))
    weighted = RowScaling.of(x, mass.astype(float))
    np.testing.assert_allclose(weighted.scale, again.scale)
    np.testing.assert_allclose(weighted.shift, again.shift)


def test_indicators_stay_as_they_are_and_do_not_change_other_columns() -> None:
    rng = np.random.RandomState(0)
    numbers, indicators = rng.randn(5000, 2) * [1.0, 10.0], (rng.rand(5000, 2) < [0.01, 0.5]).astype(float)
    indicators[4999, 1] = 1.0
    x, mass = np.hstack([numbers, indicators, np.ones((5000, 1))]), np.ones(5000)
    scaled = RowScaling.of(x, mass)(x)
    assert (scaled[:, 2:4] == indicators).all()
    np.testing.assert_allclose(scaled[:, 4], 0, atol=1e-12)  # a constant column is centred, also one of ones
    np.testing.assert_allclose(scaled[:, :2], RowScaling.of(numbers, mass)(numbers))
    x[4999, 3] = 2.0  # no indicator any more, for the sake of the last of several blocks of rows
    np.testing.assert_allclose(RowScaling.of(x, mass)(x)[:, 3].mean(), 0, atol=1e-12)
    assert (RowScaling.of(x, mass, standardize=False)(x) == x).all()
    alone = RowScaling.of(indicators, mass)(indicators)  # without numbers they are scaled like other columns
    np.testing.assert_allclose(alone.mean(0), 0, atol=1e-12)


def test_sparse_features_keep_their_zeros() -> None:
    x = sparse.csr_array(table())
    scaled = RowScaling.of(x, np.ones(40))(x)
    assert sparse.issparse(scaled)
    assert (scaled.indices == x.indices).all()
    np.testing.assert_allclose(scaled.multiply(scaled).sum() / 40, 5)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_sparse_features_with_indices_outside_are_refused(form: str) -> None:
    good = sparse.random(12, 10, 0.5, random_state=0, format=form)
    bad = good.copy()
    if form == "coo":
        bad.col = bad.col.copy()
        bad.col[0] = 2**30
    else:
        bad.indices[0] = 2**30
    y = np.arange(12) % 2
    fitted = DIFFormerClassifier(steps=2, n_models=1, random_state=0).fit(good, y)
    for ask in (
        lambda: DIFFormerClassifier().fit(bad, y),
        lambda: fitted.predict(bad),
        lambda: RowGraph(bad, np.eye(12)),
    ):
        with pytest.raises(UserError, match=r"X: .*indices"):
            ask()
