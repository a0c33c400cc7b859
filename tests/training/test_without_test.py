"""A search trains without the test parts, and finds what it would have found with them."""

import torch

from difformer.data import Split, Task, load
from difformer.experiments.samples import clouds
from difformer.training import TrainConfig, train_one
from difformer.training.study import without_test


def test_training_and_validation_parts_are_unchanged() -> None:
    task = clouds()
    short = without_test(task, 1)
    assert short.num_instances == sum(task.splits[0].sizes()[:2]) < task.num_instances
    assert [split.sizes() for split in short.splits] == [(*task.splits[0].sizes()[:2], 0)]
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
        splits=(Split("s", torch.tensor([2]), torch.tensor([0]), torch.tensor([1])),),
        num_outputs=1,
        edge_index=torch.tensor([[0, 2, 3, 5, 4], [1, 3, 2, 4, 5]]),
        edge_weight=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
        node_ptr=torch.tensor([0, 2, 4, 6]),
        instance_names=("a", "b", "c"),
    )
    short = without_test(task)
    assert short.x.flatten().tolist() == [0, 1, 4, 5]
    assert short.y.flatten().tolist() == [1, 3]
    assert short.node_ptr is not None
    assert short.node_ptr.tolist() == [0, 2, 4]
    assert isinstance(short.edge_index, torch.Tensor)
    assert short.edge_index.tolist() == [[0, 3, 2], [1, 2, 3]]
    assert isinstance(short.edge_weight, torch.Tensor)
    assert short.edge_weight.tolist() == [1, 4, 5]
    assert short.instance_names == ("a", "c")
    assert [part.tolist() for part in short.splits[0].parts().values()] == [[1], [0], []]


def test_nodes_see_each_other_and_stay() -> None:
    task = load("sbm", num_nodes=40)
    short = without_test(task)
    assert short.x is task.x
    assert [split.sizes()[2] for split in short.splits] == [0] * len(task.splits)
