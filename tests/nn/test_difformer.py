import numpy as np
import pytest
import torch
from torch.nn import functional

from difformer import DIFFormer, Graph
from difformer.diffusion import DIFFUSIVITIES
from difformer.sparse import SparseMatrix

every_diffusivity = pytest.mark.parametrize("diffusivity", [*DIFFUSIVITIES, None])


def problem(nodes=20, features=7, edges=60, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, features, dtype=dtype, generator=generator)
    return x, torch.randint(0, nodes, (2, edges), generator=generator)


def test_forward_follows_appendix_c_of_the_paper():
    model = DIFFormer(7, 6, 3, num_layers=3, activation="relu").double().eval()
    x, edge_index = problem()
    z = source = functional.relu(model.input_norm(model.input(x)))
    for layer, norm in zip(model.layers, model.norms, strict=True):
        z = functional.relu(norm(layer(z, edge_index, source=source)))
    torch.testing.assert_close(model(x, edge_index), model.output(z))


def test_without_norm_there_is_no_layer_norm_at_all():
    model = DIFFormer(7, 6, 3, norm=False)
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in model.modules())


def test_defaults_are_the_documented_ones():
    config = DIFFormer(7, 6, 3).config
    expected = {
        "in_channels": 7, "hidden_channels": 6, "out_channels": 3, "num_layers": 2, "num_heads": 1,
        "diffusivity": "simple", "step_size": 0.5, "source_weight": 0.2, "graph_weight": 0.8, "graph_norm": "gcn",
        "transform": True, "norm": True, "residual": True, "activation": None, "dropout": 0.0, "qk_norm": "row",
        "tied_qk": False, "initialisation": "identity", "backend": "auto",
    }  # fmt: skip
    assert config == expected


def test_source_adds_the_initial_state_each_step():
    plain = DIFFormer(7, 6, 3, norm=False, num_layers=1, source_weight=0.0).double()
    sourced = DIFFormer(7, 6, 3, norm=False, num_layers=1, source_weight=0.8, step_size=0.5).double()
    sourced.load_state_dict(plain.state_dict())
    x, _ = problem()
    z0 = plain.trajectory(x)[0]
    torch.testing.assert_close(sourced.embed(x), plain.embed(x) + 0.5 * 0.8 * z0)


@every_diffusivity
@pytest.mark.parametrize("heads", [1, 2])
def test_permuting_nodes_permutes_the_answer(diffusivity, heads):
    model = DIFFormer(7, 6, 3, diffusivity=diffusivity, num_heads=heads, source_weight=0.1).double().eval()
    x, edge_index = problem()
    weight = torch.rand(edge_index.shape[1], dtype=torch.float64)
    order = torch.randperm(20)
    place = order.argsort()
    out = model(x, edge_index, weight)
    torch.testing.assert_close(model(x[order], place[edge_index], weight), out[order])


@every_diffusivity
def test_every_form_of_the_same_graph_gives_the_same_answer(diffusivity):
    model = DIFFormer(7, 6, 3, diffusivity=diffusivity).double().eval()
    x, edge_index = problem()
    weight = torch.rand(edge_index.shape[1], dtype=torch.float64)
    expected = model(x, edge_index, weight)
    operator = torch.sparse_coo_tensor(edge_index.flip(0), weight, (20, 20)).coalesce()
    for form in (Graph(edge_index, 20, weight), operator, operator.to_sparse_csr()):
        torch.testing.assert_close(model(x, form), expected)


def test_sparse_features_give_the_answer_of_dense_ones():
    model = DIFFormer(50, 6, 3).double().eval()
    x = torch.randn(20, 50, dtype=torch.float64) * (torch.rand(20, 50) < 0.1)
    expected = model(x)
    for form in (x.to_sparse(), x.to_sparse_csr(), SparseMatrix.from_tensor(x.to_sparse_csr())):
        torch.testing.assert_close(model(form), expected)
    model(SparseMatrix.from_tensor(x.to_sparse())).square().sum().backward()
    sparse_gradient = model.input.weight.grad.clone()
    model.zero_grad()
    model(x).square().sum().backward()
    torch.testing.assert_close(sparse_gradient, model.input.weight.grad)


