import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import path_graph
from random_systems import DIFFUSIVITY_NAMES, diffusivities, graphs, places, random_graph, seeds, states

from difformer.diffusion import (
    AllPairAttention,
    Diffusivity,
    Energy,
    GraphCoupling,
    as_diffusivity,
    concave_conjugate,
    dirichlet_energy,
    effective_rank,
    mixture,
    pairs,
    penalty,
    smoothness,
    surrogate_energy,
)
from difformer.diffusion import energy as energies
from difformer.diffusion.energy import nonnegative, normalised_dirichlet_energy


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def distances(z):
    return ((z.unsqueeze(1) - z) ** 2).sum(-1)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=seeds, nodes=st.integers(1, 15), name=diffusivities, place=places, size=st.sampled_from([2, 5, 2048]))
def test_the_penalty_is_the_sum_over_all_ordered_pairs(seed, nodes, name, place, size):
    z = states(nodes, seed, where=place)
    delta = as_diffusivity(name, channels=z.shape[1]).delta
    batch = torch.arange(nodes) % 2
    inside = batch.unsqueeze(1) == batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "BLOCK_SIZE", size)
        close(penalty(name)(z), delta(distances(z)).sum())
        close(penalty(name, batch=batch)(z), (delta(distances(z)) * inside).sum())


@settings(max_examples=20, deadline=None, derandomize=True)
@given(graph=graphs(), seed=seeds, name=diffusivities)
def test_graph_energies_equal_sums_over_the_matrix(graph, seed, name):
    z = states(graph.num_nodes, seed)
    a = GraphCoupling(graph, "raw").matrix(z)
    delta = as_diffusivity(name, channels=z.shape[1]).delta
    close(penalty(name, graph=graph)(z), (a * delta(distances(z))).sum())
    close(smoothness(GraphCoupling(graph, "raw"))(z), (a * distances(z)).sum())
    gcn = GraphCoupling(graph, "gcn")
    expected = (delta(distances(z)).sum() + (gcn.matrix(z) * distances(z)).sum()) / 2
    close(mixture(name, gcn)(z), expected)
    scaled = (delta(distances(z)).sum() + 7 * (gcn.matrix(z) * distances(z)).sum()) / 2
    close(mixture(name, gcn, graph_scale=7)(z), scaled)


def test_penalties_of_many_states_need_no_matrix_of_all_pairs():
    z = states(100_000, 0, channels=3)
    sample = z[:2000]
    assert float(penalty("simple")(sample)) == pytest.approx(
        float(penalty(Diffusivity("same", f=lambda u: 2 - u / 2))(sample))
    )
    # Uniform on the sphere: the mean of u is 2 and of u² is 16/3, so that the mean of δ is 4 - 4/3.
    assert float(penalty("simple")(z)) / 1e10 == pytest.approx(4 - 4 / 3, rel=1e-2)


