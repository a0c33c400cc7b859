"""A search over graphs leaves out what only tests, and finds what it would have found with it."""

import dataclasses

import torch

from difformer.data import Split, Task, load
from difformer.experiments.samples import clouds
from difformer.training import TrainConfig, train_one
from difformer.training.study import take_graphs, without_test


def test_training_and_validation_parts_are_unchanged() -> None:
    task = clouds()
    short = without_test(task, 1)
    assert short.num_instances == sum(task.splits[0].sizes()[:2]) < task.num_instances
    assert len(short.splits) == 1
    config = TrainConfig(model="gcn", options={"hidden_channels": 4}, epochs=3)
    whole, cut = (train_one(one, 0, config, 0, "cpu") for one in (task, short))
    assert cut.train == whole.train
    assert cut.valid == whole.valid
    for name, value in whole.state.items():
        assert torch.equal(value, cut.state[name]), name


def test_graphs_keep_their_nodes_edges_weights_and_names() -> None:
    task = Task(
        name="three",
        kind="graphs",
        problem="regression",
        metric="mse",
        protocol="by hand",
        x=torch.arange(6.0).unsqueeze(1),
        y=torch.tensor([[1.0], [2.0], [3.0]]),
        splits=_splits(),
        num_outputs=1,
        edge_index=torch.tensor([[0, 2, 3, 5, 4], [1, 3, 2, 4, 5]]),
        edge_weight=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
        node_ptr=torch.tensor([0, 2, 4, 6]),
        instance_names=("a", "b", "c"),
    )
    kept = take_graphs(task, torch.tensor([0, 2]), [dataclasses.replace(_splits()[0], valid=torch.empty(0).long())])
    assert kept.x.flatten().tolist() == [0, 1, 4, 5]
    assert kept.y.flatten().tolist() == [1, 3]
    assert kept.node_ptr.tolist() == [0, 2, 4]
    assert kept.edge_index.tolist() == [[0, 3, 2], [1, 2, 3]]
    assert kept.edge_weight.tolist() == [1, 4, 5]
    assert kept.instance_names == ("a", "c")
    assert (kept.splits[0].train.tolist(), kept.splits[0].test.tolist()) == ([0], [1])


def _splits() -> tuple[Split, ...]:
    return (Split("s", torch.tensor([0]), torch.tensor([1]), torch.tensor([2])),)


def test_nodes_see_each_other_and_stay() -> None:
    task = load("sbm", num_nodes=40)
    short = without_test(task)
    assert short.x is task.x
    assert [split.sizes()[2] for split in short.splits] == [0] * len(task.splits)
