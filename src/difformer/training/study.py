"""The study behind `tune`: optuna's database, the points laid out in it, and the processes that work on it."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.data import Task
from difformer.errors import UserError
from difformer.files import RunFolderError
from difformer.training import NonFiniteLossError, train_one
from difformer.training.callbacks import EpochEvent

if TYPE_CHECKING:
    from difformer.training.tuning import Question

REPORTS_A_RUN = 20  # points of the validation curve that the pruner sees; each is one write to the database
STARTUP_TRIALS = 5  # that are never stopped early: there is no median to speak of before them
DATABASE = "study.db"
STUDY = "difformer"


@contextmanager
def database(folder: Path) -> Iterator[None]:
    """Whatever keeps the study's file from being read or written becomes a `RunFolderError`."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        said = str(getattr(cause, "orig", None) or cause or error).splitlines()[0]
        raise RunFolderError(
            f"{folder / DATABASE} cannot be used as the study's database ({said}): see to it that the file can be "
            f"written and is what an earlier search left there, or choose another folder; nothing else was changed"
        ) from error


def open_study(folder: Path, task: Task, question: Question) -> Any:
    """The study of a folder, made where there is none; refuses one that answers another question."""
    import optuna

    metric = question.metric(task)
    study = optuna.create_study(
        storage=f"sqlite:///{folder / DATABASE}",
        study_name=STUDY,
        direction="maximize" if metric.higher_is_better else "minimize",
        load_if_exists=True,
        sampler=make_sampler(question),
        pruner=make_pruner(question),
    )
    asked, kept = json.dumps(question.written(task), sort_keys=True), study.user_attrs.get("question")
    if kept is None:
        study.set_user_attr("question", asked)
    elif kept != asked:
        was, now = json.loads(kept), json.loads(asked)
        names = ", ".join(key for key in now if was.get(key) != now[key])
        raise UserError(
            f"out: {folder} holds a study that differs in {names}; choose another folder, or ask the same as then "
            f"to go on with it"
        )
    return study


def make_sampler(question: Question, salt: int = 0) -> Any:
    """Who proposes points; `salt` tells jobs apart, so that no two propose the same."""
    import optuna

    if question.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=question.seed + salt, multivariate=True, constant_liar=True)
    return optuna.samplers.RandomSampler(seed=question.seed)  # not asked: every point is laid out beforehand


def make_pruner(question: Question) -> Any:
    """Who ends trials that fall behind."""
    import optuna

    epochs = question.config(question.space.point(0)).epochs
    if not question.prune or epochs == 1:
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=epochs // 5)


def points_to_try(study: Any, question: Question, trials: int) -> list[dict[str, Any]]:
    """Points of the space that are wanted and have no finished trial; nothing for a sampler that proposes its own."""
    import optuna

    done = []
    for trial in study.trials:
        if trial.state == optuna.trial.TrialState.RUNNING:
            # Its process is gone (we hold the lock), so the point is to be tried again.
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        elif trial.state.is_finished() and not interrupted(trial):
            done.append(trial.params)
    if question.sampler == "tpe":
        return []
    wanted = min(trials, question.space.size)
    if question.sampler == "grid":
        points = [question.space.point(number) for number in range(wanted)]
    else:
        points = list(question.space.points(wanted, question.seed))
    return [point for point in points if point not in done]


def lay_out(study: Any, question: Question, points: list[dict[str, Any]], trials: int) -> int:
    """Puts points into the study's queue; returns how many trials are to be run."""
    import optuna

    if question.sampler == "tpe":
        finished = sum(trial.state.is_finished() and not interrupted(trial) for trial in study.trials)
        return max(0, trials - finished)
    waiting = [
        trial.system_attrs.get("fixed_params", {})
        for trial in study.trials
        if trial.state == optuna.trial.TrialState.WAITING
    ]
    for point in points:
        if point not in waiting:
            study.enqueue_trial(point)
    return len(points)


def interrupted(trial: Any) -> bool:
    """Whether a trial failed from outside: it is tried again when the study goes on."""
    return trial.state.name == "FAIL"


def work(
    study: Any, task: Task, question: Question, count: int, device: str, after: Callable[[], None] | None = None
) -> None:
    """Runs `count` trials in this process."""
    if count < 1:
        return
    callbacks = [] if after is None else [lambda study, trial: after()]
    study.optimize(_Objective(task, question, device), n_trials=count, callbacks=callbacks)


@dataclass
class _Objective:
    """Validation score of the point that a trial suggests."""

    task: Task
    question: Question
    device: str

    def __call__(self, trial: Any) -> float:
        import optuna

        axes = self.question.space.axes
        config = self.question.config({key: trial.suggest_categorical(key, values) for key, values in axes.items()})
        scores: list[float] = []
        for run in range(self.question.runs):
            watch = _Watch(trial, scores, run)
            split = self.task.splits[run % len(self.task.splits)]
            try:
                record = train_one(self.task, split, config, run, self.device, callbacks=[watch])
            except NonFiniteLossError as error:
                trial.set_user_attr("reason", str(error))
                raise optuna.TrialPruned(str(error)) from error
            scores.append(record.valid)
        return sum(scores) / len(scores)


class _Watch:
    """Shows the validation curve of a trial to the pruner, thinned out."""

    def __init__(self, trial: Any, before: Sequence[float], run: int) -> None:
        self.trial, self.before, self.run = trial, list(before), run

    def on_epoch(self, event: EpochEvent) -> None:
        stride = max(1, event.epochs // REPORTS_A_RUN)
        if event.epoch % stride and event.epoch != event.epochs:
            return
        import optuna

        so_far = [*self.before, event.best_valid]
        self.trial.report(sum(so_far) / len(so_far), self.run * event.epochs + event.epoch)
        if self.trial.should_prune():
            self.trial.set_user_attr("reason", f"below the median at epoch {event.epoch} of run {self.run}")
            raise optuna.TrialPruned


def work_in_processes(
    folder: Path, task: Task, question: Question, count: int, jobs: int, device: str, after: Callable[[], None]
) -> None:
    """Shares `count` trials among processes that meet in the database alone."""
    import torch

    buffer = io.BytesIO()
    torch.save(task, buffer)
    context = multiprocessing.get_context("spawn")
    shares = [count // jobs + (job < count % jobs) for job in range(jobs)]
    workers = [
        context.Process(
            target=_worker, args=(folder, buffer.getvalue(), question, share, jobs, job, device), daemon=True
        )
        for job, share in enumerate(shares)
        if share
    ]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            time.sleep(0.5)
            after()
    except BaseException:
        for worker in workers:
            worker.terminate()
        raise
    finally:
        for worker in workers:
            worker.join()
    broken = [worker.exitcode for worker in workers if worker.exitcode]
    if broken:
        raise RuntimeError(f"{len(broken)} of {len(workers)} processes ended with exit code {broken[0]}; see above")


def _worker(folder: Path, packed: bytes, question: Question, count: int, jobs: int, job: int, device: str) -> None:
    import optuna
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    task = torch.load(io.BytesIO(packed), weights_only=False)  # of our own parent, a moment ago
    study = optuna.load_study(
        storage=f"sqlite:///{folder / DATABASE}",
        study_name=STUDY,
        sampler=make_sampler(question, salt=1 + job),
        pruner=make_pruner(question),
    )
    with suppress(KeyboardInterrupt):
        work(study, task, question, count, device)


def _end_with_parent() -> None:
    """A worker whose parent was killed must not go on in secret; its trial is tried again when the study goes on."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
