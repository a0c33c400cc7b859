"""Options of the classic networks: each against PyTorch Geometric's layers put together as the option says."""

import pytest
import torch
from torch.nn import functional

from difformer import zoo
from difformer.data import Split, Task
from difformer.nn.dropout import dropout_key
from difformer.training import TrainConfig, train_one
from difformer.zoo.classic import GAT, GCN, GraphSAGE


def problem(nodes=20, features=6, edges=50, seed=0):
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=g)
    ends = ends[:, ends[0] < ends[1]].unique(dim=1)
    return torch.randn(nodes, features, generator=g), torch.cat([ends, ends.flip(0)], 1)


def made(name, **options):
    torch.manual_seed(1)
    model = zoo.build(name, 6, 3, hidden_channels=8, **options)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)  # biases and norms that are not those of the beginning
    return model.eval()


def pyg_layer(model, k):
    """PyTorch Geometric's layer with the weights of hidden layer k."""
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    size = model.sizes[k]
    if isinstance(model, GCN):
        conv = GCNConv(size, 8)
        conv.lin.weight.data, conv.bias.data = model.hidden[k].weight.data, model.biases[k].data
    elif isinstance(model, GraphSAGE):
        conv = SAGEConv(size, 8)
        conv.lin_l.weight.data, conv.lin_l.bias.data = model.neighbours[k].weight.data, model.own[k].bias.data
        conv.lin_r.weight.data = model.own[k].weight.data
    else:
        layer = model.layers[k]
        conv = GATConv(size, layer.shape[1], layer.shape[0])
        conv.lin.weight.data, conv.bias.data = layer.linear.weight.data, model.biases[k].data
        conv.att_src.data, conv.att_dst.data = layer.to_source.data[None], layer.to_target.data[None]
    return conv


@pytest.mark.parametrize("name", ["gcn+", "sage+", "gat+"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"residual": True, "norm": "batch"},
        {"norm": "layer", "jumping": True},
        {"linear_input": True, "residual": True},
    ],
    ids=["plain", "residual", "jumping", "input"],
)
def test_tuned_networks_are_pygs_layers_with_a_linear_head(name, options):
    model, (x, edges) = made(name, **options), problem()
    z, total = x if model.input is None else model.input(x), 0
    for k in range(3):
        new = pyg_layer(model, k)(z, edges)
        if options.get("residual"):
            new = new + model.shortcuts[k](z)
        z = functional.relu(model.norms[k](new))
        total = total + z
    expected = model.output(total if options.get("jumping") else z)
    torch.testing.assert_close(model(x, edges), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x.to_sparse(), edges), expected, rtol=1e-4, atol=1e-5)


def test_the_tuned_networks_are_the_classes_of_the_plain_ones():
    for plus, plain in {"gcn+": "gcn", "sage+": "graphsage", "gat+": "gat"}.items():
        assert zoo.MODELS[plus].home == zoo.MODELS[plain].home
        x, edges = problem()
        options = {**zoo.options_of(plus), "hidden_channels": 8}
        torch.manual_seed(0)
        expected = zoo.build(plus, 6, 3, hidden_channels=8).eval()(x, edges)
        torch.manual_seed(0)
        torch.testing.assert_close(zoo.build(plain, 6, 3, **options).eval()(x, edges), expected)


@pytest.mark.parametrize("name", ["mlp", "gcn", "graphsage", "gin"])
def test_residual_norm_and_jumping_change_nothing_else(name):
    """With shortcuts of zero a residual network is the plain one; a jump over one hidden layer is none."""
    x, edges = problem()
    plain, residual = made(name), made(name, residual=True)
    residual.load_state_dict(
        {**plain.state_dict(), **{k: 0 * v for k, v in residual.state_dict().items() if "short" in k}}
    )
    torch.testing.assert_close(residual(x, edges), plain(x, edges))
    once = {"num_layers": 1} if name == "gin" else {"num_layers": 2}
    torch.testing.assert_close(made(name, jumping=True, **once)(x, edges), made(name, **once)(x, edges))


def test_norm_accepts_true_and_false():
    assert isinstance(zoo.build("mlp", 6, 3, norm=True).norms[0], torch.nn.LayerNorm)
    assert isinstance(zoo.build("mlp", 6, 3, norm=False).norms[0], torch.nn.Identity)
    assert isinstance(zoo.build("mlp", 6, 3, norm="batch").norms[0], torch.nn.BatchNorm1d)


@pytest.mark.parametrize("sparse", [False, True])
def test_one_mask_of_features_serves_a_layer_and_its_shortcut(sparse):
    x = torch.ones(40, 6).relu()
    model = made("mlp", residual=True, input_dropout=0.5).train()
    with torch.no_grad():
        model.shortcuts[0].weight.copy_(-model.hidden[0].weight)
        model.shortcuts[0].bias.copy_(-model.hidden[0].bias)
    with dropout_key(0):
        states = model.embed(x.to_sparse() if sparse else x)
    torch.testing.assert_close(states, torch.zeros_like(states), atol=1e-6, rtol=0)


def test_input_and_attention_dropout_default_to_dropout():
    assert GAT(6, 8, 3).input_dropout is None
    x, edges = problem()
    same, apart = made("gat", dropout=0.4), made("gat", dropout=0.4, input_dropout=0.4, attention_dropout=0.4)
    outputs = []
    for model in (same, apart):
        with dropout_key(3):
            outputs.append(model.train()(x, edges))
    torch.testing.assert_close(*outputs)


def test_jumping_needs_a_hidden_layer():
    with pytest.raises(ValueError, match="num_layers=1 has none; take more layers"):
        zoo.build("gcn", 6, 3, num_layers=1, jumping=True)


def test_deep_tuned_networks_are_trained_with_batch_norm():
    x, edges = problem(30)
    y = torch.arange(30) % 3
    split = Split("s", torch.arange(12), torch.arange(12, 20), torch.arange(20, 30))
    task = Task("t", "nodes", "multiclass", "accuracy", "a test", x, y, (split,), 3, edge_index=edges)
    options = {"num_layers": 10, "norm": "batch", "residual": True, "jumping": True, "hidden_channels": 16}
    first, last = (
        train_one(task, 0, TrainConfig(model="gcn+", options=options, epochs=epochs, learning_rate=0.01), 0, "cpu")
        for epochs in (1, 40)
    )
    assert last.loss < first.loss
