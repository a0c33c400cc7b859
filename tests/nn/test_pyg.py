"""DIFFormer among the tools of PyTorch Geometric."""

import copy
import pickle
import shutil

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn import functional

from difformer import DIFFormer, DIFFormerConv, Graph

pytest.importorskip("torch_geometric")

from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing, Sequential

N, F, C = 40, 5, 3


@pytest.fixture
def data():
    torch.manual_seed(0)
    index = torch.unique(torch.randint(0, N, (2, 120)), dim=1).contiguous()
    return Data(x=torch.randn(N, F), edge_index=index, y=torch.randint(0, C, (N,)))


# Sizes and parameters


@pytest.mark.parametrize("sparse_x", [False, True])
def test_lazy_input_size_is_taken_from_the_first_input(data, sparse_x):
    model = DIFFormer(-1, 8, C)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = data.x.to_sparse() if sparse_x else data.x
    out = model(x, data.edge_index)
    assert model.config["in_channels"] == F
    assert type(model.input) is torch.nn.Linear
    assert model.input.weight.shape == (8, F)
    assert not model.input.bias.any()
    same = DIFFormer(F, 8, C)
    same.load_state_dict(model.state_dict())
    torch.testing.assert_close(out, same(x, data.edge_index))
    before = model.input.weight.detach().clone()
    functional.cross_entropy(out, data.y).backward()
    optimizer.step()
    assert not torch.equal(before, model.input.weight)
    with pytest.raises(ValueError, match=rf"shape \[N, {F}\]"):
        model(torch.randn(N, F + 1))


def test_lazy_layer_becomes_the_layer_of_that_size(data):
    layer = DIFFormerConv(-1, 8, residual=False, num_heads=2)
    out = layer(data.x, data.edge_index)
    same = DIFFormerConv(F, 8, residual=False, num_heads=2)
    same.load_state_dict(layer.state_dict())
    torch.testing.assert_close(out, same(data.x, data.edge_index))
    eye = torch.eye(8, F)
    assert (layer.value.weight.view(2, 8, F) - eye).abs().max() < 0.1
    assert not layer.value.bias.any()
    with pytest.raises(ValueError, match="in_channels 5 and out_channels 8 must be equal"):
        DIFFormerConv(-1, 8)(data.x)


def test_a_lazy_model_is_saved_only_once_it_has_a_size(data, tmp_path):
    model = DIFFormer(-1, 8, C)
    with pytest.raises(ValueError, match="no input size yet"):
        model.save_pretrained(tmp_path)
    out = model(data.x)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(DIFFormer.from_pretrained(tmp_path)(data.x), out)


@pytest.mark.parametrize("make", [lambda: DIFFormer(F, 8, C, num_layers=3), lambda: DIFFormerConv(F, F, num_heads=2)])
def test_reset_parameters_draws_what_a_new_model_draws(make):
    torch.manual_seed(1)
    wanted = make().state_dict()
    torch.manual_seed(2)
    model = make()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    torch.manual_seed(1)
    model.reset_parameters()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=0)


# Inputs


def test_sequential_calls_the_layers_one_after_the_other(data):
    first, second = DIFFormerConv(-1, 8, residual=False), DIFFormerConv(8, 8)
    steps = [(first, "x, edge_index -> x"), torch.nn.ReLU(), (second, "x, edge_index -> x"), torch.nn.Linear(8, C)]
    model = Sequential("x, edge_index", steps)
    out = model(data.x, data.edge_index)
    by_hand = steps[3](second(first(data.x, data.edge_index).relu(), data.edge_index))
    torch.testing.assert_close(out, by_hand)


def test_batch_of_data_objects_equals_each_alone(data):
    graphs = [data, Data(x=data.x[:7], edge_index=torch.tensor([[0, 1], [1, 2]])), Data(x=data.x[:3] * 2)]
    for graph in graphs:
        if graph.edge_index is None:
            graph.edge_index = torch.empty(2, 0, dtype=torch.long)
    batch = Batch.from_data_list([Data(x=g.x, edge_index=g.edge_index) for g in graphs])
    model = DIFFormer(F, 8, C)
    alone = torch.cat([model(g.x, g.edge_index) for g in graphs])
    torch.testing.assert_close(model(batch.x, batch.edge_index, batch=batch.batch), alone)


