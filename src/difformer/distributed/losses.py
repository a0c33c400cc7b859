r"""Losses over labels that sit unevenly on ranks.

Every loss of `difformer.training.losses` that nodes have is a ratio of sums over labelled entries,

.. math::
    L = \frac{\sum_i w_i \, ℓ(o_i, y_i)}{\sum_i w_i}.

The denominator depends on targets alone and is summed over ranks once; a rank's share of the loss is its own part of
the numerator over it, zero where it has no label. The shares add up to the loss, and their gradients to its gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from difformer.distributed.process_group import Ranks
from difformer.training.config import TrainConfig
from difformer.training.metrics import same_shape

Sum = Callable[[Tensor, Tensor], Tensor]


def make_sums(problem: str, config: TrainConfig, weights: Tensor | None) -> tuple[Sum, Callable[[Tensor], Tensor]]:
    """The numerator ``(outputs, targets) -> scalar`` and the denominator ``targets -> scalar`` of a loss.

    Args:
        problem: ``"multiclass"``, ``"multilabel"`` or ``"regression"``.
        config: Label smoothing.
        weights: Of classes, or of the positives of each column; None where all count alike.
    """
    smoothing = config.label_smoothing
    if problem == "regression":
        return _squared_errors, lambda targets: (~targets.isnan()).sum()
    if problem == "multilabel":

        def multilabel(outputs: Tensor, targets: Tensor) -> Tensor:
            known = ~targets.isnan()
            wanted = torch.where(known, targets, 0.0) * (1 - smoothing) + smoothing / 2
            each = functional.binary_cross_entropy_with_logits(outputs, wanted, pos_weight=weights, reduction="none")
            return (each * known).sum()

        return multilabel, lambda targets: (~targets.isnan()).sum()

    def multiclass(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(
            outputs, targets, weight=weights, ignore_index=-1, label_smoothing=smoothing, reduction="sum"
        )

    def mass(targets: Tensor) -> Tensor:
        known = targets[targets >= 0]
        return torch.tensor(float(known.numel())) if weights is None else weights[known].sum()

    return multiclass, mass


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    known = ~targets.isnan()
    return torch.where(known, same_shape(outputs, targets) - targets, 0.0).square().sum()


def check_loss(problem: str, config: TrainConfig) -> None:
    """Refuses what the problem does not have, before anything is read.

    Raises:
        ValueError: Naming the setting.
    """
    if config.loss != "auto":
        raise ValueError(f"loss={config.loss!r} is for series; nodes over ranks take loss='auto'")
    if problem == "regression" and (config.label_smoothing or config.class_weights):
        raise ValueError("label_smoothing and class_weights are for classes; this task is a regression")


def class_weights(targets: Tensor, classes: int, ranks: Ranks) -> Tensor:
    """`difformer.training.losses.class_weights` of the labels of all ranks."""
    if targets.is_floating_point():
        counts = torch.stack([(targets == 1).sum(0), (targets == 0).sum(0)]).double().to(ranks.device)
        positive, negative = ranks.sum_(counts, "plan")
        return torch.where((positive > 0) & (negative > 0), negative / positive.clamp_min(1), 1.0).float()
    count = torch.bincount(targets[targets >= 0], minlength=classes).double().to(ranks.device)
    count = ranks.sum_(count, "plan")
    return torch.where(count > 0, count.sum() / (classes * count.clamp_min(1)), 1.0).float()
