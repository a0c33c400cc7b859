"""Runs over ranks: the run folder is the one that a single process writes.

* `fit_seeds`: every rank holds the whole task and trains its own seeds; nothing is sent while it does. If there are
  fewer seeds than ranks and the task consists of graphs, all ranks share every batch instead.
* `fit_sharded`: the nodes of a partitioned task are spread over ranks, which train each seed together. An additional
  file, ``distributed.json``, records the partition and what was sent.

Rank 0 creates, locks and summarises the folder. A run can be resumed by any number of ranks, or by one process. With
ranks on several machines the folder must be on a file system that all of them see.

A seed whose loss becomes infinite does not end the others: they are trained and saved first.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.distributed.graph_partition import NONE
from difformer.distributed.partition_folder import Partition
from difformer.distributed.process_group import Ranks, common
from difformer.distributed.rank_trainer import check_config, graphs_trainer, sharded_trainer, shares_batches
from difformer.distributed.shard import Shard
from difformer.errors import UserError
from difformer.files import RunFolderError, read_json, write_bytes, write_json
from difformer.training.callbacks import Callback, stop_requests
from difformer.training.config import TrainConfig
from difformer.training.journal import NonFiniteLossError
from difformer.training.loop import Trainer, train, train_one
from difformer.training.model import split_number
from difformer.training.record import Predictions, RunRecord, Summary
from difformer.training.run import check_together, summarised
from difformer.training.run_folder import RunFolder, TaskSource

ABOUT = "distributed.json"
ONCE = ("plan", "results")
Work = Callable[[], object]
OneSeed = Callable[..., RunRecord]
MOST_CELLS = 2**27  # outputs and labels with more numbers are not gathered on rank 0


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
        callbacks: Called after every evaluated epoch of rank 0's seeds.

    Raises:
        TrainingInterrupted: After Ctrl-C on any rank, when everything is saved.
        UserError: If the ranks were started with different data or settings, or a seed diverged; the other seeds are
            then finished and saved.
        RunFolderError: If the folder exists, holds another run, or cannot be written.
    """
    check = partial(check_together, task, config, tuple(seeds))
    folder = _folder(ranks, task, config, check, seeds=seeds, out=out, resume=resume, source=source, preset=preset)

    def share(waiting: list[int]) -> tuple[list[int], OneSeed]:
        together = len(waiting) < ranks.size and shares_batches(task, folder.config)

        def one(seed: int, **given: Any) -> RunRecord:
            split, config = folder.split_of(task, seed), folder.config
            if together:
                make = partial(graphs_trainer, task, split, config, seed, ranks)
                record = _together(folder, ranks, make, seed, **given)
            else:
                record = train_one(task, split, config, seed, ranks.device, **given, **folder.progress(seed))
            if not together or ranks.first:
                folder.write_record(record, task)
            return record

        return (waiting if together else waiting[ranks.rank :: ranks.size]), one

    return _train(folder, ranks, callbacks, share)


def _folder(
    ranks: Ranks, task: Any, config: TrainConfig, check: Work, *, out: str | Path, resume: bool = False, **about: Any
) -> RunFolder:
    """The run folder: an existing one if it holds the same run to resume, otherwise a new one made by rank 0."""
    facts = {"data fingerprint": task.fingerprint(), "partition": about.pop("partition", None)}
    about["seeds"] = seeds = tuple(about["seeds"])
    ranks.agree(**facts, setting=config.to_dict(), seeds=list(seeds))

    def make() -> RunFolder:
        check()
        if not (resume and Path(out).exists()):
            return RunFolder.create(out, task, config, device=ranks.device, **about)
        folder = RunFolder.open(out)
        if folder.stacked:
            raise RunFolderError(f"{out} was trained with all seeds stacked; resume it in one process")
        folder.check_same(task, config, seeds)
        return folder

    return ranks.first_does(make)


