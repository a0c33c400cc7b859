"""Metrics, in torch on any device, each equal to scikit-learn's; each is given by counts that add up, and a
function that finishes them.

With outputs o (logits or values) and targets y, unlabelled entries (-1, NaN) left out:

* accuracy: share of instances whose largest output is their class; of entries with the right sign for multi-label.
* rocauc: share of (positive, negative) pairs that the output puts in order, a tie counting one half,

      AUC = (1 / n₊n₋) Σ_{i: y_i = 1} ( |{j: y_j = 0, o_j < o_i}| + ½ |{j: y_j = 0, o_j = o_i}| ).

  Multi-label: the mean over columns in which both classes occur, as in the OGB evaluator. Two classes: the
  difference of their outputs. More classes: the mean of one class against the rest, of their probabilities.
* f1: 2TP / (2TP + FP + FN), averaged over the classes that occur as target or prediction; f1-micro: of all counts
  together.
* mse, mae: mean squared and absolute error.
* broadcast-mse: what the authors' code reports for series. An output of shape [N, 1] minus a target of shape [N] is a
  matrix there, so every output is compared with the targets of *all* nodes of its snapshot:

      (1 / N²) Σ_ij (o_i - y_j)² = var(o) + var(y) + (mean(o) - mean(y))².

  A perfect prediction scores 2 var(y). It is only meant for comparison with published figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data import Task
from difformer.errors import UserError, did_you_mean
from difformer.training.config import TrainConfig

ENTRIES_AT_ONCE = 2**22  # of a multi-label AUC: bounds its memory to about 200 MB


class OneProcess:
    """Stands in for `difformer.distributed.Ranks` when there is only one process."""

    def any(self, flag: bool) -> bool:
        return flag

    def sum_(self, x: Tensor, kind: str) -> Tensor:
        return x

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        pass

    def score(self, metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
        return metric(outputs, targets)


ONE_PROCESS = OneProcess()


@dataclass(frozen=True)
class Metric:
    """A metric: counts of outputs and targets, and how to finish them to a scalar; NaN if nothing is labelled."""

    name: str
    higher_is_better: bool
    problems: tuple[str, ...]  # that it can measure
    counts: Callable[[Tensor, Tensor], Tensor]
    finish: Callable[[Tensor], Tensor] = lambda counts: counts
    adds: bool = True  # whether counts of two sets of rows add up; ROC-AUC needs the order of all scores

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not targets.shape[0]:
            return outputs.new_full((), math.nan)
        # An output that is NaN has no class and no rank, yet argmax and sort would give it one.
        return torch.where(outputs.isnan().any(), torch.nan, self.finish(self.counts(outputs, targets)))

    def check(self, targets: Tensor, num_outputs: int, group: Any = ONE_PROCESS) -> bool:
        """Whether the validation part has targets; raises an error if the metric is not defined on them.

        No epoch could be chosen there. Ranks of a `group` hold their own rows each, see `OneProcess`.
        """
        shape = targets.shape if targets.is_floating_point() else (*targets.shape, num_outputs)
        count = int(group.sum_(torch.tensor([targets.shape[0]], device=targets.device), "metrics"))
        if count and group.score(self, torch.zeros(shape, device=targets.device), targets).isnan():
            raise UserError(
                f"metric {self.name!r} is not defined on the validation part ({count} instances): "
                f"{'each of its columns holds only one class' if self.name == 'rocauc' else 'targets are missing'}; "
                f"choose another metric (--set metric=…) or another split"
            )
        return count > 0


def _right_answers(outputs: Tensor, targets: Tensor) -> Tensor:
    """Right and known entries: ``[…, C]`` against ``[…]`` int64, or multi-label against ``[…, C]`` floats."""
    if targets.is_floating_point():
        right, known = (outputs > 0).to(targets.dtype) == targets, ~targets.isnan()
    else:
        right, known = outputs.argmax(-1) == targets, targets >= 0
    return torch.stack([(right & known).sum(), known.sum()]).double()


def auc_columns(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and labels ``[N, C]``, one column per ROC curve."""
    if targets.is_floating_point():
        labels = targets.reshape(-1, targets.shape[-1] if targets.dim() > 1 else 1)
        return outputs.reshape(labels.shape), labels
    if outputs.shape[-1] == 2:
        return (outputs[..., 1] - outputs[..., 0]).reshape(-1, 1), _one_against_rest(targets, 2)[:, 1:]
    labels = _one_against_rest(targets, outputs.shape[-1])
    return outputs.reshape(labels.shape).softmax(-1), labels


