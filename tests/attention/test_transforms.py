"""Propagation inside torch's transforms: vmap, func.grad, compile, export and autocast."""

import pytest
import torch
from attention_cases import answer_and_gradients, assert_near, expected, make_inputs
from torch import nn
from torch.nn import functional

from difformer.attention import Segments, propagate
from difformer.diffusion import Diffusivity, as_diffusivity, gaussian

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
ALL = ["simple", "constant", "sigmoid", "softmax", CAUCHY]
N = 24

diffusivities = pytest.mark.parametrize("diffusivity", ALL, ids=lambda x: getattr(x, "name", x))
batches = pytest.mark.parametrize(
    "batch",
    [None, torch.arange(N) % 5, torch.arange(N) // 12],
    ids=["one graph", "small graphs", "larger graphs"],
)


class Layer(nn.Module):
    """Projections and one propagation, as a model has them."""

    def __init__(self, diffusivity, backend="auto", segments=None, channels=8):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(channels, 2 * 3 * channels)
        self.diffusivity, self.backend, self.segments = diffusivity, backend, segments

    def forward(self, x):
        q, k, v = self.project(x).view(x.shape[0], 2, -1).chunk(3, dim=-1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        return propagate(q, k, v, self.diffusivity, batch=self.segments, backend=self.backend)


def stacked(runs, shared=True):
    each = [make_inputs(N, 2, 3, 4, shared=shared, seed=run) for run in range(runs)]
    return [torch.stack(x).detach().requires_grad_() for x in zip(*each, strict=True)]


@diffusivities
@batches
def test_vmap_equals_a_loop(diffusivity, batch):
    segments = None if batch is None else Segments(batch)
    one = lambda q, k, v: propagate(q, k, v, diffusivity, batch=segments)
    inputs = stacked(3)
    together = answer_and_gradients(torch.vmap(one), *inputs)
    apart = answer_and_gradients(lambda *x: torch.stack([one(*run) for run in zip(*x, strict=True)]), *inputs)
    assert_near(together, apart, 1e-12)


@diffusivities
@batches
def test_gradients_inside_vmap(diffusivity, batch):
    segments = None if batch is None else Segments(batch)
    inputs = [x.detach() for x in stacked(3)]
    weight = torch.randn(3, N, 2, 4, dtype=torch.float64)
    loss = lambda q, k, v, w: (propagate(q, k, v, diffusivity, batch=segments) * w).sum()
    together = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(*inputs, weight)
    for run in range(3):
        one = [x[run].requires_grad_() for x in inputs]
        apart = torch.autograd.grad(loss(*one, weight[run]), one, allow_unused=True)
        for a, b in zip(together, apart, strict=True):
            torch.testing.assert_close(a[run], torch.zeros_like(a[run]) if b is None else b)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_vmap_with_what_runs_share_and_other_axes(diffusivity):
    q, k, v = (x.detach() for x in stacked(3))
    one = lambda q, k, v: propagate(q, k, v, diffusivity)
    shared = torch.vmap(one, in_dims=(0, None, None))(q, k[0], v[0])
    torch.testing.assert_close(shared, torch.stack([one(x, k[0], v[0]) for x in q]))
    moved = torch.vmap(one, in_dims=(1, 2, 1), out_dims=2)(q.movedim(0, 1), k.movedim(0, 2), v.movedim(0, 1))
    torch.testing.assert_close(moved.movedim(2, 0), torch.vmap(one)(q, k, v))


@pytest.mark.parametrize(
    ("diffusivity", "batched"),
    [("simple", False), ("simple", True), ("sigmoid", True), (gaussian(0.5), False), (CAUCHY, False)],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_compiles_as_one_graph(diffusivity, batched):
    torch.compiler.reset()
    layer = Layer(diffusivity, segments=Segments(torch.arange(N) % 3) if batched else None)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(N, 8)
    compiled(x).square().sum().backward()
    found = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).square().sum().backward()
    for a, p in zip(found, layer.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_compiles_with_one_tensor_for_queries_and_keys(diffusivity):
    torch.compiler.reset()
    x = torch.randn(N, 2, 8, requires_grad=True)

    def tied(x):
        q = functional.normalize(x, dim=-1)
        return propagate(q, q, q, diffusivity).square().sum()

    (found,) = torch.autograd.grad(torch.compile(tied, fullgraph=True, backend="aot_eager")(x), x)
    torch.testing.assert_close(found, torch.autograd.grad(tied(x), x)[0])


def test_a_compiled_model_follows_its_diffusivity():
    torch.compiler.reset()
    layer = Layer(as_diffusivity("softmax:2"))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(N, 8)
    for name in ("softmax:2", "softmax:0.1", "simple"):
        layer.diffusivity = as_diffusivity(name)
        torch.testing.assert_close(compiled(x), layer(x))


@diffusivities
def test_exports_to_plain_operations(diffusivity):
    layer = Layer(diffusivity).eval()
    x, longer = torch.randn(N, 8), torch.randn(3 * N, 8)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    # A program that runs where this package is not installed holds none of its operators.
    assert not any("difformer" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(longer), layer(longer))


def test_exports_with_a_batch():
    class Batched(nn.Module):
        def forward(self, x, batch):
            return propagate(x, x, x, "sigmoid", batch=batch)

    x, batch = functional.normalize(torch.randn(N, 2, 4), dim=-1), torch.arange(N) % 5
    rows = torch.export.Dim("n", min=2)
    program = torch.export.export(Batched(), (x, batch), dynamic_shapes=({0: rows}, {0: rows}))
    assert not any("difformer" in str(node.target) for node in program.graph.nodes)
    longer, other = torch.cat([x, x]), torch.arange(2 * N) // 7
    torch.testing.assert_close(program.module()(longer, other), Batched()(longer, other))


def test_a_name_first_met_during_export():
    layer, x = Layer("softmax:3.25").eval(), torch.randn(N, 8)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


@diffusivities
@batches
def test_autocast_stays_close_and_returns_bfloat16(diffusivity, batch):
    q, k, v = make_inputs(N, 2, 8, 6, dtype=torch.float32)
    operator = lambda *x: propagate(*x, diffusivity, batch=batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = answer_and_gradients(operator, q, k, v)
        assert operator(q, k, v.bfloat16()).dtype == torch.bfloat16
    assert_near(found, expected(diffusivity, q, k, v, batch=batch), 3e-2)
