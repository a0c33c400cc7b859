"""Systems for graphs whose neighbours differ: each against the property that defines it."""

import pytest
import torch
from problems import adjacency, points, some_edges
from torch.nn import functional

from difformer import Graph, zoo
from difformer.data import Split, Task
from difformer.training import TrainConfig, train_one
from difformer.zoo.heterophily import _shrunk, estimated_compatibility, rebuilt, rings, sinkhorn


def made(name, **options):
    torch.manual_seed(0)
    return zoo.build(name, 6, 3, hidden_channels=8, **options).eval()


def normalised(a):
    scale = torch.where(a.sum(1) > 0, a.sum(1).clamp_min(1e-12).rsqrt(), 0.0)
    return scale[:, None] * a * scale


# ---- H2GCN


@pytest.mark.parametrize("directed", [False, True])
def test_rings_hold_nodes_at_exactly_one_and_two_hops(directed):
    edges = some_edges()
    edges = torch.cat([edges[:, ::2] if directed else edges, torch.tensor([[0, 3], [0, 3]]), edges[:, :4]], 1)
    edges = torch.cat([edges, torch.tensor([[0, 1, 0], [1, 2, 2]])], 1)  # who is near by two ways is near
    near = (adjacency(edges) > 0) & ~torch.eye(24, dtype=torch.bool)
    assert ((near.float() @ near.float() > 0) & near).any()
    two = (near.float() @ near.float() > 0) & ~near & ~torch.eye(24, dtype=torch.bool)
    one, second = (adjacency(ring.edge_index) for ring in rings(Graph(edges, 24)))
    assert torch.equal(one > 0, near)
    assert torch.equal(second > 0, two)
    assert two.any()


def test_h2gcn_concatenates_rings_and_rounds():
    model, x, edges = made("h2gcn", num_layers=2), points(), some_edges()
    one, two = (normalised(adjacency(ring.edge_index)) for ring in rings(Graph(edges, 24)))
    r0 = torch.relu(model.input(x))
    r1 = torch.cat([one @ r0, two @ r0], 1)
    r2 = torch.cat([one @ r1, two @ r1], 1)
    expected = torch.cat([r0, r1, r2], 1)
    assert expected.shape == (24, 7 * 8)
    torch.testing.assert_close(model.embed(x, Graph(edges, 24)), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"num_layers=16 gives h2gcn .* channels, at most 65,536 are possible"):
        made("h2gcn", num_layers=16)


# ---- FSGNN


def test_fsgnn_has_exactly_its_feature_set():
    model, x, edges = made("fsgnn", num_layers=2), points(), torch.cat([some_edges(), torch.tensor([[5], [5]])], 1)
    with torch.no_grad():
        model.selection.normal_()
    near = adjacency(edges) * (1 - torch.eye(24))
    bare, looped = normalised(near), normalised(near + torch.eye(24))
    matrices = [x, bare @ x, looped @ x, bare @ bare @ x, looped @ looped @ x]
    shares = torch.softmax(model.selection, 0)
    parts = [shares[m] * functional.normalize(model.maps[m](matrix)) for m, matrix in enumerate(matrices)]
    assert len(model.maps) == 5
    torch.testing.assert_close(model.embed(x, edges), torch.relu(torch.cat(parts, 1)), rtol=1e-4, atol=1e-6)


# ---- GloGNN


@pytest.mark.parametrize(("gamma", "beta1", "beta2"), [(0.3, 1.0, 2.0), (0.0, 0.5, 0.0), (0.8, 0.0, 3.0)])
def test_glognn_coefficients_minimise_their_objective(gamma, beta1, beta2):
    g = torch.Generator().manual_seed(0)
    h, h0 = (torch.randn(24, 5, generator=g, dtype=torch.float64) for _ in range(2))
    graph = Graph(some_edges(), 24).with_self_loops()
    hops = torch.tensor([0.5, -0.2, 0.9], dtype=torch.float64)
    s = graph.matrix(dtype=torch.float64).to_dense()
    powers = sum(share * torch.linalg.matrix_power(s, k) for k, share in enumerate(hops, 1))

    def objective(z):
        rest = h - (1 - gamma) * z @ h - gamma * h0
        return rest.square().sum() + beta1 * z.square().sum() + beta2 * (z - powers).square().sum()

    # The closed form as it stands, with the N × N matrix that the model never makes.
    big = (1 - gamma) ** 2 * h @ h.T + (beta1 + beta2) * torch.eye(24, dtype=torch.float64)
    z = ((1 - gamma) * (h - gamma * h0) @ h.T + beta2 * powers) @ torch.linalg.inv(big)
    slope = torch.func.grad(objective)(z)
    assert slope.abs().max() < 1e-9 * (1 + objective(z))
    found = rebuilt(h, h0, graph, hops, None, gamma=gamma, beta1=beta1, beta2=beta2)
    torch.testing.assert_close(found, z @ h)


def test_glognn_layers_mix_rebuilt_and_initial_states():
    model, x, edges = made("glognn", num_layers=1, gamma=0.4, beta2=1.0), points(), some_edges()
    h0 = model.second(torch.relu(model.first(x)))
    graph = Graph(edges, 24).with_self_loops()
    again = rebuilt(h0, h0, graph, model.hops, None, gamma=0.4, beta1=1.0, beta2=1.0)
    torch.testing.assert_close(model.embed(x, edges), 0.6 * again + 0.4 * h0)


# ---- CPGNN


PLANTED = torch.tensor([[0.1, 0.7, 0.2], [0.7, 0.1, 0.2], [0.2, 0.2, 0.6]])


