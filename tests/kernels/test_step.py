"""The short ways of a step against the long one: outputs and every gradient."""

import copy

import pytest
import torch

from difformer import DIFFormerConv, Graph
from difformer.kernels import layer_nodes as kernels
from difformer.nn import conv as conv_module
from difformer.nn.context import Structure


def graph(nodes=30, weighted=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, nodes, (2, 90), generator=generator)
    weight = torch.rand(90, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return Graph(edges, nodes, weight)


def both_ways(conv, z, source, observed, monkeypatch):
    """Outputs and gradients by the short way and by the long one."""
    results = []
    for short in (True, False):
        with monkeypatch.context() as patch:
            if not short:
                patch.setattr(conv_module, "why_not_fused", lambda *_: "asked for the formula")
            twin = copy.deepcopy(conv)
            leaves = [x.detach().clone().requires_grad_() for x in (z, source)]
            out = twin(leaves[0], observed, source=leaves[1])
            weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
            wanted = [*leaves, *(x for x in twin.parameters() if x.requires_grad)]
            grads = torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True)
            results.append((out, *(torch.zeros(()) if g is None else g for g in grads)))
    return results


@pytest.mark.parametrize("observed", ["none", "plain", "weighted"])
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", "constant", "identity"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transform": False},
        {"transform": False, "qk_norm": "global"},
        {"transform": False, "qk_norm": "none", "tied_qk": True},
        {"transform": False, "qk_norm": "global", "residual": False, "source_weight": 0.7},
        {"graph_weight": 0.3, "source_weight": 0.5, "step_size": 0.9},
        {"transform": False, "qk_norm": "global", "graph_weight": 1.0},
        {"num_heads": 2, "residual": False, "graph_weight": 0.0},
    ],
)
def test_fused_step_equals_the_formula(options, diffusivity, observed, monkeypatch):
    torch.manual_seed(0)
    conv = DIFFormerConv(6, 6, diffusivity=diffusivity, **options).double()
    z, source = (0.1 * torch.randn(30, 6, dtype=torch.float64) for _ in range(2))
    given = None if observed == "none" else graph(weighted=observed == "weighted")
    short, long = both_ways(conv, z, source, given, monkeypatch)
    for found, wanted in zip(short, long, strict=True):
        torch.testing.assert_close(found, wanted.expand_as(found))


@pytest.mark.parametrize("qk_norm", ["row", "global"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("transform", [False, True])
def test_step_in_many_blocks_equals_one_block(qk_norm, tied, transform, monkeypatch):
    monkeypatch.setattr(kernels, "CACHED", 1)
    options = {"qk_norm": qk_norm, "tied_qk": tied, "transform": transform, "source_weight": 0.3}
    conv = DIFFormerConv(6, 6, **options).double()
    z, source = (torch.randn(200, 6, dtype=torch.float64) for _ in range(2))
    assert len(list(kernels.row_blocks(z))) == 4
    for observed in (None, graph(200)):
        short, long = both_ways(conv, z, source, observed, monkeypatch)
        for found, wanted in zip(short, long, strict=True):
            torch.testing.assert_close(found, wanted)


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


def test_widths_may_change_without_residual(monkeypatch):
    conv = DIFFormerConv(6, 4, residual=False).double()
    z, source = torch.randn(30, 6, dtype=torch.float64), torch.randn(30, 4, dtype=torch.float64)
    short, long = both_ways(conv, z, source, graph(), monkeypatch)
    for found, wanted in zip(short, long, strict=True):
        torch.testing.assert_close(found, wanted)


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


@pytest.mark.parametrize("small", [True, False], ids=["a node", "a step"])
def test_no_gradient_flows_through_the_clamped_total_of_unit_rows(monkeypatch, small):
    """All keys but one are opposite to the query: the total is below 1e-6 per sender, and not zero."""
    torch.manual_seed(0)
    conv = DIFFormerConv(2, 2).double()
    with torch.no_grad():
        conv.query.weight.zero_()
        conv.query.bias.copy_(torch.tensor([1.0, 0.0]))
        conv.key.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
        conv.key.bias.copy_(torch.tensor([-1.0, 0.0]))
    z = torch.zeros(1000, 2, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        z[0, 1] = 0.01
        conv.value.bias.fill_(1)
    monkeypatch.setattr("difformer.kernels.fused._is_small", lambda *_: small)
    short = torch.autograd.grad(conv(z).sum(), [z, *conv.key.parameters()])
    monkeypatch.setattr(conv_module, "why_not_fused", lambda *_: "asked for the formula")
    long = torch.autograd.grad(conv(z).sum(), [z, *conv.key.parameters()])
    assert long[1].abs().max() > 0.1
    for found, wanted in zip(short, long, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7 * float(wanted.abs().max()))


def test_no_gradient_flows_through_a_clamped_norm(monkeypatch):
    """‖Q‖ of 1e-14 is taken for 1e-12, which depends on nothing."""
    torch.manual_seed(0)
    conv = DIFFormerConv(6, 6, transform=False, qk_norm="global").double()
    with torch.no_grad():
        for parameter in conv.query.parameters():
            parameter.mul_(1e-15)
    z, source = torch.randn(2, 30, 6, dtype=torch.float64)
    short, long = both_ways(conv, z, source, None, monkeypatch)
    for found, wanted in zip(short, long, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9 * float(wanted.abs().max()))


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
