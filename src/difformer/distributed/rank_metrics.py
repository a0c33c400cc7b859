r"""Losses and metrics of rows that are spread over ranks, equal to those of `difformer.training` on all rows together.

Every loss that nodes have is a ratio of sums over labelled entries,

.. math::
    L = \frac{\sum_i w_i \, ℓ(o_i, y_i)}{\sum_i w_i}.

The denominator depends on targets only and is summed over ranks once; a rank's share of the loss is its own part of the
numerator over it, zero if it has no label. The shares add up to the loss, and their gradients to its gradient.

Metrics are ratios of counts or sums, which are added over ranks, except ROC-AUC, which needs an order of all scores:
each rank takes a range of scores (found from samples, as in a sample sort), the rows travel to the rank of their range,
equal scores always to the same one, and

    n₊n₋ AUC = Σ_b ( pairs in order inside range b + n₊(b) Σ_{b' < b} n₋(b') ).

No rank ever holds more than about its share of the scores, and the result is exact, ties included.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from difformer.distributed.process_group import Ranks
from difformer.errors import UserError
from difformer.training.journal import Journal, Measured, NonFiniteLossError
from difformer.training.metrics import Metric, auc_columns, column_aucs
from difformer.training.record import Row

SAMPLES = 64  # scores per column that each rank shows to each rank, to find ranges of equal size


def measure(metric: Metric, outputs: Tensor, targets: Tensor, ranks: Ranks) -> float:
    """The metric of the rows of all ranks, the same number on every rank; NaN if nothing is labelled."""
    broken = torch.tensor([float(outputs.isnan().any()), targets.shape[0]], dtype=torch.float64, device=outputs.device)
    broken = ranks.sum_(broken, "metrics")
    if broken[0] > 0 or broken[1] == 0:
        return math.nan
    if metric.name == "rocauc":
        return rocauc(outputs, targets, ranks)
    if metric.name == "broadcast-mse":
        raise UserError(
            "metric broadcast-mse is not for nodes over ranks; take accuracy, rocauc, f1, f1-micro, mse or mae",
            argument="metric",
        )
    return float(metric.finish(ranks.sum_(metric.counts(outputs, targets), "metrics")))


def rocauc(outputs: Tensor, targets: Tensor, ranks: Ranks) -> float:
    """Mean over columns of the exact area under the ROC curve of the rows of all ranks."""
    scores, labels = auc_columns(outputs, targets)
    columns = scores.shape[1]
    limits = _limits(scores, ranks)
    bucket = torch.searchsorted(limits, scores.T.contiguous(), right=True).flatten()
    column = torch.arange(columns, device=scores.device).repeat_interleave(scores.shape[0])
    rows = torch.stack([column.double(), scores.T.flatten().double(), labels.T.flatten().double()], 1)
    known = ~rows[:, 2].isnan()
    bucket, rows = bucket[known], rows[known]
    order = torch.argsort(bucket, stable=True)
    sends = torch.bincount(bucket, minlength=ranks.size)
    ones = [1] * ranks.size
    takes = ranks.exchange(sends, ones, ones, "metrics").wait().tolist()
    mine = ranks.exchange(rows[order], sends.tolist(), takes, "metrics").wait()
    return _joined(torch.stack([_inside(mine[mine[:, 0] == c]) for c in range(columns)]), ranks)


def _limits(scores: Tensor, ranks: Ranks) -> Tensor:
    """``[C, P - 1]`` ascending: where the range of one rank ends and the next begins."""
    count, n = SAMPLES * ranks.size, scores.shape[0]
    shown = scores.new_full((scores.shape[1], count), torch.inf)  # infinite where there is no score
    if n:
        place = torch.linspace(0, n - 1, min(count, n), device=scores.device).long()
        shown[:, : place.numel()] = scores.sort(0).values[place].T
    every = ranks.gather(shown, "metrics").movedim(0, 1).flatten(1).sort(1).values
    finite = every.isfinite().sum(1, keepdim=True).clamp_min(1)
    share = torch.arange(1, ranks.size, device=scores.device) / ranks.size
    return every.gather(1, (finite * share).long()).contiguous()


def _inside(rows: Tensor) -> Tensor:
    """Ordered pairs, positives and negatives of the scores of one range and column."""
    positive, negative = (rows[:, 2] == 1).sum().double(), (rows[:, 2] == 0).sum().double()
    pairs = positive * negative
    ordered = column_aucs(rows[:, 1:2], rows[:, 2:])[0] * pairs if pairs > 0 else pairs
    return torch.stack([ordered, positive, negative])


def _joined(own: Tensor, ranks: Ranks) -> float:
    """From ``[C, 3]`` of every range to the mean AUC of the columns that have both classes."""
    ordered, positive, negative = ranks.gather(own, "metrics").unbind(-1)
    below = negative.cumsum(0) - negative
    total = (ordered + positive * below).sum(0)
    pairs = positive.sum(0) * negative.sum(0)
    return float(torch.where(pairs > 0, total / pairs, torch.nan).nanmean())


class SharedJournal(Journal):
    """The journal of a run in which each rank has a share of the loss, and all outputs."""

    def __init__(self, *given: Any, ranks: Ranks) -> None:
        self.ranks = ranks
        super().__init__(*given)

    def write(self, epoch: int, seconds: float, measured: Measured | None = None) -> list[Row]:
        if self.pending:
            whole = self.ranks.sum_(torch.stack(self.pending).double(), "metrics")
            self.pending[:] = list(whole.unbind())
        return super().write(epoch, seconds, measured)


class ShardedJournal(SharedJournal):
    """The journal of a run whose rows are spread over ranks; the task and the split are those of own rows."""

    def _check(self, num_outputs: int) -> bool:
        targets = self.parts["valid"][1]
        if not self.ranks.any(bool(targets.numel())):
            return False
        shape = targets.shape if targets.is_floating_point() else (*targets.shape, num_outputs)
        zeros = torch.zeros(shape, device=targets.device)
        if (value := measure(self.metric, zeros, targets, self.ranks)) != value:
            raise UserError(
                f"metric {self.metric.name!r} is not defined on the validation part; choose another metric "
                f"(--set metric=…) or another split"
            )
        return True

    def measure(self, epoch: int, outputs: Tensor) -> Measured:
        outputs = outputs.float()
        if self.ranks.any(not all(bool(outputs[index].isfinite().all()) for index, _ in self.parts.values())):
            raise NonFiniteLossError(epoch, None, self.config)
        return {
            name: measure(self.metric, outputs[index], targets, self.ranks)
            for name, (index, targets) in self.parts.items()
        }
