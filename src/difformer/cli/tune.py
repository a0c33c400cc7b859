"""``difformer tune``: find settings on validation data, and write them as a preset."""

from __future__ import annotations

import math
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer import training, zoo
from difformer.cli.command import DEVICE, METRIC, MODEL, MODEL_NAME, SETTINGS, command, joined, key_values, option
from difformer.cli.description import describe_task
from difformer.cli.inputs import DEFAULT_MODEL, OWN_PRESET, Data, load, read_settings, setting_words
from difformer.cli.output import Output, clock_time, counted, listed, shown
from difformer.distributed import rank, under_torchrun
from difformer.errors import UserError
from difformer.experiments import presets
from difformer.training.config import TrainConfig

if TYPE_CHECKING:
    from difformer.data import Task
    from difformer.training import TaskSource
    from difformer.training.study import Question, Trial, Tuned

SHOWN = 5


@command("difformer tune cora --models gcn gat difformer-s --trials 64")
def tune(
    data: Data,
    output: Output,
    model: str | None = MODEL_NAME,
    models: list[str] | None = option(
        "Models to tune in place of --model, each with --trials trials.", metavar="MODEL…", panel=MODEL
    ),
    trials: int = option("Trials per model, including the defaults and those of earlier calls.", 20, low=1),
    seconds: float = option("Start no new trial after this many seconds.", math.inf),
    jobs: int = option("Number of processes that run trials in parallel.", 1, low=1),
    seeds: int = option("Number of runs that each trial averages, one per split.", 1, low=1),
    sampler: str = option("random, tpe (guided), or grid (points in order).", "random"),
    space: list[str] | None = option(
        "Values to try for a setting, in place of the default ones; repeatable.", metavar="KEY=A,B,…", panel=MODEL
    ),
    settings: list[str] | None = SETTINGS,
    metric: str | None = METRIC,
    prune: bool = option("Prune trials that stay below the median.", True),
    stacked: bool | None = option("Train settings of the same shape as one model; by default on a GPU."),
    seed: int = option("Random seed for drawing settings; the number of runs per trial is --seeds.", 0),
    out: Path | None = option("Folder of the study; tune/DATASET-MODEL by default."),
    device: str = DEVICE,
) -> None:
    """Search for good settings on validation data.

    Tunes one model or several (--models), in one process, in several (--jobs), stacked on a GPU or over the ranks of
    torchrun; the same command continues a study that ended or was interrupted. The best settings of each model become
    a preset file. The defaults are always the first trial, followed by the authors' settings for a known data set, or
    by the settings that `difformer fit` starts from on your own data. The other values are those of the literature for
    a known data set, and values around the defaults for your own data; --space replaces them, and --set holds a setting
    fixed.
    """
    if under_torchrun() and (jobs > 1 or stacked):
        raise UserError("--jobs and --stacked are for one process; under torchrun every rank is one of the jobs")
    source = data.source()
    task = load(source)
    held = setting_words(settings, metric)
    names = models or [model or DEFAULT_MODEL]
    about: dict[str, Any] = {"runs": seeds, "sampler": sampler, "seed": seed, "prune": prune}
    questions = [_question(task, source, name, space, held, **about) for name in names]
    folder = out or Path("tune") / (f"{task.name}-{names[0]}" if len(names) == 1 else task.name)
    questions = training.study.continued(questions, folder)
    output.say("\n".join(describe_task(task, questions[0].config(questions[0].defaults()))))
    for question in questions:
        tried = question.space
        size = counted(tried.size, "settings")
        output.say(f"search space of {question.model}: {tried.source}, {size}, and the defaults")
        for key, values in tried.axes.items():
            output.say(f"  {key}: {', '.join(map(shown, values))}")
        if tried.fixed:
            output.say(f"  fixed: {listed(tried.fixed)}")
    given: dict[str, Any] = {"trials": trials, "seconds": seconds, "out": folder, "jobs": jobs, "device": device}
    given |= {"stacked": stacked, "on_trial": partial(_tell, output=output, several=len(names) > 1)}
    try:
        with joined(device) as ranks:
            if ranks is not None:
                output.say(f"ranks: {ranks.size} ({ranks.device.type}), trials spread over them")
            found = training.study.tune(task, questions, ranks=ranks, **given)
        if rank() > 0:  # rank 0 reports
            return
    except KeyboardInterrupt:
        output.remark(f"interrupted: the trials so far are kept in {folder}; the same command continues")
        raise
    reports = []
    for question in (question for question in questions if question.model in found):
        path = folder / ("best.toml" if len(names) == 1 else f"best-{question.model}.toml")
        reports.append(_finish(found[question.model], question, task, source, path, output))
    output.json(reports[0] if len(names) == 1 else {"models": reports})
    if len(names) > 1:  # best first, by the validation score of their best settings
        metric, reverse = next((one.metric, one.higher_is_better) for one in found.values())
        ranked = sorted(found.values(), key=lambda one: one.score, reverse=reverse)
        rows = [[place, one.model, f"{one.score:.4f}", len(one.trials)] for place, one in enumerate(ranked, 1)]
        output.table(["rank", "model", f"valid {metric}", "trials"], rows)
    output.say("The test part was not given to the trainer.")


