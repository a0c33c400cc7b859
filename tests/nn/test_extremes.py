"""Values at the ends of a type's range: the same answer on every path, or an error that says what to do."""

import pytest
import torch

from difformer import DIFFormer, DIFFormerConv
from difformer.sparse import SparseMatrix


@pytest.mark.parametrize("rows", [50, 2000])
@pytest.mark.parametrize("norm", [True, False])
def test_features_that_could_only_overflow_are_refused(rows, norm):
    model = DIFFormer(8, 64, 3, norm=norm)
    x = torch.randn(rows, 8) * 1e30
    for given in (x, x.to_sparse(), SparseMatrix.from_tensor(x.to_sparse())):
        with pytest.raises(ValueError, match=r"x holds values of up to .*e\+30, .* standardise the features"):
            model(given)
    x *= 1e-20  # noticed, although the tensor is the same
    assert model(x).isfinite().all()
    assert model.double()(x.double() * 1e40).isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e10, 1e14])
def test_large_and_small_features_give_the_same_with_few_rows_as_with_many(scale):
    model = DIFFormer(8, 64, 3, diffusivity=None).eval()  # each row by itself: 50 rows by torch, 2,000 by kernels
    x = torch.randn(2000, 8) * scale
    many = model(x)
    assert many.isfinite().all()
    torch.testing.assert_close(model(x[:50]), many[:50], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [500, 2500, 10_000])
@pytest.mark.parametrize("qk_norm", ["row", "none", "global"])
def test_float16_sums_over_many_rows_do_not_overflow(rows, qk_norm):
    torch.manual_seed(0)
    conv, z = DIFFormerConv(64, 64, qk_norm=qk_norm), 3 * torch.randn(rows, 64)
    with torch.no_grad():
        conv.query.weight.mul_(0.03)  # keeps 1 + q·k away from zero, where every precision is lost
        wanted = conv(z)
        found = conv.half()(z.half())
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=1e-2)
