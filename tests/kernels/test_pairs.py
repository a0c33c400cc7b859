"""All pairs of the sigmoid diffusivity in C: outputs and every gradient against the formula in float64."""

import pytest
import torch

from difformer.attention import Segments, propagate, reference, summarise
from difformer.kernels.cpu import explain, library, passes

pytestmark = pytest.mark.skipif(library() is None, reason=explain())


@pytest.fixture
def calls(monkeypatch):
    """Which kernels run, on inputs of any size."""
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    made, run = [], passes._run_pairs
    monkeypatch.setattr(
        passes, "_run_pairs", lambda name, *given, **others: made.append(name) or run(name, *given, **others)
    )
    return made


def inputs(n, heads, channels, values, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    q, k = (scale * torch.randn(n, heads, channels, generator=generator) for _ in range(2))
    return q, k, torch.randn(n, heads, values, generator=generator)


def both_ways(operator, given, weight):
    leaves = [x.detach().clone().requires_grad_() for x in given]
    out = operator(*leaves)
    return [out.detach(), *torch.autograd.grad((out * weight.to(out)).sum(), leaves)]


def check(given, batch=None, part=2e-6):
    weight = torch.randn(given[2].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = both_ways(lambda *x: propagate(*x, "sigmoid", batch=batch), given, weight)
    wide = [x.double() for x in given]
    wanted = both_ways(lambda *x: reference.propagate(*x, "sigmoid", batch), wide, weight)
    for a, b in zip(found, wanted, strict=True):
        scale = b.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(a.double(), b, atol=part * scale, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200, 577])  # within, at and beyond a block, and several chunks of them
@pytest.mark.parametrize(("channels", "values"), [(64, 64), (16, 32), (3, 7), (80, 1)])
def test_pair_kernels_equal_the_formula_with_gradients(n, channels, values, calls):
    given = inputs(n, 1, channels, values)
    if n == 1:  # a row alone receives its own values, whatever its query is
        torch.testing.assert_close(propagate(*given, "sigmoid"), given[2])
    else:
        check(given)
    assert set(calls) == ({"pairs_forward"} if n == 1 else {"pairs_forward", "pairs_backward"})


def test_heads_and_shared_values_equal_the_formula(calls):
    q, k, v = inputs(150, 3, 8, 5)
    check((q, k, v))
    check((q, k, v[:, :1]))
    assert len(calls) == 12


def test_a_large_graph_of_a_batch_equals_the_formula(calls, monkeypatch):
    monkeypatch.setattr("difformer.attention.tiles.CPU_TILE", 1000)
    batch = torch.tensor([0, 1, 1, 2]).repeat(50)
    check(inputs(200, 1, 16, 16), batch)
    given = inputs(200, 1, 16, 16)
    alone = [propagate(*(x[batch == graph] for x in given), "sigmoid") for graph in range(3)]
    found = propagate(*given, "sigmoid", batch=Segments(batch))
    for graph, wanted in enumerate(alone):
        torch.testing.assert_close(found[batch == graph], wanted, atol=1e-6, rtol=0)
    assert "pairs_backward" in calls


def test_scores_far_from_zero_stay_accurate(calls):
    """Exchanges that round to one or nearly vanish."""
    check(inputs(130, 1, 16, 16, scale=6.0), part=1e-5)
    x = torch.tensor([-1e4, -200.0, -88.0, -60.0, -1.0, 0.0, 1.0, 60.0, 1e4])
    q, k, v = torch.zeros(9, 1, 16), torch.zeros(9, 1, 16), torch.eye(9).unsqueeze(1)
    q[:, 0, 0], k[:, 0, 0] = 1.0, x
    wanted = torch.sigmoid(x.double()) / torch.sigmoid(x.double()).sum()
    torch.testing.assert_close(propagate(q, k, v, "sigmoid")[0, 0].double(), wanted, atol=1e-37, rtol=1e-6)


@pytest.mark.parametrize("start", [-84.0, -88.0, -88.5, -91.0, -95.0, -200.0])
def test_rows_of_vanishing_exchanges_are_those_of_the_formula(start, calls):
    """Below -88 the exchange is no normal number, below -88.7 it is 0, and small totals are bounded from below."""
    q, k, v = torch.zeros(70, 1, 16), torch.zeros(70, 1, 16), torch.linspace(0, 1, 70).view(70, 1, 1)
    q[:, 0, 0], k[:, 0, 0] = 1.0, torch.linspace(start, start + 3, 70)
    found, wanted = propagate(q, k, v, "sigmoid"), reference.propagate(q, k, v, "sigmoid")
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-3)
    assert calls == ["pairs_forward"]


@pytest.mark.parametrize("count", [20, 150, 400])
def test_fewer_and_more_keys_than_queries_equal_the_formula(count, calls):
    def formula(q, k, v):
        g = torch.sigmoid(torch.einsum("nhd,mhd->hnm", q, k))
        return torch.einsum("hnm,mhc->nhc", g / g.sum(-1, keepdim=True), v)

    given = (inputs(150, 1, 16, 8)[0], *inputs(count, 1, 16, 8)[1:])
    weight = torch.randn(150, 1, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = both_ways(lambda q, k, v: summarise(k, v, "sigmoid").answer(q), given, weight)
    wanted = both_ways(formula, [x.double() for x in given], weight)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-6 * b.abs().max().item(), rtol=0)
    assert calls == ["pairs_forward", "pairs_backward"]


def test_without_keys_no_kernel_is_called(calls):
    q, k, v = inputs(600, 1, 16, 8)
    q.requires_grad_()
    assert summarise(k[:0], v[:0], "sigmoid").answer(q).isnan().all()
    assert summarise(k, v, "sigmoid", torch.zeros(600)).answer(q).shape == (600, 1, 8)
    assert calls == []


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, -0x003FFFFF])
def test_nan_in_a_query_stays_in_its_row(bits, calls):
    q, k, v = inputs(70, 1, 16, 16)
    q[3] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    assert q[3].isnan().all()
    out = propagate(q, k, v, "sigmoid")
    assert out[3].isnan().all()
    assert out[:3].isfinite().all()


def test_number_of_threads_does_not_change_a_bit(calls):
    given, results, before = inputs(700, 1, 32, 32), [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(both_ways(lambda *x: propagate(*x, "sigmoid"), given, torch.ones(700, 1, 32).cumsum(0)))
    finally:
        torch.set_num_threads(before)
    # What torch computes around the kernels, here a sum over channels, depends on no thread either.
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize(("diffusivity", "dtype"), [("softmax", torch.float32), ("sigmoid", torch.float64)])
def test_other_diffusivities_and_dtypes_do_not_use_the_kernels(diffusivity, dtype, calls):
    propagate(*(x.to(dtype) for x in inputs(100, 1, 16, 16)), diffusivity)
    assert calls == []


def test_stacked_runs_equal_single_ones(calls):
    runs = [inputs(100, 1, 16, 8, scale) for scale in (0.5, 1.0, 2.0)]
    stacked = [torch.stack(x) for x in zip(*runs, strict=True)]
    found = torch.vmap(lambda *x: propagate(*x, "sigmoid"))(*stacked)
    assert calls == ["pairs_forward"] * 3
    for out, run in zip(found, runs, strict=True):
        assert torch.equal(out, propagate(*run, "sigmoid"))