def _train(
    folder: RunFolder,
    ranks: Ranks,
    callbacks: Iterable[Callback],
    share: Callable[[list[int]], tuple[list[int], OneSeed]],
    finish: Work = lambda: None,
) -> Summary:
    """Trains the unfinished seeds; rank 0 locks the folder, calls callbacks and, at the end, `finish`.

    `share` returns this rank's part of the unfinished seeds, and a function that trains and saves one.
    """
    told = tuple(callbacks) if ranks.first else ()
    diverged: dict[int, str] = {}
    records: list[RunRecord] = []
    with stop_requests(told) as stop, contextlib.ExitStack() as stack:

        def take() -> list[int]:
            stack.enter_context(folder.held())
            for seed in folder.unfinished:  # before any rank writes; later each rank only appends lines
                folder.begin_seed(seed)
            return list(folder.unfinished)

        own, one = share(ranks.first_does(take))
        for seed in own:
            try:
                records.append(one(seed, callbacks=told, stop=stop))
            except NonFiniteLossError as error:  # where ranks train together, the loss is the same on all of them
                diverged[seed] = str(error)
                continue
            if records[-1].status == "interrupted":
                break
        failed = {seed: text for theirs in ranks.gather_objects(diverged) for seed, text in theirs.items()}

        def end() -> tuple[dict[str, Any], ...]:
            finish()
            if results := folder.results():
                folder.write_summary()
            return results

        results = ranks.first_does(end)
    if failed:
        said = "; ".join(f"seed {seed}: {text}" for seed, text in sorted(failed.items()))
        others = f" The other seeds are finished and saved in {folder.path}." if len(failed) < len(folder.seeds) else ""
        raise common(UserError(f"{said.rstrip('.')}.{others}", argument="learning_rate"))
    return summarised(results, len(folder.seeds), folder, records)


def _together(folder: RunFolder, ranks: Ranks, make: Callable[[], Trainer], seed: int, **given: Any) -> RunRecord:
    """A seed from its checkpoint, or from its beginning, by all ranks; rank 0 writes."""
    state = ranks.first_does(lambda: folder.read_checkpoint(seed))
    progress = folder.progress(seed) if ranks.first else {}
    return train(make, seed, ranks.device, **given, **progress | {"state": state})


@dataclass(frozen=True)
class Sent:
    """Bytes that the busiest rank sent in the last run, by kind."""

    by_kind: dict[str, float]  # per epoch on average, evaluation included
    once: dict[str, float]  # before the first epoch and after the last
    ranks: int  # their number


def partition_of(run: str | Path) -> Path | None:
    """The partition that a run was trained on, if any."""
    path = Path(run) / ABOUT
    return Path(read_json(path)["partition"]) if path.is_file() else None


def fit_sharded(
    partition: Partition, config: TrainConfig, *, ranks: Ranks, callbacks: Iterable[Callback] = (), **run: Any
) -> tuple[Summary, Sent]:
    """Train a configuration on a partitioned task from several seeds; all ranks call it together.

    Args:
        partition: The partitioned task; each rank reads its own parts.
        config, ranks, callbacks: As in `fit_seeds`, which also lists what is raised.
        run: `seeds`, `out`, `resume` and `preset`, as in `fit_seeds`.
    """
    given = partition.about["source"]
    task = partition.stand_in(splits=[Split(name, NONE, NONE, NONE) for name in partition.about["splits"]])
    run |= {"source": None if given is None else TaskSource.from_dict(given), "partition": partition.about["partition"]}
    folder = _folder(ranks, task, config, partial(check_config, partition, config), **run)
    sent = Sent({}, {}, ranks.size)

    def share(waiting: list[int]) -> tuple[list[int], OneSeed]:
        with ranks.traffic.during() as at_first:
            shard = partition.shard(ranks) if waiting else None
            labels = None if shard is None else gather_labels(partition, shard)

        def one(seed: int, **given: Any) -> RunRecord:
            nonlocal sent
            assert shard is not None
            with ranks.traffic.during() as bytes_sent:
                trainer = partial(sharded_trainer, partition, shard, split_number(task, seed), folder.config, seed)
                record = _together(folder, ranks, trainer, seed, **given)
                write_outputs(folder, record, labels, shard, partition.about["problem"])
            sent = _sent(bytes_sent, at_first, record, ranks)
            return replace(record, outputs=record.outputs[:0])

        return waiting, one

    def finish() -> None:
        path = folder.path / ABOUT
        before = read_json(path) if path.is_file() else {}
        each = sent.by_kind or before.get("bytes_an_epoch", {})
        write_json(path, {"partition": str(partition.path.resolve()), "ranks": sent.ranks, "bytes_an_epoch": each})

    return _train(folder, ranks, callbacks, share, finish), sent


