"""The run folder: everything of a run in one place, consistent at any moment.

    config.toml          what was asked for, complete: model, training, data, seeds, versions, device
    preprocessing.json   how raw columns became features, for tables with more than numbers
    metrics.jsonl        one line per epoch and seed
    summary.json         mean ± standard deviation over the runs that have ended
    stack.safetensors    where to resume seeds that are trained as one, while they are not done
    seed-0/              one folder per seed
      model.safetensors    parameters of the best epoch
      predictions.npz      outputs of the best epoch for every instance (and .csv, unless it would be huge)
      split.npz            which instances were used for training, validation and test
      result.json          best epoch and its metrics; written last, so a seed that has it is done
      checkpoint.safetensors  where to resume, while it is not

Every file is written under a temporary name, then renamed; the folder appears with its configuration already inside.
A folder may come from elsewhere: links that lead out of it, weights and predictions that are not those of their seed,
and files that do not have the expected form are refused. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from difformer import files, toml
from difformer.data import DataError, Preprocessing, Split, Task, dataset_options, from_files, load
from difformer.data.catalogue import entry
from difformer.data.split import current_name, save_splits
from difformer.errors import UserError
from difformer.files import RunFolderError, read_json, read_text, within, write_bytes, write_json, writing
from difformer.kernels.cpu import library
from difformer.kernels.cpu.passes import FEWEST_ELEMENTS
from difformer.schema import check
from difformer.training.checkpoint import CheckpointError, Snapshot, newer_format
from difformer.training.config import TrainConfig
from difformer.training.devices import describe
from difformer.training.model import split_number
from difformer.training.record import Predictions, Row, RunRecord, Summary
from difformer.zoo import options_of

FORMAT = 1
CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
PREPROCESSING, STACK = "preprocessing.json", "stack.safetensors"
WEIGHTS, CHECKPOINT, RESULT = "model.safetensors", "checkpoint.safetensors", "result.json"
PREDICTIONS, CSV, SPLIT = "predictions.npz", "predictions.csv", "split.npz"
HASHED = {"weights": WEIGHTS, "predictions": PREDICTIONS}  # entries of result.json, each the hash of a file
CSV_CELLS = 2_000_000  # a larger table of predictions is only written as .npz

_OPTIONAL = {"preset": (str, None), "hashes": ([str], bool, None)}
_FORM = {
    "run": {"seeds": [int], "stacked": bool, "device": str, "threads": int, **_OPTIONAL},
    "versions": {"torch": str},
    "data": {"task": str, "fingerprint": str, "metric": str, "problem": str, "protocol": str, "source": (dict, None)},
    "model": {"name": str, "options": dict},
    "training": dict,
}
_RESULT = {
    **dict.fromkeys(("split", "metric", "status"), str),
    **dict.fromkeys(("best_epoch", "epochs", "seconds"), float),
    **dict.fromkeys(("train", "valid", "test", "loss"), (float, None)),
}


@dataclass(frozen=True)
class TaskSource:
    """Where a task comes from, so that it can be loaded again: a data set by name, or a user's own files."""

    name: str | None = None  #: A data set of `difformer.data.load`; None for own files.
    root: str | None = None  #: Folder to search for its files first.
    options: Mapping[str, Any] = field(default_factory=dict)  #: Of the data set, or of `difformer.data.from_files`.
    files: Mapping[str, str] = field(default_factory=dict)  #: Own files by role (features, labels, edges, …).

    def __post_init__(self) -> None:
        if (self.name is None) == (not self.files):
            raise UserError("a task comes either from a data set by name or from files: give one of name and files")
        object.__setattr__(self, "files", {role: os.path.abspath(path) for role, path in self.files.items()})
        object.__setattr__(self, "options", dict(self.options))
        if self.root is not None:
            object.__setattr__(self, "root", os.path.abspath(self.root))

    def load(self) -> Task:
        """The task."""
        if self.name is not None:
            former = entry(self.name).former  # folders of earlier versions name all options of their time
            options = {key: value for key, value in self.options.items() if key not in former or value != former[key]}
            return load(self.name, self.root, **options)
        for role, path in self.files.items():
            if not Path(path).exists():
                raise DataError(
                    f"the file with the {role} is no longer there; put it back or, if it was moved, correct its place "
                    f"(the name must stay the same) in the run folder's config.toml, [data.source.files], {role} = …",
                    path=path,
                )
        arguments: dict[str, Any] = {**self.files, **self.options}
        if unknown := sorted(arguments.keys() - inspect.signature(from_files).parameters.keys()):
            raise DataError(f"from_files has no option {unknown[0]!r}; correct config.toml, [data.source]")
        return from_files(**arguments)

    def to_dict(self) -> dict[str, Any]:
        """As in ``config.toml``: every option that was left out has its default."""
        if self.name is not None:
            defaults = dataset_options(self.name)
        else:
            parameters = inspect.signature(from_files).parameters.values()
            defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return asdict(self) | {"options": {**defaults, **self.options}}

    @staticmethod
    def from_dict(table: Mapping[str, Any]) -> TaskSource:
        return TaskSource(table.get("name"), table.get("root"), table.get("options") or {}, table.get("files") or {})