@pytest.mark.parametrize("nodes", [1, 2])
@every_diffusivity
def test_graphs_of_few_nodes_give_finite_outputs(diffusivity, nodes):
    model = DIFFormer(7, 6, 3, diffusivity=diffusivity, graph_weight=0.5).double().eval()
    x, _ = problem(nodes)
    empty = torch.empty(2, 0, dtype=torch.long)
    assert model(x).isfinite().all()
    torch.testing.assert_close(model(x, empty), model(x))
    torch.testing.assert_close(model(x, Graph(empty, nodes)), model(x))
    loop = torch.zeros(2, 1, dtype=torch.long)
    assert model(x, loop).isfinite().all()


def test_dropout_acts_in_training_alone():
    model = DIFFormer(7, 64, 3, dropout=0.5)
    x, _ = problem(dtype=torch.float32)
    states = model.train().trajectory(x)
    assert 0.4 < (states[1] == 0).float().mean() < 0.6
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


@every_diffusivity
def test_model_passes_gradcheck(diffusivity):
    torch.manual_seed(1)
    model = DIFFormer(
        2, 3, 2, diffusivity=diffusivity, norm=False, num_heads=2, num_layers=1, graph_weight=0.4
    ).double()
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    graph = Graph(torch.randint(0, 5, (2, 10)), 5)
    names, parameters = zip(*model.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x, graph))

    assert torch.autograd.gradcheck(run, (x, *parameters))


def test_trajectory_ends_where_embed_does():
    model = DIFFormer(7, 6, 3, num_layers=4).double().eval()
    x, edge_index = problem()
    states = model.trajectory(x, edge_index)
    assert states.shape == (5, 20, 6)
    torch.testing.assert_close(states[-1], model.embed(x, edge_index))
    torch.testing.assert_close(model.decode(states[-1]), model(x, edge_index))


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_bfloat16_autocast_stays_close(diffusivity):
    torch.manual_seed(0)
    model = DIFFormer(7, 16, 3, diffusivity=diffusivity)
    x, edge_index = problem(dtype=torch.float32)
    exact = model(x, edge_index)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x, edge_index)
    low.float().square().sum().backward()
    assert (low.float() - exact).norm() < 0.02 * exact.norm()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda m, x, e: m(x[:, :5]), r"x must have shape \[N, 7\], got \(20, 5\)"),
        (lambda m, x, e: m(x.double()), "x is torch.float64, the model torch.float32"),
        (lambda m, x, e: m(x[0]), r"x must have shape \[N, 7\], got \(7,\)"),
        (lambda m, x, e: m(x, e + 15), r"edge_index must lie in 0 … 19 \(20 nodes\)"),
        (lambda m, x, e: m(x, e[0]), r"edge_index must have shape \[2, E\]"),
        (lambda m, x, e: m(x, e, torch.ones(3)), "edge_weight must have one entry per edge"),
        (lambda m, x, e: m(x, None, torch.ones(3)), "edge_weight was given without edge_index"),
        (lambda m, x, e: m(x, Graph(e, 25)), "the graph has 25 nodes, but x has 20 rows"),
        (lambda m, x, e: m(x, batch=torch.zeros(3, dtype=torch.long)), "for each of the 20 rows of x, got 3"),
        (lambda m, x, e: m(x, e, batch=torch.arange(20)), "which batch puts into different graphs"),
    ],
)
def test_bad_input_is_explained(call, complaint):
    x, edge_index = problem(dtype=torch.float32)
    with pytest.raises(ValueError, match=complaint):
        call(DIFFormer(7, 6, 3), x, edge_index)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"activation": "swish"}, "activation must be None or one of relu"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"hidden_channels": 0}, "hidden_channels must be an integer of at least 1, got 0"),
        ({"num_layers": -1}, "num_layers must be an integer of at least 0, got -1"),
        ({"diffusivity": "smple"}, "did you mean 'simple'"),
    ],
)
def test_bad_options_are_explained(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        DIFFormer(**{"in_channels": 7, "hidden_channels": 6, "out_channels": 3} | options)


def test_an_array_of_numpy_is_refused_in_words():
    with pytest.raises(TypeError, match=r"x must be a torch tensor \[N, 4\], got ndarray"):
        DIFFormer(4, 8, 2)(np.zeros((3, 4)))


def test_a_sparse_product_of_the_wrong_size_is_refused():
    matrix = SparseMatrix.from_entries(torch.tensor([0, 1]), torch.tensor([5, 2]), torch.ones(2), (2, 6))
    with pytest.raises(ValueError, match=r"of shape \(2, 6\) takes 6 rows, got \(4, 3\)"):
        matrix @ torch.ones(4, 3)
