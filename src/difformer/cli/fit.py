"""``difformer fit``: train a model from several seeds, and keep everything in a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.cli.command import command, joined, resumable
from difformer.cli.description import (
    describe_partition,
    describe_request,
    describe_seeds,
    describe_sent,
    describe_task,
    headline,
    report_results,
)
from difformer.cli.inputs import DEFAULT_MODEL, OWN_PRESET, Data, Request, add_preset_data, read_request
from difformer.cli.options import DEVICE, METRIC, MODEL, MODEL_NAME, SETTINGS, option, read_seeds
from difformer.cli.output import Output, Progress, counted
from difformer.distributed import under_torchrun
from difformer.errors import UserError
from difformer.report import ATTENTION_OFF

if TYPE_CHECKING:
    from difformer.training import Summary, TrainConfig
    from difformer.training.run_folder import TaskSource

DEFAULT_SEEDS = 5


@command
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
    where: dict[str, Any] = {"device": device, "tensorboard": tensorboard, "output": output}
    if resume is not None:
        asked = {
            "the data set": data.dataset if parts is None else None, "--model": model, "--preset": preset,
            "--set": settings, "--metric": metric, "--seeds": seeds, "--batch-size": batch_size, "--out": out,
            "--with": alongside, "--shard": shard or None,
        }  # fmt: skip
        if extra := [name for name, value in asked.items() if value is not None] + data.given():
            raise UserError(f"--resume continues a run as it is; leave out {', '.join(extra)}")
        _resume(resume, parts, **where)
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
    given: dict[str, Any] = {"model": model, "preset": preset, "settings": settings, "metric": metric}
    request = read_request(None if source is None else source.name, batch_size=batch_size, **given)
    source = None if source is None else add_preset_data(source, request.preset)
    default = (request.preset.seeds if request.preset is not None else None) or DEFAULT_SEEDS
    chosen, off = read_seeds(seeds, default), _attention_off(request) if alongside else None
    if sharded or under_torchrun():
        _fit_ranks(source, parts, request, chosen, out, sharded=sharded, **where)
        return
    from difformer.training.run import fit as train
    from difformer.training.run_folder import default_path

    assert source is not None
    task, config = source.load(), request.config
    task.check_finite()
    output.say("\n".join([*describe_task(task, config), *describe_request(request, source)]))
    folder = out or default_path(task.name, config.model)
    origin = {"preset": request.origin, "overrides": request.overrides}
    about: dict[str, Any] = {"task": task.facts(), "config": config.to_dict(), **origin}
    same: dict[str, Any] = {
        "seeds": chosen,
        "device": device,
        "source": source,
        "stacked": stacked,
        "preset": request.origin,
    }
    where = {"metric": task.metric, "runs": len(chosen), "output": output}
    summary = _train(partial(train, task, config, out=folder, **same), folder, config, tensorboard, **where)
    if off is None:
        report_results(summary, output, about)
        return
    beside = folder.with_name(f"{folder.name}-{ATTENTION_OFF}")
    without = _train(partial(train, task, off, out=beside, **same), beside, off, False, **where)
    from difformer.report import compare_runs

    compared = asdict(compare_runs([beside, folder]).against_first[0])
    about["attention_off"] = {**without.to_dict(), "run": without.folder, "comparison": compared}
    report_results(summary, output, about)
    output.say(f"with attention off: {headline(without)}")
    output.say(
        f"attention on less attention off: {compared['difference']:+.4f} over {counted(compared['pairs'], 'pairs')} of "
        f"runs; {compared['verdict'].replace('the first run', ATTENTION_OFF.replace('-', ' '))}"
    )
    output.say(f"run folder with attention off: {beside}")


def _train(
    train: Callable[..., Any],
    folder: Path,
    config: TrainConfig,
    tensorboard: bool,
    metric: str,
    runs: int,
    output: Output,
) -> Any:
    """Calls a function that trains, with its progress shown."""
    with resumable(folder), Progress.of(output, config, metric, runs) as shown:
        callbacks: list[Any] = [shown]
        if tensorboard:
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


def _fit_ranks(
    source: TaskSource | None,
    parts: Path | None,
    request: Request,
    seeds: list[int],
    out: Path | None,
    *,
    sharded: bool,
    device: str,
    tensorboard: bool,
    output: Output,
) -> None:
    """Spread seeds over ranks (batches of graphs where there are fewer), or the graph where `sharded`.

    The graph is that of a partition folder, or of a task that is first cut into parts: only rank 0 ever holds the whole
    of it, and only while it writes the parts.
    """
    from difformer.distributed.partition_folder import Partition, shared_partition
    from difformer.distributed.rank_runs import fit_seeds, fit_sharded
    from difformer.training.run_folder import default_path

    config, about = request.config, {"config": request.config.to_dict(), "preset": request.origin}
    about["overrides"] = request.overrides
    with joined(device, output) as ranks:

        def cut() -> tuple[Path, list[str]]:
            assert source is not None
            task = source.load()
            task.check_finite()
            made = shared_partition(task, ranks.size, source=source.to_dict())
            return made.path, describe_task(task, config)

        if sharded:
            path, said = ranks.first_does(cut) if parts is None else (parts, [])
            partition = Partition.open(path)
            said = [*describe_partition(partition, ranks), *said, *describe_request(request, source)]
            name, metric = partition.about["name"], partition.about["metric"]
            train: Callable[..., Any] = partial(fit_sharded, partition, config)
        else:
            assert source is not None
            task = source.load()
            task.check_finite()
            said = [*describe_task(task, config), *describe_request(request, source)]
            said.append(describe_seeds(task, config, len(seeds), ranks))
            name, metric, about["task"] = task.name, task.metric, task.facts()
            train = partial(fit_seeds, task, config, source=source)
        folder = ranks.shared(out or default_path(name, config.model))
        output.say("\n".join(said))
        train = partial(train, ranks=ranks, seeds=seeds, out=folder, preset=request.origin)
        found = _train(train, folder, config, tensorboard and ranks.first, metric, len(seeds), output)
        _report(found, output, about)


def _report(found: Summary | tuple[Summary, Any], output: Output, about: dict[str, Any]) -> None:
    """Results, and what was sent between ranks where they trained each seed together."""
    summary, sent = found if isinstance(found, tuple) else (found, None)
    report_results(summary, output, about if sent is None else {**about, "sent": vars(sent)})
    if sent is not None:
        output.say(describe_sent(sent))


def _resume(run: Path, parts: Path | None, *, device: str, tensorboard: bool, output: Output) -> None:
    """Resume a run, in one process or by ranks: on the partition it was trained on, on another of the same task, or
    its seeds.
    """
    from difformer.training.run import resume
    from difformer.training.run_folder import RunFolder

    folder = RunFolder.open(run)
    config, data = folder.config, folder.about["data"]
    waiting = sum(not folder.is_done(seed) for seed in folder.seeds)
    about: dict[str, Any] = {"config": config.to_dict(), "preset": folder.preset}
    shown: tuple[Any, ...] = (data["metric"], max(1, waiting), output)
    if parts is None and not under_torchrun():
        output.say(f"{run}: {config.model} on {data['task']}, {waiting} of {len(folder.seeds)} runs to go")
        train: Callable[..., Any] = partial(resume, run, device=None if device == "auto" else device)
        _report(_train(train, run, config, tensorboard, *shown), output, about)
        return
    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.rank_runs import fit_seeds, partition_of, resume_sharded

    if folder.stacked:
        raise UserError(f"{run} was trained with all seeds stacked; resume it in one process, without torchrun")
    path = parts or partition_of(run)
    with joined(device, output) as ranks:
        if path is not None:
            partition = Partition.open(path)
            said, train = describe_partition(partition, ranks), partial(resume_sharded, run, partition)
        else:
            task = folder.task()
            said, train = (
                [describe_seeds(task, config, waiting, ranks)],
                partial(fit_seeds, task, config, seeds=folder.seeds, out=run, resume=True),
            )
        output.say("\n".join(said))
        tensorboard = tensorboard and ranks.first
        _report(_train(partial(train, ranks=ranks), run, config, tensorboard, *shown), output, about)
