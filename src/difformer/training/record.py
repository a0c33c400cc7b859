"""The result of a run in memory: one record per seed, the summary over seeds, and signs that a run went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from difformer.data import Split, Task

NO_BETTER = "no better than always predicting the most frequent class"
COLLAPSED = 1e-3  # relative spread of outputs below which instances are not told apart

# One row per epoch: "epoch", "loss" and, where the epoch was evaluated, "train", "valid", "test".
Row = dict[str, Any]
RESULT = ("seed", "split", "metric", "status", "best_epoch", "epochs", "train", "valid", "test", "loss", "seconds")
Status = Literal["finished", "stopped early", "interrupted"]


@dataclass(frozen=True)
class RunRecord:
    """One training of one seed on one split.

    Args:
        seed: Of initialisation, dropout and the order of batches.
        split: Name of the split.
        metric: What `train`, `valid` and `test` are.
        best_epoch: The earliest epoch with the best validation score.
        train: Metric at that epoch on the training part.
        valid: On validation.
        test: On test; NaN where a part is empty.
        loss: Training loss of the last epoch.
        history: One row per epoch, see `Row`.
        seconds: Time spent training and evaluating.
        state: Parameters and buffers of the best epoch, on the CPU.
        outputs: What the best epoch gives for every instance: ``[N, C]``, ``[T, N, C]`` or ``[G, C]``, on the CPU.
        status: How it ended.
        notes: What the user should know about the run, see `warning_signs`; empty for most runs.
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
    notes: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    def result(self) -> dict[str, Any]:
        """Everything but tensors and history, for ``result.json`` and tables."""
        return {name: getattr(self, name) for name in RESULT} | ({"notes": list(self.notes)} if self.notes else {})


@dataclass(frozen=True)
class Summary:
    """Mean and spread over the runs of one configuration.

    Args:
        results: One `RunRecord.result` per run.
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

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the runs, each note once, with the seeds it is about."""
        found: dict[str, list[int]] = {}
        for result in self.results:
            for note in result.get("notes", ()):
                found.setdefault(note, []).append(result["seed"])
        every = len(self.results)
        return tuple(
            note if len(seeds) == every else f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: {note}"
            for note, seeds in found.items()
        )

    def values(self, part: str = "test") -> list[float]:
        """The metric on one part, one value per run."""
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


def warning_signs(task: Task, split: Split, outputs: Tensor, metric: str) -> list[str]:
    """Signs that a model has learnt nothing: one prediction for all, worse than one, or outputs that hardly differ.

    Args:
        task: What was to be learnt.
        split: The split; the instances outside the training part are looked at, or all where there are no others.
        outputs: Of the best epoch, ``[instances, …, C]`` on the CPU.
        metric: Name of the run's metric; only accuracy is compared with that of the most frequent class.
    """
    held = [index for name, index in split.parts().items() if name != "train" and index.numel()]
    index = torch.cat(held) if held else torch.arange(outputs.shape[0])
    rows = outputs[index].flatten(0, -2).double()
    if rows.shape[0] < 2 or not rows.isfinite().all():
        return []
    found = []
    if task.problem == "multiclass":
        known = task.y[index].flatten()
        predicted = rows.argmax(-1)
        if (known >= 0).any() and known[known >= 0].unique().numel() > 1 and bool((predicted == predicted[0]).all()):
            share = (known[known >= 0] == predicted[0]).double().mean().item()
            name = task.class_names[int(predicted[0])] if task.class_names else str(int(predicted[0]))
            found.append(
                f"constant prediction: every instance outside the training part is predicted as class {name}, so the "
                f"accuracy there ({share:.4f}) is the share of that class"
            )
        elif metric == "accuracy" and held:
            labels = task.y[split.train].flatten()
            labels, valued = labels[labels >= 0], known >= 0
            if labels.numel() and valued.any():
                share = (known[valued] == labels.bincount().argmax()).double().mean().item()
                reached = (known == predicted)[valued].double().mean().item()
                if reached <= share:
                    found.append(f"{NO_BETTER} ({share:.2f}): accuracy outside the training part is {reached:.2f}")
    elif task.problem == "multilabel" and bool(((rows > 0) == (rows > 0)[0]).all()):
        found.append("constant prediction: every instance outside the training part gets the same labels")
    centred = rows - rows.mean(0)
    whole = rows.square().mean().sqrt()
    if task.problem == "regression":  # values need not lie around zero: their spread is compared with the targets'
        known = task.y[~task.y.isnan()].double()
        whole = known.std(correction=0) if known.numel() else whole
    spread = float(centred.square().mean().sqrt() / whole.clamp_min(1e-300))
    if spread < COLLAPSED:
        found.append(
            f"collapsed states: the outputs of all instances agree to a relative spread of {spread:.1e}, so the model "
            f"does not tell instances apart; try fewer layers, a smaller step_size, or source_weight above 0"
        )
    return found
