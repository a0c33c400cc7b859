"""Measures and baselines against their definitions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from difformer.experiments.measure import measure, peak_memory
from difformer.experiments.samples import baseline, clouds, waves
from difformer.experiments.spec import Data
from difformer.training.config import TrainConfig

SERIES = waves()
SPLIT = SERIES.splits[0]


def section(*measures):
    return Data("waves", "waves", "waves", measures=measures)


def test_autoregression_is_least_squares_over_the_training_part():
    predicted = baseline("autoregression", SERIES, SPLIT)
    seen = SERIES.x[SPLIT.train].reshape(-1, 3).double().numpy()
    design = np.column_stack([seen, np.ones(len(seen))])
    weights = np.linalg.lstsq(design, SERIES.y[SPLIT.train].reshape(-1).double().numpy(), rcond=None)[0]
    expected = SERIES.x.double().numpy() @ weights[:3] + weights[3]
    assert torch.allclose(predicted.squeeze(-1), torch.from_numpy(expected), atol=1e-9)
    changed = dataclasses.replace(SERIES, y=SERIES.y.index_fill(0, SPLIT.test, 100.0))
    again = baseline("autoregression", changed, SPLIT)
    assert torch.allclose(again, predicted, rtol=0, atol=1e-12)  # test targets are not seen


def test_zeros_and_last_value_baselines_and_unknown_names():
    assert not baseline("zeros", SERIES, SPLIT).any()
    assert torch.equal(baseline("last", SERIES, SPLIT).squeeze(-1)[1:].float(), SERIES.y[:-1])
    with pytest.raises(ValueError, match="unknown baseline"):
        baseline("oracle", SERIES, SPLIT)


def test_a_perfect_forecast_has_zero_mse_and_a_large_broadcast_mse():
    found = measure(section("mse", "broadcast-mse"), SERIES, SPLIT, TrainConfig(), SERIES.y.unsqueeze(-1))
    assert found["mse"] == 0
    y = SERIES.y[SPLIT.test]
    assert found["broadcast-mse"] == pytest.approx(float(2 * y.var(1, correction=0).mean()), rel=1e-4)


def test_auroc_of_batches_is_the_mean_of_each_batch():
    task = clouds()
    split, size = task.splits[0], 7
    outputs = torch.randn(task.num_instances, 2, generator=torch.Generator().manual_seed(0))
    found = measure(section("batch-rocauc"), task, split, TrainConfig(batch_size=size), outputs)["batch-rocauc"]
    scores, y = (outputs[:, 1] - outputs[:, 0])[split.test].numpy(), task.y[split.test].numpy()
    each = [
        roc_auc_score(y[i : i + size], scores[i : i + size])
        for i in range(0, len(y), size)
        if len(set(y[i : i + size])) == 2
    ]
    assert found == pytest.approx(np.mean(each))
    assert found != pytest.approx(roc_auc_score(y, scores))


def test_peak_memory_counts_allocations_of_the_block():
    with peak_memory(torch.device("cpu")) as peak:
        held = torch.ones(30_000_000)
    del held
    if peak.bytes is None:
        pytest.skip("this system does not tell")
    assert 90e6 < peak.bytes < 400e6