def _question(
    task: Task, source: TaskSource, model: str, axes: list[str] | None, held: list[str], **about: Any
) -> Question:
    """The default space of task and model, narrowed or widened by what the command line says."""
    known = [*TrainConfig().to_dict(), *zoo.options_of(model)]
    published = [zoo.find(model).published.get(task.name, {})]
    wanted = ("public-code", model, source.name, None)
    if source.name is None:  # where `difformer fit` starts
        wanted = (OWN_PRESET, model, OWN_PRESET, None)
    published += [one.settings for one in presets.load_presets() if one.identity == wanted]
    of_task: dict[str, Any] = {"own": source.name is None, "observed": task.edge_index is not None}
    found = training.spaces.default_space(task.kind, model=model, rows=task.num_nodes, **of_task).only(known)
    named = {
        key: [read_settings([f"{key}={value}"], model)[key] for value in text.split(",")]
        for key, text in key_values(axes, "--space").items()
    }
    fixed = read_settings(held, model)
    if both := sorted(named.keys() & fixed.keys()):
        raise UserError(f"--space tries values of {both[0]}, but --set holds it fixed; choose one")
    first = [{key: value for key, value in one.items() if key not in fixed} for one in published]
    space = found.with_axes(named).with_fixed(fixed)
    return training.study.Question(model, space, first=tuple(one for one in first if one), **about)


def _tell(trial: Trial, output: Output, several: bool) -> None:
    """One line per trial, on standard error."""
    score = f"valid {trial.value:.4f}" if trial.value is not None else f"{trial.state}: {trial.reason}"
    whose, about = f"{trial.model} " * several, " (defaults)" * (trial.number == 0)
    took = clock_time(trial.seconds)
    output.remark(f"{whose}trial {trial.number + 1}{about}: {score} ({took}) {listed(trial.settings)}")


def _finish(tuned: Tuned, question: Question, task: Task, source: TaskSource, path: Path, output: Output) -> Any:
    """Writes the preset of one model, says what was found, and returns it as a document."""
    protocol = training.metrics.protocol_text(task.protocol, tuned.metric)
    preset = presets.Preset(
        "tuned",
        question.model,
        task.name,
        settings=tuned.settings,
        source=f"tuned on validation over {question.space.source or 'your own grid'}",
        protocol=source.options.get("protocol"),
        metric=tuned.metric,
        validation=tuned.score,
        trials=len(tuned.trials),
        command=shlex.join(["difformer", *sys.argv[1:]]),
        note=f"mean over {counted(question.runs, 'splits')}; {protocol}",
        data={key: value for key, value in source.options.items() if source.name and key != "protocol"},
    )
    presets.write_preset(preset, path)
    values = {trial.number: trial.value for trial in tuned.trials if trial.value is not None}
    done = [trial for trial in tuned.trials if trial.number in values]
    best = sorted(done, key=lambda trial: values[trial.number], reverse=tuned.higher_is_better)
    if len(best) > SHOWN:
        output.say(f"the best {SHOWN} of {len(best)} completed trials (--json gives them all):")
    keys = list(dict.fromkeys(key for trial in best[:SHOWN] for key in trial.settings))
    rows = [
        [place, f"{trial.value:.4f}", *(shown(trial.settings.get(key, "")) for key in keys)]
        for place, trial in enumerate(best[:SHOWN], 1)
    ]
    output.table(["rank", f"valid {tuned.metric}", *keys], rows)
    pruned = len(tuned.trials) - len(best)
    output.say(f"{counted(len(tuned.trials), 'trials')} of {tuned.model}, {pruned} of them stopped early")
    if 0 in values:
        output.say(f"best {tuned.score:.4f}, defaults {values[0]:.4f} on validation")
    output.say(f"best settings: {path}")
    output.say(f"Try next: `difformer fit` on the same data with --preset {path} --seeds 5")
    trials = [{key: value for key, value in vars(trial).items() if key != "curve"} for trial in tuned.trials]
    about = {"model": preset.model, "dataset": preset.dataset, "metric": tuned.metric, "valid": tuned.score}
    return {**about, "settings": tuned.settings, "preset": path, "trials": trials}
