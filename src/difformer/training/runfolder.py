"""The run folder: everything of a run in one place, whole at any moment.

    config.toml          what was asked for, complete: model, training, data, seeds, versions, device
    metrics.jsonl        one line an epoch and seed
    summary.json         mean ± standard deviation over the runs that have ended
    seed-0/              one folder a seed
      model.safetensors    parameters of the best epoch
      predictions.npz      outputs of the best epoch for every instance (and .csv, unless it would be huge)
      split.npz            which instances were trained on, chosen by and tested on
      result.json          best epoch and its metrics; written last, so where it stands the seed is done
      checkpoint.safetensors  where to go on, while it is not

Every file is written beside its place, flushed and renamed into it; the folder itself appears with its configuration
already inside. Nothing is pickled.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from difformer.data import Split, Task
from difformer.data.split import save_splits
from difformer.errors import UserError
from difformer.training import toml
from difformer.training.checkpoint import CheckpointError, Snapshot
from difformer.training.config import TrainConfig
from difformer.training.metrics import find_metric
from difformer.training.predictions import CSV_CELLS, Predictions
from difformer.training.record import RunRecord, Summary
from difformer.training.rundescription import FORMAT, description
from difformer.training.runfiles import (
    MetricsFile,
    RunFolderError,
    file_mask,
    read_json,
    write_bytes,
    write_json,
    writing,
)
from difformer.training.source import TaskSource

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
WEIGHTS, CHECKPOINT, RESULT = "model.safetensors", "checkpoint.safetensors", "result.json"


@dataclass(frozen=True)
class RunFolder:
    """A run on disk; make one with `create` or `open`.

    Args:
        path: The folder.
        config: What is trained.
        seeds: One run each; seed s is trained on split s modulo the number of splits.
        stacked: Whether the runs are trained as one.
        source: Where the task comes from; None where it was handed over as an object.
        about: The whole of ``config.toml``.
    """

    path: Path
    config: TrainConfig
    seeds: tuple[int, ...]
    stacked: bool
    source: TaskSource | None
    about: Mapping[str, Any]

    @staticmethod
    def create(
        path: str | Path,
        task: Task,
        config: TrainConfig,
        *,
        seeds: Sequence[int],
        device: torch.device,
        source: TaskSource | None = None,
        stacked: bool = False,
        preset: str | None = None,
    ) -> RunFolder:
        """A new run folder, which appears at once with its configuration in it; see `description`.

        Raises:
            RunFolderError: If the folder is there already and not empty, or cannot be made.
        """
        path = Path(path)
        with writing(path):
            taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
        if taken:
            what = "already holds a run" if (path / CONFIG).exists() else "is already there and not empty"
            raise RunFolderError(
                f"{path} {what}; nothing was changed. Choose another folder, or continue the run with resume"
            )
        about = description(task, config, seeds=seeds, device=device, source=source, stacked=stacked, preset=preset)
        try:
            text = toml.dumps(about)
        except TypeError as error:
            raise UserError(f"this run cannot be kept in a folder: {error}; train it with out=None") from error
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
            try:
                write_bytes(new / CONFIG, text.encode())
                new.chmod(0o777 & ~file_mask())  # mkdtemp makes folders that only their owner may read
                if path.is_dir():
                    path.rmdir()
                os.replace(new, path)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
        return RunFolder.open(path)

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """A run folder that is there.

        Raises:
            RunFolderError: If it is absent, damaged, or written by a newer version.
        """
        path = Path(path)
        if not (path / CONFIG).is_file():
            what = "has no config.toml, so it is no run folder" if path.is_dir() else "is not there"
            raise RunFolderError(f"{path} {what}; `difformer fit` makes run folders")
        try:
            about = toml.loads((path / CONFIG).read_text(encoding="utf-8"))
            if (written := about["run"]["format"]) > FORMAT:
                raise RunFolderError(
                    f"{path / CONFIG}: in format {written}, this difformer reads up to {FORMAT}: upgrade difformer"
                )
            model = about["model"]
            config = TrainConfig.from_dict(
                {**about["training"], "model": model["name"], "options": model.get("options", {})}
            )
            data = about["data"]
            source = TaskSource.from_dict(data["source"]) if "source" in data else None
            run = about["run"]
            return RunFolder(path, config, tuple(run["seeds"]), bool(run["stacked"]), source, about)
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{path / CONFIG} cannot be used: {type(error).__name__}: {error}") from error

    @property
    def metrics(self) -> MetricsFile:
        return MetricsFile(self.path / METRICS)

    @property
    def device(self) -> str:
        """Where it was trained."""
        return str(self.about["run"]["device"])

    @property
    def preset(self) -> str | None:
        """Name or file of the preset that its settings began with; None without one, or where nothing is known."""
        return self.about["run"].get("preset")

    def of_seed(self, seed: int) -> Path:
        """The folder of one seed."""
        return self.path / f"seed-{seed}"

    def discard(self) -> None:
        """Takes a folder back in which nothing has come of a run; one with anything else in it stays as it is."""
        files = tuple(self.path.iterdir())
        own = {path.name for path in files} <= {CONFIG, METRICS, ".lock"}
        if own and not any(path.name == METRICS and path.stat().st_size for path in files):
            shutil.rmtree(self.path)

    def task(self, given: Task | None = None) -> Task:
        """The task of the run: made again, or as given, and in both cases the very same.

        Raises:
            RunFolderError: If it cannot be made again, or its data have changed.
        """
        if given is None and self.source is None:
            raise RunFolderError(
                f"{self.path} was trained on a task that was handed over as an object; pass that task again: task=…"
            )
        task = given if given is not None else self.source.load()  # type: ignore[union-attr]
        expected, found = self.about["data"]["fingerprint"], task.fingerprint()
        if found != expected:
            raise RunFolderError(
                f"the data of {self.path} have changed: the run was made on {self.about['data']['task']!r} with "
                f"fingerprint {expected[:12]}…, what is there now has {found[:12]}…; restore the data, or fit anew"
            )
        return task

    def split_of(self, task: Task, seed: int) -> Split:
        """Seed s uses split s modulo their number."""
        return task.splits[seed % len(task.splits)]

    def write_checkpoint(self, seed: int, snapshot: Snapshot) -> None:
        path = self.of_seed(seed) / CHECKPOINT
        with writing(path):
            snapshot.write(path)

    def read_checkpoint(self, seed: int) -> Snapshot | None:
        """Where a seed stands; None where it has not come far enough for a checkpoint.

        Raises:
            RunFolderError: If there is a checkpoint that cannot be used.
        """
        path = self.of_seed(seed) / CHECKPOINT
        try:
            return Snapshot.read(path) if path.is_file() else None
        except CheckpointError as error:
            raise RunFolderError(f"{error}; delete it to train seed {seed} from its beginning") from error

    def write_record(self, record: RunRecord, task: Task) -> None:
        """Everything of a run that has ended, ``result.json`` last."""
        folder, split = self.of_seed(record.seed), self.split_of(task, record.seed)
        weights = {name: tensor.contiguous().clone() for name, tensor in record.state.items()}
        write_bytes(folder / WEIGHTS, save_tensors(weights, metadata={"format": "difformer"}))
        predictions = Predictions.of(task, record.outputs, split)
        predictions.write_npz(folder / "predictions.npz")
        if predictions.cells <= CSV_CELLS:
            predictions.write_csv(folder / "predictions.csv")
        with writing(folder / "split.npz"):
            save_splits([split], folder / "split.npz")
        write_json(folder / RESULT, record.result())
        if record.status != "interrupted":
            (folder / CHECKPOINT).unlink(missing_ok=True)
        self.write_summary()

    def results(self) -> tuple[dict[str, Any], ...]:
        """Results of the seeds that have one, in the order of seeds; interrupted ones included."""
        paths = (self.of_seed(seed) / RESULT for seed in self.seeds)
        return tuple(read_json(path) for path in paths if path.is_file())

    def is_done(self, seed: int) -> bool:
        """Whether a seed was trained to its end."""
        path = self.of_seed(seed) / RESULT
        return path.is_file() and read_json(path)["status"] != "interrupted"

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Seeds that have not been trained to their end."""
        return tuple(seed for seed in self.seeds if not self.is_done(seed))

    def summary(self, records: Sequence[RunRecord] = ()) -> Summary:
        """Over all seeds that have a result."""
        results = self.results()
        if not results:
            raise RunFolderError(f"{self.path} has no results yet; continue the run with resume: {self.path}")
        metric = find_metric(results[0]["metric"])
        return Summary(results, metric.name, metric.higher_is_better, self.path, tuple(records))

    def write_summary(self) -> None:
        document = self.summary().to_dict()
        document["complete"] = document["complete"] and document["runs"] == len(self.seeds)
        write_json(self.path / SUMMARY, document)

    def read_weights(self, seed: int) -> dict[str, Tensor]:
        """Parameters of a seed's best epoch.

        Raises:
            RunFolderError: If they are absent or damaged.
        """
        path = self.of_seed(seed) / WEIGHTS
        if not path.is_file():
            raise RunFolderError(f"{path} is missing: seed {seed} has not been trained yet; continue with resume")
        try:
            return load_tensors(path.read_bytes())
        except SafetensorError as error:
            raise RunFolderError(f"{path} is damaged: {error}") from error
