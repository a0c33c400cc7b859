"""Tuning: which settings of which models are best on validation, found by a resumable study.

A trial trains one setting on one or more splits and scores the mean over them of the best validation metric,

    v(setting) = (1/R) Σ_r max_e valid_r(e)        (min for an error),

the rule by which a run keeps its epoch. The trainer does not get the test part (`without_test`). The defaults of the
model are trial one, settings given as `first` follow, and a sampler chooses the rest: ``"random"`` draws different
points of the grid, ``"tpe"`` proposes points by optuna's estimator, ``"grid"`` takes them in order. A trial whose
validation curve stays below the median of the earlier trials is stopped early. On a GPU, settings that share shapes are
trained as one (`difformer.training.stack`), and none is stopped early. Processes (`jobs`) and ranks share the trials.

The folder of a study holds the request, ``study.json``, and ``trials*.jsonl``: one line per trial that has ended, one
file per process. The setting of a trial follows from its number, so a second call with the same request continues a
study that ended, was interrupted or was killed, without repeating a trial. A different request is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import pickle
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from difformer.data import Split, Task
from difformer.data.batches import GraphBatches
from difformer.errors import UserError, require
from difformer.files import append_bytes, finite, only_one, read_json, read_text, write_json, writing
from difformer.schema import check
from difformer.training.callbacks import EpochEvent
from difformer.training.config import TrainConfig, make_config
from difformer.training.devices import resolve
from difformer.training.journal import NonFiniteLossError, Run
from difformer.training.loop import train_one
from difformer.training.metrics import Metric, chosen_metric
from difformer.training.model import split_number
from difformer.training.spaces import Space
from difformer.training.stack import apart, train_stacked, unstackable
from difformer.zoo import options_of

SAMPLERS = ("random", "tpe", "grid")
REPORTS_PER_RUN = 20  # points of a validation curve that are kept, and compared with those of other trials
STARTUP_TRIALS = 5  # that must have ended before any is stopped early
PROPOSALS = 20  # of the estimator that repeat earlier ones before a point is drawn instead
POINTS_AT_ONCE = 64  # of a stack: what is lost when the study is interrupted
STUDY = "study.json"
Point = dict[str, Any]
Work = tuple[str, int]  # a trial to run: of which model, and its number


@dataclass(frozen=True)
class Question:
    """What a study searches for one model; two calls with equal questions share a study."""

    model: str
    space: Space  # what competes, and what is fixed
    runs: int = 1  # seeds and splits that a trial averages over: seed r uses split r modulo the number of splits
    sampler: str = "random"  # or "tpe", "grid"
    seed: int = 0  # of the choice of settings
    prune: bool = True  # whether hopeless trials are stopped early
    first: tuple[Mapping[str, Any], ...] = ()  # settings tried right after the defaults, such as published ones

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
        return self.planned(1)[0]

    def planned(self, count: int) -> list[Point]:
        """The first `count` points: the defaults, those given as `first`, then points of the space.

        A longer list continues a shorter one. It ends earlier if the space has no more points.
        """
        known = {**TrainConfig().to_dict(), **options_of(self.model)}
        free = [*self.space.axes, *(key for key in self.space.difformer if key in self.space.fixed)]
        found = [{key: known[key] for key in free if key in known}]
        for given in self.first:
            point = {key: value for key, value in given.items() if key in known and key != "options"}
            if point and point not in found:
                found.append(point)
        rest: Iterator[Point] = self.space.points(self.space.size, self.seed)
        if self.sampler == "grid":
            rest = map(self.space.point, range(self.space.size))
        while len(found) < count and (point := next(rest, {})):
            if point not in found:
                found.append(point)
        return found[:count]

    def point(self, number: int, known: Sequence[Trial], higher_is_better: bool) -> Point:
        """The setting of a trial; for ``"tpe"`` it follows from the earlier trials and the number."""
        planned = self.planned(min(number, len(self.first)) + 1 if self.sampler == "tpe" else number + 1)
        return planned[number] if number < len(planned) else _proposed(self, number, known, higher_is_better)

    def written(self, task: Task) -> dict[str, Any]:
        """The question as it is stored in the folder of the study."""
        document = {name: getattr(self, name) for name in ("model", "runs", "sampler", "seed", "prune")}
        document |= {"axes": self.space.axes, "fixed": self.space.fixed, "data": task.fingerprint()}
        if self.first:
            document["first"] = self.first
        return dict(json.loads(json.dumps(document)))  # as it is read back

    def groups(self, numbers: Sequence[int]) -> list[list[int]]:
        """Numbers of trials that share all that may not differ within a stack (hidden size, layers, …)."""
        planned, found = self.planned(max(numbers, default=0) + 1), dict[str, list[int]]()
        for number in numbers:
            found.setdefault(repr(apart(self.config(planned[number]))), []).append(number)
        return [one[i : i + POINTS_AT_ONCE] for one in found.values() for i in range(0, len(one), POINTS_AT_ONCE)]

    def trial(
        self, number: int, point: Point, values: Sequence[float], seconds: float, reason: str, curve: Any = ()
    ) -> Trial:
        """A trial that has ended with these scores, or was stopped for a reason."""
        state, value = ("pruned", None) if reason else ("complete", sum(values) / len(values))
        return Trial(number, point, state, value, round(seconds, 3), reason, self.model, curve)

    def why_not_stacked(self, task: Task) -> str:
        """Why its trials cannot be trained in stacks; empty if they can."""
        if self.sampler == "tpe":
            return "sampler 'tpe' proposes one setting after the other"
        return unstackable(task, self.config(self.defaults()), range(self.runs))


@dataclass(frozen=True)
class Trial:
    """One setting that was tried."""

    number: int  # in the order of the study, from 0
    settings: Point  # its point of the space
    state: str  # "complete" or "pruned"
    value: float | None  # validation score; None unless complete
    seconds: float
    reason: str = ""  # why it was stopped
    model: str = ""  # whose settings
    curve: tuple[tuple[int, float], ...] = field(default=(), repr=False)  # the score so far at some steps


@dataclass(frozen=True)
class Tuned:
    """What a study found for one model."""

    best: Trial  # with the best validation score
    settings: Point  # all of the best trial, the fixed ones included, as in a preset
    metric: str  # what was measured on validation
    higher_is_better: bool
    trials: tuple[Trial, ...] = field(repr=False)  # every one that has ended
    model: str = ""

    @property
    def score(self) -> float:
        assert self.best.value is not None
        return self.best.value


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
        trials: Settings to try per model, including those of earlier calls; at most the points of the space, the
            defaults and `Question.first`, unless the sampler is ``"tpe"``.
        out: Folder of the study, which is created if it does not exist.
        jobs: Processes that run trials in parallel. With more than one, timing decides which trials are stopped early.
        device: As in `train_one`.
        stacked: Train settings that share shapes as one, without stopping any early; None does so on a GPU.
        seconds: No trial is started after that time.
        on_trial: Called with every trial that ends; only on rank 0.
        ranks: The group of `difformer.distributed.join`, over which the trials are spread; all ranks call `tune`
            together, with the same arguments, and see the folder.

    Returns:
        What was found, per model.

    Raises:
        UserError: If the folder holds another study, stacks are asked for and not possible, or no trial succeeded.
        ImportError: If the sampler is ``"tpe"`` and optuna is not installed.
    """
    asked = (questions,) if isinstance(questions, Question) else tuple(questions)
    if trials < 1 or jobs < 1:
        raise UserError(f"trials and jobs must be at least 1, got trials={trials}, jobs={jobs}")
    first_does: Callable[[Callable[[], Any]], Any] = lambda work: work()
    if ranks is not None:
        ranks.agree(**{"data fingerprint": task.fingerprint(), "trials": trials, "questions": asked})
        first_does = ranks.first_does
        device, stacked, on_trial = str(ranks.device), False, on_trial if ranks.first else None
    seen = without_test(task, max((question.runs for question in asked), default=1))
    study = _Study(Path(out), asked, seen, device, time.monotonic() + seconds, stacked, on_trial)
    with ExitStack() as held:

        def begin() -> list[Work]:
            study.check()
            with writing(study.folder):
                study.folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(only_one(study.folder))
            return study.left(trials, task)

        left = first_does(begin)
        study.told.update((trial.model, trial.number) for trial in read_trials(study.folder))
        if ranks is not None:
            study.number = ranks.rank
            study.work(left[ranks.rank :: ranks.size])
            ranks.wait_for_all()
        elif jobs > 1 and len(left) > 1:
            study.work_in_processes(left, jobs)
        else:
            study.work(left)
        study.tell()
        found: dict[str, Tuned] = first_does(study.best)
        return found


