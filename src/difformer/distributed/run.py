"""`difformer.training.run.fit` for a partitioned task: rank 0 keeps the run folder, all ranks train.

The folder is the one that a single process writes: configuration, metrics, checkpoints, weights and predictions have
the same names and content, so a run can be gone on with by any number of ranks, or by one process without any. One file
more, ``distributed.json``, says which partition was trained on and what was sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from difformer.distributed.gathering import Labels, gather_labels, write_outputs
from difformer.distributed.partition_folder import Partition
from difformer.distributed.process_group import Ranks
from difformer.distributed.shard import Shard
from difformer.distributed.trainer import Facts, ShardedTrainer, check_config
from difformer.files import RunFolderError, only_one, read_json, sweep, write_json
from difformer.training.callbacks import Callback
from difformer.training.checkpoint import Snapshot
from difformer.training.config import TrainConfig
from difformer.training.interrupt import TrainingInterrupted, stop_requests
from difformer.training.metrics import find_metric
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord, Summary
from difformer.training.run import begin_seed, closing
from difformer.training.run_folder import RunFolder, check_same_run, warn_of_changes
from difformer.training.source import TaskSource

ABOUT = "distributed.json"
ONCE = ("plan", "results")


@dataclass(frozen=True)
class Sent:
    """Bytes that the busiest rank sent in the last run, by kind.

    Args:
        by_kind: In a mean epoch, evaluation included.
        once: Before the first and after the last.
        ranks: How many there were.
    """

    by_kind: dict[str, float]
    once: dict[str, float]
    ranks: int


def facts_of(partition: Partition) -> Facts:
    """What a model must know of a partitioned task."""
    about = partition.about
    names = ("name", "problem", "metric", "num_features", "num_outputs")
    return Facts(**{name: about[name] for name in names})


def partition_of(run: str | Path) -> Path | None:
    """The partition that a run was trained on; None where it was none."""
    path = Path(run) / ABOUT
    return Path(read_json(path)["partition"]) if path.is_file() else None


def fit_sharded(
    partition: Partition,
    config: TrainConfig,
    *,
    ranks: Ranks,
    seeds: Sequence[int],
    out: str | Path,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    preset: str | None = None,
) -> tuple[Summary, Sent]:
    """Train a configuration on a partitioned task from several seeds; all ranks call it together.

    Args:
        partition: What is trained on; each rank reads its own parts.
        config: Model and training.
        ranks: The group.
        seeds: The seeds; seed s uses split s, counted around.
        out: The run folder, which rank 0 makes and writes.
        resume: Whether `out` may hold the same run, unfinished.
        callbacks: Told of every evaluated epoch, on rank 0.
        preset: Where the settings came from, for the record.

    Raises:
        TrainingInterrupted: After Ctrl-C on any rank, when everything is saved.
        RunFolderError: If the folder is there already, holds another run, or cannot be written.
    """
    facts = facts_of(partition)
    ranks.agree(**_identity(partition), setting=config.to_dict(), seeds=list(seeds))
    folder = ranks.first_does(lambda: _folder(partition, facts, config, ranks, seeds, Path(out), resume, preset))
    return _train(folder, partition, facts, ranks, tuple(callbacks) if ranks.first else ())


def resume_sharded(
    run: str | Path, partition: Partition, *, ranks: Ranks, callbacks: Iterable[Callback] = ()
) -> tuple[Summary, Sent]:
    """Go on with a run folder, by any number of ranks; see `fit_sharded`."""

    def open_folder() -> RunFolder:
        folder = RunFolder.open(run)
        if folder.about["data"]["fingerprint"] != partition.about["fingerprint"]:
            raise RunFolderError(f"{run} was trained on other data than those of {partition.path}")
        if folder.stacked:
            raise RunFolderError(f"{run} was trained with all seeds as one; go on with it in one process")
        check_config(facts_of(partition), folder.config, partition.num_nodes)
        return folder

    ranks.agree(**_identity(partition))
    folder = ranks.first_does(open_folder)
    return _train(folder, partition, facts_of(partition), ranks, tuple(callbacks) if ranks.first else ())


def _identity(partition: Partition) -> dict[str, Any]:
    """What ranks compare before they train, each of which may have opened a folder of its own."""
    return {"data fingerprint": partition.about["fingerprint"], "partition": partition.about["partition"]}


def _folder(
    partition: Partition,
    facts: Facts,
    config: TrainConfig,
    ranks: Ranks,
    seeds: Sequence[int],
    out: Path,
    resume: bool,
    preset: str | None,
) -> RunFolder:
    """The folder on disk, made or opened; what can be wrong with a request is said before."""
    check_config(facts, config, partition.num_nodes)
    find_metric(facts.metric if config.metric == "auto" else config.metric, facts.problem)
    labels: Any = Labels.without_targets(partition)
    if resume and out.exists():
        folder = RunFolder.open(out)
        check_same_run(folder, labels, config, tuple(seeds))
        return folder
    given = partition.about["source"]
    source = None if given is None else TaskSource.from_dict(given)
    return RunFolder.create(out, labels, config, seeds=tuple(seeds), device=ranks.device, source=source, preset=preset)


def _train(
    folder: RunFolder, partition: Partition, facts: Facts, ranks: Ranks, callbacks: tuple[Callback, ...]
) -> tuple[Summary, Sent]:
    sent = Sent({}, {}, ranks.size)
    records: list[RunRecord] = []
    with closing(callbacks), contextlib.ExitStack() as stack, stop_requests(callbacks) as stop:
        ranks.first_does(lambda: _take(folder, stack))
        waiting = ranks.first_does(lambda: [seed for seed in folder.seeds if not folder.is_done(seed)])
        with ranks.traffic.during() as at_first:
            if waiting:
                shard = partition.shard(ranks)
                labels = gather_labels(partition, shard)
        for seed in waiting:
            with ranks.traffic.during() as bytes_sent:
                record = _one_seed(folder, facts, shard, seed, callbacks, stop)
                write_outputs(folder, record, labels, shard, facts.problem)
            sent = _sent(bytes_sent, at_first, record, ranks)
            records.append(replace(record, outputs=record.outputs[:0]))
            if record.status == "interrupted":
                break
        results = ranks.first_does(lambda: _finish(folder, partition, sent))
    metric = find_metric(results[0]["metric"]) if results else None
    summary = None
    if metric is not None:
        summary = Summary(results, metric.name, metric.higher_is_better, folder.path, tuple(records))
    if summary is None or len(results) < len(folder.seeds) or not summary.complete:
        raise TrainingInterrupted(summary, str(folder.path))
    return summary, sent


def _take(folder: RunFolder, stack: contextlib.ExitStack) -> None:
    """Rank 0 keeps other processes out of the folder."""
    stack.enter_context(only_one(folder.path))
    sweep(folder.path)
    warn_of_changes(folder)


def _finish(folder: RunFolder, partition: Partition, sent: Sent) -> tuple[dict[str, Any], ...]:
    results = folder.results()
    if results:
        folder.write_summary()
    about: dict[str, Any] = {"partition": str(partition.path.resolve()), "ranks": sent.ranks}
    path = folder.path / ABOUT
    before = read_json(path) if path.is_file() else {}
    about["bytes_an_epoch"] = sent.by_kind or before.get("bytes_an_epoch", {})
    write_json(path, about)
    return results


def _one_seed(
    folder: RunFolder,
    facts: Facts,
    shard: Shard,
    seed: int,
    callbacks: tuple[Callback, ...],
    stop: Callable[[], bool],
) -> RunRecord:
    """A seed from its checkpoint, or from its beginning."""
    ranks = shard.ranks

    def begin() -> Snapshot | None:
        state = folder.read_checkpoint(seed)
        begin_seed(folder, seed, [] if state is None else state.facts["history"])
        return state

    state = ranks.first_does(begin)
    with isolated_rng(ranks.device):
        torch.manual_seed(seed)
        trainer = ShardedTrainer(facts, shard, seed % len(shard.splits), folder.config, seed)
        if state is not None:
            state.into(trainer)
        if not ranks.first:
            return trainer.run(stop=stop)
        return trainer.run(
            callbacks,
            log=lambda rows: folder.metrics.append(seed, rows),
            save=lambda snapshot: folder.write_checkpoint(seed, snapshot),
            stop=stop,
        )


def _sent(bytes_sent: dict[str, int], at_first: dict[str, int], record: RunRecord, ranks: Ranks) -> Sent:
    """Of the rank that sent most, for each kind; `at_first` was sent before the first seed."""
    epochs = max(1, record.epochs)
    whole = [count + (at_first[kind] if kind in ONCE else 0) for kind, count in bytes_sent.items()]
    counts = torch.tensor(whole, dtype=torch.float64, device=ranks.device)
    most = dict(zip(bytes_sent, ranks.max_(counts).tolist(), strict=True))
    each = {kind: count / epochs for kind, count in most.items() if kind not in ONCE}
    return Sent(each, {kind: most[kind] for kind in ONCE}, ranks.size)
