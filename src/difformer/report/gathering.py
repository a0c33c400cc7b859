"""Everything a report needs of a run, read once: the folder, the model of one seed, the predictions of all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from difformer.data import Task
from difformer.files import RunFolderError
from difformer.training.predictions import Predictions
from difformer.training.run_folder import RunFolder
from difformer.training.using import Loaded, best_seed, load_run


@dataclass(frozen=True)
class Material:
    """A run, ready to be looked at.

    Args:
        folder: The run folder.
        loaded: The model of the seed that is looked into.
        seed: That seed.
        predictions: Of every seed with a result, the seed's own first.
        part: ``"test"``; ``"valid"`` or ``"train"`` where there is no test part.
    """

    folder: RunFolder
    loaded: Loaded
    seed: int
    predictions: tuple[Predictions, ...]
    part: str

    @property
    def task(self) -> Task:
        return self.loaded.task

    @property
    def outputs(self) -> Tensor:
        """Of all instances, as the seed's folder has them."""
        return self.predictions[0].outputs

    @property
    def classes(self) -> Tensor | None:
        """Class of every instance of a task on nodes, -1 where unknown; None where there are no classes to compare."""
        task = self.task
        if task.kind != "nodes":
            return None
        if task.problem == "multiclass":
            return task.y
        if task.problem == "multilabel" and task.num_outputs == 1:
            flat = task.y.reshape(-1)
            return torch.where(flat.isnan(), -1, (flat > 0.5).long())
        return None


def gather(
    run: RunFolder | str | Path,
    *,
    seed: int | None = None,
    task: Task | None = None,
    device: str | torch.device = "auto",
) -> Material:
    """Opens a run.

    Raises:
        RunFolderError: If it has no result yet, or its data have changed.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
    chosen = best_seed(folder) if seed is None else seed
    loaded = load_run(folder, seed=chosen, task=task, device=device)
    done = [chosen, *(r["seed"] for r in folder.results() if r["seed"] != chosen)]
    predictions = tuple(read_predictions(folder, loaded.task, one) for one in done)
    sizes = {name: index.numel() for name, index in loaded.split.parts().items()}
    part = next((name for name in ("test", "valid", "train") if sizes[name]), "test")
    return Material(folder, loaded, chosen, predictions, part)


def read_predictions(folder: RunFolder, task: Task, seed: int) -> Predictions:
    """What a seed's folder says of all instances.

    Raises:
        RunFolderError: If the file is absent or damaged.
    """
    path = folder.of_seed(seed) / "predictions.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            outputs, part = torch.from_numpy(file["outputs"]), tuple(file["part"].tolist())
    except Exception as error:  # whatever a decoder finds wrong is the file's fault, and is named so
        raise RunFolderError(f"{path} cannot be read: {error}; fit the run anew") from error
    return Predictions(task.problem, outputs, task.class_names, task.instance_names, task.y, part)
