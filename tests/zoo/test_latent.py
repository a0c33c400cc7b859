"""Systems on latent graphs: each against the layer it is made of, a formula of its own, or what it must find."""

from functools import partial

import pytest
import torch
from problems import points, some_edges
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import GATConv, GCNConv

from difformer import Graph, zoo
from difformer.attention import Segments
from difformer.data import knn_graph, load
from difformer.nn.dropout import dropout_key
from difformer.sparse import SparseMatrix
from difformer.training import TrainConfig, train_one
from difformer.zoo.complete_graph import attend_all
from difformer.zoo.encoder import Observed
from difformer.zoo.glcn import weighted_distance
from difformer.zoo.lds import OuterStep, draw, network_states
from difformer.zoo.neighbour_graph import neighbour_graph


def made(name, **options):
    torch.manual_seed(0)
    return zoo.build(name, 6, 3, hidden_channels=16, **options).eval()


def gat_stack(model, x, edges, **options):
    """PyTorch Geometric's layers with the weights of one of ours."""
    z = x
    for k, layer in enumerate([*model.layers, model.last]):
        heads, channels = layer.shape
        conv = GATConv(z.shape[1], channels, heads, **options)
        conv.lin.weight.data = layer.linear.weight.data
        conv.att_src.data, conv.att_dst.data = layer.to_source.data[None], layer.to_target.data[None]
        last = k == len(model.layers)
        conv.bias.data = (model.bias if last else model.biases[k]).data
        z = conv(z, edges)
        z = z if last else functional.elu(z)
    return z


# ---- neighbours in feature space


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_gcn_knn_is_pygs_layers_on_the_neighbour_graph(layers):
    model, x = made("gcn-knn", num_layers=layers, k=4), points(30)
    edges = knn_graph(x, 4, include_self=True, symmetric=True)
    sizes = [6, *[16] * (layers - 1), 3]
    z = x
    for k in range(layers):
        conv, last = GCNConv(sizes[k], sizes[k + 1]), k == layers - 1
        conv.lin.weight.data = (model.output if last else model.hidden[k]).weight.data
        conv.bias.data = (model.output.bias if last else model.biases[k]).data
        z = conv(z, edges)
        z = z if last else z.relu()
    # What is observed does not matter.
    torch.testing.assert_close(model(x, some_edges(30, 60)), z, rtol=1e-5, atol=1e-6)


def test_gat_knn_is_pygs_layers_on_the_neighbour_graph():
    model, x = made("gat-knn", k=4), points(30)
    with torch.no_grad():
        for bias in (*model.biases, model.bias):
            bias.normal_()
    expected = gat_stack(model, x, knn_graph(x, 4, include_self=True, symmetric=True), add_self_loops=False)
    torch.testing.assert_close(model(x, some_edges(30, 60)), expected, rtol=1e-5, atol=1e-6)


def test_neighbours_are_searched_once_for_a_feature_matrix_and_within_graphs():
    search, x = partial(neighbour_graph, k=3), points(12)
    first = search(x)
    assert search(x) is first
    assert search(x, metric="euclidean") is not first
    sparse = SparseMatrix.from_tensor((x * (x > 0)).to_sparse())
    assert search(sparse) is search(sparse)
    x[0] += 5  # another matrix now
    again = search(x)
    assert again is not first
    torch.testing.assert_close(again.edge_index, knn_graph(x, 3, include_self=True, symmetric=True))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    batch = Segments(torch.tensor([0] * 7 + [1] * 5)[order])
    found = search(x[order], segments=batch).edge_index
    assert (batch.batch[found[0]] == batch.batch[found[1]]).all()
    alone = knn_graph(x[:7], 3, include_self=True, symmetric=True)
    inside = order[found[:, batch.batch[found[0]] == 0]]
    assert set(map(tuple, inside.T.tolist())) == set(map(tuple, alone.T.tolist()))
    assert search(x[order], segments=Segments(batch.batch.flip(0))).num_nodes == 12


# ---- dense graph attention


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_dense_gat_is_pygs_layers_on_the_complete_graph(layers):
    model, x = made("dense-gat", num_layers=layers, graph_weight=0.0), points(30)
    complete = torch.cartesian_prod(torch.arange(30), torch.arange(30)).T
    expected = gat_stack(model, x, complete, add_self_loops=False)
    torch.testing.assert_close(model(x, some_edges(30, 60)), expected, rtol=1e-5, atol=1e-6)


