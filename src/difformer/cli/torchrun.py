"""``difformer fit`` and ``difformer tune`` as one process of several: rank 0 prints, all ranks train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from difformer.cli.command import INTERRUPTED, USER_ERROR, resumable
from difformer.cli.description import describe_request, describe_task, note_missing_edges, report_results
from difformer.cli.inputs import Request
from difformer.cli.output import Output, counted
from difformer.cli.progress import Progress, tensorboard_callbacks
from difformer.distributed.environment import rank
from difformer.errors import UserError

if TYPE_CHECKING:
    from difformer.data import Task
    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.process_group import Ranks
    from difformer.distributed.rank_runs import Sent
    from difformer.training import TrainConfig
    from difformer.training.run_folder import TaskSource
    from difformer.training.study import Question, Trial, Tuned


@contextmanager
def joined(device: str, output: Output) -> Iterator[Ranks]:
    """The group; ranks other than the first print nothing that rank 0 prints."""
    from difformer.distributed.process_group import join

    silence(output)
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


def silence(output: Output) -> None:
    """Prints nothing on any rank but the first."""
    if rank() > 0:
        output.as_json, output.out.quiet, output.err.quiet = False, True, True


def fit_seeds(
    task: Task,
    request: Request,
    seeds: Sequence[int],
    *,
    source: TaskSource,
    out: Path | None,
    device: str,
    said: Sequence[str],
    output: Output,
) -> None:
    """Train seeds spread over ranks, or batches of graphs where there are fewer seeds than ranks."""
    from difformer.distributed.rank_runs import fit_seeds as train
    from difformer.training.run_folder import default_path

    config = request.config
    with joined(device, output) as ranks:
        folder = ranks.shared(out or default_path(task.name, config.model))
        for line in [*said, *_describe_seeds(task, config, len(seeds), ranks)]:
            output.say(line)
        with resumable(folder), Progress.of(output, config, task.metric, len(seeds)) as shown:
            given: dict[str, Any] = {
                "ranks": ranks,
                "seeds": seeds,
                "out": folder,
                "callbacks": [shown],
                "source": source,
            }
            summary = train(task, config, preset=request.origin, **given)
        report_results(summary, output, {"task": task.facts(), "config": config.to_dict(), "preset": request.origin})


def fit_graph(
    given: Path | TaskSource,
    request: Request,
    seeds: Sequence[int],
    *,
    out: Path | None,
    device: str,
    tensorboard: bool,
    output: Output,
) -> None:
    """Train on a graph that is spread over ranks: a partition folder, or a task that is first cut into parts.

    Only rank 0 ever holds the whole graph, and only while it writes the parts.
    """
    from difformer.distributed.partition_folder import Partition, shared_partition
    from difformer.distributed.rank_runs import fit_sharded
    from difformer.training.run_folder import default_path

    config, preset = request.config, request.origin
    with joined(device, output) as ranks:

        def cut(source: TaskSource) -> tuple[Path, list[str]]:
            task = source.load()
            task.check_finite()
            made = shared_partition(task, ranks.size, source=source.to_dict())
            return made.path, [*describe_task(task, config.metric), *note_missing_edges(task, config)]

        path, said = (given, []) if isinstance(given, Path) else ranks.first_does(lambda: cut(given))
        partition = Partition.open(path)
        said += describe_request(request, None if isinstance(given, Path) else given)
        folder = ranks.shared(out or default_path(partition.about["name"], config.model))
        for line in [*_describe_partition(partition, ranks), *said]:
            output.say(line)
        with resumable(folder), Progress.of(output, config, partition.about["metric"], len(seeds)) as shown:
            callbacks = [shown, *tensorboard_callbacks(folder, tensorboard and ranks.first)]
            about: dict[str, Any] = {"seeds": seeds, "out": folder, "callbacks": callbacks, "preset": preset}
            summary, sent = fit_sharded(partition, config, ranks=ranks, **about)
        report_results(summary, output, {"config": config.to_dict(), "sent": vars(sent), "preset": preset})
        output.say(describe_sent(sent))


def resume_ranks(run: Path, parts: Path | None, *, device: str, tensorboard: bool, output: Output) -> None:
    """Resume a run by ranks: on the partition it was trained on, or on another of the same task; or its seeds."""
    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.rank_runs import partition_of, resume_seeds, resume_sharded
    from difformer.training.run_folder import RunFolder

    folder, parts = RunFolder.open(run), parts or partition_of(run)
    if folder.stacked:
        raise UserError(f"{run} was trained with all seeds stacked; resume it in one process, without torchrun")
    config, metric = folder.config, folder.about["data"]["metric"]
    waiting = sum(not folder.is_done(seed) for seed in folder.seeds)
    about: dict[str, Any] = {"config": config.to_dict()}
    sent = None
    with joined(device, output) as ranks:
        if parts is not None:
            partition = Partition.open(parts)
            said = _describe_partition(partition, ranks)
        else:
            task = folder.task()
            said = _describe_seeds(task, config, waiting, ranks)
        for line in said:
            output.say(line)
        with resumable(run), Progress.of(output, config, metric, max(waiting, 1)) as shown:
            callbacks = [shown, *tensorboard_callbacks(run, tensorboard and ranks.first)]
            if parts is not None:
                summary, sent = resume_sharded(run, partition, ranks=ranks, callbacks=callbacks)
                about["sent"] = vars(sent)
            else:
                summary = resume_seeds(folder, task, ranks=ranks, callbacks=callbacks)
        report_results(summary, output, about)
        if sent is not None:
            output.say(describe_sent(sent))


def tune_trials(
    task: Task,
    questions: Sequence[Question],
    trials: int,
    out: Path,
    *,
    device: str,
    told: Callable[[Trial], None],
    output: Output,
) -> dict[str, Tuned] | None:
    """A study whose trials are spread over ranks; None on ranks other than the first."""
    from difformer.training.study import tune

    with joined(device, output) as ranks:
        output.say(f"ranks: {ranks.size} ({ranks.device.type}), trials spread over them")
        found = tune(task, questions, ranks=ranks, trials=trials, out=out, on_trial=told)
        return found if ranks.first else None


def _describe_seeds(task: Task, config: TrainConfig, seeds: int, ranks: Ranks) -> list[str]:
    """Which rank trains what."""
    from difformer.distributed.rank_trainer import shares_batches

    group = f"ranks: {ranks.size} ({ranks.device.type})"
    if seeds >= ranks.size:
        return [f"{group}, {counted(seeds, 'seeds')} spread over them; rank 0's are shown"]
    if shares_batches(task, config):
        return [f"{group}, each with a share of every batch of graphs"]
    hint = "; --shard spreads the graph, so that all ranks train each seed together" if task.kind == "nodes" else ""
    idle = counted(ranks.size - seeds, "ranks")
    return [f"note: {ranks.size} ranks for {counted(seeds, 'seeds')}: nothing to do for {idle}{hint}"]


def _describe_partition(partition: Partition, ranks: Ranks) -> list[str]:
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
    from difformer.distributed.process_group import readable

    kinds = [f"{kind} {readable(count)}" for kind, count in sent.by_kind.items() if count >= 1]
    if not kinds:
        return "sent: nothing, there was one rank"
    note = " (ring: keys and values of all nodes, O(N d))" if sent.by_kind.get("ring") else ""
    once = ", ".join(f"{kind} {readable(count)}" for kind, count in sent.once.items() if count >= 1)
    return f"sent per epoch by the busiest of {sent.ranks} ranks: {', '.join(kinds)}{note}; once: {once or 'nothing'}"
