"""`fit`: all seeds of a configuration, with or without a run folder; and `resume` for an interrupted run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from difformer.data import Task
from difformer.errors import UserError
from difformer.files import RunFolderError, only_one, sweep
from difformer.training.callbacks import Callback
from difformer.training.checkpoint import CheckpointError
from difformer.training.config import TrainConfig
from difformer.training.devices import resolve
from difformer.training.interrupt import TrainingInterrupted, stop_requests
from difformer.training.loop import train_one
from difformer.training.losses import make_loss
from difformer.training.metrics import chosen_metric
from difformer.training.model import build_model, split_number
from difformer.training.randomness import isolated_rng
from difformer.training.record import Row, RunRecord, Summary
from difformer.training.run_folder import RunFolder, check_same_run, warn_of_changes
from difformer.training.source import TaskSource

__all__ = ["TrainingInterrupted", "fit", "resume"]


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
        resume: Whether `out` may hold the same run, unfinished; it is then resumed, to the same result.
        callbacks: Called after every evaluated epoch.
        source: Where `task` comes from, if it is a task: kept in the folder, so that the folder suffices to use it.
        stacked: Whether to train all seeds as one, see `difformer.training.stack`; None does so where that is likely
            to be faster. An interrupted stack is resumed from its checkpoint; one that did not fit into memory as a
            whole has none, and is trained again.
        preset: Name or file of the preset that `config` comes from, recorded in the folder.

    Returns:
        Mean and spread over seeds, and one record per seed that was trained in this call.

    Raises:
        TrainingInterrupted: After Ctrl-C, when everything is saved.
        RunFolderError: If the folder exists already, holds another run, or cannot be written.
        WouldNotFitError: If the model says beforehand that it does not fit, a MemoryError; no folder is left then.
        NonFiniteLossError: If a loss becomes NaN or infinite.
    """
    config = config or TrainConfig()
    if not isinstance(task, Task):
        source = TaskSource(task) if isinstance(task, str) else task
        task = source.load()
    chosen = _seeds(seeds)
    place = resolve(device)
    if out is None:
        if resume:
            raise UserError("resume=True needs the folder of the run: out=…")
        return _in_memory(task, config, chosen, place, tuple(callbacks), _stack(task, config, chosen, place, stacked))
    if resume and Path(out).exists():
        folder = RunFolder.open(out)
        check_same_run(folder, task, config, chosen)
        return _in_folder(folder, task, place, tuple(callbacks))
    together = _stack(task, config, chosen, place, stacked)
    check_together(task, config, chosen)
    about: dict[str, Any] = {"source": source, "stacked": together, "preset": preset}
    folder = RunFolder.create(out, task, config, seeds=chosen, device=place, **about)
    try:
        return _in_folder(folder, task, place, tuple(callbacks))
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
    """Resume a run folder, to the result that it would have had without the interruption.

    Args:
        path: The run folder.
        task: The task, where the run was made from a task object.
        device: Another device than the run's own; results then agree to rounding only.
        callbacks: Called after every evaluated epoch.
    """
    folder = RunFolder.open(path)
    place = resolve(folder.device if device is None else device)
    return _in_folder(folder, folder.task(task), place, tuple(callbacks))


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    if not chosen or min(chosen) < 0 or len(set(chosen)) != len(chosen):
        raise UserError(
            f"seeds must be a number of at least 1, or different whole numbers of at least 0; got {seeds!r}"
        )
    return chosen


def _stack(task: Task, config: TrainConfig, seeds: Sequence[int], device: torch.device, stacked: bool | None) -> bool:
    from difformer.training.stack import faster, unstackable

    if stacked and (reason := unstackable(task, config, {split_number(task, seed) for seed in seeds})):
        raise UserError(f"stacked: these runs cannot be trained as one: {reason}")
    if stacked is not None:
        return stacked
    return device.type == "cuda" and faster(task, config, len(seeds), device)


def check_together(task: Task, config: TrainConfig, seeds: Sequence[int]) -> None:
    """Finds what is wrong with a request before a folder is made for it."""
    cpu = torch.device("cpu")
    with isolated_rng(cpu):
        build_model(task, config)
    metric = chosen_metric(config, task)
    for split in {split_number(task, seed) for seed in seeds}:
        make_loss(task, task.splits[split], config, cpu)
        metric.check(task.y[task.splits[split].valid], task.num_outputs)


