"""What holds for every system of the catalogue; what makes each of them itself is tested in its group's own file."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch

from difformer import Graph, zoo
from difformer.data import Split, Task
from difformer.nn import Model
from difformer.nn.dropout import dropout_key
from difformer.sparse import SparseMatrix
from difformer.training import TrainConfig, embed, fit, predict, train_one
from difformer.training.journal import Run
from difformer.training.model import build_model, hook
from difformer.training.stack import train_stacked
from difformer.zoo.linear_maps import linear
from difformer.zoo.model_catalogue import ALL_KINDS
from difformer.zoo.model_registry import model_class, parameters_of

TRAINED = [name for name in zoo.MODELS if list(zoo.build(name, 6, 3, hidden_channels=8).parameters())]
BATCHED = [name for name in zoo.MODELS if "graphs" in zoo.MODELS[name].kinds]
SERIES = [name for name in zoo.MODELS if "series" in zoo.MODELS[name].kinds]
STACKABLE = [name for name in zoo.MODELS if zoo.MODELS[name].stackable]


def problem(nodes=20, features=6, edges=50, seed=0):
    """Features, and an undirected graph with self-loops at some nodes."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=generator)
    both = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    return torch.randn(nodes, features, generator=generator), both


def made(name, **options):
    torch.manual_seed(0)
    return zoo.build(name, 6, 3, hidden_channels=8, **options).eval()


