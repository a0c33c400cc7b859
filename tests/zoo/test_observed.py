"""Convolutions and attention on observed graphs, each against PyTorch Geometric's layer with the same weights."""

import pytest
import torch
from torch.nn import functional

from difformer import Graph, zoo
from difformer.diffusion import diffuse, models
from difformer.zoo.edge_operators import (
    attention_bytes,
    edge_scores,
    edge_softmax,
    edge_sum,
    from_sources,
    from_targets,
)


def problem(nodes=20, features=6, edges=50, seed=0):
    """Features, edges without self-loops, and weights; symmetric."""
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=g)
    ends = ends[:, ends[0] < ends[1]].unique(dim=1)
    weight = torch.rand(ends.shape[1], generator=g) + 0.1
    return torch.randn(nodes, features, generator=g), torch.cat([ends, ends.flip(0)], 1), weight.repeat(2)


def made(name, **options):
    torch.manual_seed(1)
    return zoo.build(name, 6, 3, hidden_channels=8, **options).eval()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_is_a_stack_of_pyg_layers(layers, weighted):
    from torch_geometric.nn import GCNConv

    model = made("gcn", num_layers=layers)
    x, edge_index, weight = problem()
    weight = weight if weighted else None
    sizes = [6, *[8] * (layers - 1), 3]
    z = x
    for k in range(layers):
        conv = GCNConv(sizes[k], sizes[k + 1])
        last = k == layers - 1
        conv.lin.weight.data = (model.output if last else model.hidden[k]).weight.data
        conv.bias.data = model.output.bias.data if last else model.biases[k].data
        z = conv(z, edge_index, weight)
        z = z if last else z.relu()
    close(model(x, edge_index, weight), z)


