import math
import time

import pytest
import torch
from hypothesis import given, settings
from problems import GRAPH_PROBLEMS, complete_graph, path_graph, undirected
from random_systems import graphs, random_graph, seeds, states

from difformer.diffusion import (
    AllPairAttention,
    EdgeAttention,
    GraphCoupling,
    Identity,
    MatrixCoupling,
    Mix,
    Spectrum,
    convergence_rate,
    diffuse,
    laplacian_spectrum,
    spectrum,
    stable_step_size,
)
from difformer.graph import Graph


@pytest.fixture
def lanczos(monkeypatch):
    """Iterations for every size, however small."""
    monkeypatch.setattr(spectrum, "DENSE", 0)


@pytest.mark.parametrize("name", GRAPH_PROBLEMS)
def test_spectra_equal_their_known_values(name):
    problem = GRAPH_PROBLEMS[name]()
    found = laplacian_spectrum(problem.coupling)
    assert found.largest == pytest.approx(problem.largest)
    assert found.gap == pytest.approx(problem.gap)
    assert found.null == problem.null
    assert stable_step_size(problem.coupling) == pytest.approx(2 / problem.largest)


def dense_eigenvalues(coupling, z):
    matrix = coupling.matrix(z)
    return torch.linalg.eigvals(torch.diag(matrix.sum(1)) - matrix).real.sort().values


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graph=graphs(), seed=seeds)
def test_the_spectrum_is_that_of_the_matrix_for_every_coupling(graph, seed):
    z = states(graph.num_nodes, seed, where="ball")
    for coupling in (
        GraphCoupling(graph, "raw"),
        GraphCoupling(graph, "gin"),
        GraphCoupling(graph, "gcn"),
        GraphCoupling(graph, "random_walk"),
        EdgeAttention(graph, "sigmoid"),
        AllPairAttention("gaussian"),
        AllPairAttention("gaussian", normalised=False),
        Identity(),
    ):
        values = dense_eigenvalues(coupling, z)
        zero = int((values.abs() < 1e-9).sum())
        found = laplacian_spectrum(coupling, z)
        assert found.null == zero
        assert found.largest == pytest.approx(float(values[-1]), abs=1e-9)
        if zero < len(z):
            assert found.gap == pytest.approx(float(values[zero]), rel=1e-7)
        else:
            assert found.gap is None


@pytest.mark.parametrize("nodes", [12, 40])
@pytest.mark.parametrize("density", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_iterative_and_dense_spectra_agree(nodes, density, seed, monkeypatch):
    graph = random_graph(nodes, density, True, False, seed)
    z = states(nodes, seed)
    for coupling in (
        GraphCoupling(graph, "raw"),
        GraphCoupling(graph, "gcn"),
        GraphCoupling(graph, "random_walk"),
        AllPairAttention("sigmoid"),
    ):
        monkeypatch.setattr(spectrum, "DENSE", 512)
        exact = laplacian_spectrum(coupling, z)
        monkeypatch.setattr(spectrum, "DENSE", 0)
        found = laplacian_spectrum(coupling, z)
        assert found.null == exact.null
        assert found.largest == pytest.approx(exact.largest, rel=1e-9, abs=1e-12)
        assert (found.gap is None) == (exact.gap is None)
        if exact.gap is not None:
            assert found.gap == pytest.approx(exact.gap, rel=1e-6)


def test_a_long_chain_resolves_its_tiny_gap():
    found = laplacian_spectrum(GraphCoupling(path_graph(1500), "raw"))
    assert found.gap == pytest.approx(2 - 2 * math.cos(math.pi / 1500), rel=1e-6)
    assert found.largest == pytest.approx(2 + 2 * math.cos(math.pi / 1500), rel=1e-9)


def test_unresolved_gap_is_reported():
    with pytest.raises(RuntimeError, match="not resolved after 50 products with S: it is at most"):
        laplacian_spectrum(GraphCoupling(path_graph(1500), "raw"), max_iterations=50)


def test_a_repeated_eigenvalue_ends_the_recurrence(lanczos):
    # The complete graph has one non-zero eigenvalue: the recurrence is exhausted after a single step.
    found = laplacian_spectrum(GraphCoupling(complete_graph(30), "raw"))
    assert (found.largest, found.gap, found.null) == (pytest.approx(30), pytest.approx(30), 1)


@pytest.mark.parametrize("weights", ["raw", "gcn", "random_walk"])
def test_a_step_at_the_limit_does_not_grow_and_one_beyond_does(weights):
    graph = random_graph(30, 0.2, True, False, 1)
    coupling = GraphCoupling(graph, weights)
    z = states(30, 1, where="anywhere")
    limit = stable_step_size(coupling)
    assert diffuse(z, coupling, steps=400, step_size=limit).abs().max() < 100
    assert diffuse(z, coupling, steps=400, step_size=1.1 * limit).abs().max() > 1e6


def test_the_rate_is_reached_by_the_slowest_mode_and_by_no_other():
    coupling = GraphCoupling(path_graph(8), "raw")
    step = 0.5 * stable_step_size(coupling)
    z = states(8, 1, where="anywhere")
    trajectory = diffuse(z, coupling, steps=100, step_size=step, save="all")
    energy = torch.stack([coupling.variation(now) for now in trajectory])
    rate = convergence_rate(coupling, step)
    assert rate == pytest.approx((1 - step * (2 - 2 * math.cos(math.pi / 8))) ** 2)
    assert (energy[1:] <= energy[:-1] * rate * (1 + 1e-9)).all()
    assert float(energy[100] / energy[99]) == pytest.approx(rate, rel=1e-6)


def test_large_steps_make_the_fastest_mode_the_slowest_to_decay():
    assert Spectrum(4.0, 1.0, 1).rate(0.45) == pytest.approx(0.8**2)
    assert Spectrum(4.0, 1.0, 1).rate(0.1) == pytest.approx(0.9**2)
    assert Spectrum(0.0, None, 3).rate(1.0) == 0
    assert Spectrum(0.0, None, 3).stable_step_size == math.inf


def test_spectrum_without_edges_is_zero():
    coupling = GraphCoupling(Graph(torch.zeros(2, 0, dtype=torch.long), 4), "raw")
    assert laplacian_spectrum(coupling) == Spectrum(0.0, None, 4)
    assert stable_step_size(coupling) == math.inf


def test_opposite_states_do_not_exchange_under_simple():
    z = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], dtype=torch.float64)
    found = laplacian_spectrum(AllPairAttention("simple"), z)
    assert found.null == 2
    assert found.gap == pytest.approx(1.0)


