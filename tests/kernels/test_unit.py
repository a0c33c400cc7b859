import pytest
import torch
from torch.nn import functional

from difformer.kernels.rows import unit_rows


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 6)])
def test_unit_rows_equal_normalize_with_gradients(shape):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=g, requires_grad=True)
    out, expected = unit_rows(x), functional.normalize(x, dim=-1)
    torch.testing.assert_close(out, expected)
    weight = torch.randn(shape, dtype=torch.float64, generator=g)
    (mine,), (theirs,) = (torch.autograd.grad((y * weight).sum(), x) for y in (out, expected))
    torch.testing.assert_close(mine, theirs)


def test_unit_rows_pass_gradcheck_in_every_mode():
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(unit_rows, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(unit_rows, (x,))
    row = x[0].detach()
    jacobian = torch.func.jacrev(unit_rows)(row)
    torch.testing.assert_close(torch.func.jacfwd(unit_rows)(row), jacobian)


def test_zero_rows_stay_finite():
    x = torch.zeros(2, 3, requires_grad=True)
    out = unit_rows(x)
    assert torch.equal(out, torch.zeros(2, 3))
    (mine,) = torch.autograd.grad(out.sum(), x)
    (theirs,) = torch.autograd.grad(functional.normalize(x, dim=-1).sum(), x)
    torch.testing.assert_close(mine, theirs)


def test_unit_rows_under_vmap_over_any_axis():
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(torch.vmap(unit_rows, in_dims=1)(x), unit_rows(x).transpose(0, 1))


def test_unit_rows_under_torch_compile():
    x = torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(unit_rows, backend="eager", fullgraph=True)(x), unit_rows(x))