def test_dense_attention_by_sorting_is_the_dense_formula_with_its_gradients():
    g = torch.Generator().manual_seed(0)
    u, w, v = (torch.randn(2, 9, 3, *rest, generator=g, dtype=torch.float64) * 3 for rest in ((), (), (4,)))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    inputs = [x.requires_grad_() for x in (u, w, v)]
    scores = functional.leaky_relu(u.unsqueeze(2) + w.unsqueeze(1), 0.2)
    weights = torch.softmax(scores.masked_fill(~mask[:, None, :, None], -torch.inf), 2)
    dense = torch.einsum("gijh,gjhc->gihc", weights, v)
    found = attend_all(mask, u, w, v)
    probe = torch.randn(dense.shape, generator=g, dtype=torch.float64) * mask[..., None, None]
    torch.testing.assert_close(found[mask], dense[mask])
    for a, b in zip(*(torch.autograd.grad((x * probe).sum(), inputs) for x in (found, dense)), strict=True):
        torch.testing.assert_close(a, b)


def test_dense_attention_survives_large_scores_and_needs_no_pairs():
    u, w = torch.linspace(-300, 300, 50).view(1, 50, 1), torch.linspace(200, -400, 50).view(1, 50, 1)
    v = torch.randn(1, 50, 1, 2, generator=torch.Generator().manual_seed(0))
    scores = functional.leaky_relu(u.double().unsqueeze(2) + w.double().unsqueeze(1), 0.2)
    dense = torch.einsum("gijh,gjhc->gihc", torch.softmax(scores, 2), v.double())
    torch.testing.assert_close(attend_all(None, u, w, v), dense.float(), rtol=1e-4, atol=1e-5)
    many = 200_000  # 40 billion pairs
    assert attend_all(None, torch.zeros(1, many, 1), torch.zeros(1, many, 1), torch.ones(1, many, 1, 1)).allclose(
        torch.ones(()), atol=1e-3
    )


def test_dense_gat_mixes_in_observed_edges():
    x, edges = points(30), some_edges(30, 60)
    plain, mixed = made("dense-gat", num_layers=1), made("dense-gat", num_layers=1, graph_weight=0.3)
    observed = Graph(edges, 30).with_self_loops().propagate(x)
    torch.testing.assert_close(mixed.embed(x, edges), 0.7 * plain.embed(x) + 0.3 * observed, rtol=1e-5, atol=1e-6)


# ---- GLCN


def test_glcn_weighs_edges_by_the_learned_distance_and_rows_sum_to_one():
    model, x, edges = made("glcn", num_layers=1), points(30), some_edges(30, 60)
    graph = Graph(edges, 30).with_self_loops()
    p = model.project(x)
    scores = torch.relu(((p[:, None] - p[None]).abs() @ model.metric).squeeze(-1))
    joined = torch.zeros(30, 30)
    joined[graph.edge_index[1], graph.edge_index[0]] = 1
    s = joined * scores.exp()
    s = s / s.sum(1, keepdim=True)
    torch.testing.assert_close(model.embed(x, edges), s @ x, rtol=1e-5, atol=1e-6)
    # A constant comes back as itself: rows of S sum to one.
    ones = model.surroundings(x, Observed.of(x, graph)).propagate(torch.ones(30, 1))
    torch.testing.assert_close(ones, torch.ones(30, 1))
    distances = (p[:, None] - p[None]).square().sum(-1)
    expected = ((s * distances).sum() + model.sparsity * s.square().sum()) / 30
    model(x, edges)
    torch.testing.assert_close(model.penalty(), model.graph_loss * expected, rtol=1e-4, atol=1e-6)


def test_glcn_takes_all_pairs_where_there_are_no_edges():
    model, x = made("glcn"), points(30)
    complete = torch.cartesian_prod(torch.arange(30), torch.arange(30)).T
    torch.testing.assert_close(model(x), model(x, complete), rtol=1e-4, atol=1e-5)
    pairs = model.penalty()
    model(x)
    torch.testing.assert_close(model.penalty(), pairs, rtol=1e-4, atol=1e-5)


