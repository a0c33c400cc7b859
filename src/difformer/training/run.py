"""`fit`: all seeds of a configuration, with or without a run folder; and `resume` for an interrupted run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from difformer.data import Task
from difformer.errors import UserError
from difformer.training.callbacks import Callback, TrainingInterrupted, stop_requests
from difformer.training.config import TrainConfig
from difformer.training.devices import resolve
from difformer.training.journal import NonFiniteLossError, Run
from difformer.training.loop import train_one
from difformer.training.losses import make_loss
from difformer.training.metrics import chosen_metric
from difformer.training.model import build_model, split_number
from difformer.training.record import RunRecord, Summary
from difformer.training.run_folder import RunFolder, TaskSource
from difformer.training.stack import faster, train_stacked, unstackable


def fit(
    task: Task | TaskSource | str,
    config: TrainConfig | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    out: str | Path | None = None,
    device: str | torch.device = "auto",
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    source: TaskSource | None = None,
    stacked: bool | None = None,
    preset: str | None = None,
) -> Summary:
    """Train a configuration from several seeds; seed s uses split s modulo the number of splits.

    Args:
        task: A task, where it comes from, or the name of a data set.
        config: Model and training; `TrainConfig()` where left out.
        seeds: The seeds, or their number: 0, 1, …
        out: Folder for all results, see `difformer.training.run_folder`; None keeps it in memory.
        device: See `difformer.training.devices.resolve`.
        resume: Whether to resume the run in `out` if it is the same one; the result is that of an uninterrupted run.
        callbacks: Called after every evaluated epoch.
        source: Where `task` comes from, if it is a task: kept in the folder, so that the folder suffices to use it.
        stacked: Whether to train all seeds as one, see `difformer.training.stack`; None does so if that is likely to
            be faster. An interrupted stack is resumed from its checkpoint, or trained again if it did not fit into
            memory.
        preset: Name or file of the preset that `config` comes from, recorded in the folder.

    Returns:
        Mean and spread over seeds, and one record per seed that was trained in this call.

    Raises:
        TrainingInterrupted: After Ctrl-C, when everything is saved.
        RunFolderError: If the folder exists already, holds another run, or cannot be written.
        WouldNotFitError: If the model reports that it does not fit into memory (a MemoryError); no folder is left.
        NonFiniteLossError: If a loss becomes NaN or infinite.
    """
    config = config or TrainConfig()
    if not isinstance(task, Task):
        source = TaskSource(task) if isinstance(task, str) else task
        if not isinstance(source, TaskSource):
            problem = f"task must be a task or the name of a data set, got {type(task).__name__}; difformer.data has "
            problem += "from_pyg(data) for data of PyTorch Geometric, from_arrays(x, y) and from_frame(frame, label)"
            raise UserError(problem)
        task = source.load()
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    if not chosen or min(chosen) < 0 or len(set(chosen)) != len(chosen):
        wanted = "a number of at least 1, or different whole numbers of at least 0"
        raise UserError(f"seeds must be {wanted}; got {seeds!r}")
    place, told = resolve(device), tuple(callbacks)
    if out is None and resume:
        raise UserError("resume=True needs the folder of the run: out=…")
    if out is not None and resume and Path(out).exists():
        folder = RunFolder.open(out)
        folder.check_same(task, config, chosen)
        return _train(task, config, chosen, place, told, folder.stacked, folder)
    if stacked and (reason := unstackable(task, config, {split_number(task, seed) for seed in chosen})):
        raise UserError(f"stacked: these runs cannot be trained as one: {reason}")
    if stacked is None:
        stacked = place.type == "cuda" and faster(task, config, len(chosen), place)
    if out is None:
        return _train(task, config, chosen, place, told, stacked)
    check_together(task, config, chosen)
    about: dict[str, Any] = {"source": source, "stacked": stacked, "preset": preset}
    folder = RunFolder.create(out, task, config, seeds=chosen, device=place, **about)
    try:
        return _train(task, config, chosen, place, told, stacked, folder)
    except MemoryError:
        folder.discard()
        raise


def resume(
    path: str | Path,
    *,
    task: Task | None = None,
    device: str | torch.device | None = None,
    callbacks: Iterable[Callback] = (),
) -> Summary:
    """Resume a run folder; the result is that of an uninterrupted run.

    Args:
        path: The run folder.
        task: The task, if the run was made from a task object.
        device: Another device than the run's own; results then agree to rounding only.
        callbacks: Called after every evaluated epoch.
    """
    folder = RunFolder.open(path)
    place = resolve(folder.device if device is None else device)
    return _train(folder.task(task), folder.config, folder.seeds, place, tuple(callbacks), folder.stacked, folder)


def check_together(task: Task, config: TrainConfig, seeds: Sequence[int]) -> None:
    """Validates a request before a folder is created for it."""
    cpu = torch.device("cpu")
    build_model(task, config)
    metric = chosen_metric(config, task)
    for split in {split_number(task, seed) for seed in seeds}:
        make_loss(task, task.splits[split], config, cpu)
        metric.check(task.y[task.splits[split].valid], task.num_outputs)


def _train(
    task: Task,
    config: TrainConfig,
    seeds: Sequence[int],
    device: torch.device,
    callbacks: tuple[Callback, ...],
    stacked: bool,
    folder: RunFolder | None = None,
) -> Summary:
    """Trains the seeds that are not finished, and keeps what they give in the folder, if there is one."""
    records: list[RunRecord] = []
    runs = [Run(seed, split_number(task, seed), config) for seed in seeds]
    with stop_requests(callbacks) as stop, nullcontext() if folder is None else folder.held():
        given: dict[str, Any] = {"callbacks": callbacks, "stop": stop}
        waiting = tuple(seeds) if folder is None else folder.unfinished
        # None trains the stack, from its checkpoint or all its seeds once more: a run is bit-identical only to one of
        # the same stack.
        for seed in (None,) if stacked and waiting else waiting:
            if folder is not None:
                if seed is not None:
                    folder.begin_seed(seed)
                given |= folder.progress(seed)
            with nullcontext() if folder is None else folder.resuming(seed):
                if seed is None:
                    found = train_stacked(task, runs, device, **given)
                else:
                    found = [train_one(task, split_number(task, seed), config, seed, device, **given)]
            for record in (one for one in found if isinstance(one, RunRecord) and one.seed in waiting):
                records.append(record)
                if folder is not None:
                    if seed is None:
                        folder.begin_seed(record.seed, record.history)
                    folder.write_record(record, task)
            if failed := [one for one in found if isinstance(one, NonFiniteLossError)]:
                raise failed[0]  # the other seeds are saved
            if stop():
                break
        if folder is not None and not waiting:
            folder.write_summary()  # a process may have been killed between the last result and the summary
    results = folder.results() if folder is not None else tuple(record.result() for record in records)
    return summarised(results, len(seeds), folder, records)


def summarised(
    results: Sequence[dict[str, Any]], runs: int, folder: RunFolder | None, records: Sequence[RunRecord]
) -> Summary:
    """The summary over `runs` seeds, or `TrainingInterrupted` with that of the seeds so far."""
    path = None if folder is None else folder.path
    summary = Summary(tuple(results), path, tuple(records)) if results else None
    if summary is None or not summary.complete or len(results) < runs:
        again = folder is not None and folder.stacked and not folder.checkpoint_file(None).is_file()
        raise TrainingInterrupted(summary, str(path or ""), again)
    return summary
