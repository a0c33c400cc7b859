r"""What is measured about a run: scores beside its metric, memory, time per epoch, and the states of its model.

Measures of the test part, from the outputs at the epoch chosen on validation:

* any metric of `difformer.training.metrics` by its name: ``"mse"``, ``"broadcast-mse"``, …
* ``"period-mse"``: squared error in units of the whole period's standard deviation, as series were published, see
  `difformer.data.period_scale`.
* ``"batch-rocauc"``: the mean AUROC over batches of test graphs, as the authors' code reports it. Batches have the
  run's ``batch_size``; batches with a single class are left out.

Time per epoch, with t_e the clock when epoch e is finished and the device is idle, is (t_{w + n} - t_w) / n. The first
w epochs, which load kernels, do not count, and neither does evaluation: in mini-batches it would hide what training
takes.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from difformer.data import Split, Task, period_scale
from difformer.experiments.ledger import code_version
from difformer.experiments.spec import Data
from difformer.free_memory import kernel_value
from difformer.report.gather import draw, make_scene
from difformer.report.layers import latent_layers, layer_energies, why_no_pairs
from difformer.report.maps import project
from difformer.training.config import TrainConfig
from difformer.training.devices import describe
from difformer.training.feeds import DEFAULT_BATCH_SIZE, make_feed
from difformer.training.loop import Trainer
from difformer.training.metrics import METRICS, rocauc, same_shape
from difformer.training.model import build_model, split_number
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord
from difformer.training.trained_run import Loaded

WARM_UP, EPOCHS, QUICK_EPOCHS = 2, 10, 2
LONG = 10.0  # seconds per epoch from which on a single epoch is timed
POINTS, PAIRS, SNAPSHOTS = 800, 80, 3
PROCESS, CPUS = Path("/proc/self/status"), Path("/proc/cpuinfo")


class Interrupted(Exception):
    """A run was stopped before its end."""


def split_of(task: Task, seed: int) -> Split:
    """The split that a seed uses."""
    return task.splits[split_number(task, seed)]


def measure(data: Data, task: Task, split: Split, config: TrainConfig, outputs: Tensor) -> dict[str, Any]:
    """All measures of a section on the test part."""
    predicted, wanted = outputs[split.test].float(), task.y[split.test]
    found: dict[str, Any] = {}
    for name in data.measures:
        if name == "period-mse":
            scale = period_scale(data.dataset, lags=task.num_features)
            found[name] = float(((same_shape(predicted, wanted) - wanted) * scale).square().mean())
        elif name == "batch-rocauc":
            size = config.batch_size or DEFAULT_BATCH_SIZE
            pairs = zip(predicted.split(size), wanted.split(size), strict=True)
            found[name] = float(torch.stack([rocauc(o, y) for o, y in pairs]).nanmean())
        else:
            found[name] = float(METRICS[name](predicted, wanted))
    return found


@dataclass
class Peak:
    """Peak memory in bytes; None if unknown."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device, *, added: bool = True) -> Iterator[Peak]:
    """Measure the peak memory of a block: of a GPU, minus what it held before if `added`, or added to the process."""
    found = Peak()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device) if added else 0
        yield found
        torch.cuda.synchronize(device)
        found.bytes = torch.cuda.max_memory_allocated(device) - held
        return
    before = _reset_peak()
    yield found
    if before and (after := kernel_value(PROCESS, "VmHWM:", 1024)):
        found.bytes = max(after - before, 0)