def planted_task(nodes=600, degree=16, signal=1.2, seed=0):
    """Nodes of three classes of one size that meet as `PLANTED` says."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) % 3
    chance = PLANTED[y[:, None], y] * degree * 3 / nodes
    joined = (torch.rand(nodes, nodes, generator=g) < chance).triu(1)
    edges = (joined | joined.T).nonzero().T
    x = torch.randn(nodes, 6, generator=g) + signal * functional.one_hot(y, 6).float()
    order = torch.randperm(nodes, generator=g)
    split = Split("s", order[: nodes // 5], order[nodes // 5 : nodes // 2], order[nodes // 2 :])
    return Task("planted", "nodes", "multiclass", "accuracy", "a test", x, y, (split,), 3, edge_index=edges)


def test_sinkhorn_makes_rows_and_columns_sum_to_one():
    m = torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) + 0.01
    found = sinkhorn(m)
    torch.testing.assert_close(found.sum(0), torch.ones(5), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.sum(1), torch.ones(5), rtol=0, atol=1e-5)
    # Scaling of rows and columns leaves cross ratios as they were.
    ratio = lambda a: a[0, 0] * a[1, 1] / (a[0, 1] * a[1, 0])
    torch.testing.assert_close(ratio(found), ratio(m), rtol=1e-4, atol=0)


def test_cpgnn_recovers_the_planted_compatibility():
    task = planted_task()
    config = TrainConfig(
        model="cpgnn", options={"pretraining": 40, "num_layers": 1, "dropout": 0.2}, epochs=80, learning_rate=0.01
    )
    known = task.splits[0].train
    exact = estimated_compatibility(
        Graph(task.edge_index, 600), functional.one_hot(task.y, 3).float(), task.y[known], known
    )
    torch.testing.assert_close(exact, PLANTED, rtol=0, atol=0.06)
    record = train_one(task, 0, config, 0, "cpu")
    found = record.state["compatibility"] + 1 / 3
    # Training sharpens it, so it is its pattern that must be the planted one.
    centred = PLANTED - 1 / 3
    likeness = (record.state["compatibility"] * centred).sum() / (record.state["compatibility"].norm() * centred.norm())
    assert likeness > 0.95
    assert torch.equal(found.argmax(1), PLANTED.argmax(1))
    alone = train_one(task, 0, config.replace(options={"pretraining": 1000, "dropout": 0.2}), 0, "cpu")
    assert record.test > alone.test + 0.05


def test_cpgnn_propagates_beliefs_as_defined():
    torch.manual_seed(0)
    model, x, edges = (
        zoo.build("cpgnn", 6, 3, hidden_channels=8, num_layers=2, pretraining=0).eval(),
        points(),
        some_edges(),
    )
    with torch.no_grad():
        model.compatibility.normal_()
        model.passes.fill_(1)
    hidden = torch.relu(model.prior[0](x))
    start = torch.softmax(model.prior[1](hidden), 1) - 1 / 3
    a = adjacency(edges) * (1 - torch.eye(24))
    now = start + a @ start @ model.compatibility
    now = start + a @ now @ model.compatibility
    torch.testing.assert_close(model(x, edges), now, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.penalty(), model.compatibility.sum(1).abs().sum())


def test_cpgnn_trains_its_perceptron_before_and_after_pretraining():
    torch.manual_seed(0)
    options = {"pretraining": 1, "prior_loss": 0.7, "centring": 0.3, "dropout": 0.0}
    model, x, edges = zoo.build("cpgnn", 6, 3, **options).train(), points(), some_edges()
    labels, index = torch.arange(24) % 3, torch.arange(12)
    model.observe(labels, index)
    alone = model(x, edges)
    torch.testing.assert_close(alone, model.prior[1](torch.relu(model.prior[0](x))))  # nothing else at first
    assert float(model.penalty()) == 0
    assert not model.compatibility.any()
    model(x, edges)
    graph, beliefs = Graph(edges[:, edges[0] != edges[1]], 24), torch.softmax(alone.detach(), 1)
    found = estimated_compatibility(graph, beliefs, labels[index], index) - 1 / 3
    torch.testing.assert_close(model.compatibility.detach(), found)
    own = functional.cross_entropy(alone[index], labels[index])
    torch.testing.assert_close(model.penalty(), 0.7 * own + 0.3 * found.sum(1).abs().sum())


def test_cpgnn_refuses_missing_labels_and_batches():
    model, x, edges = zoo.build("cpgnn", 6, 3, pretraining=0).train(), points(), some_edges()
    with pytest.raises(ValueError, match=r"call observe\(y, train_index\) before training"):
        model(x, edges)
    with pytest.raises(ValueError, match="one class number per instance"):
        model.observe(torch.zeros(24, 2), torch.arange(3))
    with pytest.raises(ValueError, match="neither batches of graphs nor series"):
        model(x, batch=torch.arange(2).repeat_interleave(12))


@pytest.mark.parametrize(("nodes", "rank"), [(500, 3), (10, 10)])
def test_glognn_solves_its_system_for_linearly_dependent_channels(nodes, rank):
    g = torch.Generator().manual_seed(0)
    h = 100 * (torch.randn(nodes, rank, generator=g) @ torch.randn(rank, 32, generator=g)).unsqueeze(0)
    wide = h.double()
    expected = torch.linalg.solve(0.25 * wide.mT @ wide + torch.eye(32).double(), wide.mT).mT
    torch.testing.assert_close(
        _shrunk(h, 0.25, 1.0).double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max())
    )
    assert bool(_shrunk(h, 0.25, -1e12).isnan().all()), "what has no answer gets none"
