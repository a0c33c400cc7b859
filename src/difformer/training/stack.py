"""Stacked training: runs that share shapes are trained as one model with a leading axis.

Seeds, splits, learning rates, weight decays, dropout rates, step sizes, graph and source weights may differ from run to
run; everything that changes a shape or the order of operations may not. Each run has the initialisation, the dropout
masks and the steps of its own single run, so its result is that of `train_one` up to rounding.

A small model leaves a GPU idle between kernels; a stack of many fills it. A CPU is idle only while operations are
called, which takes microseconds: states of 20 nodes × 4 channels gain sevenfold from a stack of 20, those of Cora
(2,708 × 64), which keep all cores busy and fit the cache, nothing (`faster`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from difformer.data import Task
from difformer.errors import UserError
from difformer.free_memory import free_bytes
from difformer.training.callbacks import Callback
from difformer.training.checkpoint import Snapshot
from difformer.training.config import TrainConfig
from difformer.training.devices import resolve
from difformer.training.journal import NonFiniteLossError, Run
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord, Status
from difformer.training.run_memory import chunks_that_fit
from difformer.training.stack_trainer import StackTrainer

# Options of models that a stack may hold several values of: plain attributes that enter a pass as numbers.
HYPER = ("dropout", "step_size", "graph_weight", "source_weight")
RATES = ("learning_rate", "weight_decay")
# Entries of one run's states, and of its pairs, from which on it keeps a device busy by itself.
FULL = {"cpu": (2**16, 2**18), "cuda": (2**24, 2**24)}
FEWEST = {"cpu": 8, "cuda": 2}  # runs from which a stack is quicker than one run after the other
LINEAR = ("simple", "constant", "identity", None)


@dataclass(frozen=True)
class StackedSetting:
    """What sets a run apart from the others of its stack; None takes the configuration's value.

    Args:
        seed: Of initialisation and dropout.
        split: Number of its split in the task.
        learning_rate: Of Adam.
        weight_decay: λ.
        dropout: p.
        step_size: τ.
        graph_weight: w; a stack cannot hold both runs that mix and runs that add.
        source_weight: β.
    """

    seed: int = 0
    split: int = 0
    learning_rate: float | None = None
    weight_decay: float | None = None
    dropout: float | None = None
    step_size: float | None = None
    graph_weight: float | None = None
    source_weight: float | None = None

    def config(self, base: TrainConfig) -> TrainConfig:
        """The configuration of this run alone."""
        rates = {name: value for name in RATES if (value := getattr(self, name)) is not None}
        options = {name: value for name in HYPER if (value := getattr(self, name)) is not None}
        return base.replace(options={**base.options, **options}, **rates)


def train_stacked(
    task: Task,
    settings: Sequence[StackedSetting],
    config: TrainConfig,
    device: str | torch.device = "auto",
    *,
    callbacks: Iterable[Callback] = (),
    stop: Callable[[], bool] | None = None,
    keep_errors: bool = False,
    chunk: int | None = None,
    state: Snapshot | None = None,
    save: Callable[[Snapshot], None] | None = None,
) -> list[Any]:
    """Train runs as one, in chunks that fit the memory that is free.

    Args:
        task: What is to be learnt: nodes of one graph, all in every pass, or a series of snapshots.
        settings: One per run.
        config: What all runs share.
        device: See `difformer.training.devices.resolve`.
        callbacks: Called after every evaluated epoch of every run; a GPU has to wait for each.
        stop: Called after every epoch; once it returns True the runs end as ``"interrupted"``. Chunks that were not
            started are left out of the result.
        keep_errors: Whether a run whose loss does not stay finite gives its `NonFiniteLossError` in place of a record;
            otherwise the first such error is raised, after all runs are done.
        chunk: Largest number of runs to train as one; None leaves it to the memory.
        state: A snapshot of the same stack, which is resumed.
        save: Called with a snapshot to resume from, as often as the configuration says; only where all runs fit into
            one chunk.

    Returns:
        One `RunRecord` per setting, in their order.

    Raises:
        NonFiniteLossError: See `keep_errors`.
        CheckpointError: If `state` is one of other runs.
        UserError: If the runs cannot be stacked, naming what differs.
    """
    place, listeners = resolve(device), tuple(callbacks)
    runs, hyper = _runs(task, settings, config)
    order = sorted(range(len(runs)), key=lambda i: runs[i].split)
    found: dict[int, RunRecord | NonFiniteLossError] = {}
    with isolated_rng(place):
        each = estimate_memory(task, [runs[i] for i in order[:2]], hyper, place) if runs else 0
        sizes = chunks_that_fit(len(order), each, free_bytes(place), chunk) if state is None else [len(order)]
        rest = iter(order)
        waiting = [list(islice(rest, size)) for size in sizes]
        status: Status = "finished"
        while waiting and status == "finished":
            part = waiting.pop(0)
            try:
                trained = [runs[i] for i in part]
                resumable = (state, save) if part == order else (None, None)
                status, records = _train(trained, task, hyper, place, listeners, stop, *resumable)
            except torch.cuda.OutOfMemoryError:
                if len(part) == 1:
                    raise
                records = None
            if records is None:  # outside the handler, which holds the tensors of the failed attempt
                torch.cuda.empty_cache()
                waiting = [part[: len(part) // 2], part[len(part) // 2 :], *waiting]
            else:
                found.update(zip(part, records, strict=True))
    if not keep_errors:
        for i in sorted(found):
            if isinstance(error := found[i], NonFiniteLossError):
                raise error
    return [found[i] for i in range(len(runs)) if i in found]


def _train(
    runs: Sequence[Run],
    task: Task,
    hyper: Sequence[str],
    device: torch.device,
    callbacks: Sequence[Callback],
    stop: Callable[[], bool] | None,
    state: Snapshot | None,
    save: Callable[[Snapshot], None] | None,
) -> tuple[Status, list[RunRecord | NonFiniteLossError]]:
    trainer = StackTrainer(task, runs, hyper, device)
    if state is not None:
        trainer.restore(state)
    status = trainer.run(callbacks, stop, save)
    return status, trainer.records(status)


def estimate_memory(task: Task, runs: Sequence[Run], hyper: Sequence[str], device: torch.device) -> int:
    """Bytes of one run of a stack, from one forward pass of one or two runs."""
    return StackTrainer(task, runs, hyper, device).memory()


def _runs(task: Task, settings: Sequence[StackedSetting], config: TrainConfig) -> tuple[list[Run], tuple[str, ...]]:
    """Complete configurations, and the names of those options that differ between them."""
    from difformer.zoo import options_of

    reason = unstackable(task, config, {setting.split for setting in settings})
    if reason:
        raise UserError(f"runs of {config.model!r} on {task.name!r} cannot be trained as one: {reason}")
    known = options_of(config.model)
    runs = []
    for setting in settings:
        if not 0 <= setting.split < len(task.splits):
            raise UserError(f"split {setting.split} of a setting: task {task.name!r} has {len(task.splits)} splits")
        own = setting.config(config)
        given = {name: own.options.get(name, known[name]) for name in HYPER if name in known}
        runs.append(Run(setting.seed, setting.split, own.replace(options={**own.options, **given})))
    hyper = [n for n in HYPER if n in known and len({run.config.options[n] for run in runs}) > 1]
    for name in hyper:
        if any(run.config.options[name] is None for run in runs):
            raise UserError(f"{name} is a number in some settings and none in others; stack those apart")
    return runs, tuple(hyper)


def unstackable(task: Task, config: TrainConfig, splits: Iterable[int] = (0,)) -> str:
    """Why runs cannot be stacked; empty where they can."""
    from difformer.zoo import find

    if not find(config.model).stackable:
        return "the model is not one that can be stacked"
    if config.options.get("method") == "dopri5":
        return "an adaptive solver takes as many steps as one run needs"
    if task.kind == "graphs":
        return "batches of graphs differ from seed to seed"
    if task.kind == "nodes" and config.batch_size is not None and config.batch_size < task.num_nodes:
        return "mini-batches differ from seed to seed"
    if task.kind == "series" and len(set(splits)) > 1:
        return "runs on a series must share their split"
    return ""


def faster(task: Task, config: TrainConfig, runs: int, device: str | torch.device = "auto") -> bool:
    """Whether a stack of `runs` is likely to be faster than one run after the other; False where it is not possible."""
    kind = resolve(device).type
    if kind not in FULL:  # such as mps, which has no float64 to keep scores in
        return False
    if runs < FEWEST[kind] or unstackable(task, config):
        return False
    from difformer.zoo import find, options_of

    options = {**options_of(config.model), **find(config.model).fixed, **config.options}
    looks_at_pairs = "N²" in find(config.model).cost and options.get("diffusivity") not in LINEAR
    rows = task.num_nodes * (task.num_instances if task.kind == "series" else 1)
    states, pairs = FULL[kind]
    return rows * int(options["hidden_channels"]) <= states and (not looks_at_pairs or rows * task.num_nodes <= pairs)


def apart(config: TrainConfig) -> TrainConfig:
    """What runs must have in common to be stacked: `config` with all that may differ set to one value.

    Two runs belong into one stack if this is equal for both.
    """
    from difformer.zoo import options_of

    complete: dict[str, Any] = {**options_of(config.model), **config.options}
    options = {name: value for name, value in complete.items() if name not in HYPER}
    if "graph_weight" in complete:
        options["graph_weight"] = None if complete["graph_weight"] is None else 0.5
    return dataclasses.replace(config, options=options, learning_rate=1.0, weight_decay=0.0)
