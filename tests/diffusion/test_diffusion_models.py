"""One step of `diffuse` equals PyTorch Geometric's own layer."""

import pytest
import torch
from random_systems import random_graph, states
from torch_geometric.nn import APPNP, GCN2Conv, GCNConv, GINConv, TransformerConv
from torch_geometric.nn.models import LabelPropagation

from difformer.diffusion import EdgeAttention, diffuse, propagate_labels
from difformer.diffusion.models import appnp, difformer_a, difformer_s, gat, gcn, gcnii, gin, mlp, transformer
from difformer.graph import Graph


def close(a, b, tolerance=1e-6):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=[True, False], ids=["weighted", "plain"])
def graph(request):
    return random_graph(20, 0.2, request.param, False, 0)


def with_loops(graph):
    loops = torch.arange(graph.num_nodes).expand(2, -1)
    weight = torch.cat([graph.weights(torch.float64), torch.ones(graph.num_nodes, dtype=torch.float64)])
    return Graph(torch.cat([graph.edge_index, loops], 1), graph.num_nodes, weight)


@pytest.fixture
def z():
    return states(20, 0, channels=4, where="anywhere")


def test_mlp_setting_equals_a_linear_layer_with_relu(z):
    layer = torch.nn.Linear(4, 3).double()
    close(diffuse(z, **mlp(), transform=layer, activation=torch.relu), torch.relu(layer(z)))


def test_gcn_setting_equals_the_pyg_layer(graph, z):
    layer = GCNConv(4, 3, bias=False).double()
    expected = layer(z, graph.edge_index, graph.weights(torch.float64))
    close(diffuse(z, **gcn(with_loops(graph)), transform=layer.lin), expected)
    half = diffuse(z, **gcn(with_loops(graph), step_size=0.25), transform=layer.lin)
    close(half, 0.75 * layer.lin(z) + 0.25 * expected)


@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0])
def test_gin_setting_equals_the_pyg_layer(eps, z):
    graph = random_graph(20, 0.2, False, False, 0)
    layer = GINConv(torch.nn.Identity(), eps=eps).double()
    close(diffuse(z, **gin(graph, eps=eps)), layer(z, graph.edge_index))


def test_the_papers_gin_equals_the_layer_up_to_a_factor(z):
    from difformer.diffusion import GraphCoupling

    graph = random_graph(20, 0.2, False, False, 0)
    step = 0.4
    found = diffuse(z, GraphCoupling(graph, "gin"), step_size=step, conservation="none")
    close(found, step * GINConv(torch.nn.Identity(), eps=1 / step).double()(z, graph.edge_index))


@pytest.mark.parametrize("steps", [1, 10])
def test_appnp_setting_equals_the_pyg_layer(steps, graph, z):
    layer = APPNP(K=steps, alpha=0.15).double()
    expected = layer(z, graph.edge_index, graph.weights(torch.float64))
    close(diffuse(z, steps=steps, **appnp(with_loops(graph), alpha=0.15)), expected)


def test_gcnii_setting_equals_the_pyg_layer(graph, z):
    layer = GCN2Conv(4, alpha=0.2).double()
    with torch.no_grad():
        layer.weight1.copy_(torch.eye(4))
    weight, first = graph.weights(torch.float64), 2 * z + 1
    close(
        diffuse(z, source=first, **gcnii(with_loops(graph), alpha=0.2)),
        layer(z, first, graph.edge_index, weight),
    )


def test_gcnii_with_weights_transforms_the_source_too(graph, z):
    layer = GCN2Conv(4, alpha=0.2, theta=0.5, layer=2).double()
    mixed = (1 - layer.beta) * torch.eye(4, dtype=torch.float64) + layer.beta * layer.weight1
    h, first = lambda x: x @ mixed, 2 * z + 1
    found = diffuse(z, source=h(first), transform=h, **gcnii(with_loops(graph), alpha=0.2))
    close(found, layer(z, first, graph.edge_index, graph.weights(torch.float64)))


def tied(channels, weight):
    layer = TransformerConv(channels, channels, root_weight=False, bias=False).double()
    with torch.no_grad():
        for part in (layer.lin_query, layer.lin_key, layer.lin_value):
            part.weight.copy_(weight.T)
    return layer


