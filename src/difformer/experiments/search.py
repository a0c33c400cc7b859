"""One budget for every system: as many settings of the paper's grids for each, drawn at random, chosen on validation.

    python -m difformer.experiments.search cora --models gcn gat difformer-s --trials 16 --out found

`difformer tune` asks one model many questions; this asks many models the same one. Settings that share shapes are
trained as one (`difformer.training.stacked`), others one after the other. Every finished setting is a line of
``trials.jsonl``: a search that is interrupted goes on where it stood, and no line tells anything of test data. The best
setting of each pair is written as a preset file that ``difformer fit --preset FILE`` takes.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from difformer.data import Task, load
from difformer.experiments.presets import Preset, write_preset
from difformer.training import NonFiniteLossError, train_one
from difformer.training.config import TrainConfig
from difformer.training.spaces import Space, default_space
from difformer.training.stacked import train_stacked
from difformer.training.study import Question, groups, setting_of, without_test
from difformer.training.study import why_not_stacked as why_not
from difformer.zoo import MODELS, options_of

Settings = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A setting and the mean of its validation scores; NaN where a run diverged."""

    settings: Settings
    valid: float
    seconds: float


def space_of(task: Task, model: str, fixed: Settings, axes: dict[str, Sequence[Any]] | None = None) -> Space:
    """The paper's grid for the task, without what the model does not have, with what is held fixed and other axes."""
    known = [*TrainConfig().to_dict(), *options_of(model)]
    space = default_space(task.kind, observed=task.edge_index is not None, model=model)
    return space.with_fixed(fixed).with_axes(axes or {}).only(known)


def points_of(space: Space, model: str, count: int, seed: int, first: Settings) -> list[Settings]:
    """`count` settings: `first`, as far as the model has them, then points of the space in the seed's order."""
    known = {*TrainConfig().to_dict(), *options_of(model)}
    chosen = {key: value for key, value in first.items() if key in known}
    others = [point for point in space.points(count, seed) if point != chosen]
    return [chosen, *others[: count - 1]] if chosen else others


def search(task: Task, question: Question, points: Sequence[Settings], device: str) -> Iterable[Found]:
    """Trains every point with all of the question's runs; results come group by group."""
    if why_not(task, question):
        for point in points:
            yield _one(task, question, point, device)
        return
    for config, group in groups(question, list(points)):
        started = time.perf_counter()
        settings = [
            setting_of(question.config(point), run, run % len(task.splits))
            for point in group
            for run in range(question.runs)
        ]
        results = train_stacked(task, settings, config, device, keep_errors=True)
        each = (time.perf_counter() - started) / len(group)
        for place, point in enumerate(group):
            yield Found(point, _mean(results[place * question.runs : (place + 1) * question.runs]), each)


def _one(task: Task, question: Question, point: Settings, device: str) -> Found:
    started = time.perf_counter()
    results: list[Any] = []
    for run in range(question.runs):
        try:
            results.append(train_one(task, run % len(task.splits), question.config(point), run, device))
        except NonFiniteLossError as error:
            results.append(error)
    return Found(point, _mean(results), time.perf_counter() - started)


def _mean(results: Sequence[Any]) -> float:
    if any(isinstance(result, NonFiniteLossError) for result in results):
        return math.nan
    return sum(result.valid for result in results) / len(results)