def _in_memory(
    task: Task,
    config: TrainConfig,
    seeds: Sequence[int],
    device: torch.device,
    callbacks: tuple[Callback, ...],
    stacked: bool,
) -> Summary:
    records: list[RunRecord] = []
    with closing(callbacks), stop_requests(callbacks) as stop:
        if stacked:
            records = _all_seeds(task, config, seeds, device, callbacks, stop)
        for seed in () if stacked else seeds:
            split = task.splits[split_number(task, seed)]
            records.append(train_one(task, split, config, seed, device, callbacks=callbacks, stop=stop))
            if stop():
                break
    metric = chosen_metric(config, task)
    results = tuple(record.result() for record in records)
    summary = Summary(results, metric.name, metric.higher_is_better, None, tuple(records))
    if not summary.complete or len(records) < len(seeds):
        raise TrainingInterrupted(summary, "")
    return summary


def _in_folder(folder: RunFolder, task: Task, device: torch.device, callbacks: tuple[Callback, ...]) -> Summary:
    records: list[RunRecord] = []
    with closing(callbacks), only_one(folder.path), stop_requests(callbacks) as stop:
        sweep(folder.path)
        warn_of_changes(folder)
        waiting = [seed for seed in folder.seeds if not folder.is_done(seed)]
        if folder.stacked and waiting:
            # From their checkpoint, or all of them once more: a run agrees to the bit only with one of the same stack.
            for record in _all_seeds(task, folder.config, folder.seeds, device, callbacks, stop, folder):
                if record.seed in waiting:
                    begin_seed(folder, record.seed, record.history)
                    folder.write_record(record, task)
                    records.append(record)
            if not folder.unfinished:
                folder.checkpoint_file(None).unlink(missing_ok=True)
        for seed in () if folder.stacked else waiting:
            state = folder.read_checkpoint(seed)
            begin_seed(folder, seed, [] if state is None else state.facts["history"])
            given: dict[str, Any] = {"state": state, "callbacks": callbacks, "stop": stop, **folder.writers(seed)}
            records.append(train_one(task, folder.split_of(task, seed), folder.config, seed, device, **given))
            folder.write_record(records[-1], task)
            if stop():
                break
        if not waiting:
            folder.write_summary()  # a process may have been killed between the last result and the summary
    results = folder.results()
    if len(results) < len(folder.seeds) or any(result["status"] == "interrupted" for result in results):
        again = folder.stacked and not folder.checkpoint_file(None).is_file()
        raise TrainingInterrupted(folder.summary(records) if results else None, str(folder.path), again)
    return folder.summary(records)


def _all_seeds(
    task: Task,
    config: TrainConfig,
    seeds: Sequence[int],
    device: torch.device,
    callbacks: tuple[Callback, ...],
    stop: Callable[[], bool],
    folder: RunFolder | None = None,
) -> list[RunRecord]:
    from difformer.training.stack import StackedSetting, train_stacked

    settings = [StackedSetting(seed, split_number(task, seed)) for seed in seeds]
    state = None if folder is None else folder.read_checkpoint(None)
    save = None if folder is None else (lambda snapshot: folder.write_checkpoint(None, snapshot))
    try:
        return train_stacked(task, settings, config, device, callbacks=callbacks, stop=stop, state=state, save=save)
    except CheckpointError as error:
        assert folder is not None
        place = folder.checkpoint_file(None)
        raise RunFolderError(f"{place}: {error}; delete it to train all seeds from the beginning") from error


def begin_seed(folder: RunFolder, seed: int, history: list[Row]) -> None:
    """Removes lines of a seed beyond `history`, which a killed process may have left."""
    folder.metrics.rewrite(lambda row: row["seed"] != seed and row["seed"] in folder.seeds, seed, history)


@contextmanager
def closing(callbacks: Iterable[Callback]) -> Iterator[None]:
    """Closes callbacks that can be closed, however the training ends."""
    try:
        yield
    finally:
        for callback in callbacks:
            if (close := getattr(callback, "close", None)) is not None:
                close()
