"""``difformer fit``: train a model from several seeds, and keep everything in a run folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from difformer.cli.command import command, resumable
from difformer.cli.description import describe_request, describe_task, headline, note_missing_edges, report_results
from difformer.cli.inputs import Data, Request, add_preset_data, read_request, takes_data
from difformer.cli.options import MODEL, Device, Json, Metric, Model, Settings, option, read_seeds
from difformer.cli.output import Output, counted
from difformer.cli.progress import Progress, tensorboard_callbacks
from difformer.distributed.environment import under_torchrun
from difformer.errors import UserError
from difformer.report import ATTENTION_OFF

if TYPE_CHECKING:
    from difformer.data import Task
    from difformer.training import Summary, TrainConfig

DEFAULT_SEEDS = 5


@command
@takes_data
def fit(
    data: Data,
    model: Model = None,
    preset: Annotated[
        str | None,
        option(
            "Settings to start from: a preset of the package (best, paper or public-code; `difformer models NAME` "
            "lists them), or a file written by `difformer tune`. --set overrides them.",
            metavar="NAME|FILE",
            panel=MODEL,
        ),
    ] = None,
    settings: Settings = None,
    metric: Metric = None,
    batch_size: Annotated[
        int | None, option("Nodes or graphs per mini-batch; short for --set batch_size=….", panel=MODEL)
    ] = None,
    seeds: Annotated[
        str | None,
        option(
            f"Number of runs, or their seeds (0,3,7 or 5-9; one seed: 3,); {DEFAULT_SEEDS} by default. Seed s uses "
            "split s modulo the number of splits.",
            metavar="N|A,B,…",
        ),
    ] = None,
    alongside: Annotated[
        list[str] | None,
        option("Also train the same settings with attention off, and compare.", "--with", metavar=ATTENTION_OFF),
    ] = None,
    device: Device = "auto",
    out: Annotated[Path | None, option("New folder for the run; runs/DATASET-MODEL-TIME by default.")] = None,
    resume: Annotated[Path | None, option("Resume an interrupted run; the result is the same.", metavar="RUN")] = None,
    stacked: Annotated[
        bool | None,
        option(
            "Train all seeds as one stacked model, or one after the other; by default whichever is likely faster.",
            "--stacked/--no-stacked",
        ),
    ] = None,
    shard: Annotated[
        bool,
        option("Partition the graph on the fly, so that all ranks train each seed together.", "--shard"),
    ] = False,
    tensorboard: Annotated[bool, option("Write TensorBoard event files too.", "--tensorboard")] = False,
    as_json: Json = False,
) -> None:
    """Train a model from several seeds.

    The metric is reported as mean ± standard deviation over seeds. The data are a data set by name, a table (`difformer
    fit customers.csv --label segment`), or several files (`--features x.csv --labels y.csv --edges e.csv`). The epoch
    with the best validation score counts. Ctrl-C saves the state, and `--resume RUN` continues. Under torchrun, seeds
    are spread over the processes; with --shard, or a folder made by `difformer partition`, the graph is spread instead.
    Link prediction and edge features are outside of this package for now.
    """
    output = Output(as_json)
    if resume is not None:
        asked: dict[str, object] = {
            "--model": model,
            "--preset": preset,
            "--set": settings,
            "--metric": metric,
            "--seeds": seeds,
        }
        asked |= {"--batch-size": batch_size, "--out": out, "--with": alongside, "--shard": shard or None}
        _resume(resume, data, [name for name, value in asked.items() if value is not None], device, tensorboard, output)
        return
    if unknown := [word for word in alongside or () if word != ATTENTION_OFF]:
        raise UserError(f"--with: expected {ATTENTION_OFF}, the only run that can be added; got {unknown[0]!r}")
    given: dict[str, Any] = {"model": model, "preset": preset, "settings": settings, "metric": metric}
    sharded = shard or _is_partition(data.dataset)
    alone = {"--stacked": stacked, "--with": alongside, "--tensorboard": tensorboard and not sharded}
    if (sharded or under_torchrun()) and (extra := [name for name, value in alone.items() if value]):
        raise UserError(f"{' and '.join(extra)}: only for one process that trains on the whole graph; leave it out")
    where: dict[str, Any] = {"out": out, "device": device, "tensorboard": tensorboard, "output": output}
    if data.dataset is not None and _is_partition(data.dataset):
        if extra := data.given():
            raise UserError(f"{data.dataset} is a partitioned task, trained as it is; leave out {', '.join(extra)}")
        from difformer.cli.torchrun import fit_graph

        request = read_request(None, batch_size=batch_size, **given)
        fit_graph(Path(data.dataset), request, _seeds(seeds, request), **where)
        return
    source = data.source()
    request = read_request(source.name, batch_size=batch_size, **given)
    source = add_preset_data(source, request.preset)
    off = _attention_off(request) if alongside else None
    chosen = _seeds(seeds, request)
    if shard:
        from difformer.cli.torchrun import fit_graph

        fit_graph(source, request, chosen, **where)
        return
    task = source.load()
    task.check_finite()
    said = [
        *describe_task(task, request.config.metric),
        *describe_request(request, source),
        *note_missing_edges(task, request.config),
    ]
    if under_torchrun():
        from difformer.cli.torchrun import fit_seeds

        fit_seeds(task, request, chosen, source=source, out=out, device=device, said=said, output=output)
        return
    from difformer.training.run_folder import default_path

    folder = out or default_path(task.name, request.config.model)
    for line in said:
        output.say(line)
    options: dict[str, Any] = {
        "seeds": chosen,
        "device": device,
        "source": source,
        "stacked": stacked,
        "preset": request.origin,
    }
    summary = _train(task, request.config, folder, tensorboard, output, **options)
    about: dict[str, Any] = {"task": task.facts(), "config": request.config.to_dict(), "preset": request.origin}
    if off is None:
        report_results(summary, output, about)
        return
    beside = folder.with_name(f"{folder.name}-{ATTENTION_OFF}")
    without = _train(task, off, beside, False, output, **options)
    compared = _compare(without, summary)
    about["attention_off"] = {**without.to_dict(), "run": without.folder, "comparison": compared}
    report_results(summary, output, about)
    output.say(f"with attention off: {headline(without)}")
    output.say(
        f"attention on less attention off: {compared['difference']:+.4f} over {counted(compared['pairs'], 'pairs')} of "
        f"runs; {compared['verdict'].replace('the first run', ATTENTION_OFF.replace('-', ' '))}"
    )
    output.say(f"run folder with attention off: {beside}")


def _train(
    task: Task,
    config: TrainConfig,
    folder: Path,
    tensorboard: bool,
    output: Output,
    *,
    seeds: list[int],
    **options: Any,
) -> Summary:
    from difformer.training.run import fit as train

    with resumable(folder), Progress.of(output, config, task.metric, len(seeds)) as shown:
        callbacks = [shown, *tensorboard_callbacks(folder, tensorboard)]
        return train(task, config, seeds=seeds, out=folder, callbacks=callbacks, **options)


def _attention_off(request: Request) -> TrainConfig:
    """The same settings with attention off: diffusion over observed edges alone."""
    from difformer.training.config import make_config
    from difformer.zoo import find, options_of

    info = find(request.config.model)
    if "diffusivity" not in {*info.fixed, *options_of(info.name)}:
        raise UserError(f"--with {ATTENTION_OFF}: {request.config.model} has no attention to switch off")
    return make_config("difformer", {**info.defaults, **info.fixed, **request.settings, "diffusivity": None})


def _compare(without: Summary, summary: Summary) -> dict[str, Any]:
    """The paired comparison of a run with the one without attention."""
    from difformer.report import compare_runs

    assert without.folder is not None
    assert summary.folder is not None
    return asdict(compare_runs([without.folder, summary.folder]).against_first[0])


def _resume(path: Path, data: Data, extra: list[str], device: str, tensorboard: bool, output: Output) -> None:
    """Resume a run, in one process or by ranks."""
    parts = Path(data.dataset) if data.dataset is not None and _is_partition(data.dataset) else None
    extra = [*(["the data set"] if data.dataset is not None and parts is None else []), *extra, *data.given()]
    if extra:
        raise UserError(f"--resume continues a run as it is; leave out {', '.join(extra)}")
    if parts is not None or under_torchrun():
        from difformer.cli.torchrun import resume_ranks

        resume_ranks(path, parts, device=device, tensorboard=tensorboard, output=output)
        return
    from difformer.training.run import resume
    from difformer.training.run_folder import RunFolder

    folder = RunFolder.open(path)
    waiting = [seed for seed in folder.seeds if not folder.is_done(seed)]
    name, metric = folder.about["data"]["task"], folder.about["data"]["metric"]
    output.say(f"{path}: {folder.config.model} on {name}, {len(waiting)} of {len(folder.seeds)} runs to go")
    with resumable(path), Progress.of(output, folder.config, metric, max(1, len(waiting))) as shown:
        callbacks = [shown, *tensorboard_callbacks(path, tensorboard)]
        summary = resume(path, device=None if device == "auto" else device, callbacks=callbacks)
    report_results(summary, output, {"config": folder.config.to_dict(), "preset": folder.preset})


def _is_partition(dataset: str | None) -> bool:
    """Whether what was given as a data set is a folder made by `difformer partition`."""
    return dataset is not None and (Path(dataset) / "partition.json").is_file()


def _seeds(text: str | None, request: Request) -> list[int]:
    """The seeds that were asked for, or as many as the preset says."""
    return read_seeds(text, (request.preset.seeds if request.preset is not None else None) or DEFAULT_SEEDS)
