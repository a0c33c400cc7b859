"""Diffusivities are known by their values: closed forms where there are, automatic slopes elsewhere."""

import gc

import pytest
import torch

from difformer.attention import propagate, scores
from difformer.attention.scores import find_score, form_of, score_key, slope_of
from difformer.diffusion import DIFFUSIVITIES, Diffusivity, as_diffusivity, gaussian, softmax

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
FORMS = {
    "simple": "simple", "sigmoid": "sigmoid", "softmax": "exponential", "gaussian": "exponential",
    "constant": "constant", "identity": "identity", "sharp": "exponential",
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFUSIVITIES)
def test_forms_of_built_in_diffusivities(name):
    assert form_of(as_diffusivity(name, channels=16)) == FORMS[name]


def test_form_follows_the_function_and_not_the_name():
    # Called simple, but twice the slope: the sums of 1 + x would be wrong.
    steep = Diffusivity("simple", f=lambda u: 1 + 2 * (1 - u / 2) + 1)
    assert form_of(steep) == "general"
    # A user's own exponential is as good as the built-in one.
    assert form_of(Diffusivity("mine", f=lambda u: 3 * torch.exp(-u))) == "exponential"
    assert slope_of(Diffusivity("mine", f=lambda u: 3 * torch.exp(-u))) == pytest.approx(2)


@pytest.mark.parametrize("width", [0.01, 0.3, 1, 30])
def test_slope_of_an_exponential(width):
    assert slope_of(gaussian(width)) == pytest.approx(width**-2, rel=1e-12)
    assert slope_of(softmax(width)) == pytest.approx(1 / width, rel=1e-12)


def test_one_key_for_one_diffusivity():
    assert score_key("sigmoid") == score_key(as_diffusivity("sigmoid"))
    assert score_key("softmax", 4) != score_key("softmax", 16)
    assert score_key(score_key(CAUCHY)) == score_key(CAUCHY)


@pytest.mark.parametrize(
    "diffusivity", [*(as_diffusivity(n, channels=4) for n in FORMS if n != "identity"), CAUCHY], ids=lambda d: d.name
)
def test_value_and_slope(diffusivity):
    score = find_score(score_key(diffusivity))
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)
    wanted, pull, *_ = torch.func.vjp(diffusivity.g, x)
    w = torch.randn_like(x)
    given = x * score.slope if score.exponential else x.clone()
    shift = diffusivity.g(torch.zeros(1, dtype=torch.float64)) if score.exponential else 1.0
    g, pullback = score.value_and_pullback(given)
    torch.testing.assert_close(g * shift, wanted)
    torch.testing.assert_close(pullback(w.clone()) * score.slope * shift, pull(w)[0])


def test_nothing_is_left_of_diffusivities_that_were_made_and_dropped():
    q = torch.randn(5, 1, 2)
    count = len(scores._SCORES)
    for width in range(20):
        own = Diffusivity(f"own {width}", f=lambda u, width=width: torch.exp(-u * (1 + width)) + 1)
        propagate(q, q, q, own)
    del own
    gc.collect()
    assert len(scores._SCORES) <= count + 1


def test_a_backward_pass_outlives_the_diffusivity():
    q = torch.randn(5, 1, 2, dtype=torch.float64, requires_grad=True)
    out = propagate(q, q, q, Diffusivity("own", f=lambda u: 1 / (1 + u)), backend="blockwise")
    gc.collect()
    (found,) = torch.autograd.grad(out.sum(), q)
    assert found.isfinite().all()
