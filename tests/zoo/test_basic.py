import numpy as np
import pytest
import torch

from difformer import Graph, zoo
from difformer.zoo.classic import roughness


def ring(nodes=12):
    one = torch.arange(nodes)
    both = torch.stack([one, (one + 1) % nodes])
    return torch.cat([both, both.flip(0)], 1)


def random_graph(nodes=20, edges=50, seed=0):
    ends = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
    ends = ends[:, ends[0] != ends[1]]
    return torch.cat([ends, ends.flip(0)], 1).unique(dim=1)


@pytest.mark.parametrize(("steps", "alpha"), [(1, 0.5), (50, 0.9), (7, 1.0)])
def test_label_propagation_equals_pyg(steps, alpha):
    from torch_geometric.nn import LabelPropagation

    edge_index, y = random_graph(), torch.arange(20) % 4
    train = torch.arange(0, 20, 3)
    model = zoo.build("lp", 6, 4, num_layers=steps, alpha=alpha)
    model.observe(y, train)
    expected = LabelPropagation(steps, alpha)(y, edge_index, mask=train)
    torch.testing.assert_close(model.embed(torch.zeros(20, 6), edge_index), expected)
    found = model(torch.zeros(20, 6), edge_index).softmax(1)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=1e-4, atol=1e-5)


def test_harmonic_labels_solve_the_dirichlet_problem():
    """Clamped labels and a random walk: on a path unknown scores are means of their neighbours', so linear."""
    one = torch.arange(10)
    path = torch.cat([torch.stack([one, one + 1]), torch.stack([one + 1, one])], 1)
    model = zoo.build("lp", 1, 2, num_layers=2000, alpha=1.0, graph_norm="random_walk", clamp="labels")
    model.observe(torch.tensor([0] * 6 + [1] * 5), torch.tensor([0, 10]))
    found = model.embed(torch.zeros(11, 1), path)
    torch.testing.assert_close(found[:, 1], torch.linspace(0, 1, 11), rtol=0, atol=1e-4)


def test_multilabel_columns_propagate_independently():
    edge_index, train = random_graph(), torch.arange(0, 20, 2)
    y = (torch.rand(20, 3, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    many = zoo.build("lp", 6, 3)
    many.observe(y, train)
    found = many(torch.zeros(20, 6), edge_index).sigmoid()
    for column in range(3):
        alone = zoo.build("lp", 6, 2)
        alone.observe(y[:, column].long(), train)
        expected = alone(torch.zeros(20, 6), edge_index).softmax(1)[:, 1]
        torch.testing.assert_close(found[:, column], expected, rtol=1e-4, atol=1e-5)


def test_label_propagation_never_sees_test_labels():
    edge_index, y, train = random_graph(), torch.arange(20) % 4, torch.arange(6)
    outputs = []
    for labels in (y, torch.where(torch.arange(20) < 6, y, 3 - y)):
        model = zoo.build("lp", 6, 4)
        model.observe(labels, train)
        outputs.append(model(torch.zeros(20, 6), edge_index))
    assert torch.equal(*outputs)


def test_label_propagation_refuses_wrong_labels():
    model = zoo.build("lp", 6, 1)
    with pytest.raises(ValueError, match="needs class numbers"):
        model.observe(torch.randn(20), torch.arange(5))
    with pytest.raises(ValueError, match="has observed none labels for 20 rows"):
        model(torch.zeros(20, 6))
    model.observe(torch.zeros(5, dtype=torch.long), torch.arange(5))
    with pytest.raises(ValueError, match=r"observed 5 labels for 20 rows.*whole graph"):
        model(torch.zeros(20, 6))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("norm", ["gcn", "none"])
def test_roughness_is_the_trace_with_the_laplacian(norm, weighted):
    edge_index = random_graph()
    generator = torch.Generator().manual_seed(3)
    adjacency = torch.zeros(21, 21, dtype=torch.float64)  # the last node has no edge
    adjacency[edge_index[1], edge_index[0]] = 1.0
    if weighted:
        adjacency *= torch.rand(21, 21, generator=generator, dtype=torch.float64) + 0.1
        adjacency = (adjacency + adjacency.T) / 2
    graph = Graph(edge_index, 21, adjacency[edge_index[1], edge_index[0]])
    degree = adjacency.sum(1)
    laplacian = torch.diag(degree) - adjacency
    if norm == "gcn":
        scale = torch.where(degree > 0, degree, 1.0).rsqrt()
        laplacian = scale[:, None] * laplacian * scale
    outputs = torch.randn(21, 3, generator=generator, dtype=torch.float64)
    expected = torch.trace(outputs.T @ laplacian @ outputs)
    torch.testing.assert_close(roughness(outputs, graph, norm), expected)
    assert expected > 0


def test_manifold_regularisation_is_an_mlp_with_a_penalty():
    x, edge_index = torch.randn(12, 4), ring()
    model = zoo.build("manireg", 4, 2, dropout=0.0, penalty_weight=0.3)
    plain = zoo.build("mlp", 4, 2)
    plain.load_state_dict(model.state_dict())
    outputs = model.train()(x, edge_index)
    torch.testing.assert_close(outputs, plain(x))
    term = model.penalty()
    torch.testing.assert_close(term, 0.3 / 12 * roughness(outputs, Graph(edge_index, 12)))
    term.backward()
    assert model.output.weight.grad.abs().sum() > 0
    model.eval()(x, edge_index)
    assert model.penalty() == 0
    model.train()(x)
    assert model.penalty() == 0  # no edges, no manifold


def test_a_penalty_makes_outputs_smooth():
    from difformer.data import Split, Task
    from difformer.training import TrainConfig, train_one

    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    split = Split("s", torch.tensor([0, 6]), torch.tensor([1, 7]), torch.tensor([2, 8]))
    y = (torch.arange(12) >= 6).long()
    task = Task("ring", "nodes", "multiclass", "accuracy", "a test", x, y, (split,), 2, edge_index=ring())
    found = []
    for weight in (0.0, 10.0):
        config = TrainConfig(model="manireg", options={"penalty_weight": weight}, epochs=30, learning_rate=0.01)
        found.append(float(roughness(train_one(task, 0, config, 0, "cpu").outputs, Graph(ring(), 12))))
    assert found[1] < 0.2 * found[0]


def test_label_spreading_equals_scikit_learn():
    from sklearn.datasets import load_iris
    from sklearn.semi_supervised import LabelSpreading

    x, y = load_iris(return_X_y=True)
    train = np.arange(0, 150, 10)
    partial = np.full(150, -1)
    partial[train] = y[train]
    expected = LabelSpreading(kernel="knn", n_neighbors=7, alpha=0.2, max_iter=100).fit(x, partial)
    model = zoo.build("label-spreading", 4, 3)
    model.observe(torch.from_numpy(y), torch.from_numpy(train))
    found = model(torch.from_numpy(x)).softmax(1)
    np.testing.assert_allclose(found.numpy(), expected.label_distributions_, atol=1e-6)
    with pytest.raises(ValueError, match="has observed 150 labels for 3 rows"):
        model(torch.ones(3, 4))
