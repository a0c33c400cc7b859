"""LINKX, AdvDIFFormer and Exphormer, each against another implementation or its formula with dense matrices."""

import pytest
import torch
from problems import points, some_edges
from torch.nn import functional

from difformer import Graph, zoo
from difformer.training import TrainConfig, train_one
from difformer.zoo.encoder import Observed
from difformer.zoo.graphgps import LIMIT, expander


def made(name, **options):
    torch.manual_seed(0)
    return zoo.build(name, 6, 3, hidden_channels=8, **options).eval()


def gcn_matrix(edges, nodes=24):
    return Graph(edges, nodes).with_self_loops().propagate(torch.eye(nodes))


# ---- LINKX


@pytest.mark.parametrize(("layers", "edge_layers", "feature_layers"), [(1, 1, 1), (2, 1, 2), (3, 2, 1)])
def test_linkx_equals_pyg(layers, edge_layers, feature_layers):
    from torch_geometric.nn import LINKX

    sizes = {"num_layers": layers, "edge_layers": edge_layers, "feature_layers": feature_layers}
    model, x, edges = made("linkx", num_nodes=24, dropout=0.0, **sizes), points(), some_edges(loops=False)
    for _ in range(3):
        model.train()(x, edges)  # running statistics that are not those of the beginning
    model.eval()
    other = LINKX(24, 6, 8, 3, layers, num_edge_layers=edge_layers, num_node_layers=feature_layers)
    other.edge_lin.weight.data, other.edge_lin.bias.data = model.nodes.data, model.edge_bias.data
    other.cat_lin1.load_state_dict(model.join_edges.state_dict())
    other.cat_lin2.load_state_dict(model.join_features.state_dict())

    def copy(target, maps, norms):
        for layer, ours in zip(target.lins, maps, strict=True):
            layer.load_state_dict(ours.state_dict())
        for layer, ours in zip(target.norms, norms, strict=False):
            getattr(layer, "module", layer).load_state_dict(ours.state_dict())

    copy(other.node_mlp, model.features.maps, model.features.norms)
    if edge_layers > 1:
        other.edge_norm.load_state_dict(model.edge_norm.state_dict())
        copy(other.edge_mlp, model.edges.maps, model.edges.norms)
    hidden = () if model.hidden is None else model.hidden.maps
    norms = () if model.hidden is None else (*model.hidden.norms, model.hidden_norm)
    copy(other.final_mlp, [*hidden, model.output], norms)
    torch.testing.assert_close(model(x, edges), other.eval()(x, edges), rtol=1e-4, atol=1e-5)


