"""One formula, several ways to build the summary, the same answer and the same gradients."""

import pytest
import torch

from difformer.attention import propagate, restore, summarise
from difformer.attention.summary import Moments, Pairs, Sums, adds_up
from difformer.diffusion import Diffusivity

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
NAMED_SIMPLE = Diffusivity("simple", f=lambda u: torch.exp(-3 * u))
KINDS = [("simple", None), ("constant", None), ("sigmoid", None), ("gaussian:0.1", None), (CAUCHY, None),
         (NAMED_SIMPLE, None), ("sigmoid", 1e-6), ("gaussian:1", 1e-6)]  # fmt: skip
SCORES = {
    "simple": lambda x: 1 + x,
    "constant": torch.ones_like,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: (x / 6**0.5).exp(),
    "gaussian:0.1": lambda x: (100 * (x - 1)).exp(),
    "gaussian:1": lambda x: (x - 1).exp(),
}


def exact(diffusivity, q, k, v, weight=None):
    g = SCORES[diffusivity] if isinstance(diffusivity, str) else diffusivity.g
    exchange = (1 if weight is None else weight) * g(torch.einsum("nhd,mhd->hnm", q, k))
    return torch.einsum("hnm,mhc->nhc", exchange / exchange.sum(-1, keepdim=True), v.expand(-1, q.shape[1], -1))


@pytest.fixture(params=[1, 3], ids=["one head", "three heads"])
def rows(request):
    torch.manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn(50, request.param, 6, dtype=torch.float64), dim=-1) for _ in "qk")
    return q, k, torch.randn(50, request.param, 4, dtype=torch.float64), torch.rand(50, dtype=torch.float64) + 0.1


def tolerance(tol):
    return {} if tol is None else {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize(("diffusivity", "tol"), KINDS, ids=str)
def test_a_summary_of_all_rows_is_the_dense_formula(rows, diffusivity, tol):
    q, k, v, weight = rows
    for w in (None, weight):
        for values in (v, v[:, :1]):
            found = summarise(k, values, diffusivity, w, tol=tol).answer(q)
            torch.testing.assert_close(found, exact(diffusivity, q, k, values, w), **tolerance(tol))


@pytest.mark.parametrize("diffusivity", ["sigmoid", "softmax"])
def test_autocast_leaves_answers_in_the_precision_of_the_inputs(rows, diffusivity):
    q, k, v, weight = (x.float() for x in rows)
    summary = summarise(k, v, diffusivity, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = summary.answer(q)
    torch.testing.assert_close(found, summary.answer(q), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("diffusivity", "tol"), KINDS, ids=str)
def test_chunks_add_up_to_the_whole(rows, diffusivity, tol):
    q, k, v, weight = rows
    for w in (None, weight):
        parts = [summarise(k[i::3], v[i::3], diffusivity, None if w is None else w[i::3], tol=tol) for i in range(3)]
        whole = summarise(k, v, diffusivity, w, tol=tol)
        torch.testing.assert_close((parts[0] + parts[1] + parts[2]).answer(q), whole.answer(q))


@pytest.mark.parametrize(("diffusivity", "tol"), KINDS, ids=str)
def test_weight_two_equals_two_rows_and_weight_zero_no_row(rows, diffusivity, tol):
    q, k, v, _ = rows
    weight = torch.ones(50, dtype=torch.float64)
    weight[:10], weight[10:20] = 2, 0
    order = [*range(10), *range(10), *range(20, 50)]
    found = summarise(k, v, diffusivity, weight, tol=tol).answer(q)
    torch.testing.assert_close(found, summarise(k[order], v[order], diffusivity, tol=tol).answer(q))


@pytest.mark.parametrize(("diffusivity", "tol"), KINDS, ids=str)
def test_gradients_of_queries_keys_values_and_weights(rows, diffusivity, tol):
    leaves = [x.clone().requires_grad_() for x in rows]
    q, k, v, weight = leaves
    slope = torch.linspace(-1, 1, v.numel(), dtype=v.dtype).view_as(v)
    parts = summarise(k[:20], v[:20], diffusivity, weight[:20], tol=tol)
    parts = parts + summarise(k[20:], v[20:], diffusivity, weight[20:], tol=tol)
    found = torch.autograd.grad((parts.answer(q) * slope).sum(), leaves, allow_unused=True)
    wanted = torch.autograd.grad((exact(diffusivity, *leaves) * slope).sum(), leaves, allow_unused=True)
    for name, leaf, a, b in zip("qkvw", leaves, found, wanted, strict=True):
        a, b = (torch.zeros_like(leaf) if x is None else x for x in (a, b))
        limits = {"rtol": 1e-6, "atol": 1e-8} if tol is None else {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(a, b, **limits, msg=name)


@pytest.mark.parametrize(("diffusivity", "tol"), KINDS, ids=str)
def test_a_saved_summary_answers_as_before(rows, diffusivity, tol):
    q, k, v, weight = rows
    summary = summarise(k, v, diffusivity, weight, tol=tol)
    again = restore({name: x.clone() for name, x in summary.state().items()}, diffusivity, tol=tol)
    torch.testing.assert_close(again.answer(q), summary.answer(q))
    assert adds_up(diffusivity, tol) == isinstance(again, Sums | Moments)
    with pytest.raises(ValueError, match="a summary is"):
        restore({"weights": v}, diffusivity)


def test_a_restored_softmax_keeps_its_temperature(rows):
    q, k, v, weight = rows
    summary = summarise(k, v, "softmax", weight)
    torch.testing.assert_close(restore(summary.state(), "softmax").answer(q), summary.answer(q))
    with pytest.raises(ValueError, match="pass 'softmax:TEMPERATURE'"):
        restore(summarise(k, v, "softmax", weight, tol=1e-3).state(), "softmax")


@pytest.mark.parametrize("backend", ["auto", "blockwise"])
@pytest.mark.parametrize("diffusivity", ["simple", "constant", "sigmoid", "softmax", CAUCHY], ids=str)
def test_propagate_with_weights_is_the_summary(rows, diffusivity, backend):
    q, k, v, weight = rows
    found = propagate(q, k, v, diffusivity, weight=weight, backend=backend)
    torch.testing.assert_close(found, exact(diffusivity, q, k, v, weight))
    batch = torch.arange(50) % 3
    apart = propagate(q, k, v, diffusivity, weight=weight, batch=batch, backend=backend)
    for graph in range(3):
        own = batch == graph
        torch.testing.assert_close(apart[own], summarise(k[own], v[own], diffusivity, weight[own]).answer(q[own]))


def test_nothing_overflows_where_a_softmax_is_finite():
    torch.manual_seed(0)
    q, k, v = (200 * torch.randn(40, 1, 8) for _ in range(3))
    parts = summarise(k[:15], v[:15], "gaussian:0.1")
    for start in range(15, 40, 5):
        parts = parts + summarise(k[start : start + 5], v[start : start + 5], "gaussian:0.1")
    wanted = torch.softmax(100 * (q.double()[:, 0] @ k.double()[:, 0].T), -1) @ v.double()[:, 0]
    for with_grad in (False, True):
        found = parts.answer(q.clone().requires_grad_(with_grad))
        assert found.isfinite().all()
        torch.testing.assert_close(found[:, 0].double().detach(), wanted, rtol=1e-3, atol=1e-2)


def test_a_diffusivity_is_evaluated_as_it_is_whatever_its_name(rows):
    q, k, v, _ = rows
    assert isinstance(summarise(k, v, NAMED_SIMPLE), Pairs)
    torch.testing.assert_close(propagate(q, k, v, NAMED_SIMPLE), exact(NAMED_SIMPLE, q, k, v))
    named = Diffusivity("identity", f=lambda u: 1 / (1 + u))
    torch.testing.assert_close(propagate(q, k, v, named), exact(CAUCHY, q, k, v))


def test_weighted_and_unweighted_senders_do_not_add(rows):
    _, k, v, weight = rows
    with pytest.raises(ValueError, match="with and without weights"):
        summarise(k, v, "sigmoid") + summarise(k, v, "sigmoid", weight)


def test_there_is_nothing_to_summarise_for_the_identity(rows):
    _, k, v, _ = rows
    with pytest.raises(ValueError, match="nothing to summarise"):
        summarise(k, v, "identity")


def test_a_sender_without_weight_is_not_the_largest_score():
    q = torch.tensor([[[1.0, 0.0]]])
    k, v = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]], [[-1.0, 0.0]]]), torch.tensor([[[9.0]], [[1.0]], [[3.0]]])
    found = summarise(k, v, "gaussian:0.1", torch.tensor([0.0, 1.0, 1.0])).answer(q)
    torch.testing.assert_close(found, torch.tensor([[[2.0]]]))


