"""Tuning by stacks: settings that share shapes are trained as one, see `difformer.training.stacked`.

Points are grouped by all that may not differ within a stack (hidden size, layers, …). A whole group costs little more
than one of its runs on a GPU that a single run leaves idle, so no trial is stopped early: there is nothing to save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from difformer.data import Task
from difformer.training import NonFiniteLossError
from difformer.training.devices import resolve
from difformer.training.stacked import HYPER, RATES, StackedSetting, apart, train_stacked, unstackable

if TYPE_CHECKING:
    from difformer.training.config import TrainConfig
    from difformer.training.tuning import Question

POINTS_AT_ONCE = 64  # of a group: what is lost when the study is interrupted
Point = dict[str, Any]


def should_stack(task: Task, question: Question, device: str) -> bool:
    """Whether stacks are possible and likely to be faster than one run after the other: on a GPU."""
    return resolve(device).type == "cuda" and not why_not(task, question)


def why_not(task: Task, question: Question) -> str:
    """Why the trials of a question cannot be trained in stacks; empty where they can."""
    if question.sampler == "tpe":
        return "sampler 'tpe' proposes one setting after the other"
    return unstackable(task, question.config(question.space.point(0)), range(question.runs))


def work_in_stacks(
    study: Any, task: Task, question: Question, points: list[Point], device: str, after: Callable[[], None]
) -> None:
    """Trains points group by group and enters them into the study as finished trials."""
    for config, group in groups(question, points):
        settings = [
            setting_of(question.config(point), run, run % len(task.splits))
            for point in group
            for run in range(question.runs)
        ]
        results = train_stacked(task, settings, config, device, keep_errors=True)
        for place, point in enumerate(group):
            _enter(study, question, point, results[place * question.runs : (place + 1) * question.runs])
        after()


def groups(question: Question, points: list[Point]) -> Iterator[tuple[TrainConfig, list[Point]]]:
    groups: list[tuple[TrainConfig, list[Point]]] = []
    for point in points:
        common = apart(question.config(point))
        for known, group in groups:
            if known == common:
                group.append(point)
                break
        else:
            groups.append((common, [point]))
    for _, group in groups:
        for start in range(0, len(group), POINTS_AT_ONCE):
            part = group[start : start + POINTS_AT_ONCE]
            yield question.config(part[0]), part


def setting_of(config: TrainConfig, seed: int, split: int) -> StackedSetting:
    rates = {name: getattr(config, name) for name in RATES}
    options: Mapping[str, Any] = {name: config.options[name] for name in HYPER if name in config.options}
    return StackedSetting(seed=seed, split=split, **rates, **options)


def _enter(study: Any, question: Question, point: Point, results: list[Any]) -> None:
    """One finished trial: complete with its mean validation score, or pruned where a run diverged."""
    import optuna

    distributions = {
        key: optuna.distributions.CategoricalDistribution(values) for key, values in question.space.axes.items()
    }
    failed = next((result for result in results if isinstance(result, NonFiniteLossError)), None)
    known: dict[str, Any] = {"params": point, "distributions": distributions}
    if failed is None:
        trial = optuna.trial.create_trial(value=sum(record.valid for record in results) / len(results), **known)
    else:
        state = optuna.trial.TrialState.PRUNED
        trial = optuna.trial.create_trial(state=state, user_attrs={"reason": str(failed)}, **known)
    study.add_trial(trial)
