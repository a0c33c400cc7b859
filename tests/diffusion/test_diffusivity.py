import math
import pickle

import pytest
import torch

from difformer.diffusion import DIFFUSIVITIES, Diffusivity, as_diffusivity, gaussian, softmax

NAMES = ["simple", "sigmoid", "softmax", "softmax:0.5", "gaussian", "gaussian:0.3", "constant"]
every_diffusivity = pytest.mark.parametrize("diffusivity", [as_diffusivity(n, channels=5) for n in NAMES], ids=NAMES)


@every_diffusivity
def test_f_is_the_derivative_of_delta(diffusivity):
    u = torch.linspace(0, 4, 101, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(diffusivity.delta(u).sum(), u)
    torch.testing.assert_close(slope, diffusivity.f(u.detach()))


@every_diffusivity
def test_delta_by_quadrature_is_delta_up_to_a_constant(diffusivity):
    mine = Diffusivity("mine", f=diffusivity.f)
    u = torch.linspace(0, 4, 333, dtype=torch.float64, requires_grad=True)
    expected = diffusivity.delta(u) - diffusivity.delta(torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(mine.delta(u), expected, rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(mine.delta(u).sum(), u)
    torch.testing.assert_close(slope, diffusivity.f(u.detach()))


def test_quadrature_survives_a_kink_and_keeps_the_shape_and_dtype():
    kinked = Diffusivity("kinked", f=lambda u: (1 - u).clamp_min(0))
    u = torch.tensor([[0.0, 0.5], [1.0, 3.9]], dtype=torch.float64)
    torch.testing.assert_close(
        kinked.delta(u), torch.tensor([[0, 0.375], [0.5, 0.5]], dtype=torch.float64), atol=1e-6, rtol=0
    )
    assert kinked.delta(u.float()).dtype == torch.float32


@every_diffusivity
def test_g_is_f_of_the_distance_of_unit_states(diffusivity):
    a, b = torch.nn.functional.normalize(torch.randn(2, 50, 5, dtype=torch.float64), dim=-1)
    torch.testing.assert_close(diffusivity.g((a * b).sum(1)), diffusivity.f(((a - b) ** 2).sum(1)))


def test_scores_as_the_paper_writes_them():
    x = torch.linspace(-1, 1, 11, dtype=torch.float64)
    expected = {
        "simple": 1 + x,
        "sigmoid": 1 / (1 + torch.exp(-x)),
        "softmax": torch.exp(x / math.sqrt(7)),
        "constant": torch.ones_like(x),
        "gaussian:0.5": torch.exp((x - 1) / 0.25),
    }
    for name, score in expected.items():
        torch.testing.assert_close(as_diffusivity(name, channels=7).g(x), score)


@every_diffusivity
def test_one_step_descends_the_energy(diffusivity):
    torch.manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(40, 3, dtype=torch.float64), dim=1)
    coupling = diffusivity.f(torch.cdist(z, z) ** 2)
    step = 0.5 * z + 0.5 * coupling @ z / coupling.sum(1, keepdim=True)
    energy = [diffusivity.delta(torch.cdist(s, s) ** 2).sum() for s in (z, step)]
    assert energy[1] < energy[0]


@pytest.mark.parametrize(
    ("f", "complaint"),
    [
        (lambda u: 1 - u, r"'mine' is negative at u = 4 \(f = -3\)"),
        (lambda u: 1 + u, "'mine' increases at u = "),
        (lambda u: torch.where((u - 2).abs() < 0.1, 1.5, 1.0).to(u.dtype), r"increases at u = 1\.9"),
        (lambda u: 1 / u, "is not finite at u = 0"),
        (lambda u: (1 - u).log(), "is not finite at u = 1"),
        (lambda u: u.sum(), "element by element"),
    ],
    ids=["negative", "increasing", "bump", "pole", "logarithm", "sum"],
)
def test_functions_without_a_descending_energy_are_refused(f, complaint):
    with pytest.raises(ValueError, match=complaint):
        Diffusivity("mine", f=f, delta=lambda u: u)


@pytest.mark.parametrize(
    ("f", "complaint"),
    [
        (lambda u: math.exp(-u), r"given one it failed \(only one element.*use torch\.exp, not math\.exp"),
        (lambda u: 1.0 if u < 1 else 0.5, r"ambiguous\); use .* torch\.where, not if"),
        ("abc", "'str' object is not callable"),
        (None, "'NoneType' object is not callable"),
    ],
    ids=["math", "branch", "text", "none"],
)
def test_functions_that_do_not_take_tensors_are_refused(f, complaint):
    with pytest.raises(TypeError, match=f"diffusivity 'own': f must be a function of tensors.*{complaint}"):
        Diffusivity("own", f)


def test_inconsistent_delta_and_f_are_refused():
    with pytest.raises(
        ValueError, match=r"delta is not the penalty of f: near u = 0 it rises by 2 per unit, where f = 1"
    ):
        Diffusivity("mine", f=torch.ones_like, delta=lambda u: 2 * u)


def test_inconsistent_score_and_f_are_refused():
    with pytest.raises(ValueError, match=r"score\(x\) is not f\(2 - 2x\)"):
        Diffusivity("mine", f=lambda u: 2 - u / 2, score=lambda x: 1 + x / 2)


def test_names_with_parameters():
    x = torch.tensor([-1.0, 0.3], dtype=torch.float64)
    torch.testing.assert_close(as_diffusivity("softmax:8").g(x), softmax(8.0).g(x))
    torch.testing.assert_close(as_diffusivity("gaussian:0.5").g(x), gaussian(0.5).g(x))
    torch.testing.assert_close(as_diffusivity("softmax", channels=64).g(x), softmax(8.0).g(x))
    assert as_diffusivity("softmax:8").name == "softmax:8"


def test_as_diffusivity_returns_an_object_unchanged():
    mine = Diffusivity("mine", f=lambda u: 1 / (1 + u))
    assert as_diffusivity(mine) is mine


@pytest.mark.parametrize("name", [name for name in DIFFUSIVITIES if name != "softmax"])
def test_a_name_is_always_the_same_object_or_the_same_function(name):
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    torch.testing.assert_close(as_diffusivity(name, channels=3).g(x), as_diffusivity(name, channels=9).g(x))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("sigmod", "unknown diffusivity 'sigmod'; did you mean 'sigmoid'?"),
        ("nothing like it", "unknown diffusivity"),
        ("simple:3", "unknown diffusivity 'simple:3'"),
        ("softmax:hot", "'hot' is not a number"),
        ("softmax:0", "temperature must be positive"),
        ("gaussian:-1", "width must be positive"),
        ("gaussian:nan", "width must be positive"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(given, complaint):
    with pytest.raises(ValueError, match=complaint.replace("?", r"\?")):
        as_diffusivity(given)


def test_other_types_raise_a_type_error():
    with pytest.raises(TypeError, match="must be a name or a Diffusivity, got int"):
        as_diffusivity(3)


def test_a_diffusivity_cannot_be_changed():
    with pytest.raises(AttributeError):
        as_diffusivity("simple").name = "other"


def test_named_diffusivities_pickle_and_lambdas_are_refused():
    again = pickle.loads(pickle.dumps(as_diffusivity("gaussian:0.5")))
    assert isinstance(again, Diffusivity)
    assert again.name == "gaussian:0.5"
    x = torch.linspace(-1, 1, 9)
    torch.testing.assert_close(again.g(x), as_diffusivity("gaussian:0.5").g(x))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(Diffusivity("cauchy", f=lambda u: 1 / (1 + u)))


def test_rounding_above_one_does_not_leave_the_domain_of_f():
    rooted = Diffusivity("rooted", f=lambda u: 1 / (1 + u.sqrt()))
    x = torch.tensor([1.0, 1.0 + 1e-7])
    assert torch.equal(rooted.g(x), torch.ones(2))


def test_a_diffusivity_can_be_made_under_any_default_device():
    with torch.device("meta"):
        made = [as_diffusivity("gaussian:0.7"), Diffusivity("cauchy", f=lambda u: 1 / (1 + u))]
    for diffusivity in made:
        assert diffusivity.delta(torch.ones(2, dtype=torch.float64)).gt(0).all()


def test_sharp_is_a_gaussian_by_its_sharpness():
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)
    sharp, gaussian = as_diffusivity("sharp:25"), as_diffusivity("gaussian:0.2")
    torch.testing.assert_close(sharp.g(x), gaussian.g(x))
    assert as_diffusivity("sharp").name == "sharp:40"
    assert as_diffusivity("sharp").is_named()
    with pytest.raises(ValueError, match="sharpness must be positive and finite, got -1"):
        as_diffusivity("sharp:-1")
