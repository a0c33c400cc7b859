"""What a run leaves behind in memory: one record a seed, and the summary over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

# One row an epoch: "epoch", "loss" and, where the epoch was evaluated, "train", "valid", "test".
Row = dict[str, Any]
Status = Literal["finished", "stopped early", "interrupted"]


@dataclass(frozen=True)
class RunRecord:
    """One training of one seed on one split.

    Args:
        seed: Of initialisation, dropout and the order of batches.
        split: Name of the split.
        metric: What `train`, `valid` and `test` are.
        best_epoch: The first epoch that was best on validation.
        train: Metric at that epoch on the training part.
        valid: On validation.
        test: On test; NaN where a part is empty.
        loss: Training loss of the last epoch.
        history: One row an epoch, see `Row`.
        seconds: Time spent training and evaluating.
        state: Parameters and buffers of the best epoch, on the CPU.
        outputs: What the best epoch gives for every instance: ``[N, C]``, ``[T, N, C]`` or ``[G, C]``, on the CPU.
        status: How it ended.
    """

    seed: int
    split: str
    metric: str
    best_epoch: int
    train: float
    valid: float
    test: float
    loss: float
    history: list[Row]
    seconds: float
    state: dict[str, Tensor] = field(repr=False)
    outputs: Tensor = field(repr=False)
    status: Status = "finished"

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    def result(self) -> dict[str, Any]:
        """Everything but tensors and history, for ``result.json`` and tables."""
        names = (
            "seed",
            "split",
            "metric",
            "status",
            "best_epoch",
            "epochs",
            "train",
            "valid",
            "test",
            "loss",
            "seconds",
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Summary:
    """Mean and spread over the runs of one configuration.

    Args:
        results: One `RunRecord.result` a run.
        metric: What is reported.
        higher_is_better: Whether a larger metric is a better one.
        folder: The run folder, where there is one.
        records: The runs themselves, where they were made in this process.
    """

    results: tuple[dict[str, Any], ...]
    metric: str
    higher_is_better: bool
    folder: Path | None = None
    records: tuple[RunRecord, ...] = field(default=(), repr=False)

    @property
    def complete(self) -> bool:
        """Whether every run came to its end."""
        return all(result["status"] != "interrupted" for result in self.results)

    def values(self, part: str = "test") -> list[float]:
        """The metric on one part, a run each."""
        return [float("nan") if result[part] is None else float(result[part]) for result in self.results]

    def mean(self, part: str = "test") -> float:
        return float(np.mean(self.values(part)))

    def std(self, part: str = "test") -> float:
        """Sample standard deviation over runs (n - 1 below the root); 0 for a single run."""
        return spread(self.values(part))

    def to_dict(self) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        parts = ("train", "valid", "test")
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "complete": self.complete,
            "runs": len(self.results),
            **{part: {"mean": self.mean(part), "std": self.std(part)} for part in parts},
            "seconds": sum(float(result["seconds"]) for result in self.results),
            "results": list(self.results),
        }


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
