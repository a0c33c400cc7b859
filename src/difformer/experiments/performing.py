"""From a cell to its lines: the package's one training loop, and what is read off its records.

Seeds of a cell are trained as one stack where that is faster (`difformer.training.stacked`), else one after the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from difformer.data import Task
from difformer.experiments import baselines
from difformer.experiments.choosing import Cell
from difformer.experiments.ledger import DONE, Line, identity
from difformer.experiments.limits import Watch
from difformer.experiments.measures import measure
from difformer.experiments.measuring import Peak, peak_memory
from difformer.training.config import TrainConfig, make_config
from difformer.training.journal import NonFiniteLossError
from difformer.training.loop import Trainer, train_one
from difformer.training.metrics import find_metric
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord
from difformer.training.stacked import StackedSetting, faster, train_stacked
from difformer.zoo import MODELS, find, options_of

Stop = Callable[[], bool]
# Saving is for run folders; such fields decide nothing of a result.
_IRRELEVANT = ("checkpoint_every", "checkpoint_seconds")


class Interrupted(Exception):
    """A run that was stopped before its end; there is nothing to write of it.

    Args:
        epochs: How many it had.
    """

    def __init__(self, epochs: int = 0) -> None:
        super().__init__(f"stopped after {epochs} epochs")
        self.epochs = epochs


@dataclass(frozen=True)
class Ready:
    """A cell with its task and the configuration that its settings give."""

    cell: Cell
    task: Task
    config: TrainConfig | None
    settings: dict[str, Any]
    settings_id: str

    def run_id(self, seed: int) -> str:
        return identity(settings=self.settings_id, seed=seed, split=self.split(seed))

    def split(self, seed: int) -> str:
        return self.task.splits[seed % len(self.task.splits)].name


def ready(cell: Cell, task: Task, precision: str | None = None) -> Ready:
    """Everything a run depends on, defaults included.

    Args:
        cell: Which row of which table.
        task: Its data.
        precision: In which the run is made, where not in that of the cell's settings. As with the device, a run remains
            one of its cell, and its line says it.

    Raises:
        ValueError: If the settings are not those of the model.
    """
    config, settings = _configured(cell)
    if config is not None and precision is not None:
        config, settings = config.replace(precision=precision), {**settings, "precision": precision}
    return Ready(cell, task, config, settings, settings_id(cell))


def settings_id(cell: Cell) -> str:
    """The name of all that decides a cell's results but seed and split; equal where that is equal."""
    data, (_, settings) = cell.data, _configured(cell)
    about = {"dataset": data.dataset, "options": dict(data.options), "loader": data.loader, "mode": data.mode}
    return identity(settings=settings, measures=data.measures, **about)


def _configured(cell: Cell) -> tuple[TrainConfig | None, dict[str, Any]]:
    """Configuration and every setting; of a baseline its name alone."""
    if cell.system.baseline:
        return None, {"baseline": cell.system.baseline}
    config = make_config(cell.system.model, cell.choice.settings)
    return config, complete(config)


def complete(config: TrainConfig) -> dict[str, Any]:
    """Every setting of a configuration in one mapping, the model's defaults included."""
    fields = {key: value for key, value in config.to_dict().items() if key not in (*_IRRELEVANT, "options")}
    return {**fields, **find(config.model).fixed, **options_of(config.model), **config.options}


def why_not(cell: Cell, task: Task) -> str:
    """Why a system cannot be asked at all; empty where it can be tried. What would not fit says so itself."""
    system = cell.system
    if system.baseline:
        return "" if task.kind == "series" else "a baseline for series"
    info = MODELS[system.model]
    graph = cell.choice.settings.get("graph", "given")
    observed = task.edge_index is not None and graph == "given"
    if task.kind not in info.kinds:
        return f"{system.model} is not for {task.kind}"
    if info.needs_graph and not observed and not str(graph).startswith("knn"):
        return f"{system.model} needs a graph, and there is none"
    return ""


def perform(what: Ready, seeds: Sequence[int], device: torch.device, stop: Stop, shared: Line) -> Iterator[Line]:
    """One line a seed, as soon as it is there.

    Raises:
        Interrupted: If `stop` said so before a run was at its end.
        NonFiniteLossError: If a seed diverged, after all others were trained.
    """
    mode = what.cell.data.mode
    if mode == "cost":
        from difformer.experiments.costs import cost_lines

        yield from cost_lines(what, seeds, device, stop, shared)
        return
    for record, peak, together in _records(what, seeds, device, stop):
        line = {**shared, **_line(what, record, peak, together)}
        if mode in ("energy", "visualise"):
            from difformer.experiments.looking import look

            line["measures"] |= look(mode, what, record, device)
        yield line


