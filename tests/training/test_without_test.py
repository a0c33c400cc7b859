"""A search trains without the test parts, and finds what it would have found with them."""

import torch

from difformer.data import load
from difformer.experiments.samples import clouds
from difformer.training import TrainConfig, train_one
from difformer.training.study import without_test


def test_training_and_validation_parts_are_unchanged() -> None:
    task = clouds()
    short = without_test(task)
    assert [split.sizes()[2] for split in short.splits] == [0] * len(task.splits)
    config = TrainConfig(model="gcn", options={"hidden_channels": 4}, epochs=3)
    whole, cut = (train_one(one, 0, config, 0, "cpu") for one in (task, short))
    assert cut.train == whole.train
    assert cut.valid == whole.valid
    for name, value in whole.state.items():
        assert torch.equal(value, cut.state[name]), name


def test_nodes_see_each_other_and_stay() -> None:
    task = load("sbm", num_nodes=40)
    short = without_test(task)
    assert short.x is task.x
    assert [split.sizes()[2] for split in short.splits] == [0] * len(task.splits)
