"""An epoch's cost is what an epoch takes, whatever the process has to do once before it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from small_experiment import BLOCKS, GCN

from difformer.experiments import costs
from difformer.experiments.choosing import Cell, Choice
from difformer.experiments.performing import Interrupted, perform, ready
from difformer.experiments.running import load_data

COST = dataclasses.replace(BLOCKS, mode="cost")
CPU = torch.device("cpu")


@pytest.fixture
def what():
    return ready(Cell(COST, GCN, Choice("untuned", {"hidden_channels": 4})), load_data(BLOCKS))


def measured(monkeypatch, what, seconds, *, status="finished"):
    """Lines of two repeats where a run of e epochs takes ``seconds(call, e)``."""
    calls = []

    def train(task, split, config, *rest, **options):
        calls.append(config.epochs)
        return SimpleNamespace(seconds=seconds(len(calls), config.epochs), status=status)

    monkeypatch.setattr(costs, "train_one", train)
    return list(perform(what, [0, 1], CPU, lambda: False, {"quick": False})), calls


def test_what_is_done_once_does_not_count(monkeypatch, what):
    lines, calls = measured(monkeypatch, what, lambda call, epochs: 0.25 * epochs + 3.0 + (100.0 if call == 1 else 0.0))
    assert [line["measures"]["epoch_seconds"] for line in lines] == pytest.approx([0.25, 0.25])
    assert calls == [costs.WARM_UP, *2 * (costs.WARM_UP, costs.WARM_UP + costs.EPOCHS)]
    assert all(line["test"] is None for line in lines)


def test_a_clock_that_runs_backwards_gives_no_negative_cost(monkeypatch, what):
    lines, _ = measured(monkeypatch, what, lambda call, epochs: 0.6 / epochs)
    assert [line["measures"]["epoch_seconds"] for line in lines] == pytest.approx([0.05 / 12, 0.05 / 12])


def test_an_interrupted_measurement_leaves_no_line(monkeypatch, what):
    with pytest.raises(Interrupted):
        measured(monkeypatch, what, lambda call, epochs: 1.0, status="interrupted")