def test_a_batch_vector_in_the_place_of_weights_is_refused_with_advice(data):
    with pytest.raises(ValueError, match="pass batch="):
        DIFFormer(F, 8, C)(data.x, data.edge_index, torch.zeros(N, dtype=torch.long))


def test_batches_of_a_node_loader_train(data):
    from torch_geometric.loader import NodeLoader
    from torch_geometric.sampler import BaseSampler, SamplerOutput

    class Neighbours(BaseSampler):
        """All neighbours of the seeds; the samplers of torch_geometric need a compiled package."""

        def sample_from_nodes(self, index, **options):
            source, target = data.edge_index
            reached = torch.isin(target, index.node)
            node = torch.cat([index.node, source[reached][~torch.isin(source[reached], index.node)].unique()])
            place = torch.full((N,), -1)
            place[node] = torch.arange(node.numel())
            edge = reached.nonzero().flatten()
            return SamplerOutput(node, place[source[edge]], place[target[edge]], edge, metadata=(index.input_id, None))

        def sample_from_edges(self, index, **options):
            raise NotImplementedError

    model = DIFFormer(-1, 8, C)
    seen = 0
    for batch in NodeLoader(data, Neighbours(), batch_size=8):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        seen += batch.batch_size
        assert batch.num_edges > 0
    assert seen == N
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_transposed_sparse_tensor_means_the_edge_index_it_was_made_of(data, layout):
    from torch_geometric.transforms import ToSparseTensor

    model = DIFFormer(F, 8, C)
    made = ToSparseTensor(layout=layout)(copy.copy(data))
    torch.testing.assert_close(model(data.x, made.adj_t), model(data.x, data.edge_index))
    index = EdgeIndex(data.edge_index, sparse_size=(N, N)).sort_by("row")[0]
    torch.testing.assert_close(model(data.x, index), model(data.x, data.edge_index))


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "lil"])
def test_scipy_matrix_holds_the_edge_from_row_to_column(data, form):
    weight = torch.rand(data.num_edges) + 0.1
    source, target = data.edge_index.numpy()
    matrix = sparse.coo_matrix((weight.numpy(), (source, target)), (N, N)).asformat(form)
    model = DIFFormer(F, 8, C)
    wanted = model(data.x, data.edge_index, weight)
    torch.testing.assert_close(model(data.x, matrix), wanted)
    torch.testing.assert_close(model(data.x, Graph(matrix)), wanted)
    assert not torch.allclose(model(data.x, matrix.T), wanted)


def test_scipy_matrix_is_sorted_once_and_a_change_is_noticed(data):
    from difformer.graph import as_graph

    matrix = sparse.csr_array(sparse.random(N, N, 0.1, random_state=0))
    model = DIFFormer(F, 8, C)
    before = model(data.x, matrix)
    assert as_graph(matrix, N) is as_graph(matrix, N)
    matrix.data *= np.arange(1, matrix.nnz + 1)
    after = model(data.x, matrix)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, model(data.x, matrix.copy()))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (sparse.csr_array((N, N + 1)), r"must be \[40, 40\], one row and column per node"),
        (sparse.csr_array((N + 1, N + 1)), r"must be \[40, 40\], one row and column per node, got \(41, 41\)"),
        ([[0, 1], [1, 2]], "got list; convert arrays and lists by torch.as_tensor, lists of pairs also by .T"),
        (np.zeros((2, 3), dtype=int), "got ndarray"),
        (
            torch.zeros(3, 2, dtype=torch.long),
            r"must have shape \[2, E\], got \(3, 2\); transpose an array with one edge per row",
        ),
    ],
)
def test_matrices_that_do_not_fit_are_refused(data, edges, message):
    with pytest.raises((ValueError, TypeError), match=message):
        DIFFormer(F, 8, C)(data.x, edges)
    with pytest.raises((ValueError, TypeError), match=r"edge_weight goes with an edge_index|got"):
        DIFFormer(F, 8, C)(data.x, edges, torch.ones(3))


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@pytest.mark.parametrize("weighted", [False, True])
def test_snapshots_of_a_series_are_diffused_each_by_itself(data, diffusivity, weighted):
    x = torch.randn(4, N, F)
    weight = (torch.rand(data.num_edges) + 0.1).requires_grad_() if weighted else None
    model = DIFFormer(F, 8, C, diffusivity=diffusivity)
    wanted = torch.stack([model(snapshot, data.edge_index, weight) for snapshot in x])
    found = model(x, data.edge_index, weight)
    assert found.shape == (4, N, C)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(model(x), torch.stack([model(snapshot) for snapshot in x]))
    assert model.embed(x, data.edge_index).shape == (4, N, 8)
    if weight is not None:
        grads = [torch.autograd.grad(out.square().sum(), weight)[0] for out in (found, wanted)]
        torch.testing.assert_close(*grads)
    with pytest.raises(ValueError, match="batch must be left out"):
        model(x, batch=torch.zeros(4 * N, dtype=torch.long))


