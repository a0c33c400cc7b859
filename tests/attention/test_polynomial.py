"""Polynomial attention: bounds that hold, monomials that are right, linear cost, and rows it refuses."""

import itertools
import math
import time

import pytest
import torch
from attention_cases import answer_and_gradients, assert_near, expected, make_inputs, peak_bytes

from difformer.attention import Segments, polynomial, propagate, reference, summarise
from difformer.attention.polynomial import bounds, coefficients, degree_for, evaluate, moments
from difformer.diffusion import DIFFUSIVITIES, Diffusivity, as_diffusivity, gaussian, softmax
from difformer.diffusivity import CONSTANT, SIGMOID, SIMPLE

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
ALL = [SIMPLE, CONSTANT, SIGMOID, softmax(2.0), gaussian(1.0), CAUCHY]
diffusivities = pytest.mark.parametrize("diffusivity", ALL, ids=lambda d: d.name)


def by_monomials(q, k, v, diffusivity, batch=None, *, tol=None):
    return propagate(q, k, v, diffusivity, batch=batch, backend="polynomial", tol=tol)


@pytest.mark.parametrize(
    ("diffusivity", "degree", "value", "slope"),
    [
        (SIGMOID, 1, 3.4e-2, 2.2e-1),
        (SIGMOID, 2, 1.6e-2, None),
        (SIGMOID, 3, 8.0e-4, 1.8e-2),
        (SIGMOID, 5, 1.9e-5, 1.0e-3),
        (softmax(8), 1, 4.3e-3, None),
        (softmax(8), 2, 9.0e-5, None),
        (softmax(8), 3, 1.4e-6, None),
        (softmax(8), 5, 1.8e-10, None),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_bounds_of_the_theory(diffusivity, degree, value, slope):
    found = bounds(diffusivity, degree)
    assert found.value == pytest.approx(value, rel=0.05)
    assert slope is None or found.slope == pytest.approx(slope, rel=0.05)
    assert f"degree {degree}" in str(found)


@diffusivities
@pytest.mark.parametrize("tol", [1e-2, 1e-3])
def test_the_bound_holds_everywhere(diffusivity, tol):
    degree = degree_for(diffusivity, tol)
    x = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    approximation = sum(a * x**p for p, a in enumerate(coefficients(diffusivity, degree)))
    g = diffusivity.g(x)
    assert ((approximation - g).abs() <= 1.0001 * bounds(diffusivity, degree).value * g + 1e-12).all()
    assert degree == 0 or bounds(diffusivity, degree - 1).value > tol, "a lower degree would do"


def test_degrees_that_are_not_there_are_left_out():
    assert [p for p, a in enumerate(coefficients(SIGMOID, 5)) if a != 0] == [0, 1, 3, 5]
    assert degree_for(SIMPLE, 1e-9) == 1
    assert degree_for(CONSTANT, 1e-9) == 0


def test_diffusivity_too_narrow_for_a_polynomial_is_refused():
    with pytest.raises(ValueError, match=r"'gaussian:0.1' cannot be approximated to tol = 0.001.*blockwise"):
        degree_for(gaussian(0.1), 1e-3)
    with pytest.raises(ValueError, match="tol must lie between 0 and 1, got 2"):
        degree_for(SIGMOID, 2)


@pytest.mark.parametrize(("d", "degree"), [(1, 4), (4, 1), (4, 3), (3, 5), (16, 3)])
def test_monomials_and_their_weights(d, degree):
    tuples = list(itertools.combinations_with_replacement(range(d), degree))
    assert polynomial.count(d, degree) == len(tuples)
    weights = [math.factorial(degree) / math.prod(math.factorial(t.count(a)) for a in set(t)) for t in tuples]
    assert polynomial.weights(d, degree).tolist() == weights
    q, k = torch.randn(2, d, 5, dtype=torch.float64)
    found = polynomial.powers(q, degree)[-1]
    torch.testing.assert_close(found, torch.stack([q[list(t)].prod(0) for t in tuples]))
    torch.testing.assert_close(
        (found.T * polynomial.weights(d, degree)) @ polynomial.powers(k, degree)[-1], (q.T @ k) ** degree
    )


def test_count_of_the_theory():
    assert [polynomial.count(d, 3) for d in (16, 32, 64)] == [816, 5984, 45760]


@diffusivities
@pytest.mark.parametrize(("heads", "shared"), [(1, False), (2, False), (3, True)])
@pytest.mark.parametrize("elements", [64, 1 << 20], ids=["many parts", "one part"])
@pytest.mark.parametrize("group", [1, 3, 8], ids="{} at a time".format)
def test_equals_its_polynomial(monkeypatch, diffusivity, heads, shared, elements, group):
    monkeypatch.setattr(polynomial, "CPU_PART", elements)
    monkeypatch.setattr(polynomial, "GROUP", group)
    q, k, v = make_inputs(150, heads, 4, 3, shared=shared)
    powers = coefficients(diffusivity, degree_for(diffusivity, 1e-3))

    def literal(q, k, v):
        weights = sum(a * torch.einsum("nhd,mhd->hnm", q, k) ** p for p, a in enumerate(powers))
        return torch.einsum("hnm,mhc->nhc", weights / weights.sum(-1, keepdim=True), v.expand(-1, heads, -1))

    found = answer_and_gradients(lambda *x: by_monomials(*x, diffusivity, tol=1e-3), q, k, v)
    assert_near(found, answer_and_gradients(literal, q, k, v), 1e-11)


@diffusivities
@pytest.mark.parametrize("tol", [1e-2, 1e-4])
def test_output_within_the_bound_and_gradients_within_theirs(diffusivity, tol):
    if diffusivity is CAUCHY and tol == 1e-4:
        tol = 1e-3
    inputs = make_inputs(200, 1, 4, 3)
    found = answer_and_gradients(lambda *x: by_monomials(*x, diffusivity, tol=tol), *inputs)
    wanted = expected(diffusivity, *inputs)
    error = bounds(diffusivity, degree_for(diffusivity, tol))
    # Weights are off by (1 + ε)/(1 - ε) at most, so outputs by that much of the largest value.
    largest = inputs[2].abs().max().item()
    assert (found[0] - wanted[0]).abs().max() <= 2.1 * error.value * largest + 1e-12
    for a, w in zip(found[1:3], wanted[1:3], strict=True):
        assert (a - w).abs().max() <= (3 * error.slope + 3 * error.value) * w.abs().max() + 1e-11


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("batched", [False, True], ids=["one graph", "batch"])
def test_error_stays_within_tolerance_for_precisions_and_batches(dtype, tolerance, batched):
    n = 400
    batch = (
        torch.where(torch.arange(n) % 4 == 0, torch.arange(n) % 3 + 1, 0) if batched else None
    )  # 300 rows and 3 small
    inputs = make_inputs(n, 2, 3, 5, dtype=dtype)
    segments = None if batch is None else Segments(batch)
    found = answer_and_gradients(lambda *x: by_monomials(*x, SIGMOID, segments, tol=1e-4), *inputs)
    assert_near(found, expected("sigmoid", *inputs, batch=batch), tolerance)


def test_small_graphs_are_summed_exactly():
    batch = torch.arange(60) % 3
    q, k, v = make_inputs(60, 1, 8, 5)
    found = by_monomials(q, k, v, SIGMOID, Segments(batch), tol=1e-3)
    torch.testing.assert_close(found, reference.propagate(q, k, v, SIGMOID, batch))


def test_a_large_graph_leaves_the_small_ones_to_pairs(monkeypatch):
    """One sum for the large graph, not one per graph, and rows back in their places; gradients, too."""
    monkeypatch.setattr(polynomial, "pairs_that_pay", lambda *given: 50)
    calls = []
    monkeypatch.setattr(
        "difformer.attention.dispatch.summarise", lambda *x, **more: calls.append(len(x[0])) or summarise(*x, **more)
    )
    batch = torch.cat([torch.zeros(60), 1 + torch.arange(80) // 2]).long()[torch.randperm(140)]
    inputs = make_inputs(140, 2, 3, 5)
    found = answer_and_gradients(lambda *x: by_monomials(*x, SIGMOID, Segments(batch), tol=1e-4), *inputs)
    assert calls == [60]
    assert_near(found, expected("sigmoid", *inputs, batch=batch), 2e-3)


def test_sums_of_parts_answer_for_the_whole():
    q, k, v = make_inputs(90, 2, 4, 3, shared=True)
    parts = [summarise(k[rows], v[rows], SIGMOID, tol=1e-3) for rows in (slice(0, 50), slice(50, 90))]
    torch.testing.assert_close((parts[0] + parts[1]).answer(q), by_monomials(q, k, v, SIGMOID))


def test_moments_and_evaluation_pass_gradcheck():
    x, y = torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(5, 1, 2, dtype=torch.float64)
    powers = (0.5, 0.3, 0.0, 0.2, 0.1)
    assert torch.autograd.gradcheck(lambda x, y: moments(x, y, powers), (x.requires_grad_(), y.requires_grad_()))
    state = moments(x, y, powers).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, s: evaluate(x, s, powers), (x, state))


def test_vmap_compile_and_gradients():
    inputs = [torch.stack(x).detach() for x in zip(*(make_inputs(40, 2, 3, 4, seed=s) for s in range(3)), strict=True)]
    one = lambda q, k, v: by_monomials(q, k, v, "sigmoid")
    torch.testing.assert_close(torch.vmap(one)(*inputs), torch.stack([one(*run) for run in zip(*inputs, strict=True)]))
    gradient = torch.func.grad(lambda *x: one(*x).square().sum(), (0, 1, 2))
    together = torch.vmap(gradient)(*inputs)
    for run in range(3):
        for a, b in zip(together, gradient(*(x[run] for x in inputs)), strict=True):
            torch.testing.assert_close(a[run], b)
    torch.compiler.reset()
    compiled = torch.compile(one, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*(x[0] for x in inputs)), one(*(x[0] for x in inputs)))


@pytest.mark.parametrize("fitted", [False, True], ids=["all rows", "new rows against fitted sums"])
def test_exports_for_any_number_of_rows(fitted):
    _, k, v = (x.detach() for x in make_inputs(50, 2, 4, 4))
    fitted_sums = summarise(k, v, SIGMOID, tol=1e-3)

    class Layer(torch.nn.Module):
        def forward(self, q):
            return fitted_sums.answer(q) if fitted else by_monomials(q, q, q, SIGMOID)

    q = make_inputs(30, 2, 4)[0].detach()
    program = torch.export.export(Layer(), (q,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    assert not any("difformer" in str(node.target) for node in program.graph.nodes)
    longer = make_inputs(70, 2, 4)[0].detach()
    torch.testing.assert_close(program.module()(longer), Layer()(longer))


@pytest.mark.parametrize("name", ["q", "k"])
def test_rows_beyond_the_ball_are_refused(name):
    inputs = dict(zip("qkv", make_inputs(20), strict=True))
    inputs[name] = inputs[name] * 1.5
    with pytest.raises(ValueError, match=rf"rows of {name} with norm at most 1, got 1\.5.*blockwise"):
        by_monomials(*inputs.values(), SIGMOID)


def test_number_of_pairs_from_which_a_polynomial_pays():
    def at(d):
        return polynomial.pairs_that_pay(d, d, polynomial.expand(as_diffusivity("sigmoid"), 1e-3))

    assert at(64) == pytest.approx(46_000, rel=0.02)
    assert at(16) == pytest.approx(1_000, rel=0.15)


def test_memory_and_time_are_linear():
    def run(n):
        inputs = make_inputs(n, 1, 8, 8, dtype=torch.float32)
        return lambda: torch.autograd.grad(by_monomials(*inputs, SIGMOID).sum(), inputs)

    def seconds(work):
        work()
        times = []
        for _ in range(3):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        return min(times)

    assert peak_bytes(run(80_000)) < 80_000 * 8 * 4 * 16 + 64 * 2**20
    # Eight times the rows: eight times the time, with room for a busy machine; pairs would take 64 times.
    assert seconds(run(80_000)) < 16 * seconds(run(10_000))


def test_every_built_in_diffusivity_is_a_polynomial_somewhere():
    for name in set(DIFFUSIVITIES) - {"sharp"}:  # which no polynomial of low degree follows
        if name != "identity":
            assert degree_for(as_diffusivity(name, channels=64), 0.02) <= 4


@pytest.mark.parametrize("shared", [False, True])
def test_exported_programs_sum_each_head_by_itself(monkeypatch, shared):
    _, k, v = make_inputs(20, 3, 4, 5, shared=shared)
    powers = [1.0, 0.5, 0.25]
    wanted = moments(k, v, powers)
    answer = evaluate(k, wanted, powers)
    monkeypatch.setattr(polynomial, "is_exporting", lambda: True)
    with torch.no_grad():
        torch.testing.assert_close(moments(k, v, powers), wanted)
        torch.testing.assert_close(evaluate(k, wanted, powers), answer)


def test_rows_that_receive_next_to_nothing_are_clamped_as_in_the_formula():
    """Keys opposite to the query but for one: the total is below 1e-6 per sender, not below 1e-6."""
    k = torch.zeros(1000, 1, 2, dtype=torch.float64)
    k[:, 0, 0] = -1
    k[0, 0] = torch.tensor([-math.cos(0.01), math.sin(0.01)])
    q, v = -k[1:2].expand(1000, 1, 2), torch.rand(1000, 1, 3, dtype=torch.float64)
    total = 1000 + (k[:, 0] @ q[0, 0]).sum()
    assert 1e-5 < total < 1e-4
    found = by_monomials(q, k, v, SIMPLE)
    torch.testing.assert_close(found, reference.propagate(q, k, v, SIMPLE), rtol=1e-6, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("precision", "tolerance"), [("highest", 2e-5), ("high", 2e-3)])
def test_monomials_on_a_gpu(precision, tolerance):
    inputs = make_inputs(3000, 1, 20, 13, dtype=torch.float32)
    wanted = answer_and_gradients(
        lambda *x: by_monomials(*x, SIGMOID), *(x.detach().double().requires_grad_() for x in inputs)
    )
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        found = answer_and_gradients(
            lambda *x: by_monomials(*x, SIGMOID), *(x.detach().cuda().requires_grad_() for x in inputs)
        )
    finally:
        torch.set_float32_matmul_precision(before)
    for mine, exact in zip(found, wanted, strict=True):
        assert (mine - exact).norm() < tolerance * exact.norm()
