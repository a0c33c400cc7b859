"""The short ways of a step against the long one: outputs and every gradient."""

import copy

import pytest
import torch

from difformer import DIFFormerConv, Graph
from difformer.nn import blocks
from difformer.nn import conv as conv_module
from difformer.nn.mixing import Weights, combine, mix, reference
from difformer.sparse import SparseMatrix


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
                patch.setattr(conv_module, "short_step", lambda *_: None)
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
def test_the_short_way_of_a_step_is_the_long_one(options, diffusivity, observed, monkeypatch):
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
def test_many_blocks_are_one(qk_norm, tied, transform, monkeypatch):
    monkeypatch.setattr(blocks, "CACHED", 1)
    options = {"qk_norm": qk_norm, "tied_qk": tied, "transform": transform, "source_weight": 0.3}
    conv = DIFFormerConv(6, 6, **options).double()
    z, source = (torch.randn(200, 6, dtype=torch.float64) for _ in range(2))
    assert len(list(blocks.row_blocks(z))) == 4
    for observed in (None, graph(200)):
        short, long = both_ways(conv, z, source, observed, monkeypatch)
        for found, wanted in zip(short, long, strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("qk_norm", ["row", "global"])
def test_a_row_that_receives_nothing_is_the_same_both_ways(qk_norm, monkeypatch):
    """Keys opposite to every query: the total is clamped, and depends on nothing."""
    conv = DIFFormerConv(3, 3, transform=False, qk_norm=qk_norm).double()
    with torch.no_grad():
        conv.query.weight.copy_(torch.eye(3))
        conv.key.weight.copy_(-torch.eye(3))
        conv.query.bias.zero_()
        conv.key.bias.zero_()
    z = torch.ones(5, 3, dtype=torch.float64)
    short, long = both_ways(conv, z, z, None, monkeypatch)
    for found, wanted in zip(short, long, strict=True):
        torch.testing.assert_close(found, wanted.expand_as(found))


def test_widths_may_change_without_residual(monkeypatch):
    conv = DIFFormerConv(6, 4, residual=False).double()
    z = torch.randn(30, 6, dtype=torch.float64)
    short, long = both_ways(conv, z, z, graph(), monkeypatch)
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
    conv = DIFFormerConv(6, 6, transform=False, qk_norm="global", backend=backend).double()
    z = torch.randn(30, 6, requires_grad=True, dtype=torch.float64)
    (first,) = torch.autograd.grad(conv(z).square().sum(), z, create_graph=True)
    if backend == "auto":
        with pytest.raises(RuntimeError, match="need backend='reference'"):
            torch.autograd.grad(first.sum(), z)
    else:
        assert torch.autograd.grad(first.sum(), z)[0].abs().sum() > 0


@pytest.mark.parametrize("weights", [Weights(0.5, 0.5, 0.5), Weights(0.0, 1.0, 1.0, 0.3), Weights(0.4, 0.2, 0.4, 1.0)])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("edges", [False, True])
def test_mixing_is_its_reference(weights, values, edges):
    z, p, source = (torch.randn(8, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    v = torch.randn(8, 3, dtype=torch.float64, requires_grad=True) if values else None
    matrix = SparseMatrix.from_tensor(torch.rand(8, 8, dtype=torch.float64).round().to_sparse()) if edges else None
    wanted = reference(z, p, v, source, matrix, weights)
    with torch.no_grad():
        torch.testing.assert_close(combine(z, p, v, source, matrix, weights), wanted)
    torch.testing.assert_close(mix(z, p, v, source, matrix, weights), wanted)
    assert torch.autograd.gradcheck(lambda *x: mix(*x, matrix, weights), (z, p, v, source))
