"""Losses: what training descends.

Over the labelled entries of a batch, with outputs o and targets y:

* multi-class: cross-entropy, -Σ_i w_{y_i} log softmax(o_i)_{y_i} / Σ_i w_{y_i};
* multi-label: binary cross-entropy of every known entry;
* regression: squared error;
* ``"broadcast-mse"``: squared error of every output against the targets of all nodes of its snapshot, which is what the
  authors' code descends for series, see `difformer.training.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.training.config import TrainConfig
from difformer.training.metrics import broadcast_mse, same_shape

Loss = Callable[[Tensor, Tensor], Tensor]


def make_loss(task: Task, split: Split, config: TrainConfig, device: torch.device) -> Loss:
    """The loss of a task as the configuration wants it: ``(outputs, targets) -> scalar``.

    Raises:
        ValueError: If the configuration asks for something that the task's problem does not have.
    """
    problem = task.problem
    if config.loss == "broadcast-mse":
        if task.kind != "series" or problem != "regression":
            raise UserError(
                f"loss='broadcast-mse' is for regression on series; task {task.name!r} is {problem} on {task.kind}"
            )
        return broadcast_mse
    if problem == "regression":
        if config.label_smoothing or config.class_weights:
            raise UserError(f"label_smoothing and class_weights are for classes; task {task.name!r} is a regression")
        return _squared_error
    weights = None
    if config.class_weights:
        weights = class_weights(task.y[split.train], task.num_outputs).to(device)
    smoothing = config.label_smoothing
    if problem == "multiclass":
        return lambda outputs, targets: functional.cross_entropy(
            outputs.reshape(-1, outputs.shape[-1]),
            targets.reshape(-1),
            weight=weights,
            ignore_index=-1,
            label_smoothing=smoothing,
        )
    return lambda outputs, targets: _multilabel(outputs, targets, weights, smoothing)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs = same_shape(outputs, targets)
    known = ~targets.isnan()
    # Sums instead of a selection: no size depends on the data, so a GPU is never waited for.
    return torch.where(known, outputs - targets, 0.0).square().sum() / known.sum()


def _multilabel(outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    known = ~targets.isnan()
    wanted = torch.where(known, targets, 0.0) * (1 - smoothing) + smoothing / 2
    each = functional.binary_cross_entropy_with_logits(outputs, wanted, pos_weight=weights, reduction="none")
    return (each * known).sum() / known.sum()


def class_weights(targets: Tensor, classes: int) -> Tensor:
    """Inverse frequencies of training labels.

    Multi-class: n / (C n_c) for each class c, 1 for a class that does not occur. Multi-label: n₋ / n₊ for each column,
    the weight of its positives; 1 for a column without one.
    """
    if targets.is_floating_point():
        positive, negative = (targets == 1).sum(0), (targets == 0).sum(0)
        return torch.where((positive > 0) & (negative > 0), negative / positive.clamp_min(1), 1.0).float()
    known = targets[targets >= 0]
    count = torch.bincount(known, minlength=classes)
    return torch.where(count > 0, known.numel() / (classes * count.clamp_min(1)), 1.0).float()
