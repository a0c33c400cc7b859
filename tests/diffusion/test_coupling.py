import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_systems import DIFFUSIVITY_NAMES, graphs, places, random_graph, seeds, states

from difformer.diffusion import (
    AllPairAttention,
    Diffusivity,
    EdgeAttention,
    GraphCoupling,
    Identity,
    MatrixCoupling,
    Mix,
    as_coupling,
    as_diffusivity,
    pairs,
)
from difformer.diffusion.coupling import GRAPH_WEIGHTS
from difformer.diffusion.pairs import distance_factors, exchange_sums, largest_squared_distance, pair_sum
from difformer.graph import Graph

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
ANY_DIFFUSIVITY = [*DIFFUSIVITY_NAMES, CAUCHY]


def name_of(diffusivity):
    return getattr(diffusivity, "name", diffusivity)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def every_coupling(graph):
    for weights in GRAPH_WEIGHTS:
        yield GraphCoupling(graph, weights)
    yield Identity()
    for normalised in (True, False):
        for metric in ("distance", "cosine"):
            for diffusivity in ("simple", "gaussian"):
                yield EdgeAttention(graph, diffusivity, metric, normalised)
                yield AllPairAttention(diffusivity, metric, normalised)
    dense = GraphCoupling(graph, "raw").matrix(torch.zeros(graph.num_nodes, 1, dtype=torch.float64))
    yield MatrixCoupling(dense)
    yield MatrixCoupling(dense.to_sparse())
    yield Mix((AllPairAttention("simple"), GraphCoupling(graph, "gcn")))
    yield Mix((GraphCoupling(graph, "random_walk"), Identity()), (0.3, 2.0))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(graph=graphs(), seed=seeds)
def test_propagate_equals_multiplication_by_the_matrix(graph, seed):
    z = states(graph.num_nodes, seed, where="ball")
    values = states(graph.num_nodes, seed + 1, channels=3, where="anywhere")
    for coupling in every_coupling(graph):
        matrix = coupling.matrix(z)
        close(coupling.propagate(z), matrix @ z)
        close(coupling.propagate(z, values), matrix @ values)
        close(coupling.degree(z), matrix.sum(1))
        u = ((values.unsqueeze(1) - values) ** 2).sum(-1)
        close(coupling.variation(z, values), (matrix * u).sum())
        balance = coupling.balance(z)
        if balance is not None:
            assert (balance > 0).all()
            close(balance.unsqueeze(1) * matrix, (balance.unsqueeze(1) * matrix).T)
        assert coupling.symmetric(z) <= torch.allclose(matrix, matrix.T)


def test_graph_weights_are_the_ones_in_the_table():
    graph = Graph(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 4)
    z = torch.zeros(4, 1, dtype=torch.float64)
    a = torch.zeros(4, 4, dtype=torch.float64)
    a[0, 1] = a[1, 0] = a[1, 2] = a[2, 1] = 1
    half = 2**-0.5
    close(GraphCoupling(graph, "raw").matrix(z), a)
    close(GraphCoupling(graph, "gin").matrix(z), a + torch.eye(4, dtype=torch.float64))
    close(GraphCoupling(graph, "gcn").matrix(z), a * half)
    close(GraphCoupling(graph, "random_walk").matrix(z)[1], a[1] / 2)
    assert GraphCoupling(graph, "random_walk").degree(z).tolist() == [1, 1, 1, 0]


def test_a_directed_graph_sends_from_source_to_target():
    graph = Graph(torch.tensor([[0], [1]]), 2)
    z = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert GraphCoupling(graph, "raw").propagate(z).flatten().tolist() == [0.0, 1.0]
    assert GraphCoupling(graph, "raw").balance(z) is None
    assert EdgeAttention(graph).balance(z) is None


@pytest.mark.parametrize("diffusivity", ANY_DIFFUSIVITY, ids=name_of)
@pytest.mark.parametrize("normalised", [True, False])
def test_all_pair_attention_on_distances_is_f_of_the_distance(diffusivity, normalised):
    z = states(30, 3, channels=4, where="ball")
    f = as_diffusivity(diffusivity, channels=4).f
    omega = f(torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist") ** 2)
    expected = omega / omega.sum(1, keepdim=True) if normalised else omega
    close(AllPairAttention(diffusivity, normalised=normalised).matrix(z), expected)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=seeds, nodes=st.integers(1, 20), name=st.sampled_from(DIFFUSIVITY_NAMES))