def test_the_weighted_distance_has_the_right_gradients_in_parts(monkeypatch):
    from difformer.diffusion.coupling import matrix

    monkeypatch.setattr(matrix, "EDGE_ENTRIES", 60)  # a few rows at a time
    g = torch.Generator().manual_seed(0)
    p = torch.randn(2, 7, 3, generator=g, dtype=torch.float64, requires_grad=True)
    a = torch.randn(3, generator=g, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(weighted_distance(p, a), (p[:, :, None] - p[:, None]).abs() @ a)
    assert torch.autograd.gradcheck(weighted_distance, (p, a))


class LargestResult(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("compiling", [False, True])
def test_the_weighted_distance_never_holds_all_differences(compiling, monkeypatch):
    from difformer.diffusion.coupling import matrix

    monkeypatch.setattr(matrix, "EDGE_ENTRIES", 2 * 200)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    p, a = torch.randn(1, 20, 10, requires_grad=True), torch.rand(10, requires_grad=True)
    with LargestResult() as largest:
        weighted_distance(p, a).sum().backward()
    assert largest.numel == 20 * 20  # S itself; all differences are 20 * 20 * 10


# ---- LDS


def test_lds_follows_the_gradient_through_the_inner_training():
    torch.manual_seed(0)
    outer = OuterStep((4, 5, 2), rate=0.01, inner_steps=3, inner_rate=0.5, restart_every=100).double()
    x = points(8, 4).double()
    y = torch.arange(8) % 2
    index = torch.tensor([0, 1, 2, 3, 4, 5])
    theta = (torch.rand(8, 8, generator=torch.Generator().manual_seed(3)) < 0.4).double().triu(1)
    theta = theta + theta.T  # certain edges: what is drawn is θ itself
    outer._restart()
    outer.steps += 1
    start = [getattr(outer, name).clone() for name in outer.names]
    inner, held = outer.halves(y[index])
    assert sorted(torch.cat([inner, held]).tolist()) == list(range(6))

    def reached(a):
        flat = [tensor.clone().requires_grad_() for tensor in start]
        for k in range(4):
            part = held if k == 3 else inner
            states = network_states(list(zip(flat[:-2:2], flat[1:-2:2], strict=True)), x, a)
            loss = functional.cross_entropy(states[index[part]] @ flat[-2] + flat[-1], y[index[part]])
            if k == 3:
                return loss.detach()
            slopes = torch.autograd.grad(loss, flat)
            flat = [(w - 0.5 * s).detach().requires_grad_() for w, s in zip(flat, slopes, strict=True)]

    expected = torch.zeros_like(theta)
    for i in range(8):
        for j in range(i):
            moved = torch.zeros_like(theta)
            moved[i, j] = moved[j, i] = 1e-5
            expected[i, j] = expected[j, i] = (reached(theta + moved) - reached(theta - moved)) / 2e-5
    before = theta.clone()
    outer.step(theta, x, index, y[index])
    torch.testing.assert_close(theta, (before - 0.01 * expected).clamp(0, 1), rtol=1e-4, atol=1e-7)


def test_lds_moves_along_the_same_gradient_for_sparse_features():
    y, index = torch.arange(20) % 2, torch.arange(12)
    x = points(20, 4).double()
    x = x * (x > 0)
    start = (torch.rand(20, 20, generator=torch.Generator().manual_seed(3)) * 0.6).double().triu(1)
    moved = []
    for features in (x, x.to_sparse(), SparseMatrix.from_tensor(x.to_sparse())):
        torch.manual_seed(0)
        outer = OuterStep((4, 5, 2), rate=5.0, inner_steps=3, inner_rate=0.5, restart_every=100).double()
        moved.append(start + start.T)
        outer.step(moved[-1], features, index, y[index])
    assert not torch.allclose(moved[0], start + start.T, atol=1e-3)
    for theta in moved[1:]:
        torch.testing.assert_close(theta, moved[0])


def test_lds_draws_symmetric_graphs_with_their_probabilities():
    theta = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).triu(1)
    theta = theta + theta.T
    g = torch.Generator().manual_seed(1)
    drawn = torch.stack([draw(theta, g) for _ in range(3000)])
    assert torch.equal(drawn, drawn.mT)
    torch.testing.assert_close(drawn.mean(0), theta, rtol=0, atol=0.04)


def test_lds_raises_the_probability_of_planted_edges():
    # Classes that only their edges tell apart, half of which are hidden from the model.
    task = load("sbm", num_nodes=120, num_classes=3, average_degree=12, homophily=0.9, num_features=12, signal=2.0,
                fractions=(0.5, 0.2, 0.3), self_loops=False)  # fmt: skip
    edges = task.edge_index[:, task.edge_index[0] < task.edge_index[1]]
    seen = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(0)) < 0.5
    hidden = edges[:, ~seen]
    given = edges[:, seen]
    torch.manual_seed(0)
    model = zoo.build("lds", 12, 3, hidden_channels=16, outer_every=1, outer_rate=5.0, inner_rate=0.5).train()
    model.observe(task.y, task.splits[0].train)
    graph = Graph(torch.cat([given, given.flip(0)], 1), 120)
    for _ in range(60):
        model(task.x, graph)
    same = task.y[:, None] == task.y
    apart = torch.ones(120, 120, dtype=torch.bool).triu(1)
    apart[given[0], given[1]] = False
    planted = model.theta[hidden[0], hidden[1]][task.y[hidden[0]] == task.y[hidden[1]]]
    assert planted.mean() > 5 * model.theta[apart & ~same].mean()
    assert planted.mean() > 0.01
    # Edges that were given, but join different classes, lose against those that do not.
    kept = model.theta[given[0], given[1]]
    inside = task.y[given[0]] == task.y[given[1]]
    assert kept[inside].mean() > kept[~inside].mean()
    assert torch.equal(model.theta, model.theta.T)


