"""``difformer fit``: train a model from several seeds, and keep everything in a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from difformer import distributed, report, training, zoo
from difformer.cli import description
from difformer.cli.command import DEVICE, METRIC, MODEL, MODEL_NAME, SETTINGS, command, joined, option, read_seeds
from difformer.cli.inputs import Data, Request, load, read_request, setting_words
from difformer.cli.output import Output, Progress, counted
from difformer.distributed import rank, under_torchrun
from difformer.errors import UserError
from difformer.report import ATTENTION_OFF
from difformer.training.config import TrainConfig, make_config

DEFAULT_SEEDS = 5
Train = Callable[..., Any]  # trains with the callbacks that it is given


@command("difformer fit cora --preset best --seeds 5")
def fit(
    data: Data,
    output: Output,
    model: str | None = MODEL_NAME,
    preset: str | None = option(
        "Settings to start from: a preset of the package (best, common, paper or public-code; `difformer models NAME` "
        "lists them), or a file written by `difformer tune`; without --model and --preset, the DIFFormer preset with "
        "the best validation score for the data set. --set overrides them.",
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
    alongside: str | None = option(
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

    The metric is reported as mean ± standard deviation over seeds. The data are given as the name of a data set, a
    table (`difformer fit customers.csv --label segment`), or several files (`--features x.csv --labels y.csv --edges
    e.csv`). The epoch with the best validation score is used. Ctrl-C saves the state, and `--resume RUN` continues.
    Under torchrun, seeds are spread over the processes; with --shard, or a folder made by `difformer partition`, the
    graph is spread instead. Link prediction and edge features are not supported yet.
    """
    parts = Path(data.dataset) if data.dataset and (Path(data.dataset) / "partition.json").is_file() else None
    if resume is not None:
        asked = {
            "the data set": data.dataset if parts is None else None, "--model": model, "--preset": preset,
            "--set": settings, "--metric": metric, "--seeds": seeds, "--batch-size": batch_size, "--out": out,
            "--with": alongside, "--shard": shard or None,
        }  # fmt: skip
        if extra := [name for name, value in asked.items() if value is not None] + data.given():
            raise UserError(f"--resume continues a run unchanged; omit {', '.join(extra)}")
        _resume(resume, parts, device, tensorboard, output)
        return
    if alongside not in (None, ATTENTION_OFF):
        raise UserError(f"--with: expected {ATTENTION_OFF}, the only run that can be added; got {alongside!r}")
    sharded = shard or parts is not None
    alone = {"--stacked": stacked, "--with": alongside, "--tensorboard": tensorboard and not sharded}
    if (sharded or under_torchrun()) and (extra := [name for name, value in alone.items() if value]):
        raise UserError(f"{' and '.join(extra)}: only for one process that trains on the whole graph; leave it out")
    if parts is not None and (extra := data.given()):
        raise UserError(f"{data.dataset} is a partitioned task, trained as it is; leave out {', '.join(extra)}")
    words = setting_words(settings, metric, batch_size)
    source = data.source() if parts is None else None
    request = read_request(source, model, preset, words, bool(alongside))
    source = request.source
    default = (request.preset.seeds if request.preset is not None else None) or DEFAULT_SEEDS
    chosen, off = read_seeds(seeds, default), _attention_off(request) if alongside else None
    config, leaks = request.config, list[str]()
    about = {"config": config.to_dict(), "preset": request.origin, "overrides": request.overrides}
    with joined(device, sharded) as ranks:
        if sharded:
            assert ranks is not None
            path, said = (parts, []) if parts else ranks.first_does(partial(_cut, source, config, chosen, ranks.size))
            partition = distributed.Partition.open(path)
            name, measured = partition.about["name"], partition.about["metric"]
            said = [*description.describe_partition(partition, ranks), *said]
            train: Train = partial(distributed.fit_sharded, partition, ranks=ranks)
        else:
            assert source is not None
            task = load(source)
            said, leaks = description.describe_task(task, config, chosen), description.leaks(task)
            name, measured, about["task"] = task.name, task.metric, task.facts()
            if ranks is None:
                train = partial(training.run.fit, task, device=device, source=source, stacked=stacked)
            else:
                said.append(description.describe_seeds(task, config, len(chosen), ranks))
                train = partial(distributed.fit_seeds, task, ranks=ranks, source=source)
        folder = out or training.run_folder.default_path(name, config.model)
        folder = folder if ranks is None else ranks.shared(folder)
        output.say("\n".join([*said, *description.describe_request(request, name)]))
        train = partial(train, seeds=chosen, preset=request.origin)
        shown: tuple[Any, ...] = (measured, len(chosen), output)
        found = _train(partial(train, config, out=folder), folder, config, tensorboard, *shown)
        if off is None:
            note = report.layers.uniform_note(folder, task, device) if ranks is None and found.results else ""
            description.report_results(found, output, about, *leaks, *filter(None, [note]))
            return
    beside = folder.with_name(f"{folder.name}-{ATTENTION_OFF}")
    without = _train(partial(train, off, out=beside), beside, off, False, *shown)
    compared = asdict(report.compare_runs([beside, folder]).against_first[0])
    about["attention_off"] = {**without.to_dict(), "run": without.folder, "comparison": compared}
    description.report_results(found, output, about, *leaks)
    output.say(f"with attention off: {description.headline(without)}")
    output.say(
        f"difference that attention makes: {compared['difference']:+.4f} over {counted(compared['pairs'], 'pairs')} of "
        f"runs; {compared['verdict'].replace('the first run', ATTENTION_OFF.replace('-', ' '))}"
    )
    output.say(f"run folder with attention off: {beside}")