def continued(questions: Sequence[Question], folder: Path) -> list[Question]:
    """Questions with the settings to begin with of the study in a folder: another version may have chosen others."""
    firsts = {model: one.get("first", ()) for model, one in _stored(folder).items()}
    return [dataclasses.replace(one, first=tuple(firsts.get(one.model, one.first))) for one in questions]


def _stored(folder: Path) -> dict[str, dict[str, Any]]:
    """The questions of the study in a folder, by model; none if there is no study."""
    kept = read_json(folder / STUDY) if (folder / STUDY).exists() else {}
    if not isinstance(kept, dict) or not all(isinstance(one, dict) for one in kept.values()):
        raise UserError(f"out: {folder / STUDY} is damaged; choose another folder")
    return kept


_TRIAL = {"number": int, "settings": dict, "state": str, "value": (float, None), "seconds": float}
_TRIAL |= dict.fromkeys(("reason", "model"), (str, None))


def read_trials(folder: Path, model: str | None = None) -> list[Trial]:
    """Trials of a study that have ended, of one model or of all; a line that was cut off is skipped."""
    found: dict[Work, Trial] = {}
    names = {f.name for f in dataclasses.fields(Trial)}
    for path in sorted(folder.glob("trials*.jsonl")):
        for line in read_text(path).splitlines():
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                row = json.loads(line)
                check(row, _TRIAL)
                row["curve"] = tuple((int(step), float(value)) for step, value in row.get("curve", ()))
                trial = Trial(**{name: value for name, value in row.items() if name in names})
                found.setdefault((trial.model, trial.number), trial)
    return [found[key] for key in sorted(found) if model in (None, key[0])]


