"""Running an experiment: finished runs are skipped, new ones are written at once, and gaps have a reason.

A run ends in one of four ways: a line with its scores; a line with the reason why there are none (missing data, not
enough memory, over the time limit, a loss that is not finite, an error); no line because the time was up; no line
because of Ctrl-C. The next call resumes the last two. Seeds of a cell train as one stack if that is faster
(`difformer.training.stack`), otherwise one after the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from difformer.data import DataError, Task
from difformer.data.download import check_folders
from difformer.errors import UserError, WouldNotFitError, out_of_memory
from difformer.experiments import measure
from difformer.experiments.cells import Cell, Request, wanted_cells
from difformer.experiments.ledger import CELL, DONE, FAILED, CellKey, Ledger, Line, cell_of, failures, run_id, run_key
from difformer.experiments.measure import Interrupted, Peak, peak_memory, split_of
from difformer.experiments.samples import baseline, load_data
from difformer.experiments.spec import Data, Experiment
from difformer.files import only_one, writing
from difformer.free_memory import free_bytes
from difformer.training.callbacks import stop_requests
from difformer.training.config import TrainConfig
from difformer.training.devices import resolve
from difformer.training.journal import NonFiniteLossError, Run
from difformer.training.loop import train_one
from difformer.training.metrics import find_metric
from difformer.training.model import split_number
from difformer.training.record import RunRecord
from difformer.training.stack import faster, train_stacked
from difformer.zoo import MODELS


@dataclass
class Outcome:
    """What a call did."""

    made: int = 0  # runs made by this call
    there: int = 0  # runs that existed before
    failed: dict[CellKey, str] = field(default_factory=dict)  # cells that could not be run, with the reason
    errors: int = 0  # how many of them are errors of the program, not of data, memory or divergence
    left: int = 0  # runs that remain
    stopped: str = ""  # "interrupted", "out of time", or empty

    def to_dict(self) -> dict[str, Any]:
        failed = [{"data": d, "system": s, "preset": p, "reason": why} for (d, s, p), why in self.failed.items()]
        return {**asdict(self), "failed": failed}


class Watch:
    """Whether to stop: if `stop` is true, or if the current runs have used up their `seconds` each."""

    def __init__(self, stop: Callable[[], bool], seconds: float = math.inf) -> None:
        self.stop, self.limit, self.too_long = stop, seconds, False
        self.begin()

    def begin(self, runs: int = 1) -> None:
        """Restart the clock; `runs` that train as one stack have the time of all of them."""
        self._began, self._allowed = time.monotonic(), runs * self.limit

    def __call__(self) -> bool:
        if self.stop():
            return True
        self.too_long = self.too_long or time.monotonic() - self._began > self._allowed
        return self.too_long


def why_not(cell: Cell, task: Task) -> str:
    """Why a system cannot run on a task at all; empty if it can be tried."""
    if cell.system.baseline:
        return ""
    info = MODELS[cell.system.model]
    graph = str(cell.preset.settings.get("graph", "given"))
    if task.kind not in info.kinds:
        return f"{cell.system.model} is not for {task.kind}"
    if info.needs_graph and not graph.startswith("knn") and (task.edge_index is None or graph != "given"):
        return f"{cell.system.model} needs a graph, and there are no edges"
    return ""


def line_of(cell: Cell, task: Task, seed: int, shared: Line, peak: Peak, **measured: Any) -> Line:
    """The line of a finished run."""
    preset, split, settings_id = cell.preset, split_of(task, seed), cell.settings_id()
    line = {
        **shared, **dict(zip(CELL, cell.key, strict=True)), "status": DONE,
        "key": run_key(settings_id, seed, split.name, cell.data.mode),
        "dataset": cell.data.dataset, "data_options": cell.data_options, "protocol": task.protocol,
        "model": cell.system.model or cell.system.baseline, "settings": cell.settings(), "settings_id": settings_id,
        "origin": preset.source, "trials": preset.trials, "tuning_runs": preset.runs,
        "seed": seed, "split": split.name, "sizes": list(split.sizes()),
        **measured, "seconds": round(measured["seconds"], 4), "peak_memory": peak.bytes,
    }  # fmt: skip
    return {**line, "id": run_id(line)}


def perform(
    cell: Cell, task: Task, seeds: Sequence[int], device: torch.device, watch: Watch, shared: Line
) -> Iterator[Line]:
    """One line per seed, as soon as it is finished; an error if `watch` stops a run, or at the end if one diverged."""
    data, config = cell.data, cell.config() or TrainConfig()
    if data.mode == "cost":
        none: Line = dict.fromkeys(("train", "valid", "test", "best_epoch"))
        none |= {"metric": "seconds per epoch", "higher_is_better": False, "stacked": 1}
        for seed in seeds:
            watch.begin()
            with peak_memory(device, added=False) as peak:
                found = measure.epoch_cost(task, config, seed, device, watch, quick=bool(shared["quick"]))
            yield line_of(cell, task, seed, shared, peak, **none, **found)
        return
    for record, peak, together in _records(cell, task, seeds, device, watch):
        measures = measure.measure(data, task, split_of(task, record.seed), config, record.outputs)
        if data.mode in ("energy", "visualise"):
            measures |= measure.look(data.mode, task, config, record, device)
        names = ("metric", "train", "valid", "test", "best_epoch", "epochs", "seconds")
        found = {name: getattr(record, name) for name in names}
        found |= {"higher_is_better": find_metric(record.metric).higher_is_better}
        yield line_of(cell, task, record.seed, shared, peak, **found, measures=measures, stacked=together)


def _records(
    cell: Cell, task: Task, seeds: Sequence[int], device: torch.device, watch: Watch
) -> Iterator[tuple[RunRecord, Peak, int]]:
    """Records with their memory and the number of runs that trained as one stack."""
    config, alone = cell.config(), cell.data.alone
    if config is None:
        yield from ((_untrained(cell, task, seed), Peak(), 1) for seed in seeds)
        return
    stack, diverged = not alone and faster(task, config, len(seeds), device), []
    for group in [seeds] if stack else [[seed] for seed in seeds]:
        watch.begin(len(group))
        if not stack and watch():
            raise Interrupted
        runs = [Run(seed, split_number(task, seed), config) for seed in group]
        results: list[Any] = []
        with peak_memory(device) as peak:
            try:
                if stack:
                    results = train_stacked(task, runs, device, stop=watch)
                else:
                    results = [train_one(task, runs[0].split, config, runs[0].seed, device, stop=watch)]
            except NonFiniteLossError as error:  # of one run; a stack returns it
                results = [error]
        stopped = len(results) < len(group)
        for found in results:
            if isinstance(found, NonFiniteLossError):
                diverged.append(found)
            elif found.status == "interrupted":
                stopped = True
            else:
                yield found, measure.training_peak(task, config, found.seed, device) if alone else peak, len(results)
        if stopped:
            raise Interrupted
    if diverged:
        raise diverged[0]


def _untrained(cell: Cell, task: Task, seed: int) -> RunRecord:
    started, split = time.perf_counter(), split_of(task, seed)
    outputs = baseline(cell.system.baseline, task, split)
    metric = find_metric(cell.data.settings.get("metric", task.metric), task.problem)
    train, valid, test = (float(metric(outputs[part], task.y[part])) for part in split.parts().values())
    seconds, name = time.perf_counter() - started, metric.name
    return RunRecord(seed, split.name, name, 0, train, valid, test, [], seconds, {}, outputs.float())


def run(experiment: Experiment, folder: Path, request: Request, say: Callable[[str], None]) -> Outcome:
    """Make every requested run that is missing; `say` is called with what happens."""
    device = resolve(request.device)
    check_folders()
    wanted = wanted_cells(experiment, request)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder), stop_requests() as stop:
        work = _Work(experiment, Ledger(folder), request, device, stop, say)
        for data in experiment.sections(request.quick):
            work.section(data, [cell for cell in wanted if cell.data.key == data.key])
    found = outcome_of(wanted, work.lines, request)
    found.made, found.there, found.stopped = work.made, found.there - work.made, work.stopped
    return found


def outcome_of(wanted: Sequence[Cell], lines: Sequence[Line], request: Request) -> Outcome:
    """Which requested runs a ledger holds, and why others are missing."""
    done = {(*cell_of(line), line["settings_id"], line["seed"]) for line in lines if line["status"] == DONE}
    found, failed = Outcome(), failures(lines)
    for cell in wanted:
        seeds, own = range(request.seeds or cell.data.seeds), cell.settings_id()
        there = sum((*cell.key, own, seed) in done for seed in seeds)
        found.there += there
        found.left += len(seeds) - there
        key = next((key for key in ((cell.data.key, "", ""), cell.key) if key in failed), None)
        if key is not None and there < len(seeds):
            found.failed[key] = failed[key]["reason"]
    found.errors = sum(bool(failed[key].get("fault")) for key in found.failed)
    return found


@dataclass
class _Work:
    """The state of one call."""

    experiment: Experiment
    ledger: Ledger
    request: Request
    device: torch.device
    stop: Callable[[], bool]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.began, self.made, self.stopped = time.monotonic(), 0, ""
        self.lines = self.ledger.read()
        # Two rows may have the same settings under different names: a run belongs to its row.
        self.done = {(*cell_of(line), line.get("key")) for line in self.lines if line["status"] == DONE}
        if any(bool(line.get("quick")) != self.request.quick for line in self.lines):
            there, asked = ("full", "quick") if self.request.quick else ("quick", "full")
            problem = f"{self.ledger.path.parent} holds {there} runs, but {asked} ones were requested, and the two are "
            problem += "never mixed: choose another folder with --out, or remove this one"
            raise UserError(problem)

    def write(self, line: Line) -> None:
        self.ledger.append(line)
        self.lines.append(line)

    def over(self) -> bool:
        """Whether no further run may start."""
        if not self.stopped:
            if self.stop():
                self.stopped = "interrupted"
            elif time.monotonic() - self.began > self.request.seconds:
                self.stopped = "out of time"
        return bool(self.stopped)

    def section(self, data: Data, wanted: Sequence[Cell]) -> None:
        """Every cell of one section; its data are loaded once per set of options."""
        loaded: dict[str, tuple[Task, Line]] = {}
        for cell in wanted:
            name = str(cell.options)
            if name not in loaded:
                if self.over() or (found := self._load(data, cell.options)) is None:
                    return
                loaded[name] = found
            self._cell(cell, *loaded[name])

    def _load(self, data: Data, options: Mapping[str, Any]) -> tuple[Task, Line] | None:
        """The task and what all its lines share; None if it cannot be loaded."""
        cpu = torch.device("cpu")
        free = free_bytes(cpu) / 1e9
        try:
            if data.needs > free:
                raise WouldNotFitError(f"the graph needs about {data.needs:g} GB, {free:.0f} GB are free")
            task = load_data(data, options)
        except Exception as error:  # other data sets still run
            reason, fault = reason_of(error, cpu)
            if isinstance(error, (DataError, OSError, ImportError)):
                self.say(f"{self.experiment.name} {data.key}: {error}")
                said = str(error).split(". ")[0].replace(str(Path.home()), "~")
                reason, fault = f"data not here: {said}", False
            self._refuse({"data": data.key, "id": f"data:{data.key}"}, reason, fault)
            return None
        shared = {"experiment": self.experiment.name, "quick": self.request.quick, "fingerprint": task.fingerprint()}
        return task, shared | measure.surroundings(self.device)

    def _cell(self, cell: Cell, task: Task, shared: Line) -> None:
        request, own, mode = self.request, cell.settings_id(), cell.data.mode
        keys = {s: run_key(own, s, split_of(task, s).name, mode) for s in range(request.seeds or cell.data.seeds)}
        seeds = [seed for seed, key in keys.items() if (*cell.key, key) not in self.done]
        if not seeds or self.over():
            return
        # What fails on one kind of device may work on another.
        about = dict(zip(CELL, cell.key, strict=True)) | {"settings_id": own, "id": f"{own} {self.device.type}"}
        earlier = self._earlier(about)
        # A run that took too long may have the time now.
        if earlier and not request.retry and not request.limit > earlier.get("limit", math.inf):
            return
        if reason := why_not(cell, task):
            self._refuse(about, reason)
            return
        watch = Watch(self.stop, request.limit)
        try:
            for made, line in enumerate(perform(cell, task, seeds, self.device, watch, shared), 1):
                self.write(line)
                self.made += 1
                score = "" if line["test"] is None else f": {line['metric']} {line['test']:.4f}"
                done = f"seed {line['seed']} [{made}/{len(seeds)}]{score}, {line['seconds']:.1f} s"
                self.say(f"{self.experiment.name} {cell.data.key} {cell.system.key} ({cell.preset.name}) {done}")
                if made < len(seeds) and self.over():
                    break
        except Interrupted:
            if watch.too_long:
                reason = f"too long: over {request.limit:g} s per run on {shared['device']}"
                self._refuse({**about, "limit": request.limit}, reason)
            else:
                self.stopped = "interrupted"
        except Exception as error:  # other systems still run; the table gives the reason
            self._refuse(about, *reason_of(error, self.device))

    def _earlier(self, about: Line) -> Line | None:
        """The last failure of the same attempt; lines of older versions match any attempt of their cell."""
        own, where = about.get("settings_id"), about["id"].split()[1:]
        for line in reversed([one for one in self.lines if cell_of(one) == cell_of(about)]):
            if line["status"] == DONE:
                return None
            if line.get("settings_id", own) == own and str(line.get("id", "")).split()[1:] == where:
                return line
        return None

    def _refuse(self, about: Line, reason: str, fault: bool = False) -> None:
        """Report why a cell or data set cannot be run, and write it down unless it is already known."""
        which = f"{about['system']} ({about['preset']})" if about.get("system") else ""
        self.say(f"{self.experiment.name} {about['data']} {which}".rstrip() + f": {reason}")
        if (self._earlier(about) or {}).get("reason") != reason:
            shared = {"experiment": self.experiment.name, "quick": self.request.quick, "device": str(self.device)}
            self.write({**shared, **about, "status": FAILED, "reason": reason, **({"fault": True} if fault else {})})


def reason_of(error: Exception, device: torch.device) -> tuple[str, bool]:
    """What a table shows in place of a score, and whether the program is at fault."""
    said = str(error).partition(";")[0]
    if isinstance(error, WouldNotFitError):
        return f"not enough memory: {said}", False
    if out_of_memory(error):
        return f"out of memory on {device}", False
    if isinstance(error, NonFiniteLossError):
        return f"diverged: {said}", False
    return f"{type(error).__name__}: {error}", not isinstance(error, ImportError)
