"""Results in memory: the record of each seed, the summary over seeds, predictions, and signs that a run went wrong."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.files import csv_text, write_bytes
from difformer.training.metrics import find_metric

NO_BETTER = "no better than always predicting the most frequent class"
NO_BETTER_MEAN = "no better than always predicting the mean of the training part"
COLLAPSED = 1e-3  # relative spread of outputs below which instances are not told apart

Row = dict[str, Any]  # one per epoch, see `RunRecord.history`
RESULT = ("seed", "split", "metric", "status", "best_epoch", "epochs", "train", "valid", "test", "loss", "seconds")
Status = Literal["finished", "stopped early", "interrupted"]


@dataclass(frozen=True)
class RunRecord:
    """One training of one seed on one split."""

    seed: int  #: Of initialisation, dropout and the order of batches.
    split: str  #: Name of the split.
    metric: str  #: Name of the metric of `train`, `valid` and `test`.
    best_epoch: int  #: The earliest epoch with the best validation score.
    train: float  #: Metric at that epoch on the training part; NaN if the part is empty, as below.
    valid: float  #: On validation.
    test: float  #: On test.
    history: list[Row]  #: One row per epoch: epoch, loss and, if it was evaluated, train, valid and test.
    seconds: float  #: Time spent training and evaluating.
    state: dict[str, Tensor] = field(repr=False)  #: Parameters and buffers of the best epoch, on the CPU.
    outputs: Tensor = field(repr=False)  #: Of the best epoch, ``[N, C]``, ``[T, N, C]`` or ``[G, C]``, on the CPU.
    status: Status = "finished"  #: How it ended: finished, stopped early or interrupted.
    notes: tuple[str, ...] = ()  #: Signs that something went wrong; empty for most runs.

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    @property
    def loss(self) -> float:
        """Training loss of the last epoch."""
        return float(self.history[-1]["loss"]) if self.history else float("nan")

    def result(self) -> dict[str, Any]:
        """Everything but tensors and history, for ``result.json`` and tables."""
        return {name: getattr(self, name) for name in RESULT} | ({"notes": list(self.notes)} if self.notes else {})


@dataclass(frozen=True)
class Summary:
    """Mean and spread over the runs of one configuration."""

    results: tuple[dict[str, Any], ...]  #: One `RunRecord.result` per run.
    folder: Path | None = None  #: The run folder, if there is one.
    records: tuple[RunRecord, ...] = field(default=(), repr=False)  #: The runs that were trained in this process.

    @property
    def metric(self) -> str:
        """Name of the metric that is reported."""
        return str(self.results[0]["metric"])

    @property
    def higher_is_better(self) -> bool:
        return find_metric(self.metric).higher_is_better

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
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "complete": self.complete,
            "runs": len(self.results),
            **{part: {"mean": self.mean(part), "std": self.std(part)} for part in ("train", "valid", "test")},
            "seconds": sum(float(result["seconds"]) for result in self.results),
            "results": list(self.results),
        }


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Predictions:
    """Outputs of a model for instances, with targets and names if they are known."""

    problem: str  # "multiclass", "multilabel" or "regression"
    outputs: Tensor = field(repr=False)  # [instances, …, C] as the model gives them
    class_names: tuple[str, ...] = ()  # of classes or target columns
    instance_names: tuple[str, ...] = ()
    targets: Tensor | None = field(default=None, repr=False)
    part: tuple[str, ...] = field(default=(), repr=False)  # of each instance: "train", "valid", "test" or ""

    @staticmethod
    def of(task: Task, outputs: Tensor, split: Split | None = None) -> Predictions:
        """The predictions for all instances of a task."""
        part = np.full(task.num_instances if split else 0, "", dtype=object)
        for name, index in (split.parts() if split else {}).items():
            part[index] = name
        names = () if task.kind == "series" else task.instance_names
        return Predictions(task.problem, outputs, task.class_names, names, task.y, tuple(part))

    def probabilities(self) -> Tensor:
        """Probabilities of classes or columns; for a regression the values themselves."""
        if self.problem == "multiclass":
            return self.outputs.softmax(-1)
        return self.outputs.sigmoid() if self.problem == "multilabel" else self.outputs

    def labels(self) -> Tensor:
        """Class numbers, 0/1 columns, or values."""
        if self.problem == "multiclass":
            return self.outputs.argmax(-1)
        return (self.outputs > 0).long() if self.problem == "multilabel" else self.outputs

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Headings and rows, one row per instance (of a series: per snapshot and node)."""
        shape = self.outputs.shape[:-1]
        places = np.indices(shape).reshape(len(shape), -1)
        columns: dict[str, list[Any]] = {}
        for name, place in zip(("instance",) if len(shape) == 1 else ("snapshot", "node"), places, strict=True):
            columns[name] = [self.instance_names[i] for i in place] if self.instance_names else place.tolist()
        if self.part:
            columns["part"] = [self.part[i] for i in places[0]]
        values = self.probabilities().flatten(0, -2).double().numpy(force=True)
        targets = None if self.targets is None else self.targets.numpy(force=True)
        names = self.class_names or tuple(map(str, range(values.shape[1])))
        if self.problem == "multiclass":
            label, named = values.argmax(-1), (*names, "")  # -1, an unknown class, has no name
            if targets is not None:
                columns["target"] = [named[c] for c in targets.reshape(-1).tolist()]
            columns["prediction"] = [named[c] for c in label.tolist()]
            columns["probability"] = _rounded(values[np.arange(len(label)), label])
            columns |= {f"probability {name}": _rounded(each) for name, each in zip(names, values.T, strict=False)}
        else:
            kind = "probability" if self.problem == "multilabel" else "prediction"
            for c, each in enumerate(values.T):
                end = "" if values.shape[1] == 1 else f" {names[c]}"
                if targets is not None:
                    columns[f"target{end}"] = _rounded(targets.reshape(values.shape)[:, c])
                columns[f"{kind}{end}"] = _rounded(each)
        return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]

    def csv(self) -> str:
        """The table as comma-separated text, a line of headings first."""
        headings, rows = self.table()
        return csv_text([headings, *rows])

    def npz(self, **more: Any) -> bytes:
        """Arrays ``outputs``, ``prediction`` and, if known, ``target``, ``part``, ``names`` and ``classes``."""
        arrays: dict[str, Any] = {"outputs": self.outputs, "prediction": self.labels(), "target": self.targets}
        more |= {name: value.numpy(force=True) for name, value in arrays.items() if value is not None}
        texts = {"part": self.part, "names": self.instance_names, "classes": self.class_names}
        more |= {name: np.array(value) for name, value in texts.items() if value}
        content = io.BytesIO()
        np.savez_compressed(content, **more)
        return content.getvalue()

    def write(self, path: Path) -> None:
        """Writes a table (``.csv``) or arrays (``.npz``), by the ending of the path."""
        if path.suffix not in (".csv", ".npz"):
            raise UserError(f"predictions are written as .csv or .npz, got {str(path)!r}")
        write_bytes(path, self.csv().encode() if path.suffix == ".csv" else self.npz())


