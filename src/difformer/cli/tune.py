"""``difformer tune``: find settings on validation data, and write them as a preset."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from difformer.cli.command import command
from difformer.cli.description import describe_task, note_missing_edges
from difformer.cli.inputs import DEFAULT_MODEL, Data, read_settings, takes_data
from difformer.cli.options import MODEL, Device, Json, Metric, Model, Settings, key_values, metric_setting, option
from difformer.cli.output import Output
from difformer.cli.progress import clock_time
from difformer.cli.torchrun import silence, tune_trials
from difformer.distributed.environment import under_torchrun
from difformer.errors import UserError

if TYPE_CHECKING:
    from difformer.data import Task
    from difformer.experiments import Preset
    from difformer.training.spaces import Space
    from difformer.training.tuning import Trial, Tuned

SHOWN = 5


@command
@takes_data
def tune(
    data: Data,
    model: Model = DEFAULT_MODEL,
    trials: Annotated[
        int, option("Settings to try in all, including those of an earlier call.", low=1, default=True)
    ] = 20,
    jobs: Annotated[int, option("Processes that work at the same time.", low=1, default=True)] = 1,
    seeds: Annotated[int, option("Runs that a trial averages over, one per split.", low=1, default=True)] = 1,
    sampler: Annotated[str, option("random, tpe (guided), or grid (points in order).", default=True)] = "random",
    space: Annotated[
        list[str] | None,
        option(
            "Values to try for a setting, in place of the default ones; repeatable.", metavar="KEY=A,B,…", panel=MODEL
        ),
    ] = None,
    settings: Settings = None,
    metric: Metric = None,
    prune: Annotated[bool, option("Stop trials early that stay below the median.", default=True)] = True,
    stacked: Annotated[
        bool | None, option("Train settings of one shape as one model; by default if there is a GPU.")
    ] = None,
    seed: Annotated[int, option("Seed of the choice of settings.", default=True)] = 0,
    out: Annotated[Path | None, option("Folder of the study; tune/DATASET-MODEL by default.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Search for good settings, judged on validation data only; the best become a preset file.

    The values to try are the paper's grids, unless --space gives others; --set holds a setting fixed. The same command
    continues a study that ended or was interrupted.
    """
    from difformer.experiments import Preset, write_preset
    from difformer.training.tuning import Question
    from difformer.training.tuning import tune as search

    output = Output(as_json)
    if under_torchrun():
        if jobs > 1 or stacked:
            raise UserError("--jobs and --stacked are for one process; under torchrun every rank is one of the jobs")
        silence(output)
    assert model is not None
    source = data.source()
    task = source.load()
    task.check_finite()
    question = Question(
        model, _space(task, model, space, [*(settings or ()), *metric_setting(metric)]), seeds, sampler, seed, prune
    )
    folder = out or Path("tune") / f"{task.name}-{model}"
    for line in [*describe_task(task), *note_missing_edges(task, question.config(question.space.point(0)))]:
        output.say(line)
    _announce(question.space, output)
    told = _Teller(output)
    found: Tuned | None
    try:
        if under_torchrun():
            found = tune_trials(task, question, trials, folder, device=device, told=told, output=output)
        else:
            found = search(
                task, question, trials=trials, out=folder, jobs=jobs, device=device, stacked=stacked, on_trial=told
            )
    except KeyboardInterrupt:
        output.remark(f"interrupted: the trials so far are kept in {folder}; the same command continues")
        raise
    if found is None:  # rank 0 reports
        return
    preset = Preset(
        "tuned",
        model,
        task.name,
        settings=found.settings,
        source=f"tuned on validation over {question.space.source or 'your own grid'}",
        protocol=source.options.get("protocol"),
        metric=found.metric,
        validation=found.score,
        trials=len(found.trials),
        command=shlex.join(["difformer", *sys.argv[1:]]),
        note=f"mean over {seeds} split(s); {task.protocol}",
    )
    path = folder / "best.toml"
    write_preset(preset, path)
    _report(found, preset, path, output)
    left = question.space.size - len(found.trials)
    if sampler == "grid" and left > 0:
        output.say(
            f"{len(found.trials)} of the {question.space.size:,} points of the grid were tried; --trials "
            f"{question.space.size} tries them all"
        )


def _space(task: Task, model: str, axes: list[str] | None, held: list[str] | None) -> Space:
    """The default grid of task and model, changed by the command line."""
    from difformer.training.config import TrainConfig
    from difformer.training.spaces import default_space
    from difformer.zoo import find, options_of

    find(model)
    known = [*TrainConfig().to_dict(), *options_of(model)]
    found = default_space(task.kind, observed=task.edge_index is not None, model=model).only(known)
    named = {
        key: [read_settings([f"{key}={value}"], model)[key] for value in text.split(",")]
        for key, text in key_values(axes, "--space").items()
    }
    fixed = read_settings(held or [], model)
    if both := sorted(named.keys() & fixed.keys()):
        raise UserError(f"--space tries values of {both[0]}, but --set holds it fixed; choose one")
    return found.with_axes(named).with_fixed(fixed)


def _announce(space: Space, output: Output) -> None:
    output.say(f"search space: {space.source}, {space.size:,} settings")
    for key, values in space.axes.items():
        output.say(f"  {key}: {', '.join(map(str, values))}")
    if space.fixed:
        output.say(f"  fixed: {', '.join(f'{key}={value}' for key, value in space.fixed.items())}")


class _Teller:
    """One line per trial, on standard error."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, trial: Trial) -> None:
        score = f"valid {trial.value:.4f}" if trial.value is not None else f"{trial.state}: {trial.reason}"
        settings = ", ".join(f"{key}={value}" for key, value in trial.settings.items())
        self.output.remark(f"trial {trial.number + 1}: {score} ({clock_time(trial.seconds)}) {settings}")


def _report(found: Tuned, preset: Preset, path: Path, output: Output) -> None:
    complete = [trial for trial in found.trials if trial.value is not None]
    ranked = sorted(complete, key=lambda trial: trial.value or 0.0, reverse=found.higher_is_better)
    output.json(
        {
            "model": preset.model,
            "dataset": preset.dataset,
            "metric": found.metric,
            "valid": found.score,
            "settings": found.settings,
            "preset": path,
            "trials": [vars(trial) for trial in found.trials],
        }
    )
    keys = list(found.best.settings)
    if len(complete) > SHOWN:
        output.say(f"the best {SHOWN} of {len(complete)} completed trials (--json gives them all):")
    output.table(
        ["rank", f"valid {found.metric}", *keys],
        [
            [place, f"{trial.value:.4f}", *(trial.settings[key] for key in keys)]
            for place, trial in enumerate(ranked[:SHOWN], 1)
        ],
        right=["rank", f"valid {found.metric}"],
    )
    pruned = len(found.trials) - len(complete)
    output.say(f"{len(found.trials)} trials, {pruned} of them stopped early; the test part was not looked at.")
    output.say(f"best settings: {path}")
    output.say(f"Try next: `difformer fit` on the same data with --preset {path} --seeds 5")
