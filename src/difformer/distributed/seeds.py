"""Runs spread over ranks: seed by seed, each rank trains its own, and nothing is sent while it does.

Every rank holds the whole task. Rank 0 makes the run folder, hands out the seeds that are not done, rank behind rank,
and sums up when all are; what each seed leaves there is what a single process leaves, from the same checkpoints. With
ranks on several machines the folder must be one that all of them see. Where there are fewer seeds than ranks, batches
of graphs are shared instead (`difformer.distributed.batches`): all ranks train each seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from difformer.data import Task
from difformer.distributed.batches import GraphsTrainer, shares_batches
from difformer.distributed.process_group import Ranks
from difformer.files import only_one, sweep
from difformer.training.callbacks import Callback
from difformer.training.checkpoint import Snapshot
from difformer.training.config import TrainConfig
from difformer.training.interrupt import TrainingInterrupted, stop_requests
from difformer.training.loop import train_one
from difformer.training.metrics import find_metric
from difformer.training.randomness import isolated_rng
from difformer.training.record import Row, RunRecord, Summary
from difformer.training.run import begin_seed, check_together, closing
from difformer.training.run_folder import RunFolder, check_same_run, warn_of_changes
from difformer.training.source import TaskSource


def fit_seeds(
    task: Task,
    config: TrainConfig,
    *,
    ranks: Ranks,
    seeds: Sequence[int],
    out: str | Path,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    source: TaskSource | None = None,
    preset: str | None = None,
) -> Summary:
    """`difformer.training.fit` with its seeds spread over ranks; all ranks call it together, with the same arguments.

    Args:
        task, config, seeds, out, resume, source, preset: As there.
        ranks: The group.
        callbacks: Told of every evaluated epoch of rank 0's seeds.

    Raises:
        TrainingInterrupted: After Ctrl-C on any rank, when everything is saved.
        RunFolderError: If the folder is there already, holds another run, or cannot be written.
    """

    ranks.agree(**{"data fingerprint": task.fingerprint()}, setting=config.to_dict(), seeds=list(seeds))

    def make() -> RunFolder:
        if resume and Path(out).exists():
            folder = RunFolder.open(out)
            check_same_run(folder, task, config, tuple(seeds))
            return folder
        check_together(task, config, tuple(seeds))
        return RunFolder.create(
            out, task, config, seeds=tuple(seeds), device=ranks.device, source=source, preset=preset
        )

    return _train_waiting(ranks.first_does(make), task, ranks, callbacks)


def resume_seeds(folder: RunFolder, task: Task, *, ranks: Ranks, callbacks: Iterable[Callback] = ()) -> Summary:
    """Resume a run folder: the seeds that are not finished are spread over ranks; see `fit_seeds`."""
    ranks.agree(**{"data fingerprint": task.fingerprint()}, setting=folder.config.to_dict(), seeds=list(folder.seeds))
    return _train_waiting(folder, task, ranks, callbacks)


def _train_waiting(folder: RunFolder, task: Task, ranks: Ranks, callbacks: Iterable[Callback]) -> Summary:
    told = tuple(callbacks) if ranks.first else ()
    with closing(told), contextlib.ExitStack() as stack, stop_requests(told) as stop:

        def begin() -> list[int]:
            stack.enter_context(only_one(folder.path))
            sweep(folder.path)
            warn_of_changes(folder)
            waiting = [seed for seed in folder.seeds if not folder.is_done(seed)]
            for seed in waiting:  # while nobody writes: later each rank only ever adds lines
                state = folder.read_checkpoint(seed)
                begin_seed(folder, seed, [] if state is None else state.facts["history"])
            return waiting

        waiting = ranks.first_does(begin)
        together = len(waiting) < ranks.size and shares_batches(task, folder.config)
        for seed in waiting if together else waiting[ranks.rank :: ranks.size]:
            record = _one_seed(folder, task, seed, ranks, told, stop, together)
            if not together or ranks.first:
                folder.write_record(record, task)
            if record.status == "interrupted":
                break
        ranks.wait_for_all()
        results = ranks.first_does(lambda: _results(folder))
    summary = None
    if results:
        metric = find_metric(results[0]["metric"])
        summary = Summary(results, metric.name, metric.higher_is_better, folder.path)
    if summary is None or len(results) < len(folder.seeds) or not summary.complete:
        raise TrainingInterrupted(summary, str(folder.path))
    return summary


def _one_seed(
    folder: RunFolder,
    task: Task,
    seed: int,
    ranks: Ranks,
    callbacks: tuple[Callback, ...],
    stop: Callable[[], bool],
    together: bool,
) -> RunRecord:
    """A seed from its checkpoint, or from its beginning, by this rank or by all."""
    split, state = folder.split_of(task, seed), folder.read_checkpoint(seed)

    def log(rows: list[Row]) -> None:
        folder.metrics.append(seed, rows)

    def save(snapshot: Snapshot) -> None:
        folder.write_checkpoint(seed, snapshot)

    if not together:
        given = {"state": state, "callbacks": callbacks, "log": log, "save": save, "stop": stop}
        return train_one(task, split, folder.config, seed, ranks.device, **given)  # type: ignore[arg-type]
    ranks.wait_for_all()  # nobody writes a checkpoint before all have read the last one
    with isolated_rng(ranks.device):
        trainer = GraphsTrainer(task, split, folder.config, seed, ranks)
        if state is not None:
            state.into(trainer)
        return trainer.run(callbacks, log, save, stop) if ranks.first else trainer.run(stop=stop)


def _results(folder: RunFolder) -> tuple[dict[str, Any], ...]:
    results = folder.results()
    if results:
        folder.write_summary()
    return results