def check_free(path: Path) -> None:
    """Refuses a folder that already exists and is not empty."""
    with writing(path):
        taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if taken:
        what = "already holds a run" if (path / CONFIG).exists() else "already exists and is not empty"
        advice = f"Choose another folder, or resume the run: difformer fit --resume {path}"
        raise RunFolderError(f"{path} {what}; nothing was changed. {advice}")


def default_path(task_name: str, model: str, parent: str | Path = "runs") -> Path:
    """A folder that does not exist yet, named after data set, model and time: ``runs/cora-mlp-20250131-235959``."""
    stem = f"{task_name}-{model}-{datetime.now():%Y%m%d-%H%M%S}"
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    return next(path for name in names if not (path := Path(parent) / name).exists())


@dataclass(frozen=True)
class RunFolder:
    """A run on disk, from `create` or `open`.

    Whatever cannot be read or written, or does not belong to the run, raises `difformer.files.RunFolderError`.
    """

    path: Path  #: The folder.
    config: TrainConfig  #: What is trained.
    seeds: tuple[int, ...]  #: One run per seed; seed s uses split s modulo the number of splits.
    stacked: bool  #: Whether the runs are trained as one.
    source: TaskSource | None  #: Where the task comes from; None for a task object.
    about: Mapping[str, Any]  #: The content of ``config.toml``.

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
        """A new run folder, which appears at once with its configuration in it, defaults included.

        `preset` names the preset or its file, for information: the settings are there in full.
        """
        from difformer import __version__

        path = Path(path)
        check_free(path)
        run: dict[str, Any] = {
            "format": FORMAT,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seeds": list(seeds),
            "stacked": stacked,
            "hashes": list(HASHED),  # in every result.json; older folders have true, for weights only, or nothing
            "device": str(device),
            "device_name": describe(device),
            "threads": torch.get_num_threads(),
        }
        if preset is not None:
            run["preset"] = preset
        rows = task.num_nodes * (task.num_instances if task.kind == "series" else 1)
        if device.type == "cpu" and rows * int(config.options.get("hidden_channels", 64)) >= FEWEST_ELEMENTS:
            run["kernels"] = kernels()  # nothing is compiled where passes are too short for kernels in C
        data: dict[str, Any] = {"task": task.name, "fingerprint": task.fingerprint()}
        data |= {name: getattr(task, name) for name in ("protocol", "kind", "problem", "metric")}
        data["splits"] = [split.name for split in task.splits]
        if source is not None:
            data["source"] = source.to_dict()
        versions = {"difformer": __version__, "torch": torch.__version__, "numpy": np.__version__}
        versions["python"] = platform.python_version()
        try:
            text = toml.dumps({"run": run, "versions": versions, "data": data, **_settings(config)})
        except TypeError as error:
            advice = "register it with difformer.register_diffusivity, or " if "Diffusivity" in str(error) else ""
            raise UserError(f"this run cannot be kept in a folder: {error}; {advice}train it with out=None") from error
        with writing(path), files.whole_folder(path) as new:
            write_bytes(new / CONFIG, text.encode())
            if task.preprocessing is not None:
                write_bytes(new / PREPROCESSING, json.dumps(task.preprocessing.to_dict(), indent=1).encode())
        return RunFolder.open(path)

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """Opens an existing run folder."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            what = "has no config.toml, so it is not a run folder" if path.is_dir() else "does not exist"
            raise RunFolderError(f"{path} {what}; `difformer fit` creates run folders")
        for file in (*path.iterdir(), *path.glob("seed-*/*")):
            if file.is_symlink() and file.name != files.LOCK:  # locking has a message of its own
                within(path, file)
        text = read_text(path / CONFIG)
        try:
            about = toml.loads(text)
            if newer := newer_format(about["run"]["format"], FORMAT):
                raise RunFolderError(f"{path / CONFIG}: {newer}")
            check(about, _FORM)
            run, data, model, training = (about[name] for name in ("run", "data", "model", "training"))
            if not run["seeds"] or len(set(run["seeds"])) != len(run["seeds"]):
                raise UserError("run.seeds must name at least one seed, and none twice")
            # Regressions of earlier versions learnt targets in the units of the data.
            training.setdefault("scale_targets", data["problem"] != "regression")
            config = TrainConfig.from_dict({**training, "model": model["name"], "options": model["options"]})
            source = TaskSource.from_dict(data["source"]) if "source" in data else None
            return RunFolder(path, config, tuple(run["seeds"]), run["stacked"], source, about)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunFolderError(f"{path / CONFIG} cannot be used: {type(error).__name__}: {error}") from error

    @property
    def device(self) -> str:
        """Where it was trained."""
        return str(self.about["run"]["device"])

    @property
    def preset(self) -> str | None:
        """Name or file of the preset that the settings come from; None without one, or if it is not known."""
        return self.about["run"].get("preset")

    def file(self, seed: int | None, name: str = "") -> Path:
        """A file of one seed, or of the run if `seed` is None; refused if a link leads out of the run folder."""
        return within(self.path, (self.path if seed is None else self.path / f"seed-{seed}") / name)

    def discard(self) -> None:
        """Removes the folder if the run has left no rows in it and it holds no other files."""
        if {path.name for path in self.path.iterdir()} <= {CONFIG, METRICS, files.LOCK} and not self.rows():
            shutil.rmtree(self.path)

    def task(self, given: Task | None = None) -> Task:
        """The task of the run, loaded again or as given; refused if it is not the same."""
        source, task = self.source, given
        if source is not None and task is None:
            # Labels that were classes are classes, whatever would be guessed today.
            if source.files and self.about["data"]["problem"] == "multiclass" and source.options.get("problem") is None:
                source = replace(source, options={**source.options, "problem": "multiclass"})
            task = source.load()
        if task is None:
            raise RunFolderError(f"{self.path} was trained on a task object; pass that task again: task=…")
        self._check_data(task)
        stored = self.file(None, PREPROCESSING)
        if task.preprocessing is None or not stored.is_file():
            return task
        return replace(task, preprocessing=Preprocessing.read(stored, task.feature_names))

    def _check_data(self, task: Task) -> None:
        expected, found = self.about["data"]["fingerprint"], task.fingerprint()
        if found != expected:
            raise RunFolderError(
                f"the data of {self.path} have changed: the run was made on {self.about['data']['task']!r} with "
                f"fingerprint {expected[:12]}…, the present data have {found[:12]}…; restore the data, or fit again"
            )

    def split_of(self, task: Task, seed: int) -> Split:
        """Seed s uses split s modulo the number of splits."""
        return task.splits[split_number(task, seed)]

    def check_same(self, task: Task, config: TrainConfig, seeds: tuple[int, ...]) -> None:
        """Refuses to resume a folder that holds another run."""
        self._check_data(task)
        differs = [
            f"{name} is {self.about[table].get(name)!r} there and {value!r} here"
            for table, asked in _settings(config).items()
            for name, value in asked.items()
            if value != self.about[table].get(name) and not name.startswith("checkpoint_")
        ]
        if self.seeds != seeds:
            differs.append(f"seeds are {list(self.seeds)} there and {list(seeds)} here")
        if differs:
            advice = "Choose another folder, or resume it as it is"
            raise RunFolderError(f"{self.path} holds another run: {'; '.join(differs)}. {advice}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder against other processes, and clears up after one that was killed."""
        with files.only_one(self.path):
            files.sweep(self.path)
            run = self.about["run"]  # sums are bit-identical only in the same order
            here = {"torch": torch.__version__, "threads": torch.get_num_threads()}
            there = {"torch": self.about["versions"]["torch"], "threads": run["threads"]}
            if "kernels" in run:
                here["kernels in"], there["kernels in"] = kernels(), run["kernels"]
            if changed := [f"{name} {there[name]}, now {here[name]}" for name in here if there[name] != here[name]]:
                rounding = "results may differ by rounding from those of an uninterrupted run"
                warnings.warn(f"{self.path} was begun with {'; '.join(changed)}: {rounding}", stacklevel=5)
            yield

    def rows(self) -> list[Row]:
        """Every complete line of ``metrics.jsonl``; part of a line that a killed process left is skipped."""
        path, found = self.file(None, METRICS), []
        for line in path.read_bytes().split(b"\n") if path.is_file() else ():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and type(row.get("seed")) is int and type(row.get("epoch")) is int:
                found.append({name: v for name, v in row.items() if v is None or type(v) in (int, float)})
        return found

    def begin_seed(self, seed: int, history: Iterable[Row] | None = None) -> None:
        """Removes lines of a seed beyond `history`, or beyond its checkpoint, that a killed process may have left."""
        if history is None:
            state = self.read_checkpoint(seed)
            history = [] if state is None else state.facts["history"]
        kept = [row for row in self.rows() if row["seed"] != seed and row["seed"] in self.seeds]
        write_bytes(self.file(None, METRICS), _lines([*kept, *({"seed": seed} | row for row in history)]))

    def progress(self, seed: int | None) -> dict[str, Any]:
        """Arguments of a trainer: `state`, its checkpoint, and `save` and `log`, which write snapshots and rows.

        A stack, of which there are no rows before it has ended, has no `log`.
        """
        checkpoint, metrics = self.checkpoint_file(seed), self.file(None, METRICS)
        given: dict[str, Any] = {"state": self.read_checkpoint(seed), "save": lambda found: found.write(checkpoint)}
        if seed is not None:
            given["log"] = lambda rows: files.append_bytes(metrics, _lines({"seed": seed} | row for row in rows))
        return given

    def checkpoint_file(self, seed: int | None) -> Path:
        """The checkpoint of a seed; with None, of seeds that are trained as one."""
        return self.file(seed, STACK if seed is None else CHECKPOINT)

    def read_checkpoint(self, seed: int | None) -> Snapshot | None:
        """The latest checkpoint of a seed or a stack, or None."""
        with self.resuming(seed):
            return Snapshot.read(path) if (path := self.checkpoint_file(seed)).is_file() else None

    @contextmanager
    def resuming(self, seed: int | None) -> Iterator[None]:
        """Adds the path and a remedy to errors about a checkpoint."""
        try:
            yield
        except CheckpointError as error:
            whose = "all seeds from the beginning" if seed is None else f"seed {seed} from its beginning"
            raise RunFolderError(f"{self.checkpoint_file(seed)}: {error}; delete it to train {whose}") from error

    def write_record(self, record: RunRecord, task: Task) -> None:
        """Everything of a run that has ended, ``result.json`` last."""
        seed, split = record.seed, self.split_of(task, record.seed)
        predictions = Predictions.of(task, record.outputs, split)
        content = predictions.npz()
        write_bytes(self.file(seed, PREDICTIONS), content)
        if predictions.outputs.numel() <= CSV_CELLS:
            predictions.write(self.file(seed, CSV))
        with writing(path := self.file(seed, SPLIT)):
            save_splits([split], path)
        self.write_result(record, predictions=hashlib.sha256(content).hexdigest())

    def write_result(self, record: RunRecord, **hashes: str) -> None:
        """Writes the weights, then ``result.json`` with hashes that reveal files of another seed or run."""
        weights = {name: tensor.contiguous().clone() for name, tensor in record.state.items()}
        content = save_tensors(weights, metadata={"format": "difformer"})
        write_bytes(self.file(record.seed, WEIGHTS), content)
        hashes["weights"] = hashlib.sha256(content).hexdigest()
        write_json(self.file(record.seed, RESULT), record.result() | hashes)
        if record.status != "interrupted":
            self.file(record.seed, CHECKPOINT).unlink(missing_ok=True)
        self.write_summary()
        if not self.unfinished:
            self.checkpoint_file(None).unlink(missing_ok=True)

    def result(self, seed: int) -> dict[str, Any] | None:
        """The result of a seed, even if it was interrupted, or None."""
        path = self.file(seed, RESULT)
        if not path.is_file():
            return None
        found: dict[str, Any] = read_json(path)
        try:
            check(found, _RESULT)
            if missing := sorted(_RESULT.keys() - found.keys()):
                raise UserError(f"{missing[0]} is missing")
        except UserError as error:
            advice = f"delete it to train seed {seed} again with resume"
            raise RunFolderError(f"{path} is not the result of a run ({error}); {advice}") from error
        if found.get("seed") != seed:
            raise RunFolderError(f"{path} is the result of seed {found.get('seed')!r}; restore the files of each seed")
        return {**found, "split": current_name(found["split"])}

    def results(self) -> tuple[dict[str, Any], ...]:
        """Results of all seeds that have one, in the order of seeds; interrupted ones included."""
        return tuple(found for seed in self.seeds if (found := self.result(seed)) is not None)

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Seeds that have not been trained to their end."""
        done = {result["seed"] for result in self.results() if result["status"] != "interrupted"}
        return tuple(seed for seed in self.seeds if seed not in done)

    def summary(self) -> Summary:
        """Over all seeds that have a result."""
        results = self.results()
        if not results:
            raise RunFolderError(f"{self.path} has no results yet; resume it with: difformer fit --resume {self.path}")
        return Summary(results, self.path)

    def write_summary(self) -> None:
        document = self.summary().to_dict()
        document["complete"] = document["complete"] and document["runs"] == len(self.seeds)
        write_json(self.file(None, SUMMARY), document)

    def read_weights(self, seed: int) -> dict[str, Tensor]:
        """Parameters of a seed's best epoch."""
        path = self.file(seed, WEIGHTS)
        if not path.is_file():
            problem = f"{path} is missing: seed {seed} has not been trained yet; resume the run with "
            problem += f"`difformer fit --resume {self.path}`"
            raise RunFolderError(problem)
        content = path.read_bytes()
        self.check_hash(seed, "weights", content)
        try:
            return load_tensors(content)
        except (SafetensorError, ValueError, KeyError) as error:
            raise RunFolderError(f"{path} is damaged: {error}") from error

    def check_hash(self, seed: int, what: str, content: bytes) -> None:
        """Refuses the content of a file in `HASHED` that is not what ``result.json`` was written with."""
        if (result := self.result(seed)) is None:
            return
        written, expected = self.about["run"].get("hashes", False), result.get(what)
        if isinstance(written, bool):
            written = ["weights"] * written
        if expected is None and what in written:
            problem = f"{self.file(seed, RESULT)} has no hash of the {what}, which this run wrote: the file was "
            problem += f"changed; restore it, or delete it and train seed {seed} again with resume"
            raise RunFolderError(problem)
        if expected is not None and hashlib.sha256(content).hexdigest() != expected:
            problem = f"{self.file(seed, HASHED[what])} does not hold the {what} that seed {seed} was measured with "
            problem += "(result.json has another hash): they were changed, or belong to another seed or run; restore "
            problem += f"them, or delete result.json and train seed {seed} again with resume"
            raise RunFolderError(problem)


def _lines(rows: Iterable[Row]) -> bytes:
    return "".join(f"{json.dumps(files.finite(row))}\n" for row in rows).encode()


def _settings(config: TrainConfig) -> dict[str, dict[str, Any]]:
    training = {name: value for name, value in config.to_dict().items() if name not in ("model", "options")}
    model = {"name": config.model, "options": {**options_of(config.model), **config.options}}
    return {"model": model, "training": training}


def kernels() -> str:
    """Which kernels this process uses for passes over rows: ``"C"`` or ``"torch"``, which agree to rounding."""
    return "torch" if library() is None else "C"
