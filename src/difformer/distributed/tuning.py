"""Trials of a study spread over ranks, which meet in its database alone.

Rank 0 opens the study and lays out its points, every rank then takes trials until its share is done, and rank 0 names
the best. The database is a file: ranks on several machines need a file system that all of them see and that locks
files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from difformer.data import Task
from difformer.data.errors import require
from difformer.distributed.ranks import Ranks
from difformer.files import only_one, writing
from difformer.training.study import (
    DATABASE,
    STUDY,
    database,
    interrupted,
    lay_out,
    make_pruner,
    make_sampler,
    open_study,
    points_to_try,
    work,
)
from difformer.training.tuning import Question, Trial, Tuned, best_of, trial_of


def tune_over_ranks(
    task: Task,
    question: Question,
    *,
    ranks: Ranks,
    trials: int,
    out: str | os.PathLike[str],
    on_trial: Callable[[Trial], None] | None = None,
) -> Tuned:
    """`difformer.training.tuning.tune` with its trials spread over ranks; all ranks call it together.

    Args:
        task, question, trials, out: As there.
        ranks: The group.
        on_trial: Told on rank 0 of every trial that ends, whoever made it.
    """
    optuna = require("optuna", extra="tune", purpose="tuning")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ranks.agree(**{"data fingerprint": task.fingerprint(), "trials": trials}, question=question.written(task))
    folder = Path(out)
    with contextlib.ExitStack() as stack:

        def begin() -> int:
            if not all(split.valid.numel() for split in task.splits[: question.runs]):
                raise ValueError(f"task {task.name!r} has a split without validation instances: nothing to choose by")
            question.config(question.space.point(0))
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_one(folder))
            with database(folder):
                study = open_study(folder, task, question)
                return lay_out(study, question, points_to_try(study, question, trials), trials)

        remaining = ranks.first_does(begin)
        share = remaining // ranks.size + (ranks.rank < remaining % ranks.size)
        with database(folder):
            study = optuna.load_study(
                storage=f"sqlite:///{folder / DATABASE}",
                study_name=STUDY,
                sampler=make_sampler(question, salt=1 + ranks.rank),
                pruner=make_pruner(question),
            )
            told = {trial.number for trial in study.trials if trial.state.is_finished()}

            def tell() -> None:
                for trial in study.trials if ranks.first and on_trial is not None else ():
                    if trial.state.is_finished() and trial.number not in told and not interrupted(trial):
                        told.add(trial.number)
                        on_trial(trial_of(trial))  # type: ignore[misc]

            work(study, task, question, share, str(ranks.device), tell)
            ranks.wait_for_all()
            tell()
            return ranks.first_does(lambda: best_of(study, question, task, folder))