def test_attention_is_stable_up_to_one():
    z = states(40, 0, where="ball")
    for name in ("simple", "gaussian", "constant"):
        assert stable_step_size(AllPairAttention(name), z) >= 1 - 1e-9


def test_a_coupling_without_a_real_spectrum_gets_a_sufficient_step():
    directed = GraphCoupling(Graph(torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]]), 3), "raw")
    with pytest.raises(ValueError, match="no real spectrum"):
        laplacian_spectrum(directed)
    step = stable_step_size(directed)
    assert step == pytest.approx(1 / 2)
    z = states(3, 0, where="anywhere")
    after = diffuse(z, directed, step_size=step)
    assert (after.max(0).values <= z.max(0).values + 1e-12).all()
    mixed = Mix((AllPairAttention("simple"), GraphCoupling(path_graph(3), "gcn")))
    assert stable_step_size(mixed, z / 20) == pytest.approx(1 / (0.5 + 0.5 * math.sqrt(2)))


def test_missing_states_and_negative_couplings_are_refused():
    with pytest.raises(ValueError, match="z is missing"):
        stable_step_size(AllPairAttention("simple"))
    with pytest.raises(ValueError, match="z is missing"):
        stable_step_size(Identity())
    with pytest.raises(ValueError, match="negative entries"):
        stable_step_size(MatrixCoupling(torch.tensor([[0.0, -1.0], [-1.0, 0.0]])))
    with pytest.raises(ValueError, match="no states"):
        stable_step_size(Identity(), torch.zeros(0, 2))


def test_single_precision_matrix_counts_as_symmetric():
    torch.manual_seed(0)
    a = torch.rand(20, 20)
    a = (a + a.T) / 2
    a = a / a.sum(1).sqrt() / a.sum(1).sqrt().unsqueeze(1)
    assert laplacian_spectrum(a).null == 1


def test_spectrum_of_a_million_edges_within_seconds():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, 60_000, (2, 500_000), generator=generator)
    coupling = GraphCoupling(Graph(torch.cat([pairs, pairs.flip(0)], 1), 60_000), "raw")
    found = laplacian_spectrum(coupling)
    assert 0 < found.gap < found.largest
    step = 1 / found.largest
    z = states(60_000, 0, channels=1, where="anywhere")
    one, two = diffuse(z, coupling, steps=1, step_size=step), diffuse(z, coupling, steps=2, step_size=step)
    assert coupling.variation(two) <= found.rate(step) * coupling.variation(one)


def test_weights_scale_the_spectrum():
    for factor in (1e-6, 1e6):
        found = laplacian_spectrum(GraphCoupling(undirected([(0, 1), (1, 2)], 4, factor), "raw"))
        assert found == Spectrum(pytest.approx(3 * factor), pytest.approx(factor), 2)


def test_a_lazy_random_walk_has_the_spectrum_of_the_walk():
    path = Graph(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3)
    walk = GraphCoupling(path, "random_walk")
    lazy = laplacian_spectrum(Mix((walk, Identity()), (0.5, 0.5)), torch.zeros(3, 1))
    plain = laplacian_spectrum(walk)
    assert lazy.largest == pytest.approx(plain.largest / 2)
    assert lazy.gap == pytest.approx(plain.gap / 2)


def test_a_long_chain_gets_a_safe_step_within_seconds():
    n = 10_000
    along = torch.arange(n - 1)
    chain = Graph(torch.stack([torch.cat([along, along + 1]), torch.cat([along + 1, along])]), n)
    started = time.perf_counter()
    found = stable_step_size(GraphCoupling(chain, "raw"))
    assert 0.5 * (1 - 1e-3) <= found <= 0.5 * (1 + 1e-6)  # 2 / λ₁ with λ₁ just below 4
    assert time.perf_counter() - started < 120