@pytest.mark.parametrize("metric", ["cosine", "distance"])
def test_transformer_on_the_complete_graph(metric):
    z = states(15, 1, channels=4)
    complete = torch.ones(15, 15).nonzero().T
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    expected = tied(4, rotation)(z, complete)
    from difformer.diffusion import AllPairAttention

    options = transformer() if metric == "cosine" else {**transformer(), "coupling": AllPairAttention("softmax")}
    close(diffuse(z, **options, transform=lambda x: x @ rotation), expected)


def test_edge_attention_equals_masked_transformer_attention():
    z, graph = states(20, 1, channels=4), with_loops(random_graph(20, 0.2, False, False, 3))
    expected = tied(4, torch.eye(4, dtype=torch.float64))(z, graph.edge_index)
    close(diffuse(z, **gat(graph, diffusivity="softmax")), expected)
    assert isinstance(gat(graph)["coupling"], EdgeAttention)


@pytest.mark.parametrize(("setting", "score"), [(difformer_s, lambda x: 1 + x), (difformer_a, torch.sigmoid)])
def test_difformer_setting_equals_the_formula(setting, score):
    z = states(8, 0, channels=3)
    g = score(z @ z.T)
    close(diffuse(z, **setting()), 0.5 * z + 0.5 * (g / g.sum(1, keepdim=True)) @ z)


def test_a_teleport_probability_beyond_one_is_refused(graph):
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\], got 1.5"):
        appnp(graph, alpha=1.5)


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("alpha", [0.5, 0.9, 1.0])
def test_label_propagation_equals_the_pyg_model(steps, alpha):
    graph = random_graph(30, 0.15, False, False, 0)
    torch.manual_seed(0)
    y, mask = torch.randint(0, 4, (30,)), torch.rand(30) < 0.4
    expected = LabelPropagation(num_layers=steps, alpha=alpha)(y, graph.edge_index, mask)
    found = propagate_labels(y, graph, known=mask, steps=steps, alpha=alpha)
    close(found, expected)
    close(propagate_labels(y, graph, known=mask.nonzero().squeeze(1), steps=steps, alpha=alpha), expected)
    scores = torch.nn.functional.one_hot(y).double()
    close(propagate_labels(scores, graph, known=mask, steps=steps, alpha=alpha).float(), expected)


def test_unknown_labels_are_negative():
    graph = random_graph(30, 0.2, False, False, 1)
    y = torch.randint(0, 3, (30,))
    y[0] = 2
    mask = torch.rand(30) < 0.5
    mask[0] = True
    close(propagate_labels(y, graph, known=mask), propagate_labels(torch.where(mask, y, -1), graph))


def test_clamped_labels_stay_and_the_rest_follows_them():
    # A path with different labels at its ends: clamped, scores settle on a straight line between them.
    left = torch.arange(4)
    graph = Graph(torch.stack([torch.cat([left, left + 1]), torch.cat([left + 1, left])]), 5)
    y = torch.tensor([0, -1, -1, -1, 1])
    found = propagate_labels(y, graph, steps=400, alpha=1.0, weights="random_walk", clamp="labels")
    torch.testing.assert_close(found[:, 1], torch.linspace(0, 1, 5), atol=1e-5, rtol=0)
    history = propagate_labels(y, graph, steps=3, clamp="labels", save="all")
    assert history.shape == (4, 5, 2)
    assert history[:, 0].tolist() == [[1.0, 0.0]] * 4


def test_wrong_labels_are_refused():
    graph = Graph(torch.tensor([[0], [1]]), 3)
    with pytest.raises(ValueError, match=r"y must be \[N\] or \[N, C\] with N = 3, got \(2,\)"):
        propagate_labels(torch.zeros(2, dtype=torch.long), graph)
    with pytest.raises(ValueError, match="y must hold classes as integers"):
        propagate_labels(torch.zeros(3), graph)
    with pytest.raises(ValueError, match="clamp must be one of range, labels, none, got 'soft'"):
        propagate_labels(torch.zeros(3, dtype=torch.long), graph, clamp="soft")
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\], got -1"):
        propagate_labels(torch.zeros(3, dtype=torch.long), graph, alpha=-1)
