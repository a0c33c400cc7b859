from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from difformer.data import knn
from difformer.estimators.row_graph import RowSearch


def brute(points: torch.Tensor, x: torch.Tensor, k: int) -> torch.Tensor:
    squares = (x.float().double().unsqueeze(1) - points.float().double()).square().sum(-1)
    return squares.sort(dim=1, stable=True).indices[:, :k]


def test_dense_search_equals_brute_force() -> None:
    points, x = torch.randn(300, 7), torch.randn(50, 7)
    assert torch.equal(RowSearch(points, 6)(x), brute(points, x, 6))


def test_dense_search_among_k_points() -> None:
    points = torch.randn(4, 3)
    assert torch.equal(RowSearch(points, 4)(points), brute(points, points, 4))


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_ties_go_to_the_smaller_index_for_any_block_size(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # A grid: every point has dozens of neighbours at one distance, more than the candidates of the first look.
    grid = torch.cartesian_prod(*[torch.arange(4.0)] * 4) + offset
    search = RowSearch(grid, 5)
    together = search(grid)
    assert torch.equal(together, brute(grid, grid, 5))
    assert torch.equal(torch.cat([search(row.unsqueeze(0)) for row in grid]), together)
    monkeypatch.setattr(knn, "BLOCK_BYTES", 8000)
    assert torch.equal(search(grid), together)


def test_fitted_row_is_its_own_first_neighbour() -> None:
    points = torch.randn(100, 5)
    assert torch.equal(RowSearch(points, 3)(points)[:, 0], torch.arange(100))


@pytest.mark.filterwarnings("error")
def test_values_beyond_single_precision_are_refused() -> None:
    search = RowSearch(torch.randn(40, 3), 3)
    with pytest.raises(ValueError, match=r"up to 1e\+60 after scaling.*check the units"):
        search(np.array([[1e60, 0.0, 1.0]]))


def test_sparse_search_orders_by_cosine() -> None:
    dense = np.random.RandomState(0).rand(120, 30)
    dense[dense < 0.8] = 0
    dense[5] = 0  # at a right angle to everybody
    points = sparse.csr_array(dense)
    search = RowSearch(points, 4)
    unit = dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-300)
    cosine = unit @ unit.T
    found = search(points).numpy()
    nearest = -np.sort(-cosine, axis=1)[:, :4]
    np.testing.assert_allclose(np.take_along_axis(cosine, found, 1), nearest, atol=1e-12)
    assert (found[5] == np.arange(4)).all()
    one_by_one = np.concatenate([search(points[i : i + 1]).numpy() for i in range(120)])
    assert (one_by_one == found).all()


def test_sparse_search_for_rows_that_were_not_fitted() -> None:
    dense = np.random.RandomState(1).rand(40, 12) * (np.random.RandomState(2).rand(40, 12) < 0.3)
    points, x = sparse.csr_array(dense[:30]), dense[30:].copy()
    x[3] = 0  # as far from every point as from any other
    found = RowSearch(points, 30)(sparse.csr_array(x)).numpy()
    unit = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300) for rows in (x, dense[:30])]
    cosine = unit[0] @ unit[1].T
    np.testing.assert_allclose(np.take_along_axis(cosine, found, 1), -np.sort(-cosine, axis=1), atol=1e-12)
    assert (found[3] == np.arange(30)).all()
    assert (np.sort(found, axis=1) == np.arange(30)).all()
