r"""Losses: what training minimises, as a sum over labelled entries and a mass.

With outputs o and targets y, every loss is a ratio of two sums,

.. math::
    L = \frac{\sum_i w_i \, ℓ(o_i, y_i)}{\sum_i w_i}:

* multi-class: cross-entropy, w the weight of the class;
* multi-label: binary cross-entropy of every known entry, w = 1;
* regression: squared error, w = 1;
* ``"broadcast-mse"``: squared error of every output against the targets of all nodes of its snapshot, which is what the
  authors' code minimises for series, see `difformer.training.metrics`.

The mass depends only on the targets. Over batches, weighted rows or ranks both sums add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.training.config import TrainConfig
from difformer.training.metrics import broadcast_errors, same_shape

UNIT_SCALE = 4.0  # targets whose deviation is within this factor of 1, and whose mean is within ±1, stay as they are
Summed = Callable[[Tensor], Tensor]  # adds up what several ranks have
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> scalar; a `Ratio`, or any function of a caller


@dataclass(frozen=True)
class Ratio:
    """A sum over entries divided by their mass; no size in it depends on the data, so a GPU is never waited for."""

    total: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> Σ w ℓ(o, y)
    mass: Callable[[Tensor], Tensor]  # targets -> Σ w

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.total(outputs, targets) / self.mass(targets)


def make_loss(
    task: Task, split: Split, config: TrainConfig, device: torch.device, summed: Summed = lambda x: x
) -> Ratio:
    """The loss of a task as configured; `summed` adds up what several ranks have."""
    if config.loss == "broadcast-mse":
        if task.kind != "series" or task.problem != "regression":
            found = f"task {task.name!r} is {task.problem} on {task.kind}"
            raise UserError(f"loss=broadcast-mse is for regression on series; {found}", argument="loss")
        return Ratio(lambda o, y: broadcast_errors(o, y).sum(), lambda y: y.new_full((), float(y[..., 0].numel())))
    if task.problem == "regression" and (config.label_smoothing or config.class_weights):
        raise UserError(f"label_smoothing and class_weights are for classes; task {task.name!r} is a regression")
    weights, targets = None, task.y[split.train]
    if (units := target_units(targets, task.num_outputs, task.problem, config, summed)) is not None:
        weights = units[1].to(device)
    elif config.class_weights:
        weights = class_weights(targets, task.num_outputs, summed).to(device)
    return problem_loss(task.problem, config.label_smoothing, weights)


def problem_loss(problem: str, smoothing: float = 0.0, weights: Tensor | None = None) -> Ratio:
    """The loss of a problem; `weights` are of classes, of the positives of each column, or deviations of targets."""

    def multilabel(outputs: Tensor, targets: Tensor) -> Tensor:
        known = ~targets.isnan()
        wanted = torch.where(known, targets, 0.0) * (1 - smoothing) + smoothing / 2
        each = functional.binary_cross_entropy_with_logits(outputs, wanted, pos_weight=weights, reduction="none")
        return (each * known).sum()

    def regression(outputs: Tensor, targets: Tensor) -> Tensor:
        errors = torch.where(targets.isnan(), 0.0, same_shape(outputs, targets) - targets)
        if weights is not None:
            errors = errors / (weights if targets.dim() == outputs.dim() else weights[0])
        return errors.square().sum()

    def multiclass(outputs: Tensor, targets: Tensor) -> Tensor:
        o, y = outputs.flatten(0, -2), targets.flatten()
        return functional.cross_entropy(o, y, weights, ignore_index=-1, label_smoothing=smoothing, reduction="sum")

    def mass(targets: Tensor) -> Tensor:
        known = targets >= 0
        return known.sum() if weights is None else (weights.to(targets.device)[targets.clamp_min(0)] * known).sum()

    if problem == "multiclass":
        return Ratio(multiclass, mass)
    return Ratio(regression if problem == "regression" else multilabel, lambda targets: (~targets.isnan()).sum())


def target_units(
    targets: Tensor, columns: int, problem: str, config: TrainConfig, summed: Summed = lambda x: x
) -> tuple[Tensor, Tensor] | None:
    """Mean and deviation ``[C]`` of the training targets of a regression, in which its outputs are learnt.

    None if nothing is scaled: no regression, switched off, or targets that are near unit scale already. `summed` adds
    up what several ranks have.
    """
    if problem != "regression" or config.loss != "auto" or not config.scale_targets:
        return None
    rows = targets.reshape(-1, columns).double()
    count = summed((~rows.isnan()).sum(0).double()).clamp_min(1)
    mean = summed(rows.nansum(0)) / count
    deviation = (summed((rows - mean).square().nansum(0)) / count).sqrt()
    deviation = torch.where(deviation > 0, deviation, 1.0)
    near = (mean.abs() <= 1) & (deviation >= 1 / UNIT_SCALE) & (deviation <= UNIT_SCALE)
    return None if bool(near.all()) else (mean.float(), deviation.float())


def class_weights(targets: Tensor, classes: int, summed: Summed = lambda x: x) -> Tensor:
    """Inverse frequencies of training labels; `summed` adds up the counts of several ranks.

    Multi-class: n / (C n_c) for each class c, 1 for a class that does not occur. Multi-label: n₋ / n₊ for each column,
    the weight of its positives; 1 for a column without one.
    """
    if targets.is_floating_point():
        positive, negative = summed(torch.stack([(targets == 1).sum(0), (targets == 0).sum(0)]).double())
        return torch.where((positive > 0) & (negative > 0), negative / positive.clamp_min(1), 1.0).float()
    count = summed(torch.bincount(targets[targets >= 0], minlength=classes).double())
    return torch.where(count > 0, count.sum() / (classes * count.clamp_min(1)), 1.0).float()