@pytest.mark.parametrize("diffusivity", ["gaussian:0.05", "softmax", "sigmoid"])
@pytest.mark.parametrize("batched", [False, True])
def test_senders_of_weight_zero_are_ignored_even_if_they_are_nearest(diffusivity, batched):
    generator = torch.Generator().manual_seed(0)
    q = torch.nn.functional.normalize(torch.randn(30, 2, 8, generator=generator), dim=-1).requires_grad_()
    v = torch.randn(30, 2, 3, generator=generator, requires_grad=True)
    weight, batch = torch.arange(30) % 3 / 2, torch.arange(30) // 15 if batched else torch.zeros(30, dtype=torch.long)
    found = propagate(q, q, v, diffusivity, weight=weight, batch=batch if batched else None)
    there = weight > 0
    wide = [x.detach().double() for x in (q, v, weight)]
    for graph in batch.unique():
        rows = batch == graph
        senders = rows & there
        alone = summarise(wide[0][senders], wide[1][senders], diffusivity, wide[2][senders]).answer(wide[0][rows])
        torch.testing.assert_close(found[rows].double(), alone, rtol=1e-4, atol=1e-4)
    for grad in torch.autograd.grad(found.square().sum(), (q, v)):
        assert bool(grad.isfinite().all())


def test_summaries_of_different_diffusivities_are_not_added():
    k, v = torch.nn.functional.normalize(torch.randn(20, 1, 6), dim=-1), torch.randn(20, 1, 4)
    kinds = [("simple", None), ("constant", None), ("sigmoid", None), ("gaussian:0.5", None)]
    kinds += [("sigmoid", 1e-1), ("sigmoid", 1e-3)]
    every = [summarise(k, v, name, tol=tol) for name, tol in kinds]
    for i, one in enumerate(every):
        for j, other in enumerate(every):
            if i == j:
                assert (one + other).answer(k).shape == v.shape
            else:
                with pytest.raises(ValueError, match="only summaries of the same diffusivity"):
                    one + other