def test_the_two_metrics_agree_on_unit_states(seed, nodes, name):
    z = states(nodes, seed)
    graph = random_graph(nodes, 0.4, True, True, seed)
    for make in (AllPairAttention, lambda *args: EdgeAttention(graph, *args)):
        close(make(name, "distance").propagate(z), make(name, "cosine").propagate(z))


def test_edge_attention_on_the_complete_graph_with_loops_is_all_pair_attention():
    z = states(9, 0, where="ball")
    graph = random_graph(9, 1.0, False, True, 0)
    for metric in ("distance", "cosine"):
        for normalised in (True, False):
            close(
                EdgeAttention(graph, CAUCHY, metric, normalised).matrix(z),
                AllPairAttention(CAUCHY, metric, normalised).matrix(z),
            )


def test_a_state_of_zero_has_the_same_cosines_on_edges_and_between_all_pairs():
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    graph = random_graph(3, 1.0, False, True, 0)
    close(EdgeAttention(graph, "sigmoid", "cosine").matrix(z), AllPairAttention("sigmoid", "cosine").matrix(z))


def test_a_node_without_edges_receives_nothing():
    graph = Graph(torch.tensor([[0, 1], [1, 0]]), 3)
    coupling = EdgeAttention(graph, "sigmoid")
    z = states(3, 1)
    assert coupling.degree(z).tolist() == [1.0, 1.0, 0.0]
    assert coupling.propagate(z)[2].abs().max() == 0


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("diffusivity", ["simple", "constant", "sigmoid", CAUCHY], ids=name_of)
def test_a_graph_in_a_batch_gets_the_same_answer_as_alone(diffusivity, normalised):
    torch.manual_seed(0)
    batch = torch.tensor([2, 0, 2, 5, 0, 2, 5, 5, 2, 9])
    z = states(10, 4, channels=3, where="ball")
    together = AllPairAttention(diffusivity, normalised=normalised, batch=batch)
    alone = AllPairAttention(diffusivity, normalised=normalised)
    for number in batch.unique():
        rows = batch == number
        close(together.propagate(z)[rows], alone.propagate(z[rows]))
        close(together.degree(z)[rows], alone.degree(z[rows]))
        close(together.matrix(z)[rows][:, rows], alone.matrix(z[rows]))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=seeds, nodes=st.integers(1, 25), size=st.sampled_from([1, 2, 7, 64]), place=places)
def test_pairs_are_summed_the_same_in_tiles_of_any_size(seed, nodes, size, place):
    z = states(nodes, seed, where=place)
    u = ((z.unsqueeze(1) - z) ** 2).sum(-1)
    batch = torch.arange(nodes) % 3
    inside = batch.unsqueeze(1) == batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "BLOCK_SIZE", size)
        # A state's distance to itself is rounded to some 1e-16, whose root is 1e-8; what is smooth is held to all
        # digits.
        torch.testing.assert_close(pair_sum(z, lambda u: u.sqrt()), u.sqrt().sum(), rtol=1e-7, atol=1e-6)
        close(pair_sum(z, lambda u: u / (1 + u)), (u / (1 + u)).sum())
        assert largest_squared_distance(z) == pytest.approx(float(u.max()), abs=1e-12)
        close(exchange_sums(*distance_factors(z), CAUCHY), CAUCHY.f(u).sum(1))
        close(pair_sum(z, lambda u: u.cos(), batch=batch), (u.cos() * inside).sum())
        farthest = float((u * inside).max())
        assert largest_squared_distance(z, batch=batch) == pytest.approx(farthest, abs=1e-12)
        close(exchange_sums(*distance_factors(z), CAUCHY, batch=batch), (CAUCHY.f(u) * inside).sum(1))


def test_a_common_offset_does_not_lose_precision():
    z = states(20, 5, channels=3, where="ball")
    near, far = (AllPairAttention("gaussian").propagate(shifted, z) for shifted in (z, z + 1e5))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-9)


