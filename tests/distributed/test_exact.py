"""Loss, every gradient and all outputs over ranks are those of one process."""

import dataclasses

import numpy as np
import pytest
import torch
from ranks_work import one_step

from difformer.data import Split, Task
from difformer.graph import Graph
from difformer.nn import DIFFormer
from difformer.nn.dropout import dropout_key
from difformer.training.config import TrainConfig
from difformer.training.feeds import features
from difformer.training.losses import make_loss

SIZES = [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3, 4))]


def graph_task(*, n=41, problem="multiclass", weighted=False, edges=True, sparse=False, seed=0):
    """Nodes with a directed graph, a fifth of them isolated; labels on some."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g)
    index = weight = None
    if edges:
        index = torch.randint(0, 4 * n // 5, (2, 4 * n), generator=g)
        weight = torch.rand(4 * n, generator=g) + 0.1 if weighted else None
    order = torch.randperm(n, generator=g)
    y = torch.randint(0, 3, (n,), generator=g)
    if problem == "multilabel":
        y = (torch.rand(n, 3, generator=g) < 0.5).float()
    elif problem == "regression":
        y = torch.randn(n, generator=g)
    outputs = 1 if problem == "regression" else 3
    return Task(
        "made", "nodes", problem, "mse" if problem == "regression" else "accuracy", "made",
        (x * (x > 0)).to_sparse_csr() if sparse else x, y,
        (Split("s", order[:11], order[11:20], order[20:]),), outputs, edge_index=index, edge_weight=weight,
    )  # fmt: skip


def alone(task, options, dtype=torch.float32):
    """The same pass in one process."""
    torch.manual_seed(0)
    model = DIFFormer(task.num_features, 8, task.num_outputs, **options).to(dtype).train()
    split = task.splits[0]
    graph = None if task.edge_index is None else Graph(task.edge_index, task.num_nodes, task.edge_weight)
    with dropout_key(7, 3):
        out = model(features(task.x.to(dtype), torch.device("cpu")), graph)
    loss = make_loss(task, split, TrainConfig(), torch.device("cpu"))(out[split.train], task.y[split.train])
    loss.backward()
    return loss.item(), out.detach().numpy(), {name: p.grad for name, p in model.named_parameters()}


def compare(answers, task, options, dtype=torch.float32, tolerance=1e-5):
    loss, out, grads = alone(task, options, dtype)
    rows = np.concatenate([answer["rows"] for answer in answers])
    assert sorted(rows.tolist()) == list(range(task.num_nodes))
    found = np.empty_like(out)
    found[rows] = np.concatenate([answer["outputs"] for answer in answers])
    np.testing.assert_allclose(found, out, atol=tolerance, rtol=tolerance)
    for answer in answers:
        assert answer["loss"] == pytest.approx(loss, abs=tolerance)
        assert answer["grads"].keys() == {name for name, grad in grads.items() if grad is not None}
        for name, grad in answer["grads"].items():
            np.testing.assert_allclose(grad, grads[name].numpy(), atol=tolerance, rtol=tolerance, err_msg=name)


def scattered(task, parts, seed=1):
    return torch.randint(0, parts, (task.num_nodes,), generator=torch.Generator().manual_seed(seed))


MODELS = {
    "simple": {"diffusivity": "simple", "dropout": 0.3, "source_weight": 0.5, "num_heads": 2},
    "simple, values are states": {"diffusivity": "simple", "transform": False, "num_heads": 2, "tied_qk": True},
    "simple, global norm": {"diffusivity": "simple", "qk_norm": "global", "num_heads": 2, "dropout": 0.2},
    "simple, one head of states": {"diffusivity": "simple", "qk_norm": "none", "transform": False},
    "sigmoid": {"diffusivity": "sigmoid", "num_heads": 2, "dropout": 0.3},
    "sigmoid, global norm": {"diffusivity": "sigmoid", "qk_norm": "global", "transform": False, "num_heads": 2},
    "softmax": {"diffusivity": "softmax", "dropout": 0.1},
    "polynomial": {"diffusivity": "sigmoid", "backend": "polynomial", "num_heads": 2, "dropout": 0.3},
    "constant": {"diffusivity": "constant", "graph_weight": 0.3, "activation": "relu", "dropout": 0.2},
    "identity": {"diffusivity": "identity", "residual": False, "graph_norm": "none"},
    "no latent term": {"diffusivity": None, "graph_norm": "random_walk", "norm": False, "dropout": 0.5},
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_over_ranks_equals_that_of_one_process(groups, name, size):
    task = graph_task(weighted=name in ("simple", "softmax"))
    answers = groups(size)(one_step, task, scattered(task, size), size, MODELS[name])
    compare(answers, task, MODELS[name])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["simple", "sigmoid", "constant", "polynomial"])
def test_step_over_ranks_agrees_in_double_precision(groups, name, size):
    task = graph_task()
    answers = groups(size)(one_step, task, scattered(task, size), size, MODELS[name], torch.float64)
    compare(answers, task, MODELS[name], torch.float64, 1e-11)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["simple", "sigmoid", "softmax", "constant", "simple, global norm", "polynomial"])
def test_step_over_ranks_agrees_if_some_ranks_have_no_rows(groups, name, size):
    """All nodes on the last rank, and on the first: the others have nothing, not even a label."""
    for place in (0, size - 1):
        task = graph_task(sparse=place == 0)
        assignment = torch.full((task.num_nodes,), place)
        compare(groups(size)(one_step, task, assignment, size, MODELS[name]), task, MODELS[name])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("problem", ["multilabel", "regression"])
def test_step_over_ranks_agrees_for_every_problem(groups, problem, size):
    task = graph_task(problem=problem)
    compare(groups(size)(one_step, task, scattered(task, size), size, MODELS["simple"]), task, MODELS["simple"])


@pytest.mark.parametrize("size", SIZES)
def test_without_a_graph_and_with_sparse_features(groups, size):
    for task in (graph_task(edges=False), graph_task(sparse=True)):
        for name in ("simple", "constant"):
            compare(groups(size)(one_step, task, scattered(task, size), size, MODELS[name]), task, MODELS[name])
    # A graph without an edge is none: the graph weight then says nothing.
    task = dataclasses.replace(graph_task(), edge_index=torch.empty(2, 0, dtype=torch.long))
    compare(groups(size)(one_step, task, scattered(task, size), size, MODELS["constant"]), task, MODELS["constant"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("parts", [1, 5])
def test_more_and_fewer_parts_than_ranks(groups, parts, size):
    task = graph_task(weighted=True, sparse=parts == 5)
    answers = groups(size)(one_step, task, scattered(task, parts), parts, MODELS["simple"])
    compare(answers, task, MODELS["simple"])


@pytest.mark.parametrize("size", SIZES)
def test_step_over_ranks_agrees_if_all_labels_are_on_one_rank(groups, size):
    task = graph_task()
    assignment = scattered(task, size)
    assignment[task.splits[0].train] = size - 1
    compare(groups(size)(one_step, task, assignment, size, MODELS["sigmoid"]), task, MODELS["sigmoid"])
