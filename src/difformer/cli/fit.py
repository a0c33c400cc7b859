"""``difformer fit``: train a model from several seeds, and keep everything in a run folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer import distributed
from difformer.cli.command import command, joined, resumable
from difformer.cli.description import (
    describe_partition,
    describe_request,
    describe_seeds,
    describe_task,
    headline,
    report_results,
)
from difformer.cli.inputs import DEFAULT_MODEL, OWN_PRESET, Data, Request, add_preset_data, load, read_request
from difformer.cli.options import DEVICE, METRIC, MODEL, MODEL_NAME, SETTINGS, option, read_seeds, setting_words
from difformer.cli.output import Output, Progress, counted
from difformer.distributed import rank, under_torchrun
from difformer.errors import UserError
from difformer.report import ATTENTION_OFF

if TYPE_CHECKING:
    from difformer.distributed import Partition, Ranks
    from difformer.training import TrainConfig
    from difformer.training.run_folder import TaskSource

DEFAULT_SEEDS = 5
Train = Callable[..., Any]  # trains with the callbacks that it is given


@command("difformer fit cora --preset best --seeds 5")
def fit(
    data: Data,
    output: Output,
    model: str | None = MODEL_NAME,
    preset: str | None = option(
        "Settings to start from: a preset of the package (best, paper or public-code; `difformer models NAME` lists "
        "them), or a file written by `difformer tune`. --set overrides them.",
        metavar="NAME|FILE",
        panel=MODEL,
    ),
    settings: list[str] | None = SETTINGS,
    metric: str | None = METRIC,
    batch_size: int | None = option("Nodes or graphs per mini-batch; short for --set batch_size=….", panel=MODEL),
    seeds: str | None = option(
        f"Number of runs, or their seeds (0,3,7 or 5-9; one seed: 3,); {DEFAULT_SEEDS} by default. Seed s uses split s "
        "modulo the number of splits.",
        metavar="N|A,B,…",
    ),
    alongside: list[str] | None = option(
        "Also train the same settings with attention off, and compare.", None, "--with", metavar=ATTENTION_OFF
    ),
    device: str = DEVICE,
    out: Path | None = option("New folder for the run; runs/DATASET-MODEL-TIME by default."),
    resume: Path | None = option("Resume an interrupted run; the result is the same.", metavar="RUN"),
    stacked: bool | None = option(
        "Train all seeds as one stacked model, or one after the other; by default whichever is likely faster."
    ),
    shard: bool = option(
        "Partition the graph on the fly, so that all ranks train each seed together.", False, "--shard"
    ),
    tensorboard: bool = option("Write TensorBoard event files too.", False, "--tensorboard"),
) -> None:
    """Train a model from several seeds.

    The metric is reported as mean ± standard deviation over seeds. The data are a data set by name, a table (`difformer
    fit customers.csv --label segment`), or several files (`--features x.csv --labels y.csv --edges e.csv`). The epoch
    with the best validation score counts. Ctrl-C saves the state, and `--resume RUN` continues. Under torchrun, seeds
    are spread over the processes; with --shard, or a folder made by `difformer partition`, the graph is spread instead.
    Link prediction and edge features are outside of this package for now.
    """
    parts = Path(data.dataset) if data.dataset and (Path(data.dataset) / "partition.json").is_file() else None
    if resume is not None:
        asked = {
            "the data set": data.dataset if parts is None else None, "--model": model, "--preset": preset,
            "--set": settings, "--metric": metric, "--seeds": seeds, "--batch-size": batch_size, "--out": out,
            "--with": alongside, "--shard": shard or None,
        }  # fmt: skip
        if extra := [name for name, value in asked.items() if value is not None] + data.given():
            raise UserError(f"--resume continues a run as it is; leave out {', '.join(extra)}")
        _resume(resume, parts, device, tensorboard, output)
        return
    if unknown := [word for word in alongside or () if word != ATTENTION_OFF]:
        raise UserError(f"--with: expected {ATTENTION_OFF}, the only run that can be added; got {unknown[0]!r}")
    sharded = shard or parts is not None
    alone = {"--stacked": stacked, "--with": alongside, "--tensorboard": tensorboard and not sharded}
    if (sharded or under_torchrun()) and (extra := [name for name, value in alone.items() if value]):
        raise UserError(f"{' and '.join(extra)}: only for one process that trains on the whole graph; leave it out")
    if parts is not None and (extra := data.given()):
        raise UserError(f"{data.dataset} is a partitioned task, trained as it is; leave out {', '.join(extra)}")
    source = data.source() if parts is None else None
    if preset is None and source is not None and source.name is None and model in (None, DEFAULT_MODEL):
        preset = OWN_PRESET
    words = setting_words(settings, metric, batch_size)
    request = read_request(None if source is None else source.name, model, preset, words)
    source = None if source is None else add_preset_data(source, request.preset)
    default = (request.preset.seeds if request.preset is not None else None) or DEFAULT_SEEDS
    chosen, off = read_seeds(seeds, default), _attention_off(request) if alongside else None
    from difformer.training import run
    from difformer.training.run_folder import default_path

    config, about = request.config, {"config": request.config.to_dict(), "preset": request.origin}
    about["overrides"] = request.overrides
    with joined(device) if sharded or under_torchrun() else nullcontext() as ranks:
        if sharded:
            partition, said = _partition(parts, source, config, ranks)
            said += describe_request(request, source)
            name, measured = partition.about["name"], partition.about["metric"]
            train: Train = partial(distributed.fit_sharded, partition, ranks=ranks)
        else:
            assert source is not None
            task = load(source)
            said = [*describe_task(task, config), *describe_request(request, source)]
            name, measured, about["task"] = task.name, task.metric, task.facts()
            if ranks is None:
                train = partial(run.fit, task, device=device, source=source, stacked=stacked)
            else:
                said.append(describe_seeds(task, config, len(chosen), ranks))
                train = partial(distributed.fit_seeds, task, ranks=ranks, source=source)
        folder = out or default_path(name, config.model)
        folder = folder if ranks is None else ranks.shared(folder)
        output.say("\n".join(said))
        train = partial(train, seeds=chosen, preset=request.origin)
        shown: tuple[Any, ...] = (measured, len(chosen), output)
        found = _train(partial(train, config, out=folder), folder, config, tensorboard, *shown)
        if off is None:
            report_results(found, output, about)
            return
    beside = folder.with_name(f"{folder.name}-{ATTENTION_OFF}")
    without = _train(partial(train, off, out=beside), beside, off, False, *shown)
    from difformer.report import compare_runs

    compared = asdict(compare_runs([beside, folder]).against_first[0])
    about["attention_off"] = {**without.to_dict(), "run": without.folder, "comparison": compared}
    report_results(found, output, about)
    output.say(f"with attention off: {headline(without)}")
    output.say(
        f"attention on less attention off: {compared['difference']:+.4f} over {counted(compared['pairs'], 'pairs')} of "
        f"runs; {compared['verdict'].replace('the first run', ATTENTION_OFF.replace('-', ' '))}"
    )
    output.say(f"run folder with attention off: {beside}")


def _partition(
    parts: Path | None, source: TaskSource | None, config: TrainConfig, ranks: Ranks
) -> tuple[Partition, list[str]]:
    """The partition of a folder, or of a task that is first cut into parts, and what to say about it.

    Only rank 0 ever holds the whole graph, and only while it writes the parts.
    """
    from difformer.distributed.partition_folder import Partition, shared_partition

    def cut() -> tuple[Path, list[str]]:
        assert source is not None
        task = load(source)
        made = shared_partition(task, ranks.size, source=source.to_dict())
        return made.path, describe_task(task, config)

    path, said = ranks.first_does(cut) if parts is None else (parts, [])
    partition = Partition.open(path)
    return partition, [*describe_partition(partition, ranks), *said]


def _train(
    train: Train, folder: Path, config: TrainConfig, tensorboard: bool, metric: str, runs: int, output: Output
) -> Any:
    """Calls a function that trains, with its progress shown."""
    metric = metric if config.metric == "auto" else config.metric
    with resumable(folder), Progress(output, metric=metric, runs=runs, epochs=config.epochs) as shown:
        callbacks: list[Any] = [shown]
        if tensorboard and rank() == 0:
            from difformer.training.callbacks import TensorBoard

            callbacks.append(TensorBoard(folder / "tensorboard"))
        return train(callbacks=callbacks)


def _attention_off(request: Request) -> TrainConfig:
    """The same settings with attention off: diffusion over observed edges alone."""
    from difformer.training.config import make_config
    from difformer.zoo import find, options_of

    info = find(request.config.model)
    if "diffusivity" not in {*info.fixed, *options_of(info.name)}:
        raise UserError(f"--with {ATTENTION_OFF}: {request.config.model} has no attention to switch off")
    return make_config("difformer", {**info.defaults, **info.fixed, **request.settings, "diffusivity": None})


def _resume(run: Path, parts: Path | None, device: str, tensorboard: bool, output: Output) -> None:
    """Resume a run in one process; or by ranks, on the partition it was trained on, on another of the same task, or
    seed by seed.
    """
    from difformer.distributed.rank_runs import partition_of
    from difformer.training.run import resume
    from difformer.training.run_folder import RunFolder

    folder = RunFolder.open(run)
    config, data = folder.config, folder.about["data"]
    waiting = sum(not folder.is_done(seed) for seed in folder.seeds)
    by_ranks = parts is not None or under_torchrun()
    if by_ranks and folder.stacked:
        raise UserError(f"{run} was trained with all seeds stacked; resume it in one process, without torchrun")
    with joined(device) if by_ranks else nullcontext() as ranks:
        if ranks is None:
            said = [f"{run}: {config.model} on {data['task']}, {waiting} of {len(folder.seeds)} runs to go"]
            train: Train = partial(resume, run, device=None if device == "auto" else device)
        elif (path := parts or partition_of(run)) is not None:
            partition = distributed.Partition.open(path)
            said = describe_partition(partition, ranks)
            train = partial(distributed.resume_sharded, run, partition, ranks=ranks)
        else:
            task = folder.task()
            said = [describe_seeds(task, config, waiting, ranks)]
            train = partial(distributed.fit_seeds, task, config, ranks=ranks, seeds=folder.seeds, out=run, resume=True)
        output.say("\n".join(said))
        found = _train(train, run, config, tensorboard, data["metric"], max(1, waiting), output)
        report_results(found, output, {"config": config.to_dict(), "preset": folder.preset})
