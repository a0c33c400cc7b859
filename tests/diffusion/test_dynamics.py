import sys

import pytest
import torch
from problems import GRAPH_PROBLEMS, PROBLEMS, column, path_graph
from random_systems import random_graph, states

from difformer.diffusion import AllPairAttention, Energy, GraphCoupling, Identity, diffuse, penalty, smoothness, solve


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def source_of(problem):
    return {"source": problem.source, "source_weight": problem.source_weight}


@pytest.mark.parametrize("name", PROBLEMS)
def test_solve_equals_the_exact_flow(name):
    problem = PROBLEMS[name]()
    times = torch.tensor([0.0, 0.1, 0.5, 2.0], dtype=torch.float64)
    found = solve(problem.z, problem.coupling, times, rtol=1e-10, atol=1e-12, **source_of(problem))
    close(found, torch.stack([problem.exact(float(t)) for t in times]), 1e-8)


@pytest.mark.parametrize("name", PROBLEMS)
def test_euler_steps_converge_to_the_flow_at_first_order(name):
    problem = PROBLEMS[name]()
    errors = []
    for steps in (200, 400):
        end = diffuse(problem.z, problem.coupling, steps=steps, step_size=0.5 / steps, **source_of(problem))
        errors.append(float((end - problem.exact(0.5)).abs().max()))
    assert errors[1] < 1e-2
    assert 1.9 < errors[0] / errors[1] < 2.1


@pytest.mark.parametrize("name", ["two_nodes", "path", "cycle", "complete"])
def test_a_mode_decays_by_one_minus_tau_lambda_per_step(name):
    problem = GRAPH_PROBLEMS[name]()
    shape = problem.z - 2.0
    rate = -(problem.coupling.propagate(shape) - problem.coupling.degree(shape).unsqueeze(1) * shape)
    value = float((rate * shape).sum() / (shape * shape).sum())
    end = diffuse(problem.z, problem.coupling, steps=7, step_size=0.3)
    close(end, 2.0 + (1 - 0.3 * value) ** 7 * shape)


@pytest.mark.parametrize(
    ("conservation", "kept"),
    [("degree", lambda t, d: 1 - t * d), ("unit", lambda t, d: 1 - t), ("none", lambda t, d: 1.0)],
)
def test_one_step_with_everything_is_the_equation(conservation, kept):
    graph = random_graph(9, 0.4, True, True, 0)
    z, source = states(9, 0, channels=3, where="ball"), states(9, 1, channels=2)
    weight = torch.randn(3, 2, dtype=torch.float64)
    h = lambda x: x @ weight
    coupling, tau, beta = GraphCoupling(graph, "gcn"), 0.3, 0.7
    matrix = coupling.matrix(z)
    expected = torch.tanh(kept(tau, matrix.sum(1, keepdim=True)) * h(z) + tau * matrix @ h(z) + tau * beta * source)
    found = diffuse(
        z, coupling, step_size=tau, conservation=conservation, source=source, source_weight=beta, transform=h,
        activation=torch.tanh,
    )  # fmt: skip
    close(found, expected)


def test_attention_is_computed_at_the_transformed_states_or_at_the_input():
    z, weight = states(7, 0, channels=3), torch.randn(3, 3, dtype=torch.float64) / 3
    h, coupling = lambda x: x @ weight, AllPairAttention("gaussian")
    for at, where in (("transformed", h(z)), ("input", z)):
        expected = 0.5 * h(z) + 0.5 * coupling.matrix(where) @ h(z)
        close(diffuse(z, coupling, step_size=0.5, transform=h, coupling_at=at), expected)


def test_a_plain_matrix_is_a_coupling_dense_or_sparse():
    matrix = GraphCoupling(random_graph(6, 0.5, True, False, 3), "raw").matrix(torch.zeros(6, 1, dtype=torch.float64))
    z = states(6, 3)
    expected = z + 0.1 * (matrix @ z - matrix.sum(1, keepdim=True) * z)
    for given in (matrix, matrix.to_sparse(), matrix.to_sparse_csr()):
        close(diffuse(z, given, step_size=0.1), expected)


def test_a_trajectory_begins_at_the_start_and_ends_at_the_last():
    z, coupling = states(6, 0), AllPairAttention("simple")
    states_ = diffuse(z, coupling, steps=4, step_size=0.5, save="all")
    assert states_.shape == (5, *z.shape)
    close(states_[0], z)
    close(states_[-1], diffuse(z, coupling, steps=4, step_size=0.5))
    close(states_[2], diffuse(states_[1], coupling, step_size=0.5))
    assert diffuse(z, coupling, steps=0, save="all").shape == (1, *z.shape)
    close(diffuse(z, coupling, steps=0), z)


def test_energies_of_a_trajectory():
    z, coupling = states(6, 0), AllPairAttention("simple")
    energy = Energy(penalty("simple"), 0.1)
    found = diffuse(z, coupling, steps=4, step_size=0.5, save="all")
    expected = [energy(found[k + 1], found[k]) for k in range(4)]
    close(energy.along(found), torch.stack(expected))
    assert energy.along(diffuse(z, coupling, steps=0, save="all")).shape == (0,)