# Compilers


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_compiled_model_takes_a_sparse_adjacency(data, layout):
    torch._dynamo.reset()
    matrix = torch.sparse_coo_tensor(data.edge_index.flip(0), torch.ones(data.num_edges), (N, N)).coalesce()
    matrix = matrix if layout == "coo" else matrix.to_sparse_csr()
    model = DIFFormer(F, 8, C)
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(data.x, matrix), model(data.x, data.edge_index))


@pytest.mark.filterwarnings("ignore")
def test_compile_of_torch_geometric_gives_equal_outputs_and_gradients(data):
    import torch_geometric

    torch._dynamo.reset()
    model = DIFFormer(F, 8, C)
    compiled = torch_geometric.compile(model, backend="aot_eager", fullgraph=True)
    grads = []
    for call in (model, compiled):
        out = call(data.x, data.edge_index)
        grads.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_model_takes_graphs_of_any_size(data):
    torch._dynamo.reset()
    model = DIFFormer(F, 8, C, num_layers=1, diffusivity="identity")
    compiled = torch.compile(model, dynamic=True)
    torch.testing.assert_close(compiled(data.x, data.edge_index), model(data.x, data.edge_index))
    x, edges = torch.randn(9, F), torch.randint(0, 9, (2, 20))
    torch.testing.assert_close(compiled(x, edges), model(x, edges))


# Explainers


def explained(model, data, **options):
    from torch_geometric.explain import Explainer, GNNExplainer

    explainer = Explainer(
        model,
        algorithm=GNNExplainer(epochs=20),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
        **options,
    )
    return explainer(data.x, data.edge_index, index=3)


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = DIFFormerConv(-1, 8, residual=False), DIFFormerConv(8, 8)
        self.head = torch.nn.Linear(8, C)

    def forward(self, x, edge_index):
        return self.head(self.second(self.first(x, edge_index).relu(), edge_index))


