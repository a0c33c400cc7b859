"""Tuning: which settings of which models are best on validation, found by a resumable study.

A trial trains one setting on one or more splits and scores the mean over them of the best validation metric,

    v(setting) = (1/R) Σ_r max_e valid_r(e)        (min for an error),

the same rule by which a run keeps its epoch. The trainer is given no test part (`without_test`): `fit` measures
what the best setting is worth. The defaults of the model are always trial one, settings given as `first` (such as
published ones) follow. Three samplers choose the rest: ``"random"`` draws different points of the grid, ``"tpe"``
proposes points by optuna's estimator, ``"grid"`` takes the points in order. Every model gets the same number of trials.
A trial whose validation curve stays below the median of the earlier trials is stopped early.

The folder of a study holds ``study.json``, what was asked, and ``trials*.jsonl``, one line per trial that has ended and
one file per process. A trial is identified by its number, from which its setting follows: so a second call with the
same question continues the study, whether it had ended, was interrupted or was killed, and repeats no trial. A
different question in the same folder is refused.

Settings that share shapes are trained as one (`difformer.training.stack`) on a GPU: a whole group costs little more
than one of its runs, so no trial is stopped early. Processes (`jobs`) and ranks share the trials that are left.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.data.batches import GraphBatches
from difformer.data.errors import require
from difformer.errors import UserError
from difformer.files import append_bytes, finite, only_one, read_json, read_text, write_json, writing
from difformer.schema import check as check_form
from difformer.training.callbacks import EpochEvent
from difformer.training.config import TrainConfig, make_config
from difformer.training.devices import resolve
from difformer.training.journal import NonFiniteLossError
from difformer.training.loop import train_one
from difformer.training.metrics import Metric, chosen_metric
from difformer.training.model import split_number
from difformer.training.spaces import Space
from difformer.training.stack import HYPER, RATES, StackedSetting, apart, train_stacked, unstackable

SAMPLERS = ("random", "tpe", "grid")
REPORTS_PER_RUN = 20  # points of a validation curve that are kept, and compared with those of other trials
STARTUP_TRIALS = 5  # that must have ended before any is stopped early: there is no median to speak of before
PROPOSALS = 20  # that the estimator makes before a point is drawn instead, where it repeats earlier ones
POINTS_AT_ONCE = 64  # of a stack: what is lost when the study is interrupted
STUDY, OLD_STUDY = "study.json", "study.db"
Point = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What is asked of a study about one model; two calls with equal questions share a study.

    Args:
        model: Name of the model.
        space: What competes, and what is fixed.
        runs: Seeds and splits that a trial averages over: seed r uses split r modulo the number of splits.
        sampler: ``"random"``, ``"tpe"`` or ``"grid"``.
        seed: Of the choice of settings.
        prune: Whether hopeless trials are stopped early.
        first: Settings that are tried right after the defaults, such as published ones.
    """

    model: str
    space: Space
    runs: int = 1
    sampler: str = "random"
    seed: int = 0
    prune: bool = True
    first: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise UserError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}", argument="sampler")
        if self.runs < 1:
            raise UserError(f"runs must be at least 1, got {self.runs}", argument="runs")

    def config(self, point: Mapping[str, Any]) -> TrainConfig:
        """The configuration of a point of the space."""
        return make_config(self.model, {**self.space.fixed, **point})

    def metric(self, task: Task) -> Metric:
        """What trials are scored by."""
        return chosen_metric(self.config(self.defaults()), task)

    def defaults(self) -> Point:
        """The point at which everything that competes has the default of training or model."""
        known = {**TrainConfig().to_dict(), **_options(self.model)}
        return {key: known[key] for key in self.space.axes if key in known}

    def planned(self, count: int) -> list[Point]:
        """The first `count` points: the defaults, those given as `first`, then points of the space.

        A longer list continues a shorter one. It ends earlier where the space has no more points.
        """
        known = {*TrainConfig().to_dict(), *_options(self.model)}
        found = [self.defaults()]
        for given in self.first:
            point = {key: value for key, value in given.items() if key in known and key != "options"}
            if point and point not in found:
                found.append(point)
        rest: Iterator[Point]
        if self.sampler == "grid":
            rest = (self.space.point(number) for number in range(self.space.size))
        else:
            rest = self.space.points(self.space.size, self.seed)
        while len(found) < count:
            try:
                point = next(rest)
            except StopIteration:
                break
            if point not in found:
                found.append(point)
        return found[:count]

    def written(self, task: Task) -> dict[str, Any]:
        """As it is kept with the study."""
        document = {
            "model": self.model,
            "axes": {key: list(values) for key, values in self.space.axes.items()},
            "fixed": dict(self.space.fixed),
            "runs": self.runs,
            "sampler": self.sampler,
            "seed": self.seed,
            "prune": self.prune,
            "data": task.fingerprint(),
        }
        return document | ({"first": [dict(point) for point in self.first]} if self.first else {})