def _known(path: Path) -> list[dict[str, Any]]:
    """Lines of an earlier search; one that was cut off while it was written is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m difformer.experiments.search", description=__doc__.split("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), metavar="MODEL", default=tuple(MODELS))
    parser.add_argument("--trials", type=int, default=16, help="settings of each model (16)")
    parser.add_argument("--runs", type=int, default=1, help="seeds and splits that a setting is averaged over (1)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings held fixed, as JSON")
    parser.add_argument(
        "--over",
        nargs="*",
        default=[],
        metavar="KEY=[V,…]",
        help="values that compete, in place of the paper's; JSON",
    )
    parser.add_argument(
        "--first", nargs="*", default=[], metavar="KEY=VALUE", help="settings that are one of the trials, as JSON"
    )
    parser.add_argument("--data", nargs="*", default=[], metavar="KEY=VALUE", help="options of the data set, as JSON")
    parser.add_argument("--name", default="paper", help="what the presets are called (paper)")
    parser.add_argument("--variant", help="which question of the data set they are for, such as per_class=10")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after that")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("found"))
    given = parser.parse_args(arguments)
    fixed, options, first = (dict(map(_pair, pairs)) for pairs in (given.set, given.data, given.first))
    axes = dict(map(_pair, given.over))
    given.protocol = options.get("protocol")
    for key, values in axes.items():
        if not isinstance(values, list):
            parser.error(f"--over {key} takes a list of values, as in {key}=[1,2], got {values!r}")
    task, began = load(given.dataset, **options), time.perf_counter()
    print(f"{task.name}: {task.protocol}\n{given.trials} settings a model, {given.runs} run(s) each", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    trials = given.out / "trials.jsonl"
    for model in given.models:
        if task.kind not in MODELS[model].kinds:
            continue
        question = Question(model, space_of(task, model, fixed, axes), runs=given.runs)
        asked = {"dataset": task.name, "model": model, "protocol": task.protocol, "question": question.written(task)}
        points = points_of(question.space, model, given.trials, question.seed, first)
        # A line a setting: one that two searches wrote at the same time counts once.
        known = {json.dumps(line["settings"]): line for line in _known(trials) if _answers(line, asked)}
        done = [line for line in known.values() if line["settings"] in _as_json(points)]
        left = [point for point in points if _as_json(point) not in [line["settings"] for line in done]]
        if left and time.perf_counter() - began < given.seconds:
            for found in search(without_test(task), question, left, given.device):
                line = {**asked, "settings": found.settings, "valid": found.valid, "seconds": round(found.seconds, 3)}
                with trials.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                done.append(line)
                if time.perf_counter() - began > given.seconds:
                    break
        _conclude(task, question, done, len(points), given)


def _as_json(value: Any) -> Any:
    """As it is read back from a file."""
    return json.loads(json.dumps(value))


def _answers(line: dict[str, Any], asked: dict[str, Any]) -> bool:
    return {key: line[key] for key in asked} == _as_json(asked)


def _conclude(
    task: Task, question: Question, done: list[dict[str, Any]], wanted: int, given: argparse.Namespace
) -> None:
    """Says which setting is best, and writes it down once as many were tried as were to be."""
    metric = question.metric(task)
    sign = 1.0 if metric.better(1.0, 0.0) else -1.0
    complete = [line for line in done if not math.isnan(line["valid"])]
    seconds = sum(line["seconds"] for line in done)
    if not complete:
        print(f"{question.model}: {len(done)} of {wanted} settings, none finished", flush=True)
        return
    best = max(complete, key=lambda line: sign * line["valid"])
    print(
        f"{question.model}: {len(done)} of {wanted} settings, {seconds:.0f} s, best {metric.name} on validation "
        f"{best['valid']:.4f}: {best['settings']}",
        flush=True,
    )
    if len(done) < wanted:
        return
    beside = ", and one setting that was given" if given.first else ""
    preset = Preset(
        given.name,
        question.model,
        task.name,
        settings={**question.space.fixed, **best["settings"]},
        source=f"random search over {question.space.source}{beside}, chosen on validation",
        metric=metric.name,
        validation=round(best["valid"], 6),
        trials=len(done),
        command=_command(question.model, given),
        protocol=given.protocol,
        note=f"validation: mean over {question.runs} run{'s' * (question.runs > 1)}",
        variant=given.variant,
    )
    variant = "" if given.variant is None else f"-{given.variant}"
    write_preset(preset, given.out / f"{task.name}{variant}-{question.model}.toml")


def _command(model: str, given: argparse.Namespace) -> str:
    """What has to be typed to find the same setting: of what was asked, all that decides on it."""
    words = ["python", "-m", "difformer.experiments.search", given.dataset, "--models", model]
    words += ["--trials", str(given.trials), "--runs", str(given.runs), "--name", given.name]
    for option in ("set", "first", "over", "data"):
        words += [f"--{option}", *getattr(given, option)] if getattr(given, option) else []
    return shlex.join(words + (["--variant", given.variant] if given.variant else []))


def _pair(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


if __name__ == "__main__":
    main()
