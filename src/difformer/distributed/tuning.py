"""Trials of a study spread over ranks, which meet in its folder alone.

Rank 0 locks the folder and plans the trials that are left, every rank makes its share of them, and rank 0 names the
best. Ranks on several machines need a file system that all of them see.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from difformer.data import Task
from difformer.distributed.process_group import Ranks
from difformer.files import only_one
from difformer.training.study import Question, Teller, Trial, Tuned, check, conclude, plan, without_test, work


def tune_over_ranks(
    task: Task,
    questions: Question | Sequence[Question],
    *,
    ranks: Ranks,
    trials: int,
    out: str | os.PathLike[str],
    on_trial: Callable[[Trial], None] | None = None,
) -> dict[str, Tuned]:
    """`difformer.training.study.tune` with its trials spread over ranks; all ranks call it together.

    Args:
        task: The same on all ranks.
        questions: The same on all ranks.
        ranks: The group.
        trials: Settings to try per model, those of earlier calls included.
        out: Folder of the study, which all ranks see.
        on_trial: Called on rank 0 with every trial that ends.
    """
    folder = Path(out)
    asked = (questions,) if isinstance(questions, Question) else tuple(questions)
    ranks.agree(**{"data fingerprint": task.fingerprint(), "trials": trials, "questions": asked})
    with contextlib.ExitStack() as stack:

        def begin() -> list[tuple[str, int]]:
            check(task, asked, folder)
            stack.enter_context(only_one(folder))
            return [(question.model, number) for question, number in plan(folder, task, asked, trials)]

        left = ranks.first_does(begin)
        by_name = {question.model: question for question in asked}
        share = [(by_name[model], number) for model, number in left[ranks.rank :: ranks.size]]
        tell = Teller(folder, on_trial if ranks.first else None)
        work(folder, without_test(task), share, str(ranks.device), worker=ranks.rank, after=tell)
        ranks.wait_for_all()
        tell()
        return ranks.first_does(lambda: conclude(folder, task, asked))
