"""What a run is measured by beside its metric, from its outputs at the epoch that validation chose.

* any metric of `difformer.training.metrics`, under its own name: ``"mse"``, ``"broadcast-mse"``, …
* ``"period-mse"``: squared error in units of the whole period's deviation, as published figures of series are, see
  `difformer.data.period_scale`.
* ``"batch-rocauc"``: the mean over batches of test graphs of each batch's own AUROC, as the authors' code reports it;
  batches in which one class is alone have none. Batches are those of the run's ``batch_size``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task, period_scale
from difformer.experiments.plan import Data
from difformer.training.config import TrainConfig
from difformer.training.feeding_graphs import DEFAULT_BATCH_SIZE
from difformer.training.metrics import METRICS, rocauc, same_shape

LABELS = {
    "rocauc": "AUROC",
    "mse": "MSE",
    "broadcast-mse": "broadcast MSE",
    "period-mse": "MSE, period's units",
    "batch-rocauc": "AUROC a batch",
}
PERCENT = ("accuracy", "rocauc", "f1", "f1-micro", "batch-rocauc")


def measure(names: tuple[str, ...], data: Data, task: Task, split: Split, config: TrainConfig, outputs: Tensor) -> Any:
    """Every measure of these names on the test part."""
    return {name: _measure(name, data, task, split, config, outputs) for name in names}


def _measure(name: str, data: Data, task: Task, split: Split, config: TrainConfig, outputs: Tensor) -> float:
    predicted, wanted = outputs[split.test].float(), task.y[split.test]
    if name == "period-mse":
        scale = period_scale(data.dataset, lags=task.num_features)
        return float(((same_shape(predicted, wanted) - wanted) * scale).square().mean())
    if name == "batch-rocauc":
        return _by_batch(predicted, wanted, config.batch_size or DEFAULT_BATCH_SIZE)
    return float(METRICS[name](predicted, wanted))


def _by_batch(outputs: Tensor, targets: Tensor, size: int) -> float:
    pairs = zip(outputs.split(size), targets.split(size), strict=True)
    return float(torch.stack([rocauc(o, y) for o, y in pairs]).nanmean())