def _reset_peak() -> int | None:
    """Reset the process's peak memory to the present value and return it; None if the system does not allow it."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory would otherwise not count when it is used again
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):  # not Linux, or another C library
        return None
    return kernel_value(PROCESS, "VmRSS:", 1024)


def training_peak(task: Task, config: TrainConfig, seed: int, device: torch.device) -> Peak:
    """Peak memory of one epoch of training, without evaluation."""
    with isolated_rng(device, seed):
        trainer = Trainer(task, split_of(task, seed), config, seed, device)
        trainer.train_epoch()  # the first epoch also allocates what stays
        with peak_memory(device, added=False) as peak:
            trainer.train_epoch()
    return peak


def surroundings(device: torch.device) -> dict[str, Any]:
    """Device, threads and versions, for the ledger."""
    versions = {"difformer": code_version(), "torch": torch.__version__, "numpy": numpy.__version__}
    where = describe(device)
    if device.type == "cpu":
        listed = CPUS.read_text(errors="replace") if CPUS.is_file() else ""
        model = re.search(r"^model name\s*: (.+)$", listed, re.MULTILINE)
        where = f"{model[1].strip() if model else where}, {torch.get_num_threads()} threads"
    return {"device": where, "versions": {**versions, "python": platform.python_version()}}


def epoch_cost(
    task: Task, config: TrainConfig, seed: int, device: torch.device, stop: Callable[[], bool], *, quick: bool
) -> dict[str, Any]:
    """Seconds per epoch of one run as its measure, and how many epochs and seconds this took with warm-up."""

    def timed(number: int) -> float:
        # Waits for the device at the end only: as in training, an epoch starts while the previous one still runs.
        began = time.perf_counter()
        for _ in range(number):
            if stop():
                raise Interrupted
            trainer.train_epoch()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    with isolated_rng(device, seed):
        trainer = Trainer(task, split_of(task, seed), config, seed, device)
        before = [timed(1) for _ in range(WARM_UP)]
        number = (QUICK_EPOCHS if quick else EPOCHS) if before[-1] < LONG else 1
        counted = timed(number)
    measures = {"epoch_seconds": counted / number}
    return {"measures": measures, "epochs": WARM_UP + number, "seconds": sum(before) + counted}


def look(mode: str, task: Task, config: TrainConfig, record: RunRecord, device: torch.device) -> dict[str, Any]:
    """Energy by layer of a trained model and, for ``"visualise"``, maps of its states and its strongest pairs."""
    split = split_of(task, record.seed)
    with isolated_rng(device):
        model = build_model(task, config)
        model.load_state_dict(record.state)
        model.to(device).eval()
        feed = make_feed(task, split, config, record.seed, device, model)
        loaded = Loaded(model, feed, task, split, config.precision)
    classes = task.y if task.problem == "multiclass" and task.kind == "nodes" else None
    scene = make_scene(loaded)
    energies = layer_energies(scene, classes)
    found: dict[str, Any] = {"energy": energies.energy, "rank": energies.rank, "separation": energies.separation}
    if mode == "energy":
        return found
    if task.kind == "series":
        return {**found, "pictures": [_snapshot(loaded, task, n) for n in split.test[:SNAPSHOTS].tolist()]}
    shown = draw(scene.size, POINTS)
    latent = [] if why_no_pairs(scene) else latent_layers(scene, shown, classes)
    # Input, first and last layer: states with the pairs of the step that produced them.
    assert scene.states is not None
    maps = project([states[shown] for states in scene.states])
    last, own = len(maps) - 1, None if classes is None else classes[shown].tolist()
    found["pictures"] = [
        _picture(f"layer {k} of {last}" if k else "before diffusion", maps[k], latent[k - 1 : k] if k else [], own)
        for k in dict.fromkeys((0, min(1, last), last))
    ]
    return found


def _snapshot(loaded: Loaded, task: Task, number: int) -> dict[str, Any]:
    """Attention of the first layer at one snapshot, with nodes coloured by their targets."""
    scene = make_scene(loaded, number)
    assert scene.states is not None
    latent = [] if why_no_pairs(scene) else latent_layers(scene, torch.arange(scene.size), None)
    first = project([scene.states[min(1, len(scene.states) - 1)]])[0]
    values = [round(value, 4) for value in task.y[number].tolist()]
    return _picture(f"snapshot {number}, layer 1", first, latent[:1], values=values)


def _picture(title: str, where: Any, latent: list[Any], classes: Any = None, values: Any = None) -> dict[str, Any]:
    """Points of a map, and the strongest pairs of a layer."""
    pairs = [list(pair) for one in latent for pair in zip(one.source, one.target, one.weight, strict=True)]
    return {"title": title, "x": where.x, "y": where.y, "classes": classes, "values": values, "pairs": pairs[:PAIRS]}
