"""Metrics of rows on several ranks are those of all rows together, ROC-AUC under ties included."""

import math

import pytest
import torch
from ranks_work import measured

from difformer.training.metrics import find_metric

SIZES = [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3, 4))]


def case(kind, n=203, seed=0):
    g = torch.Generator().manual_seed(seed)
    outputs = torch.randn(n, 4, generator=g)
    if kind == "multilabel":
        targets = (torch.rand(n, 4, generator=g) < 0.4).float()
        targets[torch.rand(n, 4, generator=g) < 0.1] = torch.nan
        targets[:, 3] = 1  # a column that no AUC is defined for
        return (outputs * 2).round() / 2, targets
    if kind == "two classes":
        return (outputs[:, :2] * 2).round(), torch.randint(-1, 2, (n,), generator=g)
    if kind == "regression":
        return outputs[:, :1], torch.randn(n, generator=g)
    return outputs, torch.randint(-1, 4, (n,), generator=g)


CASES = [
    (kind, metric)
    for kind in ("multiclass", "two classes", "multilabel")
    for metric in ("accuracy", "rocauc", "f1", "f1-micro")
] + [("regression", "mse"), ("regression", "mae")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kind", "metric"), CASES)
def test_metrics_over_ranks_are_those_of_all_rows(groups, kind, metric, size):
    outputs, targets = case(kind)
    expected = float(find_metric(metric)(outputs, targets))
    for name in ("scattered", "first", "sorted"):
        assignment = torch.randint(0, size, (len(outputs),), generator=torch.Generator().manual_seed(2))
        if name == "first":  # the other ranks have no row
            assignment.zero_()
        elif name == "sorted":  # each rank has scores of its own, one class here and the other there
            assignment = outputs[:, 0].argsort().argsort() * size // len(outputs)
        found = groups(size)(measured, metric, outputs, targets, assignment)
        assert found == [pytest.approx(expected, abs=1e-6)] * size, name


@pytest.mark.parametrize("size", SIZES)
def test_nothing_labelled_and_broken_outputs_are_nan(groups, size):
    outputs, targets = case("multiclass")
    assignment = torch.arange(len(outputs)) % size
    assert all(math.isnan(v) for v in groups(size)(measured, "accuracy", outputs[:0], targets[:0], assignment[:0]))
    outputs[5, 2] = torch.nan
    for metric in ("accuracy", "rocauc"):
        assert all(math.isnan(value) for value in groups(size)(measured, metric, outputs, targets, assignment))