def test_mixing_half_and_half_is_the_equation_of_the_paper():
    graph, z = random_graph(8, 0.4, False, False, 1), states(8, 1)
    latent, observed = AllPairAttention("simple"), GraphCoupling(graph, "gcn")
    mixed = Mix((latent, observed))
    close(mixed.matrix(z), (latent.matrix(z) + observed.matrix(z)) / 2)
    assert not mixed.static
    assert mixed.balance(z) is None
    assert Mix((observed, Identity()), (1.0, 2.0)).static


def test_gradients_reach_the_states():
    graph = random_graph(5, 0.7, True, True, 0)
    z = states(5, 2, channels=2, where="ball").requires_grad_()
    for coupling in (AllPairAttention("sigmoid"), EdgeAttention(graph, "sigmoid"), GraphCoupling(graph, "gin")):
        assert torch.autograd.gradcheck(coupling.propagate, (z,))
        assert torch.autograd.gradcheck(coupling.variation, (z,))


def test_invalid_couplings_are_refused():
    graph = Graph(torch.tensor([[0], [1]]), 2)
    with pytest.raises(TypeError, match="coupling is a Graph: choose its weights"):
        as_coupling(graph)
    with pytest.raises(TypeError, match="must be a Coupling or a square matrix, got str"):
        as_coupling("gcn")
    with pytest.raises(ValueError, match=r"must be square, \[N, N\], got shape \(2, 3\)"):
        as_coupling(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="belongs to 2 nodes, but there are 5 states"):
        as_coupling(GraphCoupling(graph), num_nodes=5)
    with pytest.raises(ValueError, match="weights must be one of gcn, random_walk, gin, raw, got 'mean'"):
        GraphCoupling(graph, "mean")
    with pytest.raises(TypeError, match="graph must be a Graph, got Tensor"):
        GraphCoupling(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="metric must be one of distance, cosine, got 'dot'"):
        AllPairAttention("simple", "dot")
    with pytest.raises(ValueError, match="did you mean 'simple'"):
        AllPairAttention("simpel")
    with pytest.raises(ValueError, match="use the Identity coupling"):
        EdgeAttention(graph, "identity")
    with pytest.raises(ValueError, match="one weight per part, got 1 parts and 2 weights"):
        Mix((Identity(),), (0.5, 0.5))
    with pytest.raises(ValueError, match="one weight per part, got 0 parts"):
        Mix(())


def test_identity_diffusivity_leaves_states_unchanged():
    z = states(4, 0)
    coupling = AllPairAttention("identity")
    close(coupling.propagate(z), z)
    close(coupling.matrix(z), torch.eye(4, dtype=torch.float64))
    assert dataclasses.replace(coupling, normalised=False).degree(z).tolist() == [1.0] * 4


def test_large_all_pair_propagation_is_linear_for_simple():
    # 200,000 states: an N×N matrix would need 320 GB.
    z = states(200_000, 0, channels=4)
    coupling = AllPairAttention("simple", normalised=False)
    close(coupling.degree(z)[:3], coupling.propagate(z, torch.ones(200_000, 1, dtype=torch.float64))[:3, 0])


@pytest.mark.parametrize("diffusivity", ["simple", "gaussian", "sigmoid"])
def test_a_distant_graph_in_the_batch_does_not_lose_precision(diffusivity):
    torch.manual_seed(0)
    near, far = torch.randn(20, 3), torch.randn(15, 3) + 1000
    near, far = near / near.norm(dim=1, keepdim=True), far
    batch = torch.tensor([0] * 20 + [1] * 15)
    together = AllPairAttention(diffusivity, batch=batch).propagate(torch.cat([near, far]))[:20]
    torch.testing.assert_close(together, AllPairAttention(diffusivity).propagate(near), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("diffusivity", ["softmax:0.005", "gaussian:0.02"])
def test_sharp_exponentials_on_edges_neither_overflow_nor_vanish(diffusivity):
    torch.manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(12, 3), dim=1)
    coupling = EdgeAttention(Graph(torch.randint(0, 12, (2, 60)), 12), diffusivity)
    matrix = coupling.matrix(z)
    assert matrix.isfinite().all()
    receives = torch.zeros(12).index_fill(0, coupling.graph.edge_index[1], 1.0)
    torch.testing.assert_close(matrix.sum(1), receives)