@dataclass
class _Study:
    """A study, and what this process does of it."""

    folder: Path
    questions: Sequence[Question]
    task: Task  # without its test parts
    device: str
    until: float  # on the monotonic clock: no trial is started after that time
    stacked: bool | None
    listener: Callable[[Trial], None] | None = None
    number: int | None = None  # of this process, which writes its own file; None for the only one
    told: set[Work] = field(default_factory=set)  # trials that the listener knows of

    def check(self) -> None:
        """Validates the request before anything is written."""
        names = [question.model for question in self.questions]
        if not names or len(set(names)) != len(names):
            raise UserError(f"models must be different, and at least one; got {', '.join(names) or 'none'}")
        for question in self.questions:
            if not all(split.valid.numel() for split in self.task.splits[: question.runs]):
                lacks = "has a split without validation instances"
                raise UserError(f"task {self.task.name!r} {lacks}: there is nothing to choose by")
            if question.sampler == "tpe":
                require("optuna", extra="tune", purpose="the sampler tpe")
            if self.stacked and (reason := question.why_not_stacked(self.task)):
                raise UserError(f"stacked: {reason}", argument="stacked")
            question.metric(self.task)
            for point in question.planned(2 + len(question.first)):
                question.config(point)

    def left(self, trials: int, task: Task) -> list[Work]:
        """Records the request, and returns the trials that remain; the folder must be locked."""
        path, kept = self.folder / STUDY, _stored(self.folder)
        asked = {question.model: question.written(task) for question in self.questions}
        for model, now in asked.items():
            if model in kept and kept[model] != now:
                advice = "to continue it repeat the earlier request, to start a new study choose another folder"
                said = f"holds a study of {model} with {_differences(kept[model], now)}"
                raise UserError(f"out: {self.folder} {said}; {advice}")
        write_json(path, kept | asked)
        done = {(trial.model, trial.number) for trial in read_trials(self.folder)}
        counts = {q.model: trials if q.sampler == "tpe" else len(q.planned(trials)) for q in self.questions}
        every = [(model, number) for model, count in counts.items() for number in range(count)]
        return [work for work in every if work not in done]

    def tell(self) -> None:
        """Calls the listener with every trial that has ended since the last call."""
        for trial in read_trials(self.folder):
            if self.listener is not None and (trial.model, trial.number) not in self.told:
                self.told.add((trial.model, trial.number))
                self.listener(trial)

    def best(self) -> dict[str, Tuned]:
        """The best trial of each model that has one, and all others."""
        found, failed = dict[str, Tuned](), list[str]()
        for question in self.questions:
            ended, metric = tuple(read_trials(self.folder, question.model)), question.metric(self.task)
            complete = [trial for trial in ended if trial.value is not None and math.isfinite(trial.value)]
            if not complete:
                reasons = "; ".join(sorted({trial.reason for trial in ended if trial.reason})) or "none was run"
                failed.append(f"none of {len(ended)} trials of {question.model} succeeded: {reasons}")
                continue
            sign = 1 if metric.higher_is_better else -1
            best = max(complete, key=lambda trial: (sign * float(trial.value or 0.0), -trial.number))
            settings, rule = {**question.space.fixed, **best.settings}, (metric.name, metric.higher_is_better)
            found[question.model] = Tuned(best, settings, *rule, ended, question.model)
        if not found:
            raise UserError(f"trials: {'; '.join(failed)}")
        for problem in failed:
            warnings.warn(f"trials: {problem}", UserWarning, stacklevel=4)
        return found

    def work(self, left: Sequence[Work]) -> None:
        """Runs trials in this process until the time limit, and records each one when it ends."""
        path = self.folder / ("trials.jsonl" if self.number is None else f"trials-{self.number:05d}.jsonl")
        for question in self.questions:
            numbers, stacked = [number for model, number in left if model == question.model], self.stacked
            if stacked is None:
                stacked = resolve(self.device).type == "cuda" and not question.why_not_stacked(self.task)
            for group in question.groups(numbers) if stacked else ([number] for number in numbers):
                if time.monotonic() >= self.until:
                    return
                trials = self._stack(question, group) if stacked else [self._single(question, group[0])]
                lines = (json.dumps(finite(dataclasses.asdict(trial)), ensure_ascii=False) + "\n" for trial in trials)
                append_bytes(path, "".join(lines).encode())
                self.tell()

    def _single(self, question: Question, number: int) -> Trial:
        better, known = question.metric(self.task).higher_is_better, read_trials(self.folder, question.model)
        point, started = question.point(number, known, better), time.perf_counter()
        watch, reason, config = _Watch(question, known, better), "", question.config(point)
        try:
            for run in range(question.runs):
                split = split_number(self.task, run)
                watch.before.append(train_one(self.task, split, config, run, self.device, callbacks=[watch]).valid)
        except (_Hopeless, NonFiniteLossError, UserError) as error:  # a setting that fails does not end the study
            reason = str(error)
        return question.trial(number, point, watch.before, time.perf_counter() - started, reason, tuple(watch.curve))

    def _stack(self, question: Question, numbers: Sequence[int]) -> list[Trial]:
        started, seeds, planned = time.perf_counter(), range(question.runs), question.planned(max(numbers) + 1)
        configs = [question.config(planned[number]) for number in numbers]
        runs = [Run(seed, split_number(self.task, seed), config) for config in configs for seed in seeds]
        try:
            results, trials = iter(train_stacked(self.task, runs, self.device)), list[Trial]()
        except UserError:  # of one of them, which fails by itself
            return [self._single(question, number) for number in numbers]
        each = (time.perf_counter() - started) / len(numbers)
        for number in numbers:
            own = [next(results) for _ in seeds]
            reason = next((str(one) for one in own if isinstance(one, NonFiniteLossError)), "")
            values = [] if reason else [one.valid for one in own]
            trials.append(question.trial(number, planned[number], values, each, reason))
        return trials

    def work_in_processes(self, left: Sequence[Work], jobs: int) -> None:
        """Shares trials among processes, each of which writes its own file and ends with this one."""
        # As bytes: tensors among the arguments would be moved to shared memory, of which a container has little.
        given = (pickle.dumps(dataclasses.replace(self, stacked=False, listener=None)), left, jobs)
        context = start_processes(_process, given, min(jobs, len(left)), join=False, daemon=True)
        try:
            while not context.join(timeout=0.5):
                self.tell()
        finally:
            for process in context.processes:
                process.terminate()


