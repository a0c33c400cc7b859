"""Metrics over ranks, each equal to that of `difformer.training.metrics` on all rows together.

All but one are ratios of counts or sums, which are added over ranks. ROC-AUC needs an order of all scores: each rank
takes a range of scores (found from samples, as a sample sort does), the rows travel to the rank of their range, equal
scores always to one, and

    n₊n₋ AUC = Σ_b ( pairs in order inside range b + n₊(b) Σ_{b' < b} n₋(b') ).

No rank ever holds more than about its share of the scores, and the result is exact, ties included.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from difformer.distributed.process_group import Ranks
from difformer.training.metrics import Metric, class_counts, column_aucs, one_against_rest, same_shape

SAMPLES = 64  # scores of a column that each rank shows for each rank, to find ranges of equal size


def measure(metric: Metric, outputs: Tensor, targets: Tensor, ranks: Ranks) -> float:
    """The metric of the rows of all ranks, the same number on every rank; NaN where nothing is labelled."""
    broken = torch.tensor([float(outputs.isnan().any()), targets.shape[0]], dtype=torch.float64, device=outputs.device)
    broken = ranks.sum_(broken, "metrics")
    if broken[0] > 0 or broken[1] == 0:
        return math.nan
    name = metric.name
    if name == "rocauc":
        return rocauc(outputs, targets, ranks)
    if name == "accuracy":
        right, known = ranks.sum_(_right(outputs, targets), "metrics").tolist()
        return right / known if known else math.nan
    if name in ("f1", "f1-micro"):
        counts = torch.stack(class_counts(outputs, targets)).double()
        hits, predicted, actual = ranks.sum_(counts, "metrics")
        if name == "f1-micro":
            return float(2 * hits.sum() / (predicted + actual).sum())
        total = predicted + actual
        scores = 2 * hits / total.clamp_min(1)
        occurs = torch.ones_like(total, dtype=torch.bool) if targets.is_floating_point() else total > 0
        return float(scores[occurs].mean())
    if name in ("mse", "mae"):
        errors = (same_shape(outputs, targets) - targets)[~targets.isnan()].double()
        summed = errors.square().sum() if name == "mse" else errors.abs().sum()
        both = torch.stack([summed, summed.new_tensor(float(errors.numel()))])
        total_error, count = ranks.sum_(both, "metrics").tolist()
        return total_error / count if count else math.nan
    raise ValueError(f"metric {name!r} is not for nodes over ranks; take accuracy, rocauc, f1, f1-micro, mse or mae")


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        right, known = (outputs > 0).to(targets.dtype) == targets, ~targets.isnan()
    else:
        right, known = outputs.argmax(-1) == targets, targets >= 0
    return torch.stack([(right & known).sum(), known.sum()]).double()


def rocauc(outputs: Tensor, targets: Tensor, ranks: Ranks) -> float:
    """Mean over columns of the exact area under the ROC curve of the rows of all ranks."""
    if targets.is_floating_point():
        labels = targets if targets.dim() == 2 else targets.reshape(-1, 1)
        scores = outputs.reshape(labels.shape)
    elif outputs.shape[-1] == 2:
        scores, labels = (outputs[..., 1] - outputs[..., 0]).reshape(-1, 1), one_against_rest(targets, 2)[:, 1:]
    else:
        labels = one_against_rest(targets, outputs.shape[-1])
        scores = outputs.softmax(-1)
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
    shown = scores.new_full((scores.shape[1], count), torch.inf)  # where there is no score the end of the line
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
