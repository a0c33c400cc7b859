import numpy as np
import pytest
import torch

from difformer import Graph, zoo
from difformer.nn import Model
from difformer.sparse import SparseMatrix
from difformer.zoo.catalogue import ALL_KINDS

TRAINED = [name for name in zoo.MODELS if name != "label-spreading"]


def problem(nodes=20, features=6, edges=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(nodes, features, generator=generator), torch.randint(0, nodes, (2, edges), generator=generator)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_model_follows_the_protocol(name):
    model = zoo.build(name, 6, 3, hidden_channels=8).eval()
    assert isinstance(model, Model)
    x, edge_index = problem()
    if hasattr(model, "observe"):
        model.observe(torch.arange(20) % 3, torch.arange(9))
    out = model(x, Graph(edge_index, 20))
    assert out.shape == (20, 3)
    torch.testing.assert_close(model.decode(model.embed(x, edge_index)), out)


@pytest.mark.parametrize("name", TRAINED)
def test_sparse_features_and_batches(name):
    model = zoo.build(name, 6, 3, hidden_channels=8).eval()
    x, edge_index = problem()
    x = x * (torch.rand(20, 6) < 0.3)
    torch.testing.assert_close(model(SparseMatrix.from_tensor(x.to_sparse()), edge_index), model(x, edge_index))
    twice = torch.cat([x, x]), torch.cat([edge_index, edge_index + 20], 1), torch.arange(2).repeat_interleave(20)
    torch.testing.assert_close(model(twice[0], twice[1], batch=twice[2]), model(x, edge_index).repeat(2, 1))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_is_a_stack_of_pyg_layers(layers, weighted):
    from torch_geometric.nn import GCNConv

    model = zoo.build("gcn", 6, 3, hidden_channels=8, num_layers=layers).eval()
    x, edge_index = problem()
    weight = torch.rand(50) + 0.1 if weighted else None
    sizes = [6, *[8] * (layers - 1), 3]
    z = x
    for k in range(layers):
        conv = GCNConv(sizes[k], sizes[k + 1])
        last = k == layers - 1
        conv.lin.weight.data = (model.output if last else model.hidden[k]).weight.data
        conv.bias.data = model.output.bias.data if last else model.biases[k].data
        z = conv(z, edge_index, weight)
        z = z if last else z.relu()
    torch.testing.assert_close(model(x, edge_index, weight), z, rtol=1e-5, atol=1e-6)


def test_label_spreading_is_scikit_learns():
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


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("gnc", {}, "unknown model 'gnc'; did you mean 'gcn'"),
        ("gcn", {"hiden_channels": 3}, "has no option 'hiden_channels'; did you mean 'hidden_channels'"),
        ("difformer-s", {"diffusivity": "sigmoid"}, "fixes diffusivity='simple'; use model 'difformer'"),
    ],
)
def test_unknown_names_are_explained(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        zoo.build(name, 6, 3, **options)


def test_the_catalogue_is_complete():
    for info in zoo.MODELS.values():
        assert info.about.endswith((".", "…"))
        assert set(info.kinds) <= set(ALL_KINDS)
        assert zoo.options_of(info.name)["hidden_channels"] == 64