def test_linkx_takes_its_nodes_from_the_task_and_knows_new_ones_by_their_edges():
    from test_zoo import nodes_task

    task = nodes_task()
    record = train_one(task, 0, TrainConfig(model="linkx", epochs=2), 0, "cpu")
    assert record.state["nodes"].shape == (30, 64)
    model, x, edges = made("linkx", num_nodes=24, dropout=0.0), points(26), some_edges(loops=False)
    before = model(x[:24], edges)
    more = torch.cat([edges, torch.tensor([[3], [24]])], 1)  # an edge into a new node, and one without edges
    torch.testing.assert_close(model(x, more)[:24], before)
    alone = model(x, edges)
    assert not torch.allclose(model(x, more)[24], alone[24])
    torch.testing.assert_close(model(x, more)[25], alone[25])
    with pytest.raises(ValueError, match="has weights for 24 nodes, got 10 rows; give it the whole graph"):
        model(x[:10])
    with pytest.raises(ValueError, match="nodes of one graph"):
        model(x[:24], batch=torch.arange(24) // 12)


# ---- AdvDIFFormer


def couplings(model, z, rows=24):
    """C of every head, dense."""
    q, k = (
        functional.normalize(layer(z).view(rows, model.num_heads, -1), dim=-1) for layer in (model.query, model.key)
    )
    products = torch.einsum("nhd,mhd->hnm", q, k)
    scores = 1 + products if model.diffusivity == "simple" else torch.sigmoid(products)
    return scores / scores.sum(-1, keepdim=True)


@pytest.mark.parametrize("given", [True, False], ids=["edges", "none"])
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_advdifformers_series_is_that_of_its_matrix(diffusivity, given):
    model, x, edges = (
        made("advdifformer", num_heads=2, num_layers=3, diffusivity=diffusivity, beta=0.7),
        points(),
        some_edges(loops=False),
    )
    z = functional.relu(model.norm(model.input(x)))
    matrices = couplings(model, z) + (0.7 * gcn_matrix(edges) if given else 0.0)
    terms = [torch.cat([torch.linalg.matrix_power(p, k) @ z for k in range(4)], 1) for p in matrices]
    expected = z + functional.relu(model.join(torch.cat(terms, 1)))
    torch.testing.assert_close(model.embed(x, edges if given else None), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [True, False], ids=["edges", "none"])
def test_advdifformers_closed_form_solves_its_system(given):
    model, x, edges = (
        made("advdifformer-i", num_heads=2, beta=0.4, theta=0.9, residual=False),
        points(),
        some_edges(loops=False),
    )
    z = functional.relu(model.norm(model.input(x)))
    matrices = couplings(model, z) + (0.4 * gcn_matrix(edges) if given else 0.0)
    solved = [torch.linalg.inv(1.9 * torch.eye(24) - p) @ z for p in matrices]
    expected = functional.relu(model.join(torch.cat(solved, 1)))
    torch.testing.assert_close(model.embed(x, edges if given else None), expected, rtol=1e-4, atol=1e-5)


def test_advdifformers_inverse_is_the_limit_of_its_series():
    """With θ the inverse is Σ_k P^k / (1 + θ)^(k+1): what the learned map of a series can weigh."""
    model, x, edges = made("advdifformer-i", beta=0.3, theta=2.0), points().double(), some_edges(loops=False)
    model = model.double()
    z = functional.relu(model.norm(model.input(x)))
    (p,) = couplings(model, z) + 0.3 * gcn_matrix(edges).double()
    series = sum(torch.linalg.matrix_power(p, k) @ z / 3.0 ** (k + 1) for k in range(60))
    torch.testing.assert_close(torch.linalg.solve(3.0 * torch.eye(24).double() - p, z), series)


def test_advdifformer_refuses_systems_that_may_be_singular():
    with pytest.raises(ValueError, match=r"theta must be above beta = 0\.5 for the system to be solvable, got 0.5"):
        made("advdifformer-i", theta=0.5)
    with pytest.raises(ValueError, match=r"beta must lie in \[0, inf\)"):
        made("advdifformer", beta=-1.0)


# ---- Exphormer


@pytest.mark.parametrize(("nodes", "degree"), [(50, 4), (51, 6), (3, 4)])
def test_expanders_are_regular_connected_and_repeatable(nodes, degree):
    edges = expander(nodes, degree, 7)
    assert torch.equal(edges, expander(nodes, degree, 7))
    matrix = torch.zeros(nodes, nodes)
    matrix[edges[0], edges[1]] = 1
    assert torch.equal(matrix, matrix.T)
    assert matrix.diagonal().sum() == 0
    assert matrix.sum(1).max() <= degree
    values = torch.linalg.eigvalsh(matrix)
    assert values[-2] < values[-1] - 0.3  # one component, and a gap


def test_exphormers_attention_is_a_masked_dense_one():
    model, x, edges = (
        made("exphormer", num_layers=1, num_heads=2, virtual_nodes=2, degree=4),
        points(),
        some_edges(loops=False),
    )
    layer = model.layers[0]
    torch.nn.init.normal_(layer.kinds)
    z = torch.cat([model.input(x), model.virtual])
    q, k, v = layer.qkv(z).unflatten(1, (3, 2, 4)).unbind(1)
    kinds = torch.zeros(3, 26, 26)
    kinds[0, edges[1], edges[0]] = 1
    kinds[1][tuple(expander(24, 4, 0).flip(0))] = 1
    kinds[2, :24, 24:] = kinds[2, 24:, :24] = 1
    scores = torch.einsum("thd,nhd,mhd->thnm", layer.kinds, q, k) / 2
    weights = (scores.clamp(-LIMIT, LIMIT).exp() * kinds.unsqueeze(1)).sum(0)
    expected = torch.einsum("hnm,mhd->nhd", weights / weights.sum(-1, keepdim=True), v).flatten(1)
    found = layer.attend(z, model.links(Observed.of(x, edges))[1])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_exphormer_reaches_every_node_in_one_layer_by_its_virtual_nodes():
    x = points().requires_grad_()
    near = made("exphormer", num_layers=2, virtual_nodes=0, degree=0)
    far = made("exphormer", num_layers=2, virtual_nodes=1, degree=0)
    edges = torch.tensor([[0, 1], [1, 0]])
    for model, reached in ((near, 2), (far, 24)):
        (grad,) = torch.autograd.grad(model(x, edges)[0].sum(), x)
        assert int((grad.abs().sum(1) > 0).sum()) == reached


def test_snapshots_of_a_series_share_an_expander_and_nothing_else():
    model, x, edges = made("exphormer"), points(12), some_edges(12, loops=False)
    batch = torch.arange(2).repeat_interleave(12)
    together = model(torch.cat([x, x + 1]), torch.cat([edges, edges + 12], 1), batch=batch)
    torch.testing.assert_close(together, torch.cat([model(x, edges), model(x + 1, edges)]), rtol=1e-4, atol=1e-5)
