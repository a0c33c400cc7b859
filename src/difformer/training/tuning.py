"""Tuning: which settings are best on validation, found by optuna, kept in SQLite, resumable.

A trial trains one setting on one or more splits and scores the mean over them of the best validation metric,

    v(setting) = (1/R) Σ_r max_e valid_r(e)        (min for an error),

the same rule by which a run keeps its epoch. Test metrics are neither looked at nor stored: what the best setting
is worth is for `fit` to say. Three ways to choose settings: ``"random"`` draws different points of the grid, ``"tpe"``
lets optuna's estimator propose, ``"grid"`` takes the points in order, from the first. Each stops after `trials` points,
the first and the last where there are no more. Trials whose validation curve stays below the median of those before
them are stopped early.

The study lives in ``study.db`` of the folder. A second call with the same question goes on where the first ended,
whether it came to its end, was interrupted or was killed; a different question in the same folder is refused.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from difformer.data import Task
from difformer.data.errors import require
from difformer.errors import UserError
from difformer.files import only_one, writing
from difformer.training.config import TrainConfig
from difformer.training.metrics import Metric, find_metric
from difformer.training.spaces import Space
from difformer.training.study import (
    database,
    interrupted,
    lay_out,
    open_study,
    points_to_try,
    work,
    work_in_processes,
)
from difformer.training.study_stacked import should_stack, why_not, work_in_stacks

SAMPLERS = ("random", "tpe", "grid")


@dataclass(frozen=True)
class Question:
    """What is asked of a study; two calls with equal questions share one.

    Args:
        model: Name of the model.
        space: What competes, and what is fixed.
        runs: Seeds and splits that a trial averages over: seed r on split r, counted around.
        sampler: ``"random"``, ``"tpe"`` or ``"grid"``.
        seed: Of the choice of settings.
        prune: Whether hopeless trials are stopped early.
    """

    model: str
    space: Space
    runs: int = 1
    sampler: str = "random"
    seed: int = 0
    prune: bool = True

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise UserError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}")
        if self.runs < 1:
            raise UserError(f"runs must be at least 1, got {self.runs}")

    def config(self, point: Mapping[str, Any]) -> TrainConfig:
        """The configuration of a point of the space."""
        return make_config(self.model, {**self.space.fixed, **point})

    def metric(self, task: Task) -> Metric:
        """What trials are scored by."""
        chosen = self.config(self.space.point(0)).metric
        return find_metric(task.metric if chosen == "auto" else chosen, task.problem)

    def written(self, task: Task) -> dict[str, Any]:
        """As it is kept with the study."""
        return {
            "model": self.model,
            "axes": {key: list(values) for key, values in self.space.axes.items()},
            "fixed": dict(self.space.fixed),
            "runs": self.runs,
            "sampler": self.sampler,
            "seed": self.seed,
            "prune": self.prune,
            "data": task.fingerprint(),
        }


@dataclass(frozen=True)
class Trial:
    """One setting that was tried.

    Args:
        number: In the order of the study.
        settings: What set it apart.
        state: ``"complete"``, ``"pruned"`` or ``"failed"``.
        value: Validation score; None unless complete.
        seconds: How long it took.
        reason: Why it failed or was stopped.
    """

    number: int
    settings: dict[str, Any]
    state: str
    value: float | None
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Tuned:
    """What a study found.

    Args:
        best: The trial with the best validation score.
        settings: All settings of the best trial, the fixed ones included, as a preset has them.
        metric: What was measured on validation.
        higher_is_better: Whether a larger score is a better one.
        trials: Every trial that came to an end.
        folder: Where the study lives.
    """

    best: Trial
    settings: dict[str, Any]
    metric: str
    higher_is_better: bool
    trials: tuple[Trial, ...] = field(repr=False)
    folder: Path

    @property
    def score(self) -> float:
        assert self.best.value is not None
        return self.best.value


def make_config(model: str, settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration from fields and model options in one mapping, as `--set` and presets have them.

    Raises:
        ValueError: If a name is neither a field nor an option of the model.
    """
    from difformer.zoo import check_options

    known = {f.name for f in dataclasses.fields(TrainConfig)} - {"model", "options"}
    options = {key: value for key, value in settings.items() if key not in known}
    check_options(model, options)
    fields = {key: value for key, value in settings.items() if key in known}
    return TrainConfig(model=model, options=options, **fields)


