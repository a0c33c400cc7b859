import copy
import dataclasses

import pytest
import torch
from torch import nn

from difformer import DIFFormer, Graph
from difformer.data import Split, Task
from difformer.training import feeds
from difformer.training.config import TrainConfig
from difformer.training.feeds import BatchesFeed, embed_in_batches

CPU = torch.device("cpu")


def inputs(n=103, features=6, weighted=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, features, generator=generator)
    edges = torch.randint(n, (2, 400), generator=generator)
    edges = edges[:, edges[1] != 5]  # a node that receives nothing
    weight = torch.rand(edges.shape[1], generator=generator) if weighted else None
    return x, Graph(edges, n, weight)


def model(**options):
    torch.manual_seed(1)
    return DIFFormer(6, 8, 3, num_layers=3, **options).eval()


@pytest.mark.parametrize(
    "options",
    [
        {"diffusivity": "simple"},
        {"diffusivity": "simple", "qk_norm": "global", "num_heads": 2},
        {"diffusivity": "simple", "qk_norm": "none", "transform": False, "source_weight": 0.3},
        {
            "diffusivity": "simple",
            "graph_weight": 0.7,
            "norm": False,
            "activation": "relu",
            "graph_norm": "random_walk",
        },
        {"diffusivity": "constant", "num_heads": 2},
        {"diffusivity": "identity"},
        {"diffusivity": None},
        {"diffusivity": "sigmoid", "num_heads": 2, "tied_qk": True},
        {"diffusivity": "softmax", "qk_norm": "global", "residual": False},
        {"diffusivity": "gaussian"},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [1, 32, 1000])
def test_batches_of_rows_give_the_forward_pass(options, batch_size):
    net = model(**options)
    x, graph = inputs(weighted=True)
    tolerance = 1e-5
    if options.get("qk_norm") == "none":  # without a norm, sums of positive and negative scores nearly cancel
        net, x, graph, tolerance = net.double(), x.double(), inputs()[1], 1e-9
    near = {"atol": tolerance, "rtol": tolerance}
    with torch.no_grad():
        for structure in (graph, None):
            states = embed_in_batches(net, x, structure, batch_size=batch_size, device=CPU, storage=CPU)
            torch.testing.assert_close(states, net.embed(x, structure), **near)
            outputs = torch.cat([net.decode(rows) for rows in states.split(batch_size)])
            torch.testing.assert_close(outputs, net(x, structure), **near)


EVERY = ["simple", "constant", "identity", None, "sigmoid", "softmax", "gaussian", "gaussian:0.1", "gaussian:0.5"]


@pytest.mark.parametrize("qk_norm", ["row", "global", "none"])
@pytest.mark.parametrize("name", EVERY)
def test_chunks_equal_the_full_pass_for_every_diffusivity(name, qk_norm):
    """With default weights, and with weights so large that scores overflow unless the largest one is taken out."""
    net = model(diffusivity=name, qk_norm=qk_norm, num_heads=2)
    x, graph = inputs(n=200)
    for scale in (1, 30):
        with torch.no_grad():
            for layer in net.layers:
                for part in (layer.query, layer.key):
                    if part is not None:
                        part.weight.mul_(scale)
            for structure in (graph, None):
                states = embed_in_batches(net, x, structure, batch_size=33, device=CPU, storage=CPU)
                assert states.isfinite().all()
                wide, given = copy.deepcopy(net).double(), x.double()
                # In double precision: unnormalised scores of a hundred lose five digits when they are exponentiated.
                if structure is not None:
                    structure = Graph(graph.edge_index, graph.num_nodes)
                states = embed_in_batches(wide, given, structure, batch_size=33, device=CPU, storage=CPU)
                torch.testing.assert_close(states, wide.embed(given, structure), atol=1e-9, rtol=1e-9)
                outputs = torch.cat([wide.decode(rows) for rows in states.split(33)])
                assert torch.equal(outputs.argmax(-1), wide(given, structure).argmax(-1))


def test_a_diffusivity_is_evaluated_by_its_function_not_by_its_name():
    from difformer.diffusion import Diffusivity

    own = Diffusivity("simple", f=lambda u: torch.exp(-3 * u))
    net = model(diffusivity=own)
    x, graph = inputs()
    with torch.no_grad():
        full = net.embed(x, graph)
        assert not torch.allclose(full, model(diffusivity="simple").embed(x, graph), atol=1e-3)
        states = embed_in_batches(net, x, graph, batch_size=20, device=CPU, storage=CPU)
        torch.testing.assert_close(states, full, atol=1e-5, rtol=1e-5)
    feed = BatchesFeed(a_task(), a_task().splits[0], TrainConfig(batch_size=25), 0, CPU)
    assert feed._rows(net) == 25


def test_a_replaced_layer_is_evaluated_in_one_pass():
    class Own(torch.nn.Module):
        def forward(self, z, edge_index=None, edge_weight=None, batch=None, *, source=None):
            return z - z.mean(0)

    task, net = a_task(), model()
    net.layers[1] = Own()
    feed = BatchesFeed(task, task.splits[0], TrainConfig(batch_size=25), 0, CPU)
    with torch.no_grad():
        torch.testing.assert_close(feed.outputs(net), net(task.x, task_graph(task)))


class Centred(nn.Module):
    """Looks at all rows at once."""

    def forward(self, z):
        return z - z.mean(0)


class Shifted(DIFFormer):
    def advance(self, k, z, *rest, **options):
        return super().advance(k, z - z.mean(0), *rest, **options)


def change(net, what):
    layer = net.layers[0]
    if what == "pre-hook":
        layer.register_forward_pre_hook(lambda module, given: (given[0] * 3, *given[1:]))
    elif what == "hook of the model":
        net.register_forward_hook(lambda module, given, out: out * 3)
    elif what == "method of the instance":
        forward = layer.forward
        layer.forward = lambda z, *rest, **options: forward(z * 3, *rest, **options)
    elif what in ("value", "query"):
        setattr(layer, what, nn.Sequential(getattr(layer, what), Centred()))
    elif what == "norms":
        net.norms[0] = Centred()
    else:
        setattr(net, what, nn.Sequential(getattr(net, what), Centred()))


@pytest.mark.parametrize(
    "what", ["pre-hook", "hook of the model", "method of the instance", "value", "norms", "input", "output"]
)
@pytest.mark.parametrize("room", [True, False])
def test_a_changed_model_is_evaluated_in_one_pass(what, room, monkeypatch):
    net = model()
    assert feeds.can_chunk(net)
    change(net, what)
    assert_feed_gives_the_forward_pass(net, room, monkeypatch)


def test_a_subclass_is_evaluated_in_one_pass(monkeypatch):
    torch.manual_seed(1)
    assert_feed_gives_the_forward_pass(Shifted(6, 8, 3, num_layers=3).eval(), False, monkeypatch)


def assert_feed_gives_the_forward_pass(net, room, monkeypatch):
    assert not feeds.can_chunk(net)
    monkeypatch.setattr(feeds, "has_room", lambda device, needed: room)
    task = a_task()
    feed = BatchesFeed(task, task.splits[0], TrainConfig(batch_size=25), 0, CPU)
    with torch.no_grad():
        torch.testing.assert_close(feed.outputs(net), net(task.x, task_graph(task)), atol=1e-5, rtol=1e-5)


def test_sparse_features_and_edgeless_graphs():
    net = model()
    x = inputs()[0] * (torch.rand(103, 6) < 0.3)
    empty = Graph(torch.empty(2, 0, dtype=torch.long), 103)
    with torch.no_grad():
        states = embed_in_batches(net, x.to_sparse_csr(), empty, batch_size=10, device=CPU, storage=CPU)
        torch.testing.assert_close(states, net.embed(x), atol=1e-5, rtol=1e-5)


def test_double_precision_stays():
    net = model().double()
    x, graph = inputs()
    with torch.no_grad():
        states = embed_in_batches(net, x.double(), graph, batch_size=10, device=CPU, storage=CPU)
        torch.testing.assert_close(states, net.embed(x.double(), graph), atol=1e-12, rtol=1e-12)


def test_batches_of_training_hold_their_own_edges_and_labels():
    x, graph = inputs()
    y = torch.arange(103) % 3
    parts = torch.arange(103).split([40, 30, 33])
    task = Task("t", "nodes", "multiclass", "accuracy", "", x, y, (Split("s", *parts),), 3, edge_index=graph.edge_index)
    feed = BatchesFeed(task, task.splits[0], TrainConfig(batch_size=25), 0, CPU)
    seen = torch.cat([step.targets for step in feed.steps(3)])
    assert seen.numel() == 40
    assert sum(step.part for step in feed.steps(3)) == pytest.approx(1)
    again = [step.inputs.x for step in feed.steps(3)]
    assert all(torch.equal(a, step.inputs.x) for a, step in zip(again, feed.steps(3), strict=True))
    assert not torch.equal(again[0], next(feed.steps(4)).inputs.x)
    for step in feed.steps(1):
        nodes = torch.cdist(step.inputs.x, x).argmin(1)
        assert torch.equal(step.targets, y[nodes[step.rows]])
        kept = {(int(nodes[i]), int(nodes[j])) for i, j in step.inputs.graph.edge_index.T}
        inside = torch.isin(graph.edge_index, nodes).all(0)
        assert kept == {(int(i), int(j)) for i, j in graph.edge_index[:, inside].T}


@pytest.mark.parametrize("name", ["difformer-s", "difformer-a", "gcn"])
def test_full_graph_inference_of_a_mini_batch_feed(name, monkeypatch):
    from difformer.zoo import build

    monkeypatch.setattr(feeds, "LEAST_ROWS", 7)
    x, graph = inputs()
    parts = torch.arange(103).split([40, 30, 33])
    y = torch.arange(103) % 3
    task = Task("t", "nodes", "multiclass", "accuracy", "", x, y, (Split("s", *parts),), 3, edge_index=graph.edge_index)
    feed = BatchesFeed(task, task.splits[0], TrainConfig(batch_size=25), 0, CPU)
    net = build(name, 6, 3, hidden_channels=8).eval()
    with torch.no_grad():
        torch.testing.assert_close(feed.outputs(net), net(x, graph), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(feed.states(net), net.embed(x, graph), atol=1e-5, rtol=1e-5)
        without = BatchesFeed(
            dataclasses.replace(task, edge_index=None), task.splits[0], TrainConfig(batch_size=9), 0, CPU
        )
        torch.testing.assert_close(without.outputs(net), net(x), atol=1e-5, rtol=1e-5)


def a_task(sparse=False):
    x, graph = inputs(weighted=True)
    parts = torch.arange(103).split([40, 30, 33])
    x = x.to_sparse_csr() if sparse else x
    structure = {"edge_index": graph.edge_index, "edge_weight": graph.edge_weight}
    return Task(
        "t", "nodes", "multiclass", "accuracy", "", x, torch.arange(103) % 3, (Split("s", *parts),), 3, **structure
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("options", [{}, {"diffusivity": "sigmoid", "num_heads": 2}], ids=str)
def test_one_pass_equals_evaluation_in_batches(sparse, options, monkeypatch):
    task, net = a_task(sparse), model(**options)
    monkeypatch.setattr(feeds, "LEAST_ROWS", 7)
    both = [BatchesFeed(task, task.splits[0], TrainConfig(batch_size=25), 0, CPU) for _ in range(2)]
    with torch.no_grad():
        wanted = both[0].outputs(net)
        monkeypatch.setattr(feeds, "has_room", lambda device, needed: True)
        monkeypatch.setattr(feeds, "embed_in_batches", None)
        torch.testing.assert_close(both[1].outputs(net), wanted, atol=1e-5, rtol=1e-5)
        assert both[1].states(net).shape == (103, 8)


@pytest.mark.parametrize("backend", ["reference", "polynomial"])
def test_backends_that_hold_pairs_or_approximate_are_never_evaluated_in_one_pass(backend, monkeypatch):
    monkeypatch.setattr(feeds, "has_room", lambda device, needed: True)
    task, net = a_task(), model(diffusivity="sigmoid", backend=backend)
    feed = BatchesFeed(task, task.splits[0], TrainConfig(batch_size=25), 0, CPU)
    exact = model(diffusivity="sigmoid", backend="blockwise")
    with torch.no_grad():
        torch.testing.assert_close(feed.outputs(net), exact(task.x, task_graph(task)), atol=1e-5, rtol=1e-5)
    assert feed._in_chunks(net)


def task_graph(task):
    return Graph(task.edge_index, task.num_nodes, task.edge_weight)


@pytest.mark.parametrize(
    ("diffusivity", "rows"),
    [("simple", 4096), ("constant", 4096), ("identity", 4096), (None, 4096), ("sigmoid", 25), ("softmax", 25)],
)
def test_tiles_of_pairs_are_no_larger_than_a_batch(diffusivity, rows):
    task = a_task()
    feed = BatchesFeed(task, task.splits[0], TrainConfig(batch_size=25), 0, CPU)
    assert feed._rows(model(diffusivity=diffusivity)) == rows


def test_memory_that_torch_holds_free_counts_as_free(monkeypatch):
    monkeypatch.setattr(feeds, "free_bytes", lambda device: 1000)
    assert feeds.has_room(torch.device("cuda"), 249)
    assert not feeds.has_room(torch.device("cuda"), 250)
    assert not feeds.has_room(CPU, 1)


def test_mixed_precision_is_that_of_the_forward_pass():
    net = model(norm=False)
    x, graph = inputs()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        states = embed_in_batches(net, x, graph, batch_size=30, device=CPU, storage=CPU)
        whole = net.embed(x, graph).float()
    assert (states.float() - whole).norm() < 0.02 * whole.norm()
