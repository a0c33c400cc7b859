"""The cost of an epoch excludes warm-up and evaluation."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from small_experiment import BLOCKS, GCN

from difformer.experiments import measure
from difformer.experiments.cells import Cell
from difformer.experiments.measure import Interrupted
from difformer.experiments.presets import Preset
from difformer.experiments.runner import Watch, perform
from difformer.experiments.samples import load_data

COST = dataclasses.replace(BLOCKS, mode="cost")
CPU = torch.device("cpu")


@pytest.fixture
def what():
    preset = Preset("untuned", "gcn", "sbm", {"hidden_channels": 4})
    return Cell(COST, GCN, preset), load_data(BLOCKS, BLOCKS.options)


def measured(monkeypatch, what, seconds, stop=lambda: False):
    """Lines of two repeats where epoch e of a run takes ``seconds(e)``, and how many epochs each run had."""
    clock, runs = [0.0], []

    class Run:
        epoch = 0

        def __init__(self, *_):
            runs.append(0)

        def train_epoch(self):
            runs[-1] += 1
            clock[0] += seconds(runs[-1])

    monkeypatch.setattr(measure, "Trainer", Run)
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return list(perform(*what, [0, 1], CPU, Watch(stop), {"quick": False})), runs


def test_warm_up_epochs_do_not_count(monkeypatch, what):
    lines, runs = measured(monkeypatch, what, lambda epoch: 3.0 if epoch <= measure.WARM_UP else 0.25)
    assert [line["measures"]["epoch_seconds"] for line in lines] == pytest.approx([0.25, 0.25])
    assert runs == [measure.WARM_UP + measure.EPOCHS] * 2 == [line["epochs"] for line in lines]
    assert [line["seconds"] for line in lines] == pytest.approx([8.5, 8.5])
    assert all(line["test"] is None for line in lines)


def test_a_single_long_epoch_is_timed(monkeypatch, what):
    lines, runs = measured(monkeypatch, what, lambda epoch: 40.0 if epoch == 1 else 31.0)
    assert [line["measures"]["epoch_seconds"] for line in lines] == pytest.approx([31.0, 31.0])
    assert runs == [measure.WARM_UP + 1] * 2 == [line["epochs"] for line in lines]


def test_an_interrupted_measurement_leaves_no_line(monkeypatch, what):
    with pytest.raises(Interrupted):
        measured(monkeypatch, what, lambda epoch: 1.0, stop=lambda: True)


def test_the_cost_is_that_of_training_epochs(what):
    (line,) = perform(*what, [0], CPU, Watch(lambda: False), {"quick": True})
    assert 0 < line["measures"]["epoch_seconds"] <= line["seconds"]
    assert line["epochs"] == measure.WARM_UP + measure.QUICK_EPOCHS
