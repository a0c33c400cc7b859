"""GRAND, GDC and GraphHeat: systems that are diffusion by construction."""

import pytest
import torch

from difformer import Graph, zoo
from difformer.attention.segments import Segments
from difformer.diffusion import EdgeAttention, diffuse
from difformer.zoo import graph_diffusion
from difformer.zoo.edge_diffusion import integrate
from difformer.zoo.graph_diffusion import Diffusion, diffused, make_filter


def problem(nodes=20, edges=50, seed=0, directed=False):
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=g)
    ends = ends[:, ends[0] < ends[1]].unique(dim=1)
    weight = torch.rand(ends.shape[1], generator=g) + 0.1
    x = torch.randn(nodes, 6, generator=g)
    if directed:
        return x, ends[:, torch.randperm(ends.shape[1], generator=g)], weight
    return x, torch.cat([ends, ends.flip(0)], 1), weight.repeat(2)


def transition(graph, norm="gcn"):
    """The propagation matrix, dense."""
    return graph.matrix(norm, torch.float64).to_dense()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["grand", "grand-l"])
def test_one_euler_step_of_grand_is_diffusion_with_edge_attention(name, weighted):
    x, edge_index, weight = problem()
    graph = Graph(edge_index, 20, weight if weighted else None)
    model = zoo.build(name, 6, 3, hidden_channels=6, num_layers=1, step_size=0.4, num_heads=1).eval()
    # Identical queries and keys of unit states are what a diffusivity sees.
    for layer in (model.input, model.query, model.key):
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    z = torch.nn.functional.normalize(x, dim=1)
    coupling = EdgeAttention(graph.with_self_loops(), "softmax", "cosine")
    expected = diffuse(z, coupling, step_size=0.4)
    torch.testing.assert_close(model.embed(z, graph), expected.relu(), rtol=1e-5, atol=1e-6)


def test_linear_grand_keeps_its_attention_and_grand_does_not():
    x, edge_index, _ = problem()
    graph = Graph(edge_index, 20).with_self_loops()
    found = {}
    for name in ("grand", "grand-l"):
        torch.manual_seed(0)
        model = zoo.build(name, 6, 3, hidden_channels=8, num_layers=5, step_size=0.5).eval()
        z = model.input(x)
        for _ in range(5):
            at = model.input(x) if name == "grand-l" else z
            matrix = torch.zeros(20, 20).index_put(tuple(graph.edge_index.flip(0)), model.attention(at, graph)[:, 0])
            torch.testing.assert_close(matrix.sum(1), torch.ones(20))
            z = 0.5 * z + 0.5 * matrix @ z
        found[name] = model.embed(x, edge_index)
        torch.testing.assert_close(found[name], z.relu(), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found["grand"], found["grand-l"], atol=1e-4)


def test_solvers_converge_at_their_order():
    z, matrix = torch.ones(3, 1, dtype=torch.float64), torch.tensor([[-1.0, 0.5, 0], [0, -2, 1], [0.3, 0, -1]]).double()
    exact = torch.linalg.matrix_exp(matrix) @ z
    errors = {
        method: [
            (integrate(lambda z: z + matrix @ z, z, n, 1 / n, method=method) - exact).abs().max() for n in (20, 40)
        ]
        for method in ("euler", "rk4")
    }
    assert errors["euler"][0] / errors["euler"][1] == pytest.approx(2, rel=0.1)
    assert errors["rk4"][0] / errors["rk4"][1] == pytest.approx(16, rel=0.1)


@pytest.mark.parametrize("name", ["grand", "grand-l", "grand++"])
def test_solvers_of_grand_agree(name):
    pytest.importorskip("torchdiffeq")
    x, edge_index, _ = problem()
    found = []
    for options in (
        {"method": "rk4", "num_layers": 20},
        {"method": "dopri5", "num_layers": 1, "tolerance": 1e-6},
        {"method": "euler", "num_layers": 1000},
    ):
        torch.manual_seed(0)
        model = zoo.build(name, 6, 3, hidden_channels=8, time=2.0, **options).eval()
        if name == "grand++":
            model.observe(torch.zeros(20), torch.arange(5))
        with torch.no_grad():
            found.append(model(x, edge_index))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[2], found[0], rtol=1e-2, atol=1e-3)