def _process(number: int, packed: bytes, left: Sequence[Work], jobs: int) -> None:
    def end_with_parent() -> None:  # an unfinished trial is run again when the study is continued
        if (parent := multiprocessing.parent_process()) is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    study = pickle.loads(packed)  # by the parent process, a moment ago
    dataclasses.replace(study, number=number).work(left[number::jobs])


def _differences(was: dict[str, Any], now: dict[str, Any]) -> str:
    """Every setting that differs, with its value then and now: ``epochs=3 (now 4)``."""
    was, now = ({**one, **one.get("axes", {}), **one.get("fixed", {}), "axes": 0, "fixed": 0} for one in (was, now))
    differ = [key for key in now | was if was.get(key) != now.get(key)]
    words = {key: f"{key}={was.get(key, 'unset')} (now {now.get(key, 'unset')})" for key in differ}
    return ", ".join("other data or splits" if key == "data" else words[key] for key in differ)


def _proposed(question: Question, number: int, known: Sequence[Trial], higher_is_better: bool) -> Point:
    """A point that no earlier trial had, by optuna's estimator, or drawn if it only repeats earlier ones."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    axes = {key: optuna.distributions.CategoricalDistribution(values) for key, values in question.space.axes.items()}
    tried = [trial.settings for trial in known]
    study = optuna.create_study(direction="maximize" if higher_is_better else "minimize")
    for trial in known:
        with suppress(ValueError):  # one that was stopped, or whose point is not one of the grid
            study.add_trial(optuna.trial.create_trial(params=trial.settings, distributions=axes, value=trial.value))
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


def without_test(task: Task, runs: int | None = None) -> Task:
    """The task with the splits of the first `runs` runs, without their test parts and graphs only used there.

    An evaluation computes the outputs of all graphs. They do not see each other, so the others keep theirs.
    """
    splits = [dataclasses.replace(split, test=split.test[:0]) for split in task.splits[:runs]]
    if task.kind != "graphs":
        return task.with_splits(splits)
    used = torch.cat([part for split in splits for part in split.parts().values()]).unique()
    found, names = GraphBatches(task, batch_size=1).batch(used), task.instance_names
    facts: dict[str, Any] = {n: getattr(found, n) for n in ("x", "y", "edge_index", "edge_weight", "node_ptr")}
    facts["instance_names"] = tuple(names[graph] for graph in used.tolist()) if names else ()
    parts = ([torch.searchsorted(used, part) for part in split.parts().values()] for split in splits)
    facts["splits"] = tuple(Split(split.name, *own) for split, own in zip(splits, parts, strict=True))
    return dataclasses.replace(task, **facts)
