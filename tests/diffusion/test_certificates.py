"""Every claim in the form that holds, on random graphs, states and settings; and that a broken one would be noticed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import GRAPH_PROBLEMS, column, complete_graph, path_graph
from random_systems import diffusivities, graphs, places, random_graph, seeds, states

from difformer.diffusion import (
    AllPairAttention,
    Certificate,
    Diffusivity,
    EdgeAttention,
    GraphCoupling,
    certify,
    diffuse,
    stable_step_size,
)
from difformer.diffusion import certificates as c
from difformer.graph import Graph

shares = st.sampled_from([0.01, 0.3, 0.7, 0.99, 1.0])
many = settings(max_examples=40, deadline=None, derandomize=True)
few = settings(max_examples=25, deadline=None, derandomize=True)


OF_CONSTANT_COUPLINGS = [
    "thm-gcn",
    "thm-gcn (one step)",
    "prop-bound",
    "cora-conv",
    "corollary-gcn-cont",
    "prop-convergence",
    "prop-convergence (one step)",
    "prop-convergence (drift)",
    "prop-convergence (limit)",
]
OF_ATTENTION = [
    "prop-energy",
    "thm-main",
    "thm-main (definite)",
    "coro-main",
    "prop-feattrans",
    "prop-feattrans (activation)",
    "prop-trans-oversmooth",
]
OF_GRAPHS = ["exa-gcn", "eqn-energy-graph"]


def certain(certificate):
    """Covered, and true."""
    assert certificate.condition_met, certificate
    assert certificate.holds, certificate
    assert certificate.verdict in ("holds", "measured")


def step_of(coupling, share):
    limit = stable_step_size(coupling)
    return share * (limit if math.isfinite(limit) else 1.0)


@st.composite
def static_systems(draw):
    graph = draw(graphs())
    coupling = GraphCoupling(graph, draw(st.sampled_from(["raw", "gin", "gcn"])))
    return states(graph.num_nodes, draw(seeds), where=draw(st.sampled_from(["sphere", "anywhere"]))), coupling


@many
@given(system=static_systems(), share=shares, weight=st.sampled_from([0.0, 1e-3, 1.0, 50.0]), steps=st.integers(1, 12))
def test_constant_couplings_descend(system, share, weight, steps):
    z, coupling = system
    step = step_of(coupling, share)
    certain(c.thm_gcn(z, coupling, step_size=step, weight=weight, steps=steps))
    certain(c.prop_bound(z, coupling, step_size=step / 2, weight=weight, steps=steps))
    if share < 1:
        certain(c.thm_gcn_step(z, coupling, step_size=step, steps=steps))
        certain(c.cora_conv(z, coupling, step_size=step, steps=3 * steps))
    certain(c.corollary_gcn_cont(z, coupling))


@many
@given(
    system=static_systems(), share=shares, beta=st.sampled_from([-1.0, 0.1, 3.0]), seed=seeds, steps=st.integers(1, 10)
)
def test_constant_couplings_with_a_source(system, share, beta, seed, steps):
    z, coupling = system
    step = step_of(coupling, share)
    source = states(len(z), seed, channels=z.shape[1], where="anywhere")
    options = {"source": source, "source_weight": beta, "steps": steps}
    certain(c.prop_convergence(z, coupling, step_size=step, **options))
    certain(c.source_drift(z, coupling, step_size=step, **options))
    if share < 1:
        certain(c.prop_convergence_step(z, coupling, step_size=step, **options))
        certain(c.source_limit(z, coupling, step_size=step, **options))


@few
@given(graph=graphs(), seed=seeds, share=shares)
def test_graph_convolution_descends_its_own_energy(graph, seed, share):
    z = states(graph.num_nodes, seed, where="anywhere")
    identity = torch.eye(len(z), dtype=torch.float64)
    largest = float(torch.linalg.eigvalsh(identity - GraphCoupling(graph, "gcn").matrix(z))[-1])
    certain(c.example_gcn(z, graph, step_size=share * (2 / largest if largest > 1e-9 else 1.0)))


@st.composite
def attention_systems(draw, everywhere=False):
    """States and attention between all pairs, in batches, or on edges."""
    name = draw(diffusivities)
    kind = draw(st.sampled_from(["pairs", "batch"] if everywhere else ["pairs", "batch", "edges"]))
    graph = draw(graphs())
    z = states(graph.num_nodes, draw(seeds), where=draw(places))
    if kind == "edges":
        return z, EdgeAttention(graph, name)
    return z, AllPairAttention(name, batch=torch.arange(len(z)) % 3 if kind == "batch" else None)


@many
@given(system=attention_systems(), step=st.sampled_from([0.05, 0.5, 0.9, 0.999]), steps=st.integers(1, 6))
def test_attention_descends(system, step, steps):
    z, coupling = system
    certain(c.thm_main(z, coupling, step_size=step, steps=steps))
    larger = c.thm_main(z, coupling, step_size=step, steps=steps).details["weight"] * 3
    certain(c.thm_main(z, coupling, step_size=step, steps=steps, weight=larger))
    certain(c.coro_main(z, coupling))
    certain(c.prop_energy(z, coupling.diffusivity))


@many
@given(seed=seeds, nodes=st.integers(1, 14), place=places, name=diffusivities, step=st.sampled_from([0.2, 0.7, 1.0]))
def test_positive_definite_exchange_allows_a_full_step(seed, nodes, place, name, step):
    z = states(nodes, seed, where=place)
    certificate = c.thm_main_definite(z, AllPairAttention(name), step_size=step)
    assert certificate.verdict in ("holds", "not covered"), certificate
    if name.startswith(("gaussian", "softmax", "constant")):
        certain(certificate)
    if name == "simple" and place != "ball":
        certain(c.thm_main_definite(z, AllPairAttention(name), step_size=step, steps=1))


@few
@given(system=attention_systems(), seed=seeds, step=st.sampled_from([0.1, 0.5, 0.9]))
def test_transformations_and_activations(system, seed, step):
    z, coupling = system
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(z.shape[1], z.shape[1], generator=generator, dtype=torch.float64)
    weight = weight / torch.linalg.matrix_norm(weight, 2)
    certain(c.prop_feattrans(z, coupling, lambda x: x @ weight, step_size=step))
    for activation in (torch.relu, torch.tanh, torch.nn.functional.softplus, torch.sin):
        certain(c.activation_contracts(z, coupling.diffusivity, activation))


@few
@given(system=attention_systems(everywhere=True), seed=seeds, step=st.sampled_from([0.1, 0.5, 0.9]))
def test_attention_with_a_source(system, seed, step):
    z, coupling = system
    source = states(len(z), seed, channels=z.shape[1])
    certain(c.prop_trans_oversmooth(z / 2, coupling, source=source, source_weight=0.2, step_size=step))


@few
@given(graph=graphs(), seed=seeds, name=diffusivities, weights=st.sampled_from(["gcn", "random_walk"]))
def test_attention_mixed_with_a_graph_is_measured(graph, seed, name, weights):
    certificate = c.eqn_energy_graph(states(graph.num_nodes, seed), graph, name, weights=weights, step_size=0.5)
    certain(certificate)
    assert certificate.verdict == "measured"


def test_custom_diffusivity_is_certified():
    cauchy = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
    z, graph = states(20, 0), random_graph(20, 0.2, True, False, 0)
    for certificate in certify(z, graph, diffusivity=cauchy):
        assert certificate.verdict != "fails", certificate


# What follows shows that certificates can fail: where a condition is broken, they notice.


@pytest.mark.parametrize("name", [name for name in GRAPH_PROBLEMS if "source" not in name and "drift" not in name])
def test_a_step_beyond_the_limit_is_not_covered_and_rises(name):
    problem = GRAPH_PROBLEMS[name]()
    z = problem.z + states(len(problem.z), 0, channels=1, where="anywhere")
    step = 2.2 / problem.largest
    for claim in (c.thm_gcn, c.cora_conv):
        certificate = claim(z, problem.coupling, step_size=step)
        assert not certificate.condition_met
        assert certificate.verdict == "not covered"
    assert c.thm_gcn(z, problem.coupling, step_size=step).violation > 0.01
    assert c.prop_convergence(z, problem.coupling, step_size=step, steps=30).violation > 0.01


def test_the_energy_weight_limit_is_tight():
    # In the mode of λ₁ the step is exactly neutral at λ = τ / (2(2 - τλ₁)), and rises below.
    coupling, z = GraphCoupling(path_graph(2), "raw"), column(1.0, -1.0)
    at = c.thm_gcn_step(z, coupling, step_size=0.6, steps=1)
    certain(at)
    below = c.thm_gcn_step(z, coupling, step_size=0.6, steps=1, weight=0.999 * at.details["weight"])
    assert not below.condition_met
    assert not below.holds


def test_the_step_size_limit_is_tight():
    coupling, z = GraphCoupling(path_graph(2), "raw"), column(1.0, -1.0)
    certain(c.thm_gcn(z, coupling, step_size=1.0))
    assert not c.thm_gcn(z, coupling, step_size=1.0 + 1e-6).holds


def test_both_energy_bounds_are_tight():
    problem = GRAPH_PROBLEMS["path"]()
    fastest, slowest = (GRAPH_PROBLEMS["path"].__call__(7, number).z for number in (6, 1))
    certain(c.prop_bound(fastest, problem.coupling, step_size=0.2))
    # A bound with a wrong eigenvalue is violated by a mode that reaches the right one.
    values = [
        float(problem.coupling.variation(now))
        for now in diffuse(slowest, problem.coupling, steps=2, step_size=0.2, save="all")
    ]
    assert values[2] / values[1] == pytest.approx((1 - 0.2 * problem.gap) ** 2)


def test_too_small_a_weight_for_attention_is_not_covered_and_rises():
    z, coupling = column(0.9, -0.9), AllPairAttention("simple")
    certificate = c.thm_main(z, coupling, weight=1e-3)
    assert certificate.verdict == "not covered"
    assert certificate.violation > 1e-3
    full = c.thm_main(z, coupling, step_size=1.0)
    assert not full.condition_met


def test_distances_beyond_four_are_not_covered():
    z = 3 * states(10, 0, channels=2)
    for certificate in (
        c.thm_main(z, AllPairAttention("simple")),
        c.coro_main(z, AllPairAttention("gaussian")),
        c.prop_energy(z, "simple"),
        c.activation_contracts(z, "simple"),
        c.thm_main(z, EdgeAttention(complete_graph(10), "simple")),
    ):
        assert certificate.verdict == "not covered"


def test_expansive_activation_is_not_covered():
    certificate = c.activation_contracts(states(10, 0) / 3, "simple", lambda x: 2 * x)
    assert certificate.verdict == "not covered"
    assert certificate.violation > 0.1


def test_exchange_computed_before_the_transformation_is_not_covered():
    z = states(10, 0, channels=2)
    assert c.prop_feattrans(z, AllPairAttention(), torch.tanh, coupling_at="input").verdict == "not covered"


def test_isolated_nodes_with_a_source_on_edges_are_not_covered():
    # A node that exchanges with nobody moves by τβh_i, and no penalty pays for it.
    graph = Graph(torch.tensor([[0, 1], [1, 0]]), 3)
    certificate = c.prop_trans_oversmooth(states(3, 0) / 2, EdgeAttention(graph, "simple"), source_weight=0.2)
    assert certificate.verdict == "not covered"


def test_directed_graphs_are_not_covered_and_do_not_stop_the_others():
    graph = Graph(torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]]), 4)
    found = {certificate.name: certificate for certificate in certify(states(4, 0, channels=3), graph)}
    assert set(found) == {*OF_CONSTANT_COUPLINGS, *OF_ATTENTION, *OF_GRAPHS}
    for name in ("thm-gcn", "prop-bound", "cora-conv", "exa-gcn", "prop-convergence (limit)", "eqn-energy-graph"):
        assert found[name].verdict == "not covered", found[name]
    assert found["thm-main"].verdict == "holds"


def test_certificates_refuse_unsuitable_couplings():
    z = states(5, 0)
    with pytest.raises(ValueError, match="metric='cosine', but the theorems are about distances"):
        c.thm_main(z, AllPairAttention("simple", "cosine"))
    with pytest.raises(ValueError, match="must be row-normalised"):
        c.thm_main(z, AllPairAttention("simple", normalised=False))
    with pytest.raises(TypeError, match="must be AllPairAttention or EdgeAttention, got GraphCoupling"):
        c.thm_main(z, GraphCoupling(path_graph(5)))
    with pytest.raises(ValueError, match="coupling depends on the states"):
        c.thm_gcn(z, AllPairAttention("simple"))
    with pytest.raises(ValueError, match=r"z must be states \[N, d\], got shape \(5,\)"):
        c.thm_gcn(z[:, 0], GraphCoupling(path_graph(5)))


def test_the_unnormalised_flow_is_half_the_gradient():
    certificate = c.coro_main(states(9, 0), AllPairAttention("sigmoid", normalised=False))
    certain(certificate)
    assert certificate.claim == "dZ/dt = -½ ∇E(Z, t) with λ = ½"


def test_certify_runs_all_certificates():
    z, graph = states(25, 0, where="anywhere"), random_graph(25, 0.1, True, False, 0)
    found = certify(z, graph)
    assert [certificate.name for certificate in found] == [*OF_CONSTANT_COUPLINGS, *OF_ATTENTION, *OF_GRAPHS]
    assert all(certificate.verdict != "fails" for certificate in found)
    assert [one.name for one in certify(z)] == OF_ATTENTION
    found = certify(z, GraphCoupling(graph, "gin"))
    assert [one.name for one in found] == [*OF_CONSTANT_COUPLINGS, *OF_ATTENTION]


def test_single_precision_states_are_certified_in_double():
    z = states(30, 0).float()
    assert all(one.verdict != "fails" for one in certify(z, random_graph(30, 0.2, False, False, 0)))


def test_nan_violation_does_not_hold():
    assert not Certificate("name", "claim", "condition", True, math.nan).holds
    assert Certificate("name", "claim", "condition", True, math.nan).verdict == "fails"


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_or_two_states_can_be_certified(nodes):
    graph = random_graph(nodes, 1.0, False, False, 0)
    for certificate in certify(states(nodes, 3, channels=3), graph):
        assert certificate.verdict in ("holds", "measured", "not covered"), certificate


def test_hundreds_of_states_can_be_certified():
    z, graph = states(700, 0, channels=3), random_graph(700, 0.01, True, False, 0)
    for certificate in certify(z, graph, diffusivity="gaussian", steps=2):
        assert certificate.verdict in ("holds", "measured"), certificate


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_states_are_refused(value):
    z = torch.randn(6, 2)
    z[3, 1] = value
    with pytest.raises(ValueError, match="row 3 holds NaN or infinity"):
        certify(z, GraphCoupling(complete_graph(6), "gcn"))


def test_empty_states_are_refused():
    with pytest.raises(ValueError, match="has no rows"):
        certify(torch.zeros(0, 2))


def test_nan_energy_does_not_count_as_zero_rise():
    nan = torch.tensor(math.nan)
    assert math.isnan(c.certificate.largest_rise([nan], [nan], magnitude=1.0))
    assert math.isnan(c.certificate.largest_gap(nan.view(1), nan.view(1)))