def tune(
    task: Task,
    question: Question,
    *,
    trials: int,
    out: str | os.PathLike[str],
    jobs: int = 1,
    device: str = "auto",
    stacked: bool | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> Tuned:
    """Try settings until `trials` of them have come to an end, and name the best on validation.

    Args:
        task: What is to be learnt; its test parts are not used.
        question: What competes.
        trials: Settings to try in all, those of earlier calls included; at most the points of the space unless the
            sampler is ``"tpe"``.
        out: Folder of the study; made where it is absent.
        jobs: Processes that work at the same time. With more than one, timing decides which trials are stopped early.
        device: As in `train_one`.
        stacked: Train settings that share shapes as one, without stopping any early; None does so on a GPU.
        on_trial: Told of every trial that ends.

    Raises:
        ValueError: If the folder holds another study, stacks are asked for and not possible, or no trial came through.
        ImportError: If optuna is not installed.
    """
    optuna = require("optuna", extra="tune", purpose="tuning")
    if trials < 1 or jobs < 1:
        raise UserError(f"trials and jobs must be at least 1, got trials={trials}, jobs={jobs}")
    if stacked and (reason := why_not(task, question)):
        raise UserError(f"stacked: {reason}")
    if not all(split.valid.numel() for split in task.splits[: question.runs]):
        raise UserError(f"task {task.name!r} has a split without validation instances: there is nothing to choose by")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    question.config(question.space.point(0))  # what is wrong with every point is said before anything is written
    folder = Path(out)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder), database(folder):
        study = open_study(folder, task, question)
        points = points_to_try(study, question, trials)
        told = {trial.number for trial in study.trials if trial.state.is_finished()}

        def tell_new() -> None:
            for trial in study.trials:
                if trial.state.is_finished() and trial.number not in told:
                    told.add(trial.number)
                    if on_trial is not None and not interrupted(trial):
                        on_trial(trial_of(trial))

        if stacked if stacked is not None else should_stack(task, question, device):
            work_in_stacks(study, task, question, points, device, tell_new)
        else:
            remaining = lay_out(study, question, points, trials)
            if jobs == 1 or remaining <= 1:
                work(study, task, question, remaining, device, tell_new)
            else:
                work_in_processes(folder, task, question, remaining, jobs, device, tell_new)
        tell_new()
        return best_of(study, question, task, folder)


def trial_of(trial: Any) -> Trial:
    """A finished trial of optuna as one of ours."""
    states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    return Trial(
        number=trial.number,
        settings=dict(trial.params),
        state=states[trial.state.name],
        value=trial.value if trial.state.name == "COMPLETE" else None,
        seconds=trial.duration.total_seconds() if trial.duration is not None else 0.0,
        reason=trial.user_attrs.get("reason", ""),
    )


def best_of(study: Any, question: Question, task: Task, folder: Path) -> Tuned:
    """The best trial of a study so far, and all others."""
    ended = tuple(trial_of(trial) for trial in study.trials if trial.state.is_finished() and not interrupted(trial))
    complete = [trial for trial in ended if trial.value is not None and trial.value == trial.value]
    metric = question.metric(task)
    if not complete:
        reasons = "; ".join(sorted({trial.reason for trial in ended if trial.reason})) or "none was run"
        raise UserError(f"trials: none of {len(ended)} trials came through: {reasons}")
    sign = 1 if metric.higher_is_better else -1
    best = max(complete, key=lambda trial: (sign * float(trial.value or 0.0), -trial.number))
    settings = {**question.space.fixed, **best.settings}
    return Tuned(best, settings, metric.name, metric.higher_is_better, ended, folder)