def resume_sharded(
    run: str | Path, partition: Partition, *, ranks: Ranks, callbacks: Iterable[Callback] = ()
) -> tuple[Summary, Sent]:
    """Resume a run folder, by any number of ranks; see `fit_sharded`."""
    folder = ranks.first_does(lambda: RunFolder.open(run))
    again: dict[str, Any] = {"seeds": folder.seeds, "out": run, "resume": True}
    return fit_sharded(partition, folder.config, ranks=ranks, callbacks=callbacks, **again)


def _sent(bytes_sent: dict[str, int], at_first: dict[str, int], record: RunRecord, ranks: Ranks) -> Sent:
    """The most that any rank sent, by kind; `at_first` was sent before the first seed."""
    epochs = max(1, record.epochs)
    whole = [count + (at_first[kind] if kind in ONCE else 0) for kind, count in bytes_sent.items()]
    counts = torch.tensor(whole, dtype=torch.float64, device=ranks.device)
    most = dict(zip(bytes_sent, ranks.max_(counts).tolist(), strict=True))
    each = {kind: count / epochs for kind, count in most.items() if kind not in ONCE}
    return Sent(each, {kind: most[kind] for kind in ONCE}, ranks.size)


def gather_labels(partition: Partition, shard: Shard) -> Any:
    """Targets, splits and names of all ranks, on rank 0; None if there are too many, and on other ranks."""
    ranks, numbers = shard.rows.ranks, shard.rows.numbers
    if partition.num_nodes * max(int(partition.about["num_outputs"]), 1) > MOST_CELLS:
        return None
    y = gather_by_number(shard.y.to(ranks.device), numbers, partition.num_nodes, ranks)
    splits = []
    for split in shard.splits:
        found = [ranks.gather_rows(numbers[index.to(ranks.device)]) for index in split.parts().values()]
        if ranks.first:
            splits.append(Split(split.name, *(part.sort().values.cpu() for part in found if part is not None)))
    # One line of JSON per rank, sent to rank 0 only.
    line = json.dumps(shard.names, ensure_ascii=False) + "\n"
    lines = ranks.gather_rows(torch.frombuffer(bytearray(line.encode()), dtype=torch.uint8).to(ranks.device))
    order = ranks.gather_rows(numbers)
    if y is None or order is None or lines is None:
        return None
    flat = [name for line in lines.cpu().numpy().tobytes().splitlines() for name in json.loads(line)]
    names = [""] * (partition.num_nodes if flat else 0)
    for number, name in zip(order.tolist(), flat, strict=False):
        names[number] = name
    return partition.stand_in(y, splits, names)


def gather_by_number(x: Tensor, numbers: Tensor, count: int, ranks: Ranks) -> Tensor | None:
    """Rows of all ranks in their global order, on rank 0's CPU; None on the others."""
    rows, order = ranks.gather_rows(x.contiguous()), ranks.gather_rows(numbers)
    if rows is None or order is None:
        return None
    out = torch.empty(count, *x.shape[1:], dtype=x.dtype)
    out[order.cpu()] = rows.cpu()
    return out


def write_outputs(folder: RunFolder, record: RunRecord, labels: Any, shard: Shard, problem: str) -> None:
    """Writes the files of a finished seed, ``result.json`` last; all ranks call it together.

    Rank 0 writes what a single process writes. If there are too many outputs to gather, every rank writes its own:
    ``predictions-00003.npz`` has ``nodes``, ``outputs``, ``prediction`` and ``target`` of the rows of rank 3.
    """
    ranks = shard.rows.ranks
    if ranks.shared(labels is not None):
        whole = gather_by_number(record.outputs.to(ranks.device), shard.rows.numbers, shard.rows.total, ranks)
        complete = record if whole is None else replace(record, outputs=whole)
        ranks.first_does(lambda: folder.write_record(complete, labels))
        return
    own = Predictions(problem, record.outputs, targets=shard.y)
    path = folder.file(record.seed, f"predictions-{ranks.rank:05d}.npz")
    write_bytes(path, own.npz(nodes=shard.rows.numbers.numpy(force=True)))
    ranks.wait_for_all()
    ranks.first_does(lambda: folder.write_result(record))
