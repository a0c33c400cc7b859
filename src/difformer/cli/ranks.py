"""``difformer fit`` as one process of several: rank 0 speaks, all train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from difformer.cli.errors import INTERRUPTED, USER_ERROR, resumable
from difformer.cli.output import Output
from difformer.cli.progress import Progress
from difformer.cli.results import report
from difformer.distributed.environment import rank

if TYPE_CHECKING:
    from difformer.data import Task
    from difformer.distributed.folder import Partition
    from difformer.distributed.ranks import Ranks
    from difformer.distributed.run import Sent
    from difformer.training import TrainConfig
    from difformer.training.source import TaskSource
    from difformer.training.tuning import Question, Trial, Tuned


def hush(output: Output) -> None:
    """Silence on every rank but the first."""
    if rank() > 0:
        output.as_json, output.out.quiet, output.err.quiet = False, True, True


@contextmanager
def joined(device: str, output: Output) -> Iterator[Ranks]:
    """The group; on ranks other than the first nothing is printed that rank 0 prints already."""
    from difformer.distributed.ranks import join

    hush(output)
    try:
        with join(device) as ranks:
            yield ranks
    except KeyboardInterrupt:
        if rank() == 0:
            raise
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if rank() > 0 and getattr(error, "of_rank_0", False):
            raise typer.Exit(USER_ERROR) from None
        raise


def fit_partition(
    path: Path,
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    out: Path | None,
    device: str,
    described: Sequence[str],
    output: Output,
    callbacks: Sequence[Any] = (),
    preset: str | None = None,
) -> None:
    """Train on a partitioned task, over as many ranks as there are."""
    from difformer.distributed.folder import Partition
    from difformer.distributed.run import fit_sharded
    from difformer.training.run_folder import default_path

    partition = Partition.open(path)
    with joined(device, output) as ranks:
        folder = ranks.shared(out or default_path(partition.about["name"], config.model))
        for line in [*describe_partition(partition, ranks), *described]:
            output.say(line)
        metric = partition.about["metric"] if config.metric == "auto" else config.metric
        shown = Progress(output, metric=metric, runs=len(seeds), epochs=config.epochs)
        with resumable(folder), shown:
            given = {"seeds": seeds, "out": folder, "callbacks": [shown, *callbacks], "preset": preset}
            summary, sent = fit_sharded(partition, config, ranks=ranks, **given)
        report(summary, output, {"config": config.to_dict(), "sent": vars(sent), "preset": preset})
        output.say(describe_sent(sent))


def resume_partition(run: Path, path: Path, *, device: str, output: Output, callbacks: Sequence[Any] = ()) -> None:
    """Go on with a run on a partitioned task, over as many ranks as there are now."""
    from difformer.distributed.folder import Partition
    from difformer.distributed.run import resume_sharded
    from difformer.training.run_folder import RunFolder

    folder, partition = RunFolder.open(run), Partition.open(path)
    with joined(device, output) as ranks:
        for line in describe_partition(partition, ranks):
            output.say(line)
        config = folder.config
        metric = partition.about["metric"] if config.metric == "auto" else config.metric
        shown = Progress(output, metric=metric, runs=len(folder.seeds), epochs=config.epochs)
        with resumable(run), shown:
            summary, sent = resume_sharded(run, partition, ranks=ranks, callbacks=[shown, *callbacks])
        report(summary, output, {"config": config.to_dict(), "sent": vars(sent)})
        output.say(describe_sent(sent))


def fit_runs(
    task: Task,
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    source: TaskSource,
    out: Path | None,
    device: str,
    described: Sequence[str],
    output: Output,
    preset: str | None = None,
) -> None:
    """Train on a task that every rank holds: seeds spread over ranks, or batches of graphs shared among them."""
    from difformer.distributed.seeds import fit_seeds
    from difformer.training.run_folder import default_path

    with joined(device, output) as ranks:
        folder = ranks.shared(out or default_path(task.name, config.model))
        for line in [*described, *describe_runs(task, config, len(seeds), ranks)]:
            output.say(line)
        metric = task.metric if config.metric == "auto" else config.metric
        with resumable(folder), Progress(output, metric=metric, runs=len(seeds), epochs=config.epochs) as shown:
            given = {"ranks": ranks, "seeds": seeds, "out": folder, "callbacks": [shown], "source": source}
            summary = fit_seeds(task, config, preset=preset, **given)
        report(summary, output, {"task": task.facts(), "config": config.to_dict(), "preset": preset})


def resume_runs(run: Path, *, device: str, output: Output) -> None:
    """Go on with a run, its seeds spread over ranks."""
    from difformer.distributed.seeds import resume_seeds
    from difformer.training.run_folder import RunFolder

    folder = RunFolder.open(run)
    if folder.stacked:
        raise ValueError(f"{run} was trained with all seeds as one; go on with it in one process, without torchrun")
    task, config = folder.task(), folder.config
    with joined(device, output) as ranks:
        waiting = sum(not folder.is_done(seed) for seed in folder.seeds)
        for line in describe_runs(task, config, waiting, ranks):
            output.say(line)
        metric = task.metric if config.metric == "auto" else config.metric
        with resumable(run), Progress(output, metric=metric, runs=max(waiting, 1), epochs=config.epochs) as shown:
            summary = resume_seeds(folder, task, ranks=ranks, callbacks=[shown])
        report(summary, output, {"config": config.to_dict()})


def tune_trials(
    task: Task,
    question: Question,
    trials: int,
    out: Path,
    *,
    device: str,
    told: Callable[[Trial], None],
    output: Output,
) -> Tuned | None:
    """A study whose trials are spread over ranks; None on ranks other than the first."""
    from difformer.distributed.tuning import tune_over_ranks

    with joined(device, output) as ranks:
        output.say(f"ranks: {ranks.size} ({ranks.device.type}), trials spread over them")
        found = tune_over_ranks(task, question, ranks=ranks, trials=trials, out=out, on_trial=told)
        return found if ranks.first else None


def describe_runs(task: Task, config: TrainConfig, seeds: int, ranks: Ranks) -> list[str]:
    """Who trains what."""
    from difformer.distributed.batches import shares_batches

    if seeds >= ranks.size:
        return [f"ranks: {ranks.size} ({ranks.device.type}), {seeds} seeds spread over them; rank 0's are shown"]
    if shares_batches(task, config):
        return [f"ranks: {ranks.size} ({ranks.device.type}), each with a share of every batch of graphs"]
    hint = ""
    if task.kind == "nodes":
        hint = "; `difformer partition` cuts the graph, so that all of them train each seed together"
    return [f"note: {ranks.size} ranks and {seeds} seeds: {ranks.size - seeds} ranks have nothing to do{hint}"]


def describe_partition(partition: Partition, ranks: Ranks) -> list[str]:
    """What is trained on, by whom."""
    about, sizes = partition.about, partition.sizes
    backend = "NCCL" if ranks.device.type == "cuda" else "gloo"
    lines = [
        f"{about['name']}: {about['num_nodes']:,} nodes, {about['num_edges'] or 0:,} edges, {about['num_features']:,} "
        f"features, in {len(sizes)} parts of {min(sizes):,} to {max(sizes):,} nodes ({about['method']})",
        f"protocol: {about['protocol']}",
        partition.quality.describe(),
        f"ranks: {ranks.size} ({ranks.device.type}, {backend})",
    ]
    if ranks.size > len(sizes):
        lines.append(
            f"note: {ranks.size - len(sizes)} of {ranks.size} ranks have no part; `difformer partition` with --parts "
            f"{ranks.size} would give each one"
        )
    return lines


def describe_sent(sent: Sent) -> str:
    """Bytes by kind, in one line."""
    from difformer.distributed.traffic import readable

    shown = [f"{kind} {readable(count)}" for kind, count in sent.by_kind.items() if count >= 1]
    if not shown:
        return "sent: nothing, there was one rank"
    note = " (ring: keys and values of all nodes, O(N d))" if sent.by_kind.get("ring") else ""
    once = ", ".join(f"{kind} {readable(count)}" for kind, count in sent.once.items() if count >= 1)
    return f"sent by the busiest of {sent.ranks} ranks, an epoch: {', '.join(shown)}{note}; once: {once or 'nothing'}"
