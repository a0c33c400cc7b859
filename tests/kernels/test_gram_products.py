from functools import partial

import pytest
import torch

from difformer import DIFFormerConv
from difformer.kernels import gram


@pytest.fixture(params=[2, 3, 7])
def slices(request, monkeypatch):
    """A CPU leaves such products whole; here they go in slices, as on a GPU."""
    monkeypatch.setattr(gram, "number_of_slices", lambda a: request.param)
    return request.param


@pytest.mark.parametrize("n", [7, 14, 25])
def test_sliced_products_equal_the_whole(slices, n):
    a, b = torch.randn(n, 3, dtype=torch.float64), torch.randn(n, 4, dtype=torch.float64)
    torch.testing.assert_close(gram.tall_product(a, b), a.T @ b)


def test_output_and_every_gradient_are_those_of_the_whole_products(slices):
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((25, 3), (3, 4), (4,))]
    z, weight, bias = inputs
    factor = torch.randn(25, 4, dtype=torch.float64)
    found, wanted = gram.affine(z, weight, bias), z @ weight + bias
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad((out.square() * factor).sum(), inputs) for out in (found, wanted)]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)
    torch.autograd.gradgradcheck(gram.affine, inputs)


def test_mixed_precision(slices):
    """Under autocast the factors that are kept are of another type than the gradient."""
    torch.manual_seed(0)
    conv = DIFFormerConv(4, 4, qk_norm="none", graph_weight=None)  # scores that matter: a global norm makes them tiny
    z = torch.randn(30, 4)

    def gradients(layer):
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(z)
        return torch.autograd.grad(out.float().square().sum(), list(layer.parameters()))

    slow = DIFFormerConv(4, 4, qk_norm="none", graph_weight=None, backend="reference")
    slow.load_state_dict(conv.state_dict())
    exact = torch.autograd.grad(slow(z).square().sum(), list(slow.parameters()))
    for first, second in zip(gradients(conv), exact, strict=True):
        torch.testing.assert_close(first, second, atol=0.03 * float(second.abs().max()), rtol=0)


def test_only_a_stack_on_a_gpu_is_sliced():
    seen = []
    torch.vmap(lambda a: seen.append(gram.number_of_slices(a)) or a.sum())(torch.randn(2, 1000, 3))
    assert (seen, gram.number_of_slices(torch.randn(1000, 3))) == ([1], 1)


def test_sliced_stack_of_layers_equals_single_layers(slices):
    conv = DIFFormerConv(4, 4, qk_norm="global").double()
    slow = DIFFormerConv(4, 4, qk_norm="global", backend="reference").double()  # all pairs, term by term
    stacked = {name: torch.randn(5, *value.shape, dtype=torch.float64) for name, value in conv.named_parameters()}
    z, factor = torch.randn(2, 5, 20, 4, dtype=torch.float64).unbind()

    def loss(layer, parameters, z, factor):
        return (torch.func.functional_call(layer, parameters, (z,)) * factor).sum()

    found = torch.vmap(torch.func.grad_and_value(partial(loss, conv), argnums=(0, 1)))(stacked, z, factor)
    for run in range(5):
        own = {name: value[run] for name, value in stacked.items()}
        (parameters, states), value = torch.func.grad_and_value(partial(loss, slow), argnums=(0, 1))(
            own, z[run], factor[run]
        )
        torch.testing.assert_close(found[1][run], value)
        torch.testing.assert_close(found[0][1][run], states)
        for name, gradient in parameters.items():
            torch.testing.assert_close(found[0][0][name][run], gradient)
