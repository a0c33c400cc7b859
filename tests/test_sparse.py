"""The product with a sparse matrix at its smallest sizes, where a special case could take it for empty."""

import pytest
import torch

from difformer.sparse import SparseMatrix, add_product


def matrix(entries, rows, columns):
    row, col = torch.tensor(entries, dtype=torch.long).reshape(-1, 2).T
    return SparseMatrix.from_entries(row, col, torch.full((len(entries),), 2.0), (rows, columns))


@pytest.mark.parametrize(
    ("entries", "rows", "columns", "channels"),
    [([(0, 1)], 2, 2, 3), ([(0, 0)], 1, 1, 1), ([(0, 0), (1, 0)], 2, 1, 1), ([], 2, 3, 2), ([], 1, 1, 1)],
)
@pytest.mark.parametrize(("beta", "alpha"), [(0.0, 1.0), (1.0, 0.5), (0.25, -1.0)])
def test_products_of_one_entry_and_of_none(entries, rows, columns, channels, beta, alpha):
    made = matrix(entries, rows, columns)
    x, out = torch.rand(columns, channels) + 1, torch.rand(rows, channels)
    wanted = beta * out + alpha * made.to_dense() @ x
    out = torch.full_like(out, torch.nan) if beta == 0 else out  # with β = 0 it does not matter what was there
    torch.testing.assert_close(add_product(made.rows, x, out, beta=beta, alpha=alpha), wanted)


def test_compiled_operator_equals_the_product():
    made = matrix([(0, 1), (2, 0), (2, 1), (1, 1)], 3, 2)
    rows, columns = made.rows, made.columns
    x = torch.rand(2, 4, requires_grad=True)
    given = (rows.crow, rows.col, rows.value, columns.crow, columns.col, columns.value)
    out = torch.ops.difformer.sparse_matmul(*given, x)
    torch.testing.assert_close(out, made.to_dense() @ x)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(grad, 2 * made.to_dense().T @ out)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_product_under_vmap_equals_separate_products(axis):
    made = matrix([(0, 1), (2, 0), (2, 1), (1, 1)], 3, 2)
    x = torch.rand(5, 2, 4)
    found = torch.vmap(lambda one: made @ one, in_dims=axis)(x.movedim(0, axis))
    wanted = torch.stack([made.to_dense() @ one for one in x])
    torch.testing.assert_close(found, wanted)
    given = [part for side in (made.rows, made.columns) for part in (side.crow, side.col, side.value)]
    operator = torch.vmap(lambda one: torch.ops.difformer.sparse_matmul(*given, one), in_dims=axis)
    torch.testing.assert_close(operator(x.movedim(0, axis)), wanted)


@pytest.mark.parametrize(("row", "column"), [(5, 0), (0, 5)])
def test_entries_beyond_the_shape_are_refused(row, column):
    # Kernels follow the indices without looking: they would read memory of others.
    with pytest.raises(RuntimeError):
        SparseMatrix.from_entries(torch.tensor([row]), torch.tensor([column]), torch.ones(1), (2, 2))