@pytest.mark.parametrize("name", [*DIFFUSIVITY_NAMES, "mine"])
def test_the_gradient_of_the_penalty_is_four_times_the_exchange(name, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_SIZE", 4)
    diffusivity = Diffusivity("mine", f=lambda u: 1 / (1 + u)) if name == "mine" else as_diffusivity(name, channels=3)
    z = states(11, 0, channels=3, where="ball").requires_grad_()
    (gradient,) = torch.autograd.grad(penalty(diffusivity)(z), z)
    omega = diffusivity.f(distances(z.detach()))
    close(gradient, 4 * (omega.sum(1, keepdim=True) * z.detach() - omega @ z.detach()), 1e-8)


def test_energy_is_the_sum_of_its_terms():
    graph, z, previous = random_graph(6, 0.5, True, False, 0), states(6, 0, channels=2), states(6, 1, channels=2)
    source, eta = states(6, 2, channels=2), torch.rand(6, dtype=torch.float64)
    coupling = GraphCoupling(graph, "raw")
    r = smoothness(coupling)(z)
    close(Energy(smoothness(coupling), 0.3)(z, previous), ((z - previous) ** 2).sum() + 0.3 * r)
    close(
        Energy(smoothness(coupling), 0.3, source=source, source_weight=0.2)(z, previous),
        ((z - previous - 0.2 * source) ** 2).sum() + 0.3 * r,
    )
    close(
        Energy(smoothness(coupling), 0.3, source=source, source_weight=eta)(z, previous),
        ((z - previous - eta.unsqueeze(1) * source) ** 2).sum() + 0.3 * r,
    )
    close(
        Energy(smoothness(coupling), 0.3, transform=torch.tanh)(z, previous),
        ((z - torch.tanh(previous)) ** 2).sum() + 0.3 * r,
    )
    with_psi = Energy(smoothness(coupling), 0.3, proximal=nonnegative)
    assert with_psi(z - 10, previous) == math.inf
    close(with_psi(z.abs(), previous), ((z.abs() - previous) ** 2).sum() + 0.3 * smoothness(coupling)(z.abs()))


def test_relu_is_the_proximal_step_of_its_penalty():
    # argmin ||x - z||² + ψ(x) over x ≥ 0 is max(z, 0), entry by entry.
    z = states(8, 0, channels=3)
    best = torch.relu(z)
    value = lambda x: ((x - z) ** 2).sum() + nonnegative(x).sum()
    for _ in range(50):
        assert value(best) <= value((best + 0.1 * torch.randn_like(best)).abs())
    assert value(best) < value(z)


def test_dirichlet_energies_are_traces():
    graph, z = random_graph(9, 0.2, True, False, 4), states(9, 4, where="anywhere")
    a = GraphCoupling(graph, "raw").matrix(z)
    close(dirichlet_energy(z, GraphCoupling(graph, "raw")), torch.trace(z.T @ (torch.diag(a.sum(1)) - a) @ z))
    s = GraphCoupling(graph, "gcn").matrix(z)
    assert (a.sum(1) == 0).any(), "the graph should have a node on its own"
    close(normalised_dirichlet_energy(z, graph), torch.trace(z.T @ (torch.eye(9, dtype=torch.float64) - s) @ z), 1e-8)


def test_effective_rank_is_the_exponential_of_the_entropy():
    assert float(effective_rank(torch.eye(4, dtype=torch.float64))) == pytest.approx(4)
    assert float(effective_rank(torch.ones(100, 4, dtype=torch.float64))) == pytest.approx(1)
    assert float(effective_rank(torch.zeros(5, 2))) == 0
    z = states(50, 0, channels=3, where="anywhere")
    p = torch.linalg.svdvals(z)
    p = p / p.sum()
    assert float(effective_rank(z)) == pytest.approx(float(torch.exp(-(p * p.log()).sum())))
    assert float(effective_rank(7 * z)) == pytest.approx(float(effective_rank(z)))
    assert float(effective_rank(states(2, 0, channels=5))) <= 2 + 1e-12


def test_over_smoothing_shows_as_a_falling_rank():
    from difformer.diffusion import diffuse

    z = states(30, 1, channels=6, where="ball")
    trajectory = diffuse(z, AllPairAttention("simple"), steps=8, step_size=0.9, save="all")
    ranks = [float(effective_rank(now)) for now in trajectory]
    assert ranks[0] > 5
    assert ranks[-1] < 1.01


@pytest.mark.parametrize("name", DIFFUSIVITY_NAMES)
def test_the_concave_conjugate_is_the_minimum_over_u(name):
    diffusivity = as_diffusivity(name, channels=3)
    top = float(diffusivity.f(torch.zeros(1, dtype=torch.float64)))
    omega = torch.linspace(0, 1.5 * top, 41, dtype=torch.float64)
    u = torch.linspace(0, 4, 20001, dtype=torch.float64)
    grid = (omega.unsqueeze(1) * u - diffusivity.delta(u)).min(1).values
    found = concave_conjugate(omega, diffusivity)
    assert (found <= grid + 1e-12).all()
    torch.testing.assert_close(found, grid, rtol=1e-6, atol=1e-6 * top)
    # And back: δ is the envelope of its tangents.
    close(diffusivity.f(u) * u - concave_conjugate(diffusivity.f(u), diffusivity), diffusivity.delta(u), 1e-9)


def test_the_conjugate_of_simple_in_closed_form():
    omega = torch.linspace(0, 3, 31, dtype=torch.float64)
    u = (4 - 2 * omega).clamp(0, 4)
    close(concave_conjugate(omega, as_diffusivity("simple")), omega * u - 2 * u + u**2 / 4)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=seeds, nodes=st.integers(1, 12), name=diffusivities, place=places, size=st.sampled_from([3, 2048]))
def test_the_surrogate_lies_above_and_touches(seed, nodes, name, place, size):
    z, previous = states(nodes, seed, where=place), states(nodes, seed, where="ball")
    energy = Energy(penalty(name), 0.4)(z, previous)
    omega = torch.rand(nodes, nodes, dtype=torch.float64) * 2
    slack = 1e-10 * (1 + abs(float(energy)))
    touching = as_diffusivity(name, channels=z.shape[1]).f(distances(z))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energies, "BLOCK_SIZE", size)
        assert surrogate_energy(z, previous, omega, name, weight=0.4) >= energy - slack
        assert surrogate_energy(z, previous, None, name, weight=0.4) >= energy - slack
        close(surrogate_energy(z, previous, touching, name, weight=0.4), energy, 1e-9)


def test_negative_variational_parameters_are_refused():
    z = states(3, 0)
    with pytest.raises(ValueError, match="omega must be ≥ 0, got -1"):
        surrogate_energy(z, z, torch.full((3, 3), -1.0, dtype=torch.float64), "simple")


def test_a_penalty_runs_over_edges_or_over_a_batch():
    with pytest.raises(ValueError, match="pass one of the two"):
        penalty("simple", graph=path_graph(3), batch=torch.zeros(3, dtype=torch.long))
