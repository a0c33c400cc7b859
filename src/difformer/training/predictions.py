"""Predictions: outputs as classes, probabilities or values, and as files.

Multi-class outputs become the most probable class and the probability of every class (a softmax), multi-label ones the
probability of every column (a sigmoid), regression values stay what they are.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.files import csv_text, write_bytes

CSV_CELLS = 2_000_000  # a table with more is kept as arrays alone


@dataclass(frozen=True)
class Predictions:
    """Outputs of a model for instances.

    Args:
        problem: ``"multiclass"``, ``"multilabel"`` or ``"regression"``.
        outputs: ``[instances, …, C]`` as the model gives them.
        class_names: Names of classes or target columns, where known.
        instance_names: Names of instances, where known.
        targets: What they should be, where known.
        part: Of each instance: ``"train"``, ``"valid"``, ``"test"`` or ``""``.
    """

    problem: str
    outputs: Tensor = field(repr=False)
    class_names: tuple[str, ...] = ()
    instance_names: tuple[str, ...] = ()
    targets: Tensor | None = field(default=None, repr=False)
    part: tuple[str, ...] = field(default=(), repr=False)

    @staticmethod
    def of(task: Task, outputs: Tensor, split: Split | None = None) -> Predictions:
        """Of all instances of a task."""
        part = [""] * task.num_instances
        for name, index in (split.parts() if split is not None else {}).items():
            for i in index.tolist():
                part[i] = name
        names = () if task.kind == "series" else task.instance_names
        return Predictions(task.problem, outputs, task.class_names, names, task.y, tuple(part) if split else ())

    def probabilities(self) -> Tensor:
        """Of classes or columns; the values themselves for a regression."""
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
        columns: dict[str, Any] = {}
        places = np.indices(shape).reshape(len(shape), -1)
        names = ("instance",) if len(shape) == 1 else ("snapshot", "node")
        for name, place in zip(names, places, strict=True):
            columns[name] = [self.instance_names[i] for i in place] if self.instance_names else place.tolist()
        if self.part:
            columns["part"] = [self.part[i] for i in places[0]]
        probabilities = self.probabilities().flatten(0, -2).double().numpy(force=True)
        targets = None if self.targets is None else self.targets.numpy(force=True)
        if self.problem == "multiclass":
            label = probabilities.argmax(-1)
            if targets is not None:
                columns["target"] = [self._class(c) for c in targets.reshape(-1).tolist()]
            columns["prediction"] = [self._class(c) for c in label.tolist()]
            columns["probability"] = _rounded(probabilities[np.arange(len(label)), label])
            for c in range(probabilities.shape[1]):
                columns[f"probability {self._class(c)}"] = _rounded(probabilities[:, c])
        else:
            flat = None if targets is None else targets.reshape(probabilities.shape)
            for c in range(probabilities.shape[1]):
                name = self.class_names[c] if self.class_names else str(c)
                end = "" if probabilities.shape[1] == 1 else f" {name}"
                if flat is not None:
                    columns[f"target{end}"] = _rounded(flat[:, c])
                kind = "probability" if self.problem == "multilabel" else "prediction"
                columns[f"{kind}{end}"] = _rounded(probabilities[:, c])
        return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]

    def _class(self, number: int) -> str:
        if number < 0:
            return ""
        return self.class_names[number] if self.class_names else str(number)

    def csv(self) -> str:
        """The table as comma-separated text, a line of headings first."""
        headings, rows = self.table()
        return csv_text([headings, *rows])

    def write_csv(self, path: Path) -> None:
        """A table for people and spreadsheets."""
        write_bytes(path, self.csv().encode())

    def npz(self, **more: Any) -> bytes:
        """Arrays ``outputs``, ``prediction`` and, where known, ``target``, ``part`` and ``names``; nothing pickled."""
        arrays: dict[str, Any] = {
            **more,
            "outputs": self.outputs.numpy(force=True),
            "prediction": self.labels().numpy(force=True),
        }
        if self.targets is not None:
            arrays["target"] = self.targets.numpy(force=True)
        if self.part:
            arrays["part"] = np.array(self.part)
        if self.instance_names:
            arrays["names"] = np.array(self.instance_names)
        if self.class_names:
            arrays["classes"] = np.array(self.class_names)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        return content.getvalue()

    def write_npz(self, path: Path, **more: Any) -> None:
        """Arrays for programs, see `npz`."""
        write_bytes(path, self.npz(**more))

    def write(self, path: Path) -> None:
        """By the name's ending: ``.csv`` or ``.npz``.

        Raises:
            ValueError: If it ends otherwise.
        """
        if path.suffix == ".csv":
            self.write_csv(path)
        elif path.suffix == ".npz":
            self.write_npz(path)
        else:
            raise UserError(f"predictions are written as .csv or .npz, got {str(path)!r}")

    @property
    def cells(self) -> int:
        """Size of the table."""
        return self.outputs.numel()


def _rounded(values: Any) -> list[Any]:
    return ["" if v != v else float(f"{v:.6g}") for v in values.tolist()]