def test_one_transformation_per_step():
    z = states(5, 0)
    close(diffuse(z, Identity(), steps=2, transform=[lambda x: 2 * x, lambda x: x + 1]), 2 * z + 1)
    with pytest.raises(ValueError, match="got 2 for 3 steps"):
        diffuse(z, Identity(), steps=3, transform=[torch.relu, torch.relu])


def test_the_default_source_is_the_initial_states():
    z = states(5, 0)
    found = diffuse(z, Identity(), steps=3, step_size=0.5, source_weight=0.2)
    close(found, z * (1 + 3 * 0.5 * 0.2))
    close(diffuse(z, Identity(), steps=1, source=2 * z), 3 * z)
    close(diffuse(z, Identity(), steps=1, source=2 * z, source_weight=0.0), z)


def test_degree_conservation_keeps_the_mean_and_unit_conservation_keeps_it_for_symmetric_rows_of_one():
    graph, z = random_graph(12, 0.3, True, True, 5), states(12, 5, where="anywhere")
    close(diffuse(z, GraphCoupling(graph, "raw"), steps=5, step_size=0.05).mean(0), z.mean(0))


def test_gradients_flow_through_the_diffusion():
    z = states(4, 0, channels=2, where="ball").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: diffuse(x, AllPairAttention("sigmoid"), steps=2, step_size=0.5), (z,))


def test_single_precision_stays_single():
    z = states(5, 0).float()
    for coupling in (AllPairAttention("sigmoid"), GraphCoupling(path_graph(5), "gcn")):
        assert diffuse(z, coupling, steps=2).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"conservation": "all"}, "conservation must be one of degree, unit, none, got 'all'"),
        ({"step_size": 0.0}, "step_size must be positive and finite, got 0.0"),
        ({"step_size": float("nan")}, "step_size must be positive and finite"),
        ({"steps": -1}, "steps must be a number of steps, 0 or more, got -1"),
        ({"save": "some"}, "save must be one of last, all, got 'some'"),
        ({"coupling_at": "output"}, "coupling_at must be one of transformed, input, got 'output'"),
        ({"source": torch.zeros(3, 2)}, r"one row per state, got shape \(3, 2\)"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        diffuse(states(5, 0), Identity(), **options)


def test_states_must_be_a_floating_matrix():
    with pytest.raises(ValueError, match=r"z must be floating-point states \[N, d\], got torch.int64 \(3, 2\)"):
        diffuse(torch.zeros(3, 2, dtype=torch.long), Identity())
    with pytest.raises(ValueError, match=r"got torch.float32 \(3,\)"):
        diffuse(torch.zeros(3), Identity())


def test_solve_without_torchdiffeq_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(ImportError, match=r"pip install 'difformer\[ode\]'"):
        solve(column(1.0, 2.0), Identity(), torch.tensor([0.0, 1.0]))


def test_energy_falls_along_the_flow():
    problem = PROBLEMS["path"]()
    trajectory = solve(problem.z, problem.coupling, torch.linspace(0, 2, 9, dtype=torch.float64))
    values = torch.stack([smoothness(problem.coupling)(z) for z in trajectory])
    assert (values.diff() < 0).all()


def test_a_module_list_gives_one_transformation_per_step():
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)])
    z = torch.randn(6, 3)
    found = diffuse(z, Identity(), steps=2, transform=layers)
    assert torch.equal(found, diffuse(z, Identity(), steps=2, transform=list(layers)))
    assert found.shape == (6, 2)
    with pytest.raises(ValueError, match="got 2 for"):
        diffuse(z, Identity(), steps=3, transform=layers)
    with pytest.raises(TypeError, match="transform must be a function of the states, or one per step, got int"):
        diffuse(z, Identity(), steps=3, transform=3)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (torch.ones(4), r"source must be a tensor \[4, 3\], one row per state, got shape \(4,\)"),
        (torch.ones(5, 3), r"got shape \(5, 3\)"),
        (torch.ones(4, 1), r"source has shape \(4, 1\), but is added to states of shape \(4, 3\)"),
        (1.0, "got float"),
    ],
    ids=["vector", "rows", "columns", "number"],
)
def test_a_source_of_another_shape_is_refused_not_broadcast(source, complaint):
    with pytest.raises(ValueError, match=complaint):
        diffuse(torch.zeros(4, 3), Identity(), source=source)


def test_the_source_must_have_the_shape_of_the_transformed_states():
    h = torch.nn.Linear(3, 2)
    z = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"which is Z\^\(0\) by default.*source=h\(z\)"):
        diffuse(z, Identity(), source_weight=0.5, transform=h)
    assert diffuse(z, Identity(), source=h(z), source_weight=0.5, transform=h).shape == (4, 2)
