import pytest
import torch

from difformer import DIFFormerConv


@pytest.mark.parametrize("qk_norm", ["global", "none"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("transform", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_the_gram_matrix_gives_output_and_every_gradient_of_the_sums(qk_norm, heads, transform, tied):
    torch.manual_seed(0)
    options = {"num_heads": heads, "transform": transform, "qk_norm": qk_norm, "tied_qk": tied}
    fast = DIFFormerConv(5, 5, **options).double()
    slow = DIFFormerConv(5, 5, backend="reference", **options).double()  # queries and keys, all pairs
    slow.load_state_dict(fast.state_dict())
    # Small states keep 1 + qᵀk away from zero where it is not normalised.
    z = (0.1 * torch.randn(30, 5, dtype=torch.float64)).requires_grad_()
    weight = torch.randn(30, 5, dtype=torch.float64)
    found, wanted = fast(z), slow(z)
    torch.testing.assert_close(found, wanted)
    gradients = [
        torch.autograd.grad((out * weight).sum(), [z, *conv.parameters()])
        for out, conv in ((found, fast), (wanted, slow))
    ]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


def test_vmap_over_runs_equals_a_loop():
    conv = DIFFormerConv(4, 4, qk_norm="global").double()
    z = torch.randn(3, 10, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(conv)(z), torch.stack([conv(run) for run in z]))