def rocauc(outputs: Tensor, targets: Tensor) -> Tensor:
    """Area under the ROC curve, exact under ties."""
    scores, labels = auc_columns(outputs, targets)
    at_once = max(1, ENTRIES_AT_ONCE // max(1, labels.shape[0]))
    parts = [column_aucs(s, t) for s, t in zip(scores.split(at_once, 1), labels.split(at_once, 1), strict=True)]
    return torch.cat(parts).nanmean()


def _one_against_rest(targets: Tensor, classes: int) -> Tensor:
    """``[N, C]`` of 0 and 1, NaN in the rows of unlabelled instances."""
    flat = targets.reshape(-1)
    rest = (flat.unsqueeze(1) == torch.arange(classes, device=flat.device)).to(torch.float32)
    return torch.where((flat >= 0).unsqueeze(1), rest, torch.nan)


def column_aucs(scores: Tensor, labels: Tensor) -> Tensor:
    """AUC of every column of ``[N, C]``; NaN for a column without one of the two classes."""
    values, order = scores.T.contiguous().sort(1)
    sorted_labels = labels.T.gather(1, order)
    positive, negative = sorted_labels == 1, sorted_labels == 0
    below = nn.functional.pad(negative.cumsum(1), (1, 0))  # negatives among the first i scores
    first, last = (torch.searchsorted(values, values, right=right) for right in (False, True))
    ordered = (below.gather(1, first) + below.gather(1, last)).to(torch.float64) / 2  # below, and half of the tied
    pairs = positive.sum(1) * negative.sum(1)
    return torch.where(pairs > 0, (ordered * positive).sum(1) / pairs, torch.nan)


def class_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """``[4, C]``: true positives, predicted and actual numbers of every class, and whether it counts in any case.

    Every column of a multi-label target counts in the mean; of single labels, those that occur as target or prediction.
    """
    several = targets.is_floating_point()  # one column per class
    known = ~targets.isnan() if several else (targets >= 0).unsqueeze(-1)
    classes = torch.arange(outputs.shape[-1], device=outputs.device)
    predicted = (outputs > 0 if several else outputs.argmax(-1, keepdim=True) == classes) & known
    actual = (targets > 0.5 if several else targets.unsqueeze(-1) == classes) & known
    over = tuple(range(actual.dim() - 1))
    hits = (predicted & actual).sum(over)
    return torch.stack([hits, predicted.sum(over), actual.sum(over), torch.full_like(hits, several)]).double()


def _f1_macro(counts: Tensor) -> Tensor:
    hits, total, always = counts[0], counts[1] + counts[2], counts[3]
    return (2 * hits / total.clamp_min(1))[(total > 0) | (always > 0)].mean()


def same_shape(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs in the shape of their targets: a last axis of length one is dropped, and nothing is ever broadcast."""
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise UserError(f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} must have one shape")
    return outputs


def _known_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return (same_shape(outputs, targets) - targets)[~targets.isnan()].double()


def _total(each: Tensor) -> Tensor:
    """The sum of some values, and their number."""
    return torch.stack([each.sum(), each.new_full((), float(each.numel()))])


def broadcast_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs ``[T, N, 1]``, targets ``[T, N]``: ``[T]`` mean error of each output against all targets of its time.

    A gap in the targets makes it NaN: the matrix has no place for it.
    """
    o, y = same_shape(outputs, targets), targets
    return o.square().mean(-1) - 2 * o.mean(-1) * y.mean(-1) + y.square().mean(-1)


_CLASSES = ("multiclass", "multilabel")
_ratio: Callable[[Tensor], Tensor] = lambda counts: counts[0] / counts[1]
METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", True, _CLASSES, _right_answers, _ratio),
        Metric("rocauc", True, _CLASSES, rocauc, adds=False),
        Metric("f1", True, _CLASSES, class_counts, _f1_macro),
        Metric("f1-micro", True, _CLASSES, class_counts, lambda counts: 2 * counts[0].sum() / counts[1:3].sum()),
        Metric("mse", False, ("regression",), lambda o, y: _total(_known_errors(o, y).square()), _ratio),
        Metric("mae", False, ("regression",), lambda o, y: _total(_known_errors(o, y).abs()), _ratio),
        Metric("broadcast-mse", False, ("regression",), lambda o, y: _total(broadcast_errors(o, y)), _ratio),
    )
}
ALIASES = {"roc_auc": "rocauc", "roc-auc": "rocauc", "auc": "rocauc", "acc": "accuracy", "f1-macro": "f1"}


def chosen_metric(config: TrainConfig, task: Task) -> Metric:
    """The metric of a configuration; ``"auto"`` is the task's own."""
    return find_metric(task.metric if config.metric == "auto" else config.metric, task.problem)


def protocol_text(protocol: str, metric: str) -> str:
    """A protocol with the metric that is used in its last clause, if that names a metric."""
    rest, _, last = protocol.rpartition("; ")
    return f"{rest}; {metric}" if last in METRICS else protocol


def find_metric(name: str, problem: str | None = None) -> Metric:
    """The metric of a name."""
    name = ALIASES.get(name, name)
    if name not in METRICS:
        known = f"{did_you_mean(name, METRICS)}Known are {', '.join(METRICS)}"
        raise UserError(f"unknown metric {name!r}; {known}", argument="metric")
    metric = METRICS[name]
    if problem is not None and problem not in metric.problems:
        fitting = [other.name for other in METRICS.values() if problem in other.problems]
        raise UserError(f"metric {name!r} cannot measure a {problem} task; use one of {', '.join(fitting)}")
    return metric
