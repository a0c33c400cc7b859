"""`difformer.training.journal.Journal` over ranks: every rank writes the same, from the rows of all."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.data import Split
from difformer.distributed.metrics import measure
from difformer.distributed.process_group import Ranks
from difformer.training.config import TrainConfig
from difformer.training.journal import Journal, Measured, NonFiniteOutputError
from difformer.training.metrics import find_metric
from difformer.training.record import Row


class ShardedJournal(Journal):
    """Losses, metrics and the best epoch of a run whose rows are spread over ranks.

    Args:
        metric: Name of the metric.
        problem: Of the task.
        y: ``[n, …]`` own targets.
        num_outputs: Columns of the outputs.
        split: With own rows.
        config: What is trained.
        seed: Of the run.
        ranks: The group.
    """

    def __init__(
        self,
        metric: str,
        problem: str,
        y: Tensor,
        num_outputs: int,
        split: Split,
        config: TrainConfig,
        seed: int,
        ranks: Ranks,
    ) -> None:
        self.split, self.config, self.seed, self.epochs, self.ranks = split, config, seed, config.epochs, ranks
        self.metric = find_metric(metric if config.metric == "auto" else config.metric, problem)
        device = ranks.device
        self.parts = {name: (index.to(device), y[index].to(device)) for name, index in split.parts().items()}
        self.best_epoch = 0
        self.best: Measured | None = None
        self.history: list[Row] = []
        self.pending: list[Tensor] = []
        self.chooses = ranks.any(bool(split.valid.numel()))
        if self.chooses:
            self._check(num_outputs)

    def _check(self, num_outputs: int) -> None:
        """`Metric.check` of the validation rows of all ranks."""
        targets = self.parts["valid"][1]
        shape = targets.shape if targets.is_floating_point() else (*targets.shape, num_outputs)
        zeros = torch.zeros(shape, device=targets.device)
        if (value := measure(self.metric, zeros, targets, self.ranks)) != value:
            raise ValueError(
                f"metric {self.metric.name!r} is not defined on the validation part; choose another metric "
                f"(--set metric=…) or another split"
            )

    def measure(self, epoch: int, outputs: Tensor) -> Measured:
        outputs = outputs.float()
        if self.ranks.any(not all(bool(outputs[index].isfinite().all()) for index, _ in self.parts.values())):
            raise NonFiniteOutputError(epoch, self.config)
        return {
            name: measure(self.metric, outputs[index], targets, self.ranks)
            for name, (index, targets) in self.parts.items()
        }

    def judge(self, epoch: int, measured: Measured) -> bool:
        known = None if self.best is None else self.best["valid"]
        if self.chooses and not self.metric.better(measured["valid"], known):
            return False
        self.best_epoch, self.best = epoch, measured
        return True

    def write(self, epoch: int, seconds: float, measured: Measured | None = None) -> list[Row]:
        if self.pending:  # each holds this rank's share of an epoch's loss
            whole = self.ranks.sum_(torch.stack(self.pending).double(), "metrics")
            self.pending[:] = list(whole.unbind())
        return super().write(epoch, seconds, measured)