def test_lds_accepts_its_own_and_new_nodes_and_refuses_others():
    task = load("sbm", num_nodes=40, num_classes=2, num_features=6)
    config = TrainConfig(model="lds", options={"hidden_channels": 8}, epochs=3)
    record = train_one(task, 0, config, 0, "cpu")
    assert record.state["theta"].shape == (40, 40)
    again = zoo.build("lds", 6, 2, hidden_channels=8).eval()
    again.load_state_dict(record.state)
    graph = Graph(task.edge_index, 40)
    torch.testing.assert_close(again(task.x, graph), record.outputs)
    more = torch.cat([task.x, points(2)])
    edges = torch.cat([task.edge_index, torch.tensor([[0, 40], [40, 0]])], 1)
    assert again(more, edges).shape == (42, 2)
    assert not torch.allclose(again(more, edges)[0], record.outputs[0])  # a new neighbour
    torch.testing.assert_close(again(more, task.edge_index)[:40], record.outputs)
    with pytest.raises(ValueError, match="learned the edges of 40 nodes, got 39 rows"):
        again(task.x[:39])
    with pytest.raises(ValueError, match="the first 40 rows differ"):
        again(task.x.flip(0) + 1)
    with pytest.raises(ValueError, match="neither batches of graphs nor series"):
        again(task.x, batch=torch.arange(2).repeat_interleave(20))
    with pytest.raises(ValueError, match="one class number per instance"):
        again.observe(torch.zeros(40, 2), torch.arange(4))


@pytest.mark.parametrize(("name", "what"), [("lds", "edge probabilities"), ("glcn", "pairs")])
def test_graphs_that_do_not_fit_in_memory_are_refused(name, what, monkeypatch):
    from difformer.zoo import encoder as inputs

    monkeypatch.setattr(inputs, "free_bytes", lambda device: 2**30)
    x = -torch.ones(20_000, 3)
    with pytest.raises(MemoryError, match=rf"{what}.* needs about [\d,.]+ GiB, and 1.0 GiB are free on cpu"):
        zoo.build(name, 3, 2, hidden_channels=4).train()(x)


@pytest.mark.parametrize(("machine", "said"), [(8, "; do less, or use device='cpu', where 8.0 GiB"), (3, "; do less$")])
def test_cpu_is_suggested_when_its_memory_suffices(machine, said, monkeypatch):
    from difformer.zoo import encoder as inputs

    monkeypatch.setattr(inputs, "free_bytes", lambda device: 2**30 * (machine if device.type == "cpu" else 1))
    with pytest.raises(MemoryError, match=f"needs about 4.0 GiB, and 1.0 GiB are free on cuda{said}"):
        inputs.refuse_beyond_memory(4 * 2**30, torch.device("cuda"), "it", "do less")


def test_device_memory_is_not_queried_while_work_is_recorded(monkeypatch):
    from difformer.zoo import encoder as inputs

    asked = []
    monkeypatch.setattr(inputs, "free_bytes", lambda device: asked.append(device) or 2**40)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for recording in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=recording: now)
        inputs.refuse_beyond_memory(2.0**32, torch.device("cuda"), "it", "do less")
        assert len(asked) == (0 if recording else 1)


def test_validation_labels_reach_lds_valid_and_no_other_system():
    from test_zoo import nodes_task

    task = nodes_task()
    changed = task.y.clone()
    changed[task.splits[0].valid] = (changed[task.splits[0].valid] + 1) % 3
    found = {}
    for name in ("lds", "lds-valid"):
        for labels in (task.y, changed):
            options = {"outer_every": 1, "outer_rate": 5.0, "hidden_channels": 8}
            torch.manual_seed(0)
            model = zoo.build(name, 6, 3, **options).train()
            model.observe(task.y, task.splits[0].train)
            if model.observe_validation is not None:
                model.observe_validation(labels, task.splits[0].valid)
            for step in range(3):
                with dropout_key(0, step):
                    model(task.x, task.edge_index)
            found.setdefault(name, []).append(model.theta)
    assert torch.equal(*found["lds"])
    assert not torch.allclose(*found["lds-valid"])
    model = made("lds-valid").train()
    model.observe(task.y, task.splits[0].train)
    with pytest.raises(ValueError, match="lds-valid needs validation labels"):
        model(task.x, task.edge_index)


def test_lds_draws_by_seed_and_epoch_whatever_torchs_generator_does():
    x, edges, y = points(30), some_edges(30, 60), torch.arange(30) % 3
    found = []
    for noise in (1, 2):
        torch.manual_seed(0)
        model = zoo.build("lds", 6, 3, hidden_channels=8, outer_every=1, restart_every=1).train()
        model.observe(y, torch.arange(20))
        torch.manual_seed(noise)
        with dropout_key(3, 7):
            found.append((model(x, edges), model.theta))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