@pytest.mark.parametrize(("layers", "heads", "last"), [(1, None, 1), (2, None, 1), (3, 2, 4)])
def test_gat_is_a_stack_of_pyg_layers(layers, heads, last):
    from torch_geometric.nn import GATConv

    model = made("gat", num_layers=layers, num_heads=heads, output_heads=last)
    heads = heads or 8
    x, edge_index, _ = problem()
    z = x
    for k, layer in enumerate([*model.layers, model.last]):
        end = k == layers - 1
        conv = GATConv(z.shape[1], *((3, last) if end else (8 // heads, heads)), concat=not end)
        conv.lin.weight.data = layer.linear.weight.data
        conv.att_src.data, conv.att_dst.data = layer.to_source.data.unsqueeze(0), layer.to_target.data.unsqueeze(0)
        conv.bias.data = torch.randn(conv.bias.shape)
        (model.bias if end else model.biases[k]).data = conv.bias.data
        z = conv(z, edge_index)
        z = z if end else functional.elu(z)
    close(model(x, edge_index), z)


def test_gat_heads_must_divide_the_channels():
    with pytest.raises(ValueError, match="num_heads must divide hidden_channels = 8, got 3"):
        made("gat", num_heads=3)
    assert zoo.build("gat", 6, 3, hidden_channels=4).heads == 4  # a narrow model has fewer heads, not an error


@pytest.mark.parametrize("weighted", [False, True])
def test_sgc_equals_pyg(weighted):
    from torch_geometric.nn import SGConv

    model = made("sgc", num_layers=3)
    x, edge_index, weight = problem()
    weight = weight if weighted else None
    conv = SGConv(6, 3, K=3)
    conv.lin.load_state_dict(model.output.state_dict())
    close(model(x, edge_index, weight), conv(x, edge_index, weight))
    close(model.decode(model.embed(x, edge_index, weight)), conv(x, edge_index, weight))


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_gin_layers_equal_pyg(eps):
    from torch_geometric.nn import GINConv

    model = made("gin", num_layers=2, eps=eps, learn_eps=True, norm="batch")
    x, edge_index, _ = problem()
    for _ in range(3):
        model.train()(x, edge_index)  # running statistics that are not those of the beginning
    model.eval()
    z = x
    for layer, norm in zip(model.layers, model.norms, strict=True):
        mlp = torch.nn.Sequential(layer.first, layer.norm, torch.nn.ReLU(), layer.second)
        z = norm(GINConv(mlp, eps=eps)(z, edge_index)).relu()
    close(model.embed(x, edge_index), z)
    close(model(x, edge_index), model.output(z))


@pytest.mark.parametrize("weighted", [False, True])
def test_appnp_equals_pyg(weighted):
    from torch_geometric.nn import APPNP

    model = made("appnp", num_layers=7, alpha=0.2)
    x, edge_index, weight = problem()
    weight = weight if weighted else None
    hidden = model.hidden[0](x).relu()
    expected = APPNP(7, 0.2)(hidden, edge_index, weight)
    close(model.embed(x, edge_index, weight), expected)
    close(model(x, edge_index, weight), model.output(expected))
    # Predict, then propagate: without a bias the last map may come first.
    outputs = APPNP(7, 0.2)(hidden @ model.output.weight.T, edge_index, weight)
    close(model(x, edge_index, weight) - model.output.bias, outputs)
    looped = Graph(edge_index, 20, weight).with_self_loops()
    close(expected, diffuse(hidden, steps=7, **models.appnp(looped, alpha=0.2)))


@pytest.mark.parametrize("weighted", [False, True])
def test_gcnii_layers_equal_pyg(weighted):
    from torch_geometric.nn import GCN2Conv

    model = made("gcnii", num_layers=4, alpha=0.3, theta=0.7)
    x, edge_index, weight = problem()
    weight = weight if weighted else None
    z = initial = model.input(x).relu()
    for k, weights in enumerate(model.maps, 1):
        conv = GCN2Conv(8, alpha=0.3, theta=0.7, layer=k)
        conv.weight1.data = weights.data
        z = conv(z, initial, edge_index, weight).relu()
    close(model.embed(x, edge_index, weight), z)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_graphsage_is_a_stack_of_pyg_layers(layers):
    from torch_geometric.nn import SAGEConv

    model = made("graphsage", num_layers=layers)
    x, edge_index, _ = problem()
    z = x
    for k in range(layers - 1):
        conv = SAGEConv(z.shape[1], 8)
        conv.lin_l.weight.data, conv.lin_r.weight.data = model.neighbours[k].weight.data, model.own[k].weight.data
        conv.lin_l.bias.data = model.own[k].bias.data
        z = conv(z, edge_index).relu()
    conv = SAGEConv(z.shape[1], 3)
    conv.lin_r.weight.data, conv.lin_l.weight.data = model.output.weight.data.split(z.shape[1], 1)
    conv.lin_l.bias.data = model.output.bias.data
    close(model(x, edge_index), conv(z, edge_index))


@pytest.mark.parametrize("keep", [False, True], ids=["gathered", "sorted"])
def test_edge_attention_is_a_masked_dense_one(keep):
    _, edge_index, weight = problem()
    graph = Graph(edge_index, 20, weight, keep=keep)
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(20, 2, 5, generator=g, dtype=torch.float64) for _ in range(3))
    source, target = edge_index
    dense = torch.einsum("ihc,jhc->hij", q, k)
    scores = edge_scores(q, k, graph)
    close(scores, dense[:, target, source].T)
    prior = torch.zeros(20, 20, dtype=torch.float64)
    prior[target, source] = weight.double()
    masked = torch.softmax(dense + prior.log(), -1).nan_to_num(0)
    found = edge_softmax(scores, graph)
    torch.testing.assert_close(found, masked[:, target, source].T, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(edge_sum(found, v, graph), torch.einsum("hij,jhc->ihc", masked, v), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("keep", "entries"), [(False, 1), (True, 2**22), (True, 1)], ids=["gathered", "all", "each"])
def test_edge_products_have_right_derivatives(keep, entries, monkeypatch):
    from difformer.diffusion.coupling import matrix
    from difformer.zoo import edge_operators as edges

    monkeypatch.setattr(matrix, "EDGE_ENTRIES", 64)  # several slices
    monkeypatch.setattr(edges, "HEAD_ENTRIES", entries)  # all heads by one product, or one after the other
    _, edge_index, _ = problem(nodes=6, edges=12)
    graph = Graph(torch.cat([edge_index, edge_index[:, :3]], 1), 6, keep=keep)  # some edges stand twice
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(6, 2, 3, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def attended(q, k, v):
        return edge_sum(edge_softmax(edge_scores(q, k, graph), graph), v, graph)

    assert torch.autograd.gradcheck(attended, (q, k, v))
    assert torch.autograd.gradgradcheck(lambda q, k: edge_scores(q, k, graph), (q, k))
    stacked = torch.vmap(attended, in_dims=(1, None, 0))(torch.stack([q, k], 1), k, torch.stack([v, q]))
    torch.testing.assert_close(stacked, torch.stack([attended(q, k, v), attended(k, k, q)]))


@pytest.mark.parametrize("keep", [False, True], ids=["gathered", "sorted"])
def test_node_values_are_gathered_to_edges_with_gradients(keep):
    edge_index = problem(nodes=6, edges=12)[1]
    graph = Graph(torch.cat([edge_index, edge_index[:, :3]], 1), 7, keep=keep)  # the last node has no edges
    x, y = (torch.randn(7, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    source, target = graph.edge_index
    torch.testing.assert_close(from_targets(x, graph), x[target])
    torch.testing.assert_close(from_sources(y, graph), y[source])

    def softmax(x, y):
        return edge_softmax(from_targets(x, graph) * from_sources(y, graph), graph)

    assert torch.autograd.gradcheck(softmax, (x, y))
    assert torch.autograd.gradgradcheck(softmax, (x, y))


def test_weights_of_edges_do_not_depend_on_what_scores_are_relative_to():
    edge_index = problem()[1]
    graph, g = Graph(edge_index, 20), torch.Generator().manual_seed(0)
    scores = torch.randn(edge_index.shape[1], 2, generator=g)
    # Scores that are added to all edges of a node cancel, however far apart those of nodes are.
    far = scores + 300.0 * torch.arange(20.0)[edge_index[1]].unsqueeze(1)
    torch.testing.assert_close(edge_softmax(far, graph), edge_softmax(scores, graph), rtol=1e-3, atol=1e-5)
    assert edge_softmax(1e4 * scores, graph).isfinite().all()


def test_dropped_sparse_features_are_multiplied_as_dense_ones():
    from difformer.nn.dropout import dropout_key
    from difformer.sparse import SparseMatrix
    from difformer.zoo import linear_maps as inputs

    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 12, generator=g) * (torch.rand(30, 12, generator=g) < 0.3)
    row, col = x.nonzero().T[:, torch.randperm(int((x != 0).sum()), generator=g)]  # in any order
    sparse, weight = SparseMatrix.from_entries(row, col, x[row, col], (30, 12)), torch.randn(5, 12, generator=g)
    for step in (0, 1):  # the second one finds the order of columns again
        with dropout_key(0, step):
            kept = inputs.dropout(sparse.rows.value, 0.4, True)
        dropped = torch.zeros(30, 12).index_put((sparse_rows(sparse), sparse.rows.col.long()), kept)
        leaf = weight.clone().requires_grad_()
        with dropout_key(0, step):
            found = inputs.mapped(leaf, sparse, 0.4, True)
        close(found, dropped @ weight.T)
        found.square().sum().backward()
        close(leaf.grad, 2 * (dropped @ weight.T).T @ dropped)


def sparse_rows(matrix):
    crow = matrix.rows.crow.long()
    return torch.arange(crow.numel() - 1).repeat_interleave(crow[1:] - crow[:-1])


def test_attention_keeps_little_for_the_backward_pass():
    from difformer.training.devices import saved_bytes

    g = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 100, (2, 5000), generator=g)
    graph = Graph(edge_index, 100)
    weight, v = torch.rand(5000, 1, requires_grad=True), torch.randn(100, 1, 64, requires_grad=True)
    kept = saved_bytes(lambda: edge_sum(weight, v, graph))
    assert kept < 4 * 5000 * 64 / 8  # gathered rows alone would be eight times as much


@pytest.mark.parametrize(
    ("name", "options", "more"),
    [("gat", {}, (8, 64, 2)), ("grand", {}, (4, 64, 8)), ("polynormer", {"local_passes": 0}, (8, 5 * 64, 5))],
    ids=["gat", "grand", "polynormer"],
)
def test_estimated_memory_of_attention_is_within_a_factor_of_two(name, options, more):
    from difformer.training.devices import saved_bytes

    x, edge_index, _ = problem(nodes=1000, edges=10_000)
    graph, model = Graph(edge_index, 1000), zoo.build(name, 6, 3, **options).train()
    expected = attention_bytes(graph.with_self_loops(), *more)
    assert expected / 2 < saved_bytes(lambda: model(x, graph)) < expected


def test_models_that_do_not_fit_in_memory_are_refused(monkeypatch):
    from difformer.zoo import encoder as inputs

    monkeypatch.setattr(inputs, "WORTH_A_LOOK", 0)
    monkeypatch.setattr(inputs, "free_bytes", lambda device: 1000)
    x, edge_index, _ = problem()
    for name in ("gat", "grand", "grand-l", "diffusion-edge-attention", "gdc"):
        with pytest.raises(MemoryError, match=r"needs about .* GiB, and .* GiB are free on cpu; "):
            made(name)(x, edge_index)
    with torch.no_grad():
        made("gat")(x, edge_index)  # nothing is kept without a backward pass


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("gat", {"dropout": 1.0}, "dropout must lie in"),
        ("sgc", {"num_layers": -1}, "num_layers must be an integer of at least 0, got -1"),
        ("gin", {"norm": "instance"}, "norm must be one of batch, layer, none, got 'instance'"),
        ("appnp", {"alpha": 1.5}, "alpha must lie in"),
        ("gcnii", {"theta": 0.0}, r"theta must lie in \(0, inf\), got 0.0"),
        ("grand", {"method": "rk5"}, "method must be one of euler, rk4, dopri5, got 'rk5'"),
        ("grand", {"linear": True}, "fixes linear=False"),
        ("gdc", {"kernel": "hot"}, "kernel must be one of ppr, heat, got 'hot'"),
        ("gdc", {"teleport": 0.0}, r"teleport must lie in \(0, 1\), got 0.0"),
        ("gdc", {"top_k": 0}, "top_k must be an integer of at least 1, or None, got 0"),
        ("cpgnn", {"pretraining": 1.5}, "pretraining must be an integer of at least 0, got 1.5"),
        ("graphheat", {"time": -1.0}, r"time must lie in \(0, inf\)"),
        ("manireg", {"penalty_weight": -1.0}, r"penalty_weight must lie in \[0, inf\)"),
        ("glognn", {"gamma": 1.0}, r"gamma must lie in \[0, 1\)"),
        ("glognn", {"beta1": -1.0}, r"beta1 must lie in \[0, inf\)"),
        ("glognn", {"beta1": 0.0, "beta2": 0.0}, "beta1 and beta2 must not both be zero"),
        ("graphormer", {"max_distance": 251}, r"max_distance must lie in \[1, 250\], got 251"),
        ("diffusion-edge-attention", {"step_size": 2.0}, r"step_size must lie in \(0, 1\]"),
        ("diffusion-edge-attention", {"similarity": "angle"}, "similarity must be one of cosine, distance"),
    ],
)
def test_options_out_of_range_are_explained(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        made(name, **options)