def _cut(
    source: training.TaskSource | None, config: TrainConfig, seeds: list[int], parts: int
) -> tuple[Path, list[str]]:
    """Partitions a task and describes it. Only rank 0 calls this, so no other rank ever holds the whole graph."""
    assert source is not None
    task = load(source)
    made = distributed.partition_folder.shared_partition(task, parts, source=source.to_dict())
    return made.path, description.describe_task(task, config, seeds)


def _train(
    train: Train, folder: Path, config: TrainConfig, tensorboard: bool, metric: str, runs: int, output: Output
) -> Any:
    """Calls a training function and shows its progress."""
    metric = metric if config.metric == "auto" else config.metric
    try:
        with Progress(output, metric=metric, runs=runs, epochs=config.epochs) as shown:
            callbacks: list[Any] = [shown]
            if tensorboard and rank() == 0:
                callbacks.append(training.callbacks.TensorBoard(folder / "tensorboard"))
            return train(callbacks=callbacks)
    except KeyboardInterrupt as error:  # a second Ctrl-C says which run can be resumed
        if (folder / "config.toml").is_file():
            error.begun = str(folder)  # type: ignore[attr-defined]
        raise


def _attention_off(request: Request) -> TrainConfig:
    """The same settings with attention off: diffusion only over observed edges."""
    info = zoo.find(request.config.model)
    if "diffusivity" not in {*info.fixed, *zoo.options_of(info.name)}:
        raise UserError(f"--with {ATTENTION_OFF}: {request.config.model} has no attention to switch off")
    settings = {**info.defaults, **info.fixed, **request.settings}
    if settings.get("diffusivity", "simple") is None:
        problem = f"attention is off already in {request.config.model}; --model difformer-s has it"
        raise UserError(f"--with {ATTENTION_OFF}: {problem}")
    return make_config("difformer", {**settings, "diffusivity": None})


def _resume(run: Path, parts: Path | None, device: str, tensorboard: bool, output: Output) -> None:
    """Resume a run in one process; or by ranks, on the partition it was trained on, on another of the same task, or
    seed by seed.
    """
    folder = training.RunFolder.open(run)
    config, data = folder.config, folder.about["data"]
    waiting = len(folder.unfinished)
    by_ranks = parts is not None or under_torchrun()
    if by_ranks and folder.stacked:
        raise UserError(f"{run} was trained with all seeds stacked; resume it in one process, without torchrun")
    with joined(device, by_ranks) as ranks:
        if ranks is None:
            said = [f"{run}: {config.model} on {data['task']}, {waiting} of {len(folder.seeds)} runs to go"]
            train: Train = partial(training.resume, run, device=None if device == "auto" else device)
        elif (path := parts or distributed.rank_runs.partition_of(run)) is not None:
            partition = distributed.Partition.open(path)
            said = description.describe_partition(partition, ranks)
            train = partial(distributed.resume_sharded, run, partition, ranks=ranks)
        else:
            task = folder.task()
            said = [description.describe_seeds(task, config, waiting, ranks)]
            train = partial(distributed.fit_seeds, task, config, ranks=ranks, seeds=folder.seeds, out=run, resume=True)
        output.say("\n".join(said))
        found = _train(train, run, config, tensorboard, data["metric"], max(1, waiting), output)
        description.report_results(found, output, {"config": config.to_dict(), "preset": folder.preset})