def observed(model, nodes):
    if (observe := hook(model, "observe")) is not None:
        observe(torch.arange(nodes) % 3, torch.arange(nodes // 2))
    if (observe := hook(model, "observe_validation")) is not None:
        observe(torch.arange(nodes) % 3, torch.arange(nodes // 2, nodes))
    return model


def nodes_task(seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(30) % 3
    x, edge_index = problem(30, edges=60, seed=seed)
    order = torch.randperm(30, generator=g)
    split = Split("s", order[:12], order[12:20], order[20:])
    features = x + torch.nn.functional.one_hot(y, 6)
    task = ("t", "nodes", "multiclass", "accuracy", "a test", features, y, (split,), 3)
    return Task(*task, edge_index=edge_index)


def series_task():
    x = torch.randn(6, 5, 6, generator=torch.Generator().manual_seed(0))
    _, edge_index = problem(5, edges=6)
    split = Split("time", torch.arange(3), torch.arange(3, 5), torch.arange(5, 6))
    return Task("s", "series", "regression", "mse", "a test", x, x.mean(-1), (split,), 1, edge_index=edge_index)


def graphs_task():
    g = torch.Generator().manual_seed(0)
    sizes = torch.tensor([3, 5, 4, 6, 3, 4, 7, 5])
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    parts = [problem(int(n), edges=4, seed=k)[1] + ptr[k] for k, n in enumerate(sizes)]
    split = Split("s", torch.arange(4), torch.arange(4, 6), torch.arange(6, 8))
    x = torch.randn(int(ptr[-1]), 6, generator=g)
    y = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]).float().unsqueeze(1)
    task = ("g", "graphs", "multilabel", "rocauc", "a test", x, y, (split,), 1)
    return Task(*task, edge_index=torch.cat(parts, 1), node_ptr=ptr)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_model_follows_the_protocol(name):
    model = observed(made(name), 20)
    assert isinstance(model, Model)
    x, edge_index = problem()
    out = model(x, Graph(edge_index, 20))
    assert out.shape == (20, 3)
    assert out.isfinite().all()
    torch.testing.assert_close(model.decode(model.embed(x, edge_index)), out, rtol=1e-4, atol=1e-5)
    weight = torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(1)) + 0.5
    assert model(x, edge_index, weight).isfinite().all()
    assert model(x).isfinite().all()  # a graph without edges is one too


@pytest.mark.parametrize("name", TRAINED)
def test_sparse_features_give_the_outputs_of_dense_ones(name):
    model = observed(made(name), 20)
    x, edge_index = problem()
    x = x * (torch.rand(20, 6, generator=torch.Generator().manual_seed(2)) < 0.3)
    sparse = SparseMatrix.from_tensor(x.to_sparse())
    for features in (sparse, x.to_sparse(), x.to_sparse_csr()):
        torch.testing.assert_close(model(features, edge_index), model(x, edge_index), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.embed(sparse, edge_index), model.embed(x, edge_index), rtol=1e-4, atol=1e-5)
    assert model.train()(sparse, edge_index).isfinite().all()  # where there is dropout, it meets sparse features


@pytest.mark.parametrize("name", zoo.MODELS)
def test_changed_edges_of_a_graph_change_the_outputs(name):
    model = observed(made(name, **({"pretraining": 0} if name == "cpgnn" else {})), 20)
    if name == "cpgnn":
        torch.nn.init.normal_(model.compatibility)
        model.passes.fill_(1)
    x, edge_index = problem()
    other = edge_index.roll(3, 1)
    other = torch.stack([other[0], edge_index[1]])
    written, assigned = Graph(edge_index.clone(), 20), Graph(edge_index.clone(), 20)
    model(x, written), model(x, assigned)
    written.edge_index.copy_(other)
    assigned.edge_index = other
    expected = model(x, Graph(other, 20))
    torch.testing.assert_close(model(x, written), expected)
    torch.testing.assert_close(model(x, assigned), expected)


@pytest.mark.parametrize("name", BATCHED)
def test_a_graph_in_a_batch_gets_the_same_answer_as_alone(name):
    model = made(name)
    sizes = [7, 20, 1, 12]
    graphs = [problem(n, edges=2 * n, seed=n) for n in sizes]
    graphs[3] = graphs[3][0], torch.empty(2, 0, dtype=torch.long)  # one without edges among others
    alone = torch.cat([model(x, edges) for x, edges in graphs])
    batch = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    starts = torch.tensor([0, *sizes]).cumsum(0)
    edges = torch.cat([edges + start for (_, edges), start in zip(graphs, starts, strict=False)], 1)
    x = torch.cat([x for x, _ in graphs])
    torch.testing.assert_close(model(x, edges, batch=batch), alone, rtol=1e-4, atol=1e-5)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))  # rows in any order
    place = torch.argsort(order)
    shuffled = model(x[order], Graph(place[edges], 40), batch=batch[order])
    torch.testing.assert_close(shuffled, alone[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_is_trained(name):
    # Some train a part of themselves before the rest.
    options = {key: 0 for key in ("local_passes", "pretraining") if key in zoo.options_of(name)}
    config = TrainConfig(model=name, options=options, epochs=2, learning_rate=0.01)
    record = train_one(nodes_task(), 0, config, 0, "cpu")
    assert record.outputs.isfinite().all()
    torch.manual_seed(0)
    before = dict(build_model(nodes_task(), config).named_parameters())
    assert [key for key, value in before.items() if torch.equal(record.state[key], value)] == []


@pytest.mark.parametrize("name", SERIES)
def test_models_for_series_train_on_a_series(name):
    record = train_one(series_task(), 0, TrainConfig(model=name, epochs=2, learning_rate=0.01), 0, "cpu")
    assert record.outputs.shape == (6, 5, 1)
    assert record.outputs.isfinite().all()


@pytest.mark.parametrize("name", BATCHED)
def test_models_for_graphs_train_on_graphs(name):
    config = TrainConfig(model=name, epochs=2, batch_size=3, learning_rate=0.01)
    record = train_one(graphs_task(), 0, config, 0, "cpu")
    assert record.outputs.shape == (8, 1)
    assert record.outputs.isfinite().all()


@pytest.mark.parametrize("name", zoo.MODELS)
def test_a_run_predicts_and_embeds(name, tmp_path):
    task = nodes_task()
    summary = fit(task, TrainConfig(model=name, epochs=1), seeds=1, device="cpu", out=tmp_path / "run")
    found = predict(tmp_path / "run", task=task, device="cpu")
    assert found.outputs.shape == (30, 3)
    assert embed(tmp_path / "run", task=task, device="cpu").shape[0] == 30
    valid = task.splits[0].valid
    accuracy = (found.outputs[valid].argmax(1) == task.y[valid]).float().mean()
    assert float(accuracy) == pytest.approx(summary.mean("valid"), abs=1e-6)
    new = predict(tmp_path / "run", task.x[:2], edges=[[30, 0, 31, 1], [0, 30, 1, 31]], task=task, device="cpu")
    assert new.outputs.shape == (2, 3)
    assert new.outputs.isfinite().all()


@pytest.mark.parametrize("name", zoo.MODELS)
def test_unsupported_tasks_are_refused(name):
    for task in (nodes_task(), series_task(), graphs_task()):
        if task.kind in zoo.MODELS[name].kinds:
            build_model(task, TrainConfig(model=name))
        else:
            with pytest.raises(ValueError, match=f"serves .*; task {task.name!r} is {task.kind!r}"):
                build_model(task, TrainConfig(model=name))


@pytest.mark.parametrize("name", STACKABLE)
@pytest.mark.parametrize("task", [nodes_task(), series_task()], ids=["nodes", "series"])
def test_stacked_runs_equal_single_runs(name, task):
    if task.kind not in zoo.MODELS[name].kinds:
        pytest.skip(f"{name} does not serve {task.kind}")
    config = TrainConfig(model=name, epochs=3, learning_rate=0.01, weight_decay=0.01)
    own = {key: (0.2, 0.5) for key in ("dropout", "step_size") if key in zoo.options_of(name)}
    configs = [config.replace(options={key: values[k] for key, values in own.items()}) for k in range(2)]
    runs = [Run(seed, 0, own) for seed, own in enumerate(configs)]
    for run, record in zip(runs, train_stacked(task, runs, "cpu"), strict=True):
        alone = train_one(task, 0, run.config, run.seed, "cpu")
        torch.testing.assert_close(record.outputs, alone.outputs, rtol=1e-3, atol=1e-4)
        assert record.best_epoch == alone.best_epoch


@pytest.mark.parametrize("name", zoo.MODELS)
def test_a_model_can_be_sent_to_another_process(name):
    model = observed(made(name), 20)
    x, edge_index = problem()
    expected = model(x, Graph(edge_index, 20))
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(x, edge_index), expected)


@pytest.mark.parametrize("name", ["gat", "glcn", "nodeformer"])
def test_attention_along_edges_can_be_exported(name):
    model, (x, edge_index) = made(name), problem()
    with torch.no_grad():
        program = torch.export.export(model, (x, edge_index)).module()
        torch.testing.assert_close(program(x, edge_index), model(x, edge_index))


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("gccn", {}, "unknown model 'gccn'; did you mean 'gcn'"),
        ("gcn", {"hiden_channels": 3}, "has no option 'hiden_channels'; did you mean 'hidden_channels'"),
        ("difformer-s", {"diffusivity": "sigmoid"}, "fixes diffusivity='simple'; use model 'difformer'"),
    ],
)
def test_unknown_names_are_explained(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        zoo.build(name, 6, 3, **options)


def test_options_keep_their_old_names_in_run_folders():
    assert zoo.build("gcn-knn", 6, 3, metric="euclidean").knn_metric == "euclidean"
    with pytest.raises(ValueError, match="has no option 'metric'"):
        zoo.build("mlp", 6, 3, metric="cosine")


def test_the_catalogue_is_complete():
    training = {field.name for field in dataclasses.fields(TrainConfig)}
    for info in zoo.MODELS.values():
        assert info.about.endswith((".", "…"))
        assert info.trained == (info.name in TRAINED)
        assert set(info.kinds) <= set(ALL_KINDS)
        options = zoo.options_of(info.name)
        assert options["hidden_channels"] == 64
        assert not set(options) & training, info.name  # --set could not tell them apart
        assert {*info.fixed, *info.defaults} <= set(parameters_of(model_class(info)))
        documented = "".join(one.__doc__ or "" for one in model_class(info).__mro__[:-2])
        assert [option for option in options if f"{option}: " not in documented] == [], info.name
        assert info.space, info.name
        for settings in (info.space, *info.published.values()):
            assert set(settings) <= {*options, *training}, info.name
        for key, value in [(key, value) for key, values in info.space.items() for value in values]:
            if key in options and key not in ("num_heads", "output_heads", "hidden_channels"):
                zoo.build(info.name, 6, 3, **{key: value})  # every value of the space is one that the model takes
        for settings in info.published.values():
            zoo.build(info.name, 6, 3, **{key: value for key, value in settings.items() if key in options})


@pytest.mark.parametrize("name", [name for name in zoo.MODELS if "nodes" in zoo.MODELS[name].kinds])
def test_every_system_trains_in_reduced_precision(name):
    config = TrainConfig(model=name, epochs=2, precision="bf16")
    for x in (nodes_task().x, nodes_task().x.relu().to_sparse_csr()):
        task = dataclasses.replace(nodes_task(), x=x)
        alone = train_one(task, 0, config, 0, "cpu")
        assert math.isfinite(alone.loss)
        if zoo.MODELS[name].stackable:
            stacked = train_stacked(task, [Run(0, 0, config)], "cpu")[0]
            assert stacked.loss == pytest.approx(alone.loss, rel=0.05)


def test_feature_dropout_draws_one_mask_for_any_rate_and_layout():
    layer = torch.nn.Linear(6, 2)
    for x in (nodes_task().x, nodes_task().x.relu().to_sparse_csr()):
        for rate in (0.0, 0.5):
            with dropout_key(0) as place:
                linear(layer, x, rate, True)
                assert place.site == 1
                linear(layer, x, rate, False)
                assert place.site == 1


@pytest.mark.parametrize("name", ["glcn", "nodeformer", "cpgnn"])
def test_a_model_can_be_copied_after_a_pass_with_gradients(name):
    """Averages of weights and callbacks copy models between passes; the last pass's penalty is not part of one."""
    model = zoo.build(name, 6, 3, hidden_channels=4)
    x, edges = torch.rand(8, 6), torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]])
    if hasattr(model, "observe"):
        model.observe(torch.arange(8) % 3, torch.arange(4))
    model(x, edges).sum().backward()
    other = copy.deepcopy(model)
    for value, again in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(value, again)
    torch.testing.assert_close(other.eval()(x, edges), model.eval()(x, edges))