@pytest.mark.parametrize("make", [lambda: DIFFormer(F, 8, C), Stack])
def test_explainer_learns_masks_for_edges_and_features(data, make):
    model = make()
    before = model(data.x, data.edge_index)
    found = explained(model, data, node_mask_type="attributes")
    assert found.edge_mask.shape == (data.num_edges,)
    assert found.edge_mask.unique().numel() > 10
    assert found.node_mask.unique().numel() > 10
    torch.testing.assert_close(model(data.x, data.edge_index), before)  # masks are cleared
    assert not any("edge_mask" in name for name in model.state_dict())


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_pgexplainer_reads_the_states_of_layers(data):
    from torch_geometric.explain import Explainer, PGExplainer
    from torch_geometric.utils import get_embeddings

    model = DIFFormer(F, 8, C)
    first, _ = get_embeddings(model, data.x, data.edge_index)
    z = model.encode(data.x)
    torch.testing.assert_close(first, model.layers[0](z, data.edge_index, source=z))
    explainer = Explainer(
        model,
        algorithm=PGExplainer(epochs=1),
        explanation_type="phenomenon",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    explainer.algorithm.train(0, model, data.x, data.edge_index, target=data.y, index=3)
    assert explainer(data.x, data.edge_index, target=data.y, index=3).edge_mask.any()
    assert not any(layer._forward_hooks for layer in model.layers)


def test_attentionexplainer_is_refused_with_an_alternative(data):
    from torch_geometric.explain import AttentionExplainer

    with pytest.raises(ValueError, match=r"AttentionExplainer needs .* use GNNExplainer or PGExplainer"):
        AttentionExplainer()(DIFFormer(F, 8, C), data.x, data.edge_index, target=data.y)


def test_fit_names_the_function_that_makes_a_task(data):
    from difformer.training import fit

    for given in (data, data.x.numpy()):
        with pytest.raises(ValueError, match=rf"got {type(given).__name__}; .*from_pyg\(data\).*from_arrays"):
            fit(given, seeds=1)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", None])
def test_masked_edges_send_nothing_and_weights_are_normalised_before(data, diffusivity):
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

    model = DIFFormer(F, 64, C, num_layers=1, diffusivity=diffusivity)
    mask = (torch.arange(data.num_edges) % 2).float()
    set_masks(model, mask, data.edge_index, apply_sigmoid=False)
    found = model(data.x, data.edge_index)
    assert "explainer" in model.explain(data.x, data.edge_index)[0] or diffusivity != "simple"
    clear_masks(model)
    layer = model.layers[0]
    z = model.encode(data.x)
    v = layer.values(z).squeeze(1)
    weight = Graph(data.edge_index, N).normalised_weights() * mask
    source, target = data.edge_index
    sent = torch.zeros_like(v).index_add(0, target, weight.unsqueeze(1) * v[source])
    p = sent
    if diffusivity is not None:
        alone = DIFFormer(F, 64, C, num_layers=1, diffusivity=diffusivity, graph_weight=None)
        alone.load_state_dict(model.state_dict())
        latent = alone.layers[0](z) * 2 - z  # without edges and source: (z + latent) / 2
        p = 0.2 * latent + 0.8 * sent
    wanted = model.decode(model.norms[0](0.5 * z + 0.5 * p + 0.1 * z))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, model(data.x, data.edge_index))


def test_an_edge_mask_reaches_only_layers_that_are_explained(data):
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

    model = DIFFormer(F, 8, C, num_layers=2)
    holders = [module for module in model.modules() if isinstance(module, MessagePassing)]
    assert len(holders) == 2
    plain = model(data.x, data.edge_index)
    for holder in holders:
        holder.explain = False
    set_masks(model, torch.zeros(data.num_edges), data.edge_index, apply_sigmoid=False)
    torch.testing.assert_close(model(data.x, data.edge_index), plain)
    for holder in holders:
        holder.explain = None
    set_masks(model, torch.zeros(3), data.edge_index, apply_sigmoid=False)
    with pytest.raises(ValueError, match=r"edge mask has shape \(3,\)"):
        model(data.x, data.edge_index)
    clear_masks(model)


def test_a_model_seen_by_an_explainer_is_copied_and_pickled_without_masks(data):
    model = DIFFormer(F, 8, C)
    list(model.modules())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(data.x, data.edge_index), model(data.x, data.edge_index))
    assert b"torch_geometric" not in pickle.dumps(model)


# GraphGym


@pytest.mark.filterwarnings("ignore")
def test_graphgym_knows_the_layer_by_name(data):
    from torch_geometric.graphgym import register
    from torch_geometric.graphgym.models.layer import LayerConfig

    import difformer.nn.graphgym  # noqa: F401

    layer = register.layer_dict["difformerconv"](LayerConfig(dim_in=F, dim_out=8), diffusivity="sigmoid")
    batch = Batch.from_data_list([data, data])
    out = layer(batch.clone()).x
    assert out.shape == (2 * N, 8)
    torch.testing.assert_close(out[:N], layer.model(data.x, data.edge_index))