def _rounded(values: Any) -> list[Any]:
    return ["" if v != v else float(f"{v:.6g}") for v in values.tolist()]


def warning_signs(task: Task, split: Split, outputs: Tensor, metric: str) -> list[str]:
    """Signs that a model has learnt nothing: a constant prediction, a score no better than that, or outputs
    that hardly differ.

    ``outputs [instances, …, C]`` of the best epoch are looked at outside the training part, or all of them if there are
    no others. Accuracy is compared with that of the most frequent class, and values with their mean.
    """
    held = [index for name, index in split.parts().items() if name != "train" and index.numel()]
    index = torch.cat(held) if held else torch.arange(outputs.shape[0])
    rows = outputs[index].flatten(0, -2).double()
    if rows.shape[0] < 2 or not rows.isfinite().all():
        return []
    found = []
    if task.problem == "multiclass":
        y, predicted = task.y[index].flatten(), rows.argmax(-1)
        known, reached = y[y >= 0], (y == predicted)[y >= 0].double().mean().item()
        labels = task.y[split.train].flatten()
        counts = labels[labels >= 0].bincount()
        if known.unique().numel() > 1 and bool((predicted == predicted[0]).all()):
            name = task.class_names[int(predicted[0])] if task.class_names else str(int(predicted[0]))
            said = f"constant prediction: every instance outside the training part is predicted as class {name}, so "
            found.append(f"{said}the accuracy there ({reached:.4f}) is the share of that class")
        elif metric == "accuracy" and held and counts.numel() and known.numel():
            share = (known == counts.argmax()).double().mean().item()
            if reached <= share:
                found.append(f"{NO_BETTER} ({share:.2f}): accuracy outside the training part is {reached:.2f}")
    elif task.problem == "regression" and held:
        y, mean = task.y[index].reshape(rows.shape).double(), task.y[split.train].reshape(-1, rows.shape[1]).double()
        reached, simple = (float((y - guess).square().nanmean()) for guess in (rows, mean.nanmean(0)))
        if reached >= simple:
            found.append(f"{NO_BETTER_MEAN} ({simple:.4g}): the mean squared error outside it is {reached:.4g}")
    elif task.problem == "multilabel" and bool(((rows > 0) == (rows > 0)[0]).all()):
        found.append("constant prediction: every instance outside the training part gets the same labels")
    whole = rows.square().mean().sqrt()
    if task.problem == "regression":  # values need not lie around zero: their spread is compared with the targets'
        known = task.y[~task.y.isnan()].double()
        whole = known.std(correction=0) if known.numel() else whole
    spread = float((rows - rows.mean(0)).square().mean().sqrt() / whole.clamp_min(1e-300))
    if spread < COLLAPSED:
        said = f"collapsed states: the outputs of all instances agree to a relative spread of {spread:.1e}, so the "
        said += "model does not tell instances apart; try fewer layers, a smaller step_size, or source_weight above 0"
        found.append(said)
    return found
