"""One step of a layer: clamped totals, trained edge weights, transforms, frozen maps and what is refused."""

import pytest
import torch

from difformer import DIFFormerConv, Graph
from difformer.nn.context import Structure


def graph(nodes=30, weighted=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, nodes, (2, 90), generator=generator)
    weight = torch.rand(90, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return Graph(edges, nodes, weight)


@pytest.mark.parametrize("backend", ["auto", "linear", "blockwise"])
def test_no_gradient_flows_through_a_clamped_total(backend):
    """Row 0 of z = (1, -3) receives with weights 1 + 1 and 1 - 3: they add up to zero, what they weigh does not."""
    results = []
    for kind in (backend, "reference"):
        conv = DIFFormerConv(1, 1, transform=False, qk_norm="none", backend=kind).double()
        with torch.no_grad():
            for layer in (conv.query, conv.key):
                layer.weight.fill_(1)
                layer.bias.zero_()
        z = torch.tensor([[1.0], [-3.0]], dtype=torch.float64, requires_grad=True)
        out = conv(z)
        results.append((out, *torch.autograd.grad(out.sum(), [z, *conv.parameters()])))
    assert results[1][0].abs().max() > 1e5  # the clamp is reached
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


def test_weights_of_edges_are_trained_through_a_layer():
    weight = torch.rand(90, dtype=torch.float64) + 0.1
    edges = graph().edge_index
    for options in ({}, {"transform": False, "qk_norm": "global"}):
        conv = DIFFormerConv(6, 6, **options).double()
        z = torch.randn(30, 6, dtype=torch.float64)
        leaf = weight.clone().requires_grad_()
        (grad,) = torch.autograd.grad(conv(z, Graph(edges, 30, leaf)).square().sum(), leaf)
        step = torch.zeros_like(weight)
        step[7] = 1e-6
        up, down = (conv(z, Graph(edges, 30, weight + sign * step)).square().sum() for sign in (1, -1))
        assert grad[7].item() == pytest.approx(((up - down) / 2e-6).item(), rel=1e-4)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", None])
@pytest.mark.parametrize("qk_norm", ["row", "global"])
def test_torch_func_gradients_equal_autograd(diffusivity, qk_norm):
    conv = DIFFormerConv(6, 6, diffusivity=diffusivity, qk_norm=qk_norm, transform=False).double()
    z, observed = torch.randn(30, 6, dtype=torch.float64), graph()
    found = torch.func.grad(lambda z: conv(z, observed).square().sum())(z)
    leaf = z.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(conv(leaf, observed).square().sum(), leaf)
    torch.testing.assert_close(found, wanted)
    parameters = dict(conv.named_parameters())
    score = lambda p: torch.func.functional_call(conv, p, (z, observed)).square().sum()
    for name, grad in torch.func.grad(score)(parameters).items():
        (right,) = torch.autograd.grad(conv(z, observed).square().sum(), parameters[name])
        torch.testing.assert_close(grad, right)


@pytest.mark.parametrize("qk_norm", ["row", "global", "none"])
def test_step_accepts_zero_rows(qk_norm):
    assert DIFFormerConv(6, 6, qk_norm=qk_norm)(torch.zeros(0, 6)).shape == (0, 6)


@pytest.mark.parametrize("source", [torch.zeros(1, 6), torch.zeros(30, 5), torch.zeros(30, 6, dtype=torch.float64)])
def test_a_source_of_another_shape_or_type_is_refused(source):
    conv = DIFFormerConv(6, 6, source_weight=1.0)
    with pytest.raises(ValueError, match=r"source must have shape \(30, 6\) and type torch.float32"):
        conv(torch.randn(30, 6), source=source)


def test_frozen_maps_and_a_second_backward_pass():
    conv = DIFFormerConv(6, 6, transform=False, qk_norm="global")
    conv.query.requires_grad_(False)
    z = torch.randn(30, 6, requires_grad=True)
    out = conv(z, graph()).square().sum()
    out.backward(retain_graph=True)
    first = z.grad.clone(), conv.key.weight.grad.clone()
    assert conv.query.weight.grad is None
    assert first[1].abs().sum() > 0
    out.backward()
    torch.testing.assert_close((z.grad, conv.key.weight.grad), (2 * first[0], 2 * first[1]))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_second_derivative_is_refused_or_right(backend):
    conv = DIFFormerConv(6, 6, transform=False, backend=backend).double()
    z = torch.randn(30, 6, requires_grad=True, dtype=torch.float64)
    (first,) = torch.autograd.grad(conv(z).square().sum(), z, create_graph=True)
    if backend == "auto":
        with pytest.raises(RuntimeError, match="need backend='reference'"):
            torch.autograd.grad(first.sum(), z)
    else:
        assert torch.autograd.grad(first.sum(), z)[0].abs().sum() > 0


class Louder(Structure):
    """A context of a user: everything that is received counts twice."""

    def latent(self, *given):
        return 2 * super().latent(*given)


def test_custom_contexts_and_sender_weights_are_honoured():
    torch.manual_seed(0)
    conv = DIFFormerConv(3, 3, graph_weight=0.0, residual=False).double()
    z = torch.randn(8, 3, dtype=torch.float64)
    plain = conv(z)
    torch.testing.assert_close(conv(z, context=Louder()), 2 * plain)
    weighted = conv(z, context=Structure(weight=torch.tensor([2.0, *[1.0] * 7], dtype=torch.float64)))
    torch.testing.assert_close(weighted, conv(torch.cat([z, z[:1]]))[:8])
    assert (weighted - plain).abs().max() > 1e-3