def test_grand_plus_plus_has_its_source_at_labelled_nodes():
    x, edge_index, _ = problem()
    torch.manual_seed(0)
    model = zoo.build("grand++", 6, 3, hidden_channels=8, num_layers=3, step_size=0.5, source_weight=2.0).eval()
    without = model.embed(x, edge_index)
    plain = zoo.build("grand", 6, 3, hidden_channels=8, num_layers=3, step_size=0.5).eval()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(without, plain.embed(x, edge_index))
    train = torch.tensor([1, 4, 7])
    model.observe(torch.zeros(20), train)
    z = model.input(x)
    source = model.source(z)
    torch.testing.assert_close(source[train], 2 * (z[train] - z[train].mean(0)))
    torch.testing.assert_close(source.sum(0), torch.zeros(8), rtol=0, atol=1e-5)
    assert (source.abs().sum(1) > 0).sum() == 3
    graph = Graph(edge_index, 20).with_self_loops()
    for _ in range(3):
        matrix = torch.zeros(20, 20).index_put(tuple(graph.edge_index.flip(0)), model.attention(z, graph)[:, 0])
        z = z + 0.5 * (matrix @ z - z + source)
    torch.testing.assert_close(model.embed(x, edge_index), z.relu(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="observed 20 nodes, but there are 5"):
        model(x[:5])


def test_grand_plus_plus_does_not_smooth_out():
    x, one = problem()[0], torch.arange(20)
    edge_index = torch.cat([torch.stack([one, (one + shift) % 20]) for shift in (-3, -1, 1, 3)], 1)
    spread = []
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        model = zoo.build("grand++", 6, 3, hidden_channels=8, num_layers=200, source_weight=weight).eval()
        model.observe(torch.zeros(20), torch.arange(10))
        with torch.no_grad():
            spread.append(float(model.embed(x, edge_index).std(0).max()))
    assert spread[0] < 0.05 < 0.3 < spread[1]


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("value", [0.3, 3.5, 20.0])
def test_heat_filter_is_the_exponential(value, directed):
    x, edge_index, weight = problem(directed=directed)
    graph = Graph(edge_index, 20, weight)
    laplacian = torch.eye(20, dtype=torch.float64) - transition(graph)
    found = make_filter("heat", value, not directed)(graph.propagate, x.double())
    torch.testing.assert_close(found, torch.linalg.matrix_exp(-value * laplacian) @ x.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("value", [0.02, 0.15, 0.9])
def test_pagerank_filter_is_the_inverse(value, directed):
    x, edge_index, weight = problem(directed=directed)
    graph = Graph(edge_index, 20, weight)
    inverse = torch.linalg.inv(torch.eye(20, dtype=torch.float64) - (1 - value) * transition(graph))
    polynomial = make_filter("ppr", value, not directed)
    torch.testing.assert_close(polynomial(graph.propagate, x.double()), value * inverse @ x.double(), rtol=0, atol=1e-5)
    if not directed:  # far fewer products than a power iteration makes
        assert len(polynomial.coefficients) < 0.7 * len(make_filter("ppr", value, False).coefficients) + 5


@pytest.mark.parametrize("directed", [False, True])
def test_graphheat_filters_by_the_heat_kernel(directed):
    x, edge_index, weight = problem(directed=directed)
    model = zoo.build("graphheat", 6, 3, hidden_channels=8, time=2.0, num_layers=2).eval()
    torch.nn.init.normal_(model.biases[0])
    kernel = torch.linalg.matrix_exp(-2.0 * (torch.eye(20) - transition(Graph(edge_index, 20, weight)).float()))
    hidden = (kernel @ x @ model.hidden[0].weight.T + model.biases[0]).relu()
    torch.testing.assert_close(model(x, edge_index, weight), model.output(kernel @ hidden), rtol=1e-4, atol=1e-5)


def closed_form(graph, diffusion):
    """The definition, in so many words."""
    eye, t = torch.eye(graph.num_nodes, dtype=torch.float64), transition(graph.with_self_loops(), diffusion.transition)
    if diffusion.kernel == "heat":
        return torch.linalg.matrix_exp(-diffusion.time * (eye - t))
    return diffusion.teleport * torch.linalg.inv(eye - (1 - diffusion.teleport) * t)


def dense(graph):
    weights = graph.weights(torch.float64)
    return torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64).index_put(
        tuple(graph.edge_index.flip(0)), weights
    )


WAYS = {
    "ppr": Diffusion("ppr", teleport=0.15, top_k=None, threshold=1e-9),
    "heat": Diffusion("heat", time=3.0, top_k=None, threshold=1e-9),
    "walk": Diffusion("ppr", teleport=0.1, top_k=None, threshold=1e-9, transition="random_walk"),
    "top 4": Diffusion("ppr", teleport=0.15, top_k=4),
    "threshold": Diffusion("heat", time=3.0, top_k=None, threshold=0.02),
}


@pytest.mark.parametrize("large", [False, True], ids=["closed", "blocks"])
@pytest.mark.parametrize("directed", [False, True], ids=["both", "one-way"])
@pytest.mark.parametrize("way", WAYS)
def test_gdc_matrix_equals_the_closed_form(way, directed, large, monkeypatch):
    if large:  # what a graph too large for an N × N matrix goes through, in several blocks
        monkeypatch.setattr(graph_diffusion, "DENSE", 0)
        monkeypatch.setattr(graph_diffusion, "BLOCK_ENTRIES", 140)
    _, edge_index, weight = problem(directed=directed)
    graph, diffusion = Graph(edge_index, 20, weight), WAYS[way]
    matrix = closed_form(graph, diffusion)
    if diffusion.top_k is not None:
        least = matrix.topk(diffusion.top_k, 1).values[:, -1:]
        matrix = torch.where((matrix >= least - 1e-12) & (matrix > 1e-10), matrix, 0.0)
    else:
        matrix = torch.where(matrix >= diffusion.threshold, matrix, 0.0)
    found = dense(diffused(graph, diffusion))
    torch.testing.assert_close(found, matrix / matrix.sum(1, keepdim=True), rtol=0, atol=1e-5)
    assert diffused(graph, diffusion) is diffused(graph, diffusion)  # worked out once


def test_a_batch_of_graphs_is_diffused_graph_by_graph():
    sizes, parts, start = [4, 9, 1, 6], [], 0
    batch = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    for n in sizes:
        parts.append(problem(n, 3 * n, seed=n)[1] + start)
        start += n
    edge_index, diffusion = torch.cat(parts, 1), Diffusion("ppr", top_k=3)
    together = dense(diffused(Graph(edge_index, 20), diffusion, Segments(batch)))
    torch.testing.assert_close(together, dense(diffused(Graph(edge_index, 20), diffusion)), rtol=0, atol=1e-6)
    assert (together[batch[:, None] != batch] == 0).all()


@pytest.mark.parametrize("large", [False, True], ids=["closed", "blocks"])
def test_equal_neighbours_stay_together_unless_they_are_many(large, monkeypatch):
    monkeypatch.setattr(graph_diffusion, "DENSE", 0 if large else 1024)
    one = torch.arange(12)
    ring = torch.cat([torch.stack([one, (one + 1) % 12]), torch.stack([(one + 1) % 12, one])], 1)
    matrix = dense(diffused(Graph(ring, 12), Diffusion("ppr", top_k=2)))
    assert ((matrix > 0).sum(1) == 3).all()  # itself, and both neighbours, which are equal
    star = torch.cat(
        [torch.stack([torch.zeros(11, dtype=torch.long), one[1:]]), torch.stack([one[1:], one[1:] * 0])], 1
    )
    matrix = dense(diffused(Graph(star, 12), Diffusion("ppr", top_k=3)))
    assert ((matrix > 0).sum(1) == 3).all()


@pytest.mark.parametrize("kernel", ["ppr", "heat"])
def test_gdc_agrees_with_pygs_transform(kernel):
    from torch_geometric.data import Data
    from torch_geometric.transforms import GDC as Transform

    x, edge_index, weight = problem()  # weights, so that no two entries are equal
    how = {"method": "ppr", "alpha": 0.05} if kernel == "ppr" else {"method": "heat", "t": 5.0}
    transform = Transform(
        1.0, "sym", "col", diffusion_kwargs=how, sparsification_kwargs={"method": "topk", "k": 5, "dim": 0}, exact=True
    )
    data = transform(Data(x=x, edge_index=edge_index, edge_attr=weight, num_nodes=20))
    expected = dense(Graph(data.edge_index, 20, data.edge_attr))
    found = dense(diffused(Graph(edge_index, 20, weight), Diffusion(kernel, top_k=5)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_gdc_is_gcn_on_the_diffused_graph():
    x, edge_index, _ = problem()
    model = zoo.build("gdc", 6, 3, hidden_channels=8, top_k=5, kernel="heat", time=2.0).eval()
    plain = zoo.build("gcn", 6, 3, hidden_channels=8).eval()
    plain.load_state_dict(model.state_dict())
    graph = diffused(Graph(edge_index, 20), Diffusion("heat", time=2.0, top_k=5))
    torch.testing.assert_close(model(x, Graph(edge_index, 20)), plain(x, graph))
