import pytest
import torch
from torch.nn import functional

from difformer import Graph, zoo
from difformer.diffusion import AllPairAttention, EdgeAttention, diffuse


def problem(nodes=15, seed=0):
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, 40), generator=g)
    return torch.randn(nodes, 6, generator=g), torch.cat([ends, ends.flip(0)], 1).unique(dim=1)


PLAIN = {"norm": False, "num_layers": 3, "step_size": 0.4, "transform": False}


def made(name, **options):
    torch.manual_seed(0)
    return zoo.build(name, 6, 3, hidden_channels=8, **PLAIN, **options).eval()


@pytest.mark.parametrize("source", [0.0, 0.7])
def test_edge_attention_network_is_the_diffusion(source):
    x, edge_index = problem()
    model = made("diffusion-edge-attention", source_weight=source, diffusivity="sigmoid")
    z = model.input(x).relu()
    coupling = EdgeAttention(Graph(edge_index, 15).with_self_loops(), "sigmoid", "cosine")
    expected = diffuse(z, coupling, steps=3, step_size=0.4, source_weight=source)
    torch.testing.assert_close(model.embed(x, edge_index), expected, rtol=1e-5, atol=1e-6)


def test_edge_attention_has_one_map_per_step():
    x, edge_index = problem()
    torch.manual_seed(0)
    model = zoo.build("diffusion-edge-attention", 6, 3, hidden_channels=8, num_layers=2, norm=False).eval()
    coupling = EdgeAttention(Graph(edge_index, 15).with_self_loops(), "simple", "cosine")
    expected = diffuse(model.input(x).relu(), coupling, steps=2, step_size=0.5, transform=list(model.maps))
    torch.testing.assert_close(model.embed(x, edge_index), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", [0.0, 0.7])
@pytest.mark.parametrize("name", ["identity", "constant", "softmax", "gaussian"])
def test_all_pair_networks_are_the_diffusion(name, source):
    x, _ = problem()
    model = made(f"diffusion-{name}", source_weight=source, tied_qk=True)
    for layer in model.layers:  # queries that are the states themselves, as the couplings have them
        if layer.query is not None:
            torch.nn.init.eye_(layer.query.weight)
            torch.nn.init.zeros_(layer.query.bias)
    z = model.input(x).relu()
    expected = diffuse(z, AllPairAttention(name, "cosine"), steps=3, step_size=0.4, source_weight=source)
    torch.testing.assert_close(model.embed(x), expected, rtol=1e-5, atol=1e-6)


def test_couplings_match_their_names():
    x, edge_index = problem()
    z = made("diffusion-identity").input(x).relu()
    torch.testing.assert_close(made("diffusion-identity").embed(x), z)
    decayed = 0.6**3
    torch.testing.assert_close(made("diffusion-constant").embed(x), decayed * z + (1 - decayed) * z.mean(0))
    layer = made("diffusion-softmax").layers[0]
    q, k = layer.queries_and_keys(z)
    weights = torch.softmax(q[:, 0] @ k[:, 0].T / 8**0.5, 1)
    torch.testing.assert_close(layer(z), 0.6 * z + 0.4 * weights @ z, rtol=1e-5, atol=1e-6)
    layer = made("diffusion-gaussian").layers[0]
    q, k = layer.queries_and_keys(z)
    weights = functional.normalize(torch.exp(-torch.cdist(q[:, 0], k[:, 0]).square() / 2), p=1, dim=1)
    torch.testing.assert_close(layer(z), 0.6 * z + 0.4 * weights @ z, rtol=1e-5, atol=1e-6)
    with_graph, without = made("diffusion-constant"), made("diffusion-constant", graph_weight=0.0)
    assert not torch.allclose(with_graph(x, edge_index), with_graph(x))
    torch.testing.assert_close(without(x, edge_index), without(x))
