"""``difformer fit``: train a model from several seeds, and keep everything in a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from difformer.cli.describing import describe_request
from difformer.cli.errors import resumable, verb
from difformer.cli.options import (
    MODEL,
    DataOptions,
    Dataset,
    Device,
    Edges,
    Features,
    Json,
    Labels,
    Protocol,
    Root,
    Settings,
    SplitFile,
)
from difformer.cli.output import Output
from difformer.cli.progress import Progress
from difformer.cli.request import (
    DEFAULT_MODEL,
    Request,
    describe_task,
    read_request,
    read_source,
    without_edges,
)
from difformer.cli.results import report
from difformer.distributed.environment import under_torchrun

if TYPE_CHECKING:
    from difformer.training import TrainConfig

DEFAULT_SEEDS = 5


def is_partition(dataset: str) -> bool:
    """Whether what stands for a data set is a folder that `difformer partition` made."""
    return (Path(dataset) / "partition.json").is_file()


@verb
def fit(
    dataset: Dataset = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"Model to train (`difformer models` lists them); {DEFAULT_MODEL} by default.",
            rich_help_panel=MODEL,
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Settings to start from: public-code (those of the authors' code), paper (tuned here over the paper's "
            "grid), best (tuned here over one of ours), where there are such (`difformer models NAME` lists them), or "
            "a file that `difformer tune` wrote.",
            rich_help_panel=MODEL,
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Nodes or graphs of a mini-batch; short for --set batch_size=….",
            rich_help_panel=MODEL,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,…",
            help=f"How many runs, or which seeds; {DEFAULT_SEEDS} by default. Seed s uses split s, counted around.",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run, new; runs/DATASET-MODEL-TIME by default.", show_default=False),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with an interrupted run, to the same result.", show_default=False),
    ] = None,
    stacked: Annotated[
        bool | None,
        typer.Option(
            "--stacked/--no-stacked",
            help="Train all seeds as one model, or one after the other; by default whichever is likely to be faster.",
            show_default=False,
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files too.")] = False,
    protocol: Protocol = None,
    data: DataOptions = None,
    root: Root = None,
    features: Features = None,
    labels: Labels = None,
    edges: Edges = None,
    split: SplitFile = None,
    as_json: Json = False,
) -> None:
    """Train a model, and report its metric as mean ± standard deviation over seeds.

    A data set by name, or your own files: `difformer fit --features x.csv --labels y.csv --edges e.csv`. The epoch that
    is best on validation counts. Ctrl-C saves what is there; `difformer fit --resume RUN` goes on with it. Link
    prediction and edge features are outside of this package for now.
    """
    output = Output(as_json)
    if resume is not None:
        parts = None if dataset is None or not is_partition(dataset) else Path(dataset)
        asked: dict[str, object] = {
            "a data set": dataset if parts is None else None,
            "--model": model,
            "--preset": preset,
            "--set": settings,
            "--seeds": seeds,
        }
        asked |= {"--batch-size": batch_size, "--out": out, "--protocol": protocol, "--data": data}
        asked |= {"--features": features, "--labels": labels, "--edges": edges, "--split": split, "--root": root}
        if extra := [name for name, value in asked.items() if value is not None]:
            raise ValueError(f"--resume goes on with a run as it is; leave out {', '.join(extra)}")
        _resume(resume, device, tensorboard, output, parts)
        return
    if dataset is not None and is_partition(dataset):
        own: dict[str, object] = {"--protocol": protocol, "--data": data, "--root": root, "--split": split}
        own |= {"--features": features, "--labels": labels, "--edges": edges, "--stacked": stacked or None}
        if extra := [name for name, value in own.items() if value is not None]:
            raise ValueError(f"{dataset} is a partitioned task, trained as it is; leave out {', '.join(extra)}")
        if tensorboard and out is None:
            raise ValueError("--tensorboard with a partitioned task needs the folder of the run: --out")
        request = read_request(None, model=model, preset=preset, settings=settings, batch_size=batch_size)
        from difformer.cli.ranks import fit_partition

        fit_partition(
            Path(dataset),
            request.config,
            _seeds(seeds, request),
            out=out,
            device=device,
            described=describe_request(request, None),
            output=output,
            callbacks=[] if out is None else _tensorboard(out, tensorboard),
            preset=request.origin,
        )
        return
    source = read_source(
        dataset,
        root=root,
        protocol=protocol,
        data=data,
        features=features,
        labels=labels,
        edges=edges,
        split=split,
    )
    request = read_request(source.name, model=model, preset=preset, settings=settings, batch_size=batch_size)
    chosen = _seeds(seeds, request)

    from difformer.training.run import fit as train
    from difformer.training.run_folder import default_path

    task = source.load()
    task.check_finite()
    said = [*describe_task(task), *describe_request(request, source), *without_edges(task, request.config)]
    if under_torchrun():
        if stacked or tensorboard:
            raise ValueError("--stacked and --tensorboard are for one process; leave them out under torchrun")
        from difformer.cli.ranks import fit_runs

        where = {"out": out, "device": device, "described": said, "output": output, "preset": request.origin}
        fit_runs(task, request.config, chosen, source=source, **where)  # type: ignore[arg-type]
        return
    folder = out or default_path(task.name, request.config.model)
    for line in said:
        output.say(line)
    with resumable(folder), _progress(output, request.config, task.metric, len(chosen)) as shown:
        callbacks = [shown, *_tensorboard(folder, tensorboard)]
        summary = train(
            task,
            request.config,
            seeds=chosen,
            out=folder,
            device=device,
            callbacks=callbacks,
            source=source,
            stacked=stacked,
            preset=request.origin,
        )
    report(summary, output, {"task": task.facts(), "config": request.config.to_dict(), "preset": request.origin})


def _resume(path: Path, device: str, tensorboard: bool, output: Output, parts: Path | None) -> None:
    if parts is None and under_torchrun():
        from difformer.cli.ranks import resume_runs
        from difformer.distributed.run import partition_of

        if (parts := partition_of(path)) is None:
            resume_runs(path, device=device, output=output)
            return
    if parts is not None:
        from difformer.cli.ranks import resume_partition

        resume_partition(path, parts, device=device, output=output, callbacks=_tensorboard(path, tensorboard))
        return
    from difformer.training.run import resume
    from difformer.training.run_folder import RunFolder

    folder = RunFolder.open(path)
    waiting = [seed for seed in folder.seeds if not folder.is_done(seed)]
    name = folder.about["data"]["task"]
    output.say(f"{path}: {folder.config.model} on {name}, {len(waiting)} of {len(folder.seeds)} runs to go")
    metric = folder.about["data"]["metric"]
    with resumable(path), _progress(output, folder.config, metric, max(1, len(waiting))) as shown:
        callbacks = [shown, *_tensorboard(path, tensorboard)]
        summary = resume(path, device=None if device == "auto" else device, callbacks=callbacks)
    report(summary, output, {"config": folder.config.to_dict(), "preset": folder.preset})


def _progress(output: Output, config: TrainConfig, metric: str, runs: int) -> Progress:
    chosen = metric if config.metric == "auto" else config.metric
    return Progress(output, metric=chosen, runs=runs, epochs=config.epochs)


def _tensorboard(folder: Path, wanted: bool) -> list[Any]:
    if not wanted:
        return []
    from difformer.training.callbacks import TensorBoard

    return [TensorBoard(folder / "tensorboard")]


def _seeds(text: str | None, request: Request) -> list[int]:
    """``"5"`` is five seeds from 0 on, ``"3,7"`` these two; a preset's number where nothing was said."""
    if text is None:
        given = request.preset.seeds if request.preset is not None else None
        return list(range(given or DEFAULT_SEEDS))
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds: expected a number such as 5, or seeds such as 0,3,7; got {text!r}") from None
    if len(numbers) == 1 and "," not in text:
        if numbers[0] < 1:
            raise ValueError(f"--seeds: expected at least 1, got {numbers[0]}")
        return list(range(numbers[0]))
    if negative := [number for number in numbers if number < 0]:
        raise ValueError(f"--seeds: expected seeds of at least 0, got {negative[0]} in {text!r}")
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise ValueError(f"--seeds: {text!r} names seed {twice[0]} more than once; every run needs a seed of its own")
    return numbers