@dataclass(frozen=True)
class Trial:
    """One setting that was tried.

    Args:
        number: In the order of the study, from 0.
        settings: Its point of the space.
        state: ``"complete"`` or ``"pruned"``.
        value: Validation score; None unless complete.
        seconds: How long it took.
        reason: Why it was stopped.
        model: Whose settings.
        curve: Validation score so far at some steps, for the comparison with other trials.
    """

    number: int
    settings: Point
    state: str
    value: float | None
    seconds: float
    reason: str = ""
    model: str = ""
    curve: tuple[tuple[int, float], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Tuned:
    """What a study found for one model.

    Args:
        best: The trial with the best validation score.
        settings: All settings of the best trial, the fixed ones included, as a preset has them.
        metric: What was measured on validation.
        higher_is_better: Whether a larger score is better.
        trials: Every trial that has ended.
        folder: Folder of the study.
        model: The model.
    """

    best: Trial
    settings: Point
    metric: str
    higher_is_better: bool
    trials: tuple[Trial, ...] = field(repr=False)
    folder: Path
    model: str = ""

    @property
    def score(self) -> float:
        assert self.best.value is not None
        return self.best.value


Work = tuple[Question, int]  # a trial to be made: whose, and its number


def tune(
    task: Task,
    questions: Question | Sequence[Question],
    *,
    trials: int,
    out: str | os.PathLike[str],
    jobs: int = 1,
    device: str = "auto",
    stacked: bool | None = None,
    seconds: float = math.inf,
    on_trial: Callable[[Trial], None] | None = None,
    ranks: Any = None,
) -> dict[str, Tuned]:
    """Try settings of each model until `trials` of them have ended, and name the best on validation.

    Args:
        task: What is to be learnt; its test parts are not used.
        questions: What competes, one question per model.
        trials: Settings to try per model, those of earlier calls included; at most the points of the space, the
            defaults and `Question.first`, unless the sampler is ``"tpe"``.
        out: Folder of the study; created where it does not exist.
        jobs: Processes that work at the same time. With more than one, timing decides which trials are stopped early.
        device: As in `train_one`.
        stacked: Train settings that share shapes as one, without stopping any early; None does so on a GPU.
        seconds: No trial is started after that time.
        on_trial: Called with every trial that ends; on rank 0 alone.
        ranks: The group of `difformer.distributed.join`, over which the trials are spread; all ranks call `tune`
            together, with the same arguments, and see the folder.

    Returns:
        What was found, per model.

    Raises:
        UserError: If the folder holds another study, stacks are asked for and not possible, or no trial came through.
        ImportError: If the sampler is ``"tpe"`` and optuna is not installed.
    """
    asked = (questions,) if isinstance(questions, Question) else tuple(questions)
    if trials < 1 or jobs < 1:
        raise UserError(f"trials and jobs must be at least 1, got trials={trials}, jobs={jobs}")
    for question in asked:
        if stacked and (reason := why_not_stacked(task, question)):
            raise UserError(f"stacked: {reason}", argument="stacked")
    folder, until, by_name = Path(out), time.monotonic() + seconds, {question.model: question for question in asked}
    first_does: Callable[[Callable[[], Any]], Any] = lambda work: work()
    if ranks is not None:
        ranks.agree(**{"data fingerprint": task.fingerprint(), "trials": trials, "questions": asked})
        first_does = ranks.first_does
    with ExitStack() as held:

        def begin() -> list[tuple[str, int]]:
            check(task, asked, folder)
            held.enter_context(only_one(folder))
            return [(question.model, number) for question, number in plan(folder, task, asked, trials)]

        left = [(by_name[model], number) for model, number in first_does(begin)]
        tell = Teller(folder, on_trial if ranks is None or ranks.first else None)
        if ranks is not None:
            own, place = left[ranks.rank :: ranks.size], str(ranks.device)
            work(folder, without_test(task), own, place, worker=ranks.rank, until=until, after=tell)
            ranks.wait_for_all()
        elif jobs > 1 and len(left) > 1:
            _work_in_processes(folder, task, left, jobs, device, seconds, tell)
        else:
            work(folder, without_test(task), left, device, stacked=stacked, until=until, after=tell)
        tell()
        found: dict[str, Tuned] = first_does(lambda: conclude(folder, task, asked))
        return found


def check(task: Task, questions: Sequence[Question], out: Path) -> Path:
    """Finds what is wrong with a request before anything is written; then makes the folder.

    Raises:
        UserError: See `tune`.
    """
    names = [question.model for question in questions]
    if not names or len(set(names)) != len(names):
        raise UserError(f"models must be different, and at least one; got {', '.join(names) or 'none'}")
    for question in questions:
        if not all(split.valid.numel() for split in task.splits[: question.runs]):
            raise UserError(
                f"task {task.name!r} has a split without validation instances: there is nothing to choose by"
            )
        if question.sampler == "tpe":
            require("optuna", extra="tune", purpose="the sampler tpe")
        question.metric(task)
        for point in question.planned(2 + len(question.first)):
            question.config(point)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    return out


def plan(folder: Path, task: Task, questions: Sequence[Question], trials: int) -> list[Work]:
    """Writes down what is asked, and returns the trials that are left; the folder must be locked.

    Raises:
        UserError: If the folder holds another study.
    """
    if (folder / OLD_STUDY).exists() and not (folder / STUDY).exists():
        raise UserError(
            f"out: {folder} holds a study of an earlier version of difformer ({OLD_STUDY}); choose another folder"
        )
    kept = read_json(folder / STUDY) if (folder / STUDY).exists() else {}
    if not isinstance(kept, dict) or not all(isinstance(one, dict) for one in kept.values()):
        raise UserError(f"out: {folder / STUDY} is damaged; choose another folder")
    asked = {question.model: _as_json(question.written(task)) for question in questions}
    for model, now in asked.items():
        if model in kept and kept[model] != now:
            raise UserError(
                f"out: {folder} holds a study of {model} with {_differences(kept[model], now)}; to continue it repeat "
                f"the earlier request, to start a new study choose another folder"
            )
    write_json(folder / STUDY, kept | asked)
    done = {(trial.model, trial.number) for trial in read_trials(folder)}
    left = []
    for question in questions:
        count = trials if question.sampler == "tpe" else len(question.planned(trials))
        left += [(question, number) for number in range(count) if (question.model, number) not in done]
    return left


def _differences(was: dict[str, Any], now: dict[str, Any]) -> str:
    """Every setting that differs, with its value then and now: ``epochs=3 (now 4)``."""
    found = []
    for key in now | was:
        old, new = was.get(key), now.get(key)
        if old == new:
            continue
        if key == "data":
            found.append("other data or splits")
        elif isinstance(old, dict) and isinstance(new, dict):
            inner = [name for name in new | old if old.get(name) != new.get(name)]
            found += [f"{name}={old.get(name, 'unset')} (now {new.get(name, 'unset')})" for name in inner]
        else:
            found.append(f"{key}={old} (now {new})")
    return ", ".join(found)


def conclude(folder: Path, task: Task, questions: Sequence[Question]) -> dict[str, Tuned]:
    """The best trial of each model so far, and all others.

    Raises:
        UserError: If no trial of a model came through.
    """
    found = {}
    for question in questions:
        ended = tuple(trial for trial in read_trials(folder) if trial.model == question.model)
        complete = [trial for trial in ended if trial.value is not None and math.isfinite(trial.value)]
        metric = question.metric(task)
        if not complete:
            reasons = "; ".join(sorted({trial.reason for trial in ended if trial.reason})) or "none was run"
            raise UserError(f"trials: none of {len(ended)} trials of {question.model} came through: {reasons}")
        sign = 1 if metric.higher_is_better else -1
        best = max(complete, key=lambda trial: (sign * float(trial.value or 0.0), -trial.number))
        settings = {**question.space.fixed, **best.settings}
        found[question.model] = Tuned(
            best, settings, metric.name, metric.higher_is_better, ended, folder, question.model
        )
    return found


_TRIAL = {"number": int, "settings": dict, "state": str, "value": (float, None), "seconds": float}
_TRIAL |= dict.fromkeys(("reason", "model"), (str, None))


def read_trials(folder: Path) -> list[Trial]:
    """Every trial of a study that has ended, of all processes; the rest of a line that was cut off is skipped."""
    found: dict[tuple[str, int], Trial] = {}
    names = {f.name for f in dataclasses.fields(Trial)}
    for path in sorted(folder.glob("trials*.jsonl")):
        for line in read_text(path).splitlines():
            try:
                row = json.loads(line)
                check_form(row, _TRIAL)
                row["curve"] = tuple((int(step), float(value)) for step, value in row.get("curve", ()))
                trial = Trial(**{name: value for name, value in row.items() if name in names})
                found.setdefault((trial.model, trial.number), trial)
            except (ValueError, TypeError, AttributeError, RecursionError):
                continue
    return [found[key] for key in sorted(found)]


class Teller:
    """Calls `on_trial` with every trial that has ended since the last look."""

    def __init__(self, folder: Path, on_trial: Callable[[Trial], None] | None) -> None:
        self.folder, self.on_trial = folder, on_trial
        self.told = {(trial.model, trial.number) for trial in read_trials(folder)}

    def __call__(self) -> None:
        if self.on_trial is None:
            return
        for trial in read_trials(self.folder):
            if (key := (trial.model, trial.number)) not in self.told:
                self.told.add(key)
                self.on_trial(trial)


def work(
    folder: Path,
    task: Task,
    left: Sequence[Work],
    device: str,
    *,
    worker: int | None = None,
    stacked: bool | None = False,
    until: float = math.inf,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Makes trials in this process, and writes each down when it ends.

    Args:
        folder: Of the study.
        task: The task `without_test`.
        left: The trials to make.
        device: As in `train_one`.
        worker: Number of this process, which writes a file of its own; None for the only one.
        stacked: See `tune`.
        until: No trial is started after that moment of `time.monotonic`.
        after: Called whenever trials have ended.
    """
    path = folder / ("trials.jsonl" if worker is None else f"trials-{worker:05d}.jsonl")

    def keep(trials: Sequence[Trial]) -> None:
        lines = (json.dumps(finite(dataclasses.asdict(trial)), ensure_ascii=False) + "\n" for trial in trials)
        append_bytes(path, "".join(lines).encode())
        after()

    by_question: dict[str, list[Work]] = {}
    for question, number in left:
        by_question.setdefault(question.model, []).append((question, number))
    for works in by_question.values():
        question = works[0][0]
        numbers = [number for _, number in works]
        together = stacked
        if together is None:
            together = resolve(device).type == "cuda" and not why_not_stacked(task, question)
        if together:
            _work_in_stacks(task, question, numbers, device, until, keep)
            continue
        for number in numbers:
            if time.monotonic() >= until:
                return
            known = [trial for trial in read_trials(folder) if trial.model == question.model]
            keep([_try(task, question, number, _point(question, task, number, known), known, device)])


def _point(question: Question, task: Task, number: int, known: Sequence[Trial]) -> Point:
    """The setting of a trial; for ``"tpe"`` it follows from the earlier trials and the number."""
    given = 1 + len(question.first)
    planned = question.planned(min(number + 1, given) if question.sampler == "tpe" else number + 1)
    if number < len(planned):
        return planned[number]
    return _proposed(question, number, known, question.metric(task).higher_is_better)


def _proposed(question: Question, number: int, known: Sequence[Trial], higher_is_better: bool) -> Point:
    """A point that no earlier trial had, by optuna's estimator; a drawn one where it has no new idea."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    axes = {key: optuna.distributions.CategoricalDistribution(values) for key, values in question.space.axes.items()}
    tried = [trial.settings for trial in known]
    study = optuna.create_study(direction="maximize" if higher_is_better else "minimize")
    for trial in known:
        fits = trial.settings.keys() == axes.keys() and all(
            value in axes[key].choices for key, value in trial.settings.items()
        )
        if trial.value is not None and fits:
            study.add_trial(
                optuna.trial.create_trial(params=trial.settings, distributions=dict(axes), value=trial.value)
            )
    for attempt in range(PROPOSALS):
        seed = (question.seed * 1_000_003 + number * PROPOSALS + attempt) % 2**31
        study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=STARTUP_TRIALS)
        proposal: Point = dict(study.ask(dict(axes)).params)
        if proposal not in tried:
            return proposal
    untried = (point for point in question.space.points(question.space.size, question.seed) if point not in tried)
    return next(untried, proposal)


class _Hopeless(Exception):
    """A trial that stays below the median."""


class _Watch:
    """Keeps the validation curve of a trial, and ends the trial where others were better at the same step."""

    def __init__(self, question: Question, known: Sequence[Trial], higher_is_better: bool) -> None:
        complete = [dict(trial.curve) for trial in known if trial.state == "complete"]
        self.others = complete if question.prune and len(complete) >= STARTUP_TRIALS else []
        self.sign = 1 if higher_is_better else -1
        self.before: list[float] = []
        self.curve: list[tuple[int, float]] = []

    def on_epoch(self, event: EpochEvent) -> None:
        stride = max(1, event.epochs // REPORTS_PER_RUN)
        if event.epoch % stride and event.epoch != event.epochs:
            return
        run, so_far = len(self.before), [*self.before, event.best_valid]
        step, value = run * event.epochs + event.epoch, sum(so_far) / len(so_far)
        self.curve.append((step, value))
        others = [curve[step] for curve in self.others if step in curve]
        if step < event.epochs // 5 or len(others) < STARTUP_TRIALS:
            return
        if self.sign * value < self.sign * statistics.median(others):
            raise _Hopeless(f"below the median at epoch {event.epoch} of run {run}")


def _try(task: Task, question: Question, number: int, point: Point, known: Sequence[Trial], device: str) -> Trial:
    """One trial: the mean validation score of its runs."""
    config, started = question.config(point), time.perf_counter()
    watch = _Watch(question, known, question.metric(task).higher_is_better)
    state, reason = "complete", ""
    try:
        for run in range(question.runs):
            record = train_one(task, split_number(task, run), config, run, device, callbacks=[watch])
            watch.before.append(record.valid)
    except (_Hopeless, NonFiniteLossError) as error:
        state, reason = "pruned", str(error)
    value = sum(watch.before) / len(watch.before) if state == "complete" else None
    took = round(time.perf_counter() - started, 3)
    return Trial(number, point, state, value, took, reason, question.model, tuple(watch.curve))


def why_not_stacked(task: Task, question: Question) -> str:
    """Why the trials of a question cannot be trained in stacks; empty where they can."""
    if question.sampler == "tpe":
        return "sampler 'tpe' proposes one setting after the other"
    return unstackable(task, question.config(question.defaults()), range(question.runs))


def _work_in_stacks(
    task: Task,
    question: Question,
    numbers: Sequence[int],
    device: str,
    until: float,
    keep: Callable[[Sequence[Trial]], None],
) -> None:
    planned = question.planned(max(numbers, default=0) + 1)
    for config, group in groups(question, [planned[number] for number in numbers]):
        if time.monotonic() >= until:
            return
        started = time.perf_counter()
        settings = [
            setting_of(question.config(point), run, split_number(task, run))
            for point in group
            for run in range(question.runs)
        ]
        results = train_stacked(task, settings, config, device, keep_errors=True)
        each = round((time.perf_counter() - started) / len(group), 3)
        trials = []
        for place, point in enumerate(group):
            runs = results[place * question.runs : (place + 1) * question.runs]
            failed = next((run for run in runs if isinstance(run, NonFiniteLossError)), None)
            value = None if failed else sum(run.valid for run in runs) / len(runs)
            state = "pruned" if failed else "complete"
            trials.append(Trial(planned.index(point), point, state, value, each, str(failed or ""), question.model))
        keep(trials)


def groups(question: Question, points: Sequence[Point]) -> Iterator[tuple[TrainConfig, list[Point]]]:
    """Points that share all that may not differ within a stack (hidden size, layers, …), and a configuration."""
    found: list[tuple[TrainConfig, list[Point]]] = []
    for point in points:
        common = apart(question.config(point))
        for known, group in found:
            if known == common:
                group.append(point)
                break
        else:
            found.append((common, [point]))
    for _, group in found:
        for start in range(0, len(group), POINTS_AT_ONCE):
            part = group[start : start + POINTS_AT_ONCE]
            yield question.config(part[0]), part


def setting_of(config: TrainConfig, seed: int, split: int) -> StackedSetting:
    """A run of a stack with the rates and options of a configuration."""
    rates = {name: getattr(config, name) for name in RATES}
    options = {name: config.options[name] for name in HYPER if name in config.options}
    return StackedSetting(seed=seed, split=split, **rates, **options)


def _work_in_processes(
    folder: Path, task: Task, left: Sequence[Work], jobs: int, device: str, seconds: float, tell: Callable[[], None]
) -> None:
    """Shares trials among processes, each of which writes a file of its own."""
    buffer = io.BytesIO()
    torch.save(without_test(task), buffer)
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(
            target=_worker,
            args=(folder, buffer.getvalue(), list(left[job::jobs]), jobs, job, device, seconds),
            daemon=True,
        )
        for job in range(min(jobs, len(left)))
    ]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            time.sleep(0.5)
            tell()
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


def _worker(folder: Path, packed: bytes, left: list[Work], jobs: int, job: int, device: str, seconds: float) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    task = torch.load(io.BytesIO(packed), weights_only=False)  # made by our own parent a moment ago
    with suppress(KeyboardInterrupt):
        work(folder, task, left, device, worker=job, until=time.monotonic() + seconds)


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed; its trial is made again when the study is continued."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def without_test(task: Task, runs: int | None = None) -> Task:
    """The task with the splits of the first `runs` runs, and without test parts; graphs that only test are left out.

    An evaluation computes outputs of every graph there is; one graph never sees another, so those that are left out
    change nothing for the others.
    """
    none = torch.empty(0, dtype=torch.long)
    splits = [Split(split.name, split.train, split.valid, none) for split in task.splits[:runs]]
    if task.kind != "graphs":
        return dataclasses.replace(task, splits=tuple(splits))
    return take_graphs(task, torch.unique(torch.cat([torch.cat([s.train, s.valid]) for s in splits])), splits)


def take_graphs(task: Task, kept: Tensor, splits: Sequence[Split]) -> Task:
    """The graphs `kept`, in ascending order, with splits that name no other graphs."""
    batch, names = GraphBatches(task, batch_size=max(1, kept.numel())).batch(kept), task.instance_names
    return dataclasses.replace(
        task,
        x=batch.x,
        y=batch.y,
        node_ptr=batch.node_ptr,
        edge_index=batch.edge_index,
        edge_weight=batch.edge_weight,
        instance_names=tuple(names[one] for one in kept.tolist()) if names else (),
        splits=tuple(Split(s.name, *(torch.searchsorted(kept, part) for part in s.parts().values())) for s in splits),
    )


def _options(model: str) -> dict[str, Any]:
    from difformer.zoo import options_of

    return dict(options_of(model))


def _as_json(value: Any) -> Any:
    """As it is read back from a file."""
    return json.loads(json.dumps(value))
