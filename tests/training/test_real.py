"""Training on real data, where they are."""

import os

import pytest
import torch

from difformer.data import load
from difformer.sparse import SparseMatrix
from difformer.training import TrainConfig, train_one
from difformer.training.loop import Trainer
from difformer.training.metrics import METRICS
from difformer.training.randomness import isolated_rng

pytestmark = pytest.mark.skipif("DIFFORMER_DATA" not in os.environ, reason="real data: set DIFFORMER_DATA")


@pytest.mark.parametrize(
    ("name", "zeros", "perfect"), [("chickenpox", 0.9243, 1.51), ("covid", 0.8197, 1.08)], ids=["chickenpox", "covid"]
)
def test_what_the_public_codes_metric_says_of_series(name, zeros, perfect):
    """Its figures, measured with the public code: all zeros beat a perfect prediction."""
    task = load(name, protocol="public-code")
    targets = task.y[task.splits[0].test]
    assert METRICS["broadcast-mse"](torch.zeros_like(targets), targets).item() == pytest.approx(zeros, abs=2e-3)
    assert METRICS["broadcast-mse"](targets, targets).item() == pytest.approx(perfect, abs=1e-2)
    assert METRICS["mse"](targets, targets) == 0


def test_a_bag_of_words_stays_sparse_and_cora_is_learnt():
    task = load("cora", protocol="authors")
    options = {"num_layers": 4, "graph_weight": 0.9, "transform": False}
    config = TrainConfig(options=options, learning_rate=0.01, weight_decay=0.01, epochs=15)
    with isolated_rng(torch.device("cpu")):
        torch.manual_seed(0)
        trainer = Trainer(task, task.splits[0], config, 0, torch.device("cpu"))
    inputs = trainer.feed.passes()[0]
    assert isinstance(inputs.x, SparseMatrix)
    matrix = inputs.graph.matrix("gcn")
    record = train_one(task, 0, config, device="cpu")
    assert record.test > 0.75
    trainer.evaluate()
    assert inputs.graph.matrix("gcn") is matrix  # normalised once


@pytest.mark.parametrize("graph", ["given", "none"])
def test_series_are_learnt_better_than_by_their_mean(graph):
    task = load("covid")
    config = TrainConfig(
        options={"hidden_channels": 4, "num_layers": 2}, learning_rate=0.01, epochs=40, graph=graph, patience=20
    )
    record = train_one(task, 0, config, device="cpu")
    split = task.splits[0]
    always_mean = METRICS["mse"](task.y[split.train].mean().expand_as(task.y[split.test]), task.y[split.test]).item()
    assert record.test < always_mean