def _records(
    what: Ready, seeds: Sequence[int], device: torch.device, stop: Stop
) -> Iterator[tuple[RunRecord, Peak, int]]:
    if what.config is None:
        for seed in seeds:
            yield _untrained(what, seed), Peak(), 1
        return
    task, config = what.task, what.config
    if not what.cell.data.alone and faster(task, config, len(seeds), device):
        begun(stop, len(seeds))
        with peak_memory(device) as peak:
            settings = [StackedSetting(seed, seed % len(task.splits)) for seed in seeds]
            results = train_stacked(task, settings, config, device, stop=stop, keep_errors=True)
        diverged = [one for one in results if isinstance(one, NonFiniteLossError)]
        whole = [one for one in results if isinstance(one, RunRecord) and one.status != "interrupted"]
        for record in whole:
            yield record, peak, len(results)
        if len(whole) + len(diverged) < len(seeds):
            cut = [one.epochs for one in results if isinstance(one, RunRecord) and one.status == "interrupted"]
            raise Interrupted(min(cut, default=0))
    else:
        diverged = []
        for seed in seeds:
            begun(stop)
            if stop():
                raise Interrupted
            try:
                with peak_memory(device) as peak:
                    record = train_one(task, seed % len(task.splits), config, seed, device, stop=stop)
                if what.cell.data.alone and record.status != "interrupted":
                    peak = training_peak(task, config, seed, device)
            except NonFiniteLossError as error:  # one seed must not take those after it with it
                diverged.append(error)
                continue
            if record.status == "interrupted":
                raise Interrupted(record.epochs)
            yield record, peak, 1
    if diverged:
        raise diverged[0]


def begun(stop: Stop, runs: int = 1) -> None:
    """Tells a watch that a run begins, or `runs` that are trained as one."""
    if isinstance(stop, Watch):
        stop.begin(runs)


def training_peak(task: Task, config: TrainConfig, seed: int, device: torch.device) -> Peak:
    """Memory at the peak of an epoch of training; evaluation, which sees the whole graph, is left out."""
    with isolated_rng(device):
        torch.manual_seed(seed)
        trainer = Trainer(task, task.splits[seed % len(task.splits)], config, seed, device)
        trainer.train_epoch()  # what is held from the first epoch on is not the second's
        with peak_memory(device, added=False) as peak:
            trainer.train_epoch()
    return peak


def _untrained(what: Ready, seed: int) -> RunRecord:
    """The record of a baseline."""
    task, started = what.task, time.perf_counter()
    split = task.splits[seed % len(task.splits)]
    outputs = baselines.predict(what.cell.system.baseline, task, split)
    metric = find_metric(what.cell.data.settings.get("metric", task.metric), task.problem)
    scores = {part: float(metric(outputs[index], task.y[index])) for part, index in split.parts().items()}
    return RunRecord(
        seed=seed,
        split=split.name,
        metric=metric.name,
        best_epoch=0,
        train=scores["train"],
        valid=scores["valid"],
        test=scores["test"],
        loss=math.nan,
        history=[],
        seconds=time.perf_counter() - started,
        state={},
        outputs=outputs.float(),
    )


def _line(what: Ready, record: RunRecord, peak: Peak, together: int) -> Line:
    data, task = what.cell.data, what.task
    split = task.splits[record.seed % len(task.splits)]
    config = what.config or TrainConfig()
    return {
        **described(what, record.seed),
        "metric": record.metric,
        "higher_is_better": find_metric(record.metric).higher_is_better,
        "train": record.train,
        "valid": record.valid,
        "test": record.test,
        "measures": measure(data.measures, data, task, split, config, record.outputs),
        "best_epoch": record.best_epoch,
        "epochs": record.epochs,
        "seconds": round(record.seconds, 4),
        "stacked": together,
        "peak_memory": peak.bytes,
    }


def described(what: Ready, seed: int) -> Line:
    """What a line says of its run whatever was measured."""
    cell, task = what.cell, what.task
    split = task.splits[seed % len(task.splits)]
    train, valid, test = split.sizes()
    return {
        "status": DONE,
        "id": what.run_id(seed),
        "data": cell.data.key,
        "dataset": cell.data.dataset,
        "data_options": dict(cell.data.options),
        "protocol": task.protocol,
        "system": cell.system.key,
        "model": cell.system.model or cell.system.baseline,
        "preset": cell.choice.name,
        "origin": cell.choice.origin,
        "trials": cell.choice.trials,
        "tuning_runs": cell.choice.runs,
        "settings": what.settings,
        "settings_id": what.settings_id,
        "seed": seed,
        "split": split.name,
        "sizes": [train, valid, test],
    }
