r"""What is measured of a run: scores beside its metric, memory, time per epoch, and what the trained model looks like.

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

import gc
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from difformer.data import Split, Task, period_scale
from difformer.experiments.ledger import code_version
from difformer.report.gather import Scene, draw, make_scene
from difformer.report.layers import chance, latent_layers, layer_energies, why_no_attention
from difformer.report.maps import project
from difformer.training.config import TrainConfig
from difformer.training.devices import describe
from difformer.training.feeds import DEFAULT_BATCH_SIZE, make_feed
from difformer.training.loop import Trainer
from difformer.training.metrics import METRICS, rocauc, same_shape
from difformer.training.model import build_model
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord
from difformer.training.trained_run import Loaded

WARM_UP, EPOCHS, QUICK_EPOCHS = 2, 10, 2
LONG = 10.0  # seconds per epoch from which on a single epoch is timed
POINTS, PAIRS, SNAPSHOTS = 800, 80, 3


class Interrupted(Exception):
    """A run that was stopped before its end, after `epochs` epochs."""

    def __init__(self, epochs: int = 0) -> None:
        super().__init__(f"stopped after {epochs} epochs")
        self.epochs = epochs


def measure(
    names: Sequence[str], dataset: str, task: Task, split: Split, config: TrainConfig, outputs: Tensor
) -> dict[str, Any]:
    """All measures of these names on the test part."""
    predicted, wanted = outputs[split.test].float(), task.y[split.test]
    found: dict[str, Any] = {}
    for name in names:
        if name == "period-mse":
            scale = period_scale(dataset, lags=task.num_features)
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
    """Measure the peak memory of a block.

    Args:
        device: Whose memory is meant; for a CPU it is that of the process.
        added: Whether to subtract what a GPU held before; for a CPU this is always done.
    """
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
    was_reset = _reset_peak()
    before = _status("VmRSS")
    yield found
    after = _status("VmHWM")
    if was_reset and before is not None and after is not None:
        found.bytes = max(after - before, 0)


def _reset_peak() -> bool:
    """Reset the process's peak memory to the present value; False if the system does not allow it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory would otherwise not count when it is used again
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(what: str) -> int | None:
    place = Path("/proc/self/status")
    lines = place.read_text().splitlines() if place.is_file() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(what)), None)


def training_peak(task: Task, config: TrainConfig, seed: int, device: torch.device) -> Peak:
    """Peak memory of one epoch of training, without evaluation."""
    with isolated_rng(device):
        torch.manual_seed(seed)
        trainer = Trainer(task, task.splits[seed % len(task.splits)], config, seed, device)
        trainer.train_epoch()  # the first epoch also allocates what stays
        with peak_memory(device, added=False) as peak:
            trainer.train_epoch()
    return peak


def surroundings(device: torch.device) -> dict[str, Any]:
    """Device, threads and versions, for the ledger."""
    import numpy

    return {
        "device": f"{_processor()}, {torch.get_num_threads()} threads" if device.type == "cpu" else describe(device),
        "versions": {
            "difformer": code_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def _processor() -> str:
    place = Path("/proc/cpuinfo")
    lines = place.read_text(errors="replace").splitlines() if place.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


class Cost(NamedTuple):
    """Seconds per epoch, and how many epochs and seconds the measurement took with warm-up."""

    each: float
    epochs: int
    seconds: float


def epoch_cost(
    task: Task, config: TrainConfig, seed: int, device: torch.device, stop: Callable[[], bool], *, quick: bool
) -> Cost:
    """Time the epochs of one run.

    Raises:
        Interrupted: If `stop` is true.
    """

    def timed(number: int) -> float:
        # Waits for the device at the end only: as in training, an epoch starts while the previous one still runs.
        began = time.perf_counter()
        for _ in range(number):
            if stop():
                raise Interrupted(trainer.epoch)
            trainer.train_epoch()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    with isolated_rng(device):
        torch.manual_seed(seed)
        trainer = Trainer(task, task.splits[seed % len(task.splits)], config, seed, device)
        before = [timed(1) for _ in range(WARM_UP)]
        number = (QUICK_EPOCHS if quick else EPOCHS) if before[-1] < LONG else 1
        counted = timed(number)
    return Cost(counted / number, WARM_UP + number, sum(before) + counted)


def look(mode: str, task: Task, config: TrainConfig, record: RunRecord, device: torch.device) -> dict[str, Any]:
    """Energy by layer of a trained model and, for ``"visualise"``, maps of its states and its strongest pairs."""
    split = task.splits[record.seed % len(task.splits)]
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
    latent = _latent(scene, shown, classes)
    if latent and classes is not None:
        found |= {"within": [one.within for one in latent], "uniform": chance(classes, shown)}
        found["entropy"] = [one.entropy for one in latent]
    return {**found, "pictures": _layers(scene, shown, classes, latent)}


def _latent(scene: Scene, shown: Tensor, classes: Tensor | None) -> list[Any]:
    """Latent layers; empty if the model has no attention to show."""
    if not len(scene.difformer.layers) or why_no_attention(scene.difformer.layers[0]):  # type: ignore[arg-type]
        return []
    return latent_layers(scene, shown, classes)


def _layers(scene: Scene, shown: Tensor, classes: Tensor | None, latent: list[Any]) -> list[dict[str, Any]]:
    """Input, first and last layer: states with the pairs of the step that produced them."""
    assert scene.states is not None
    maps = project([states[shown] for states in scene.states])
    last = len(maps) - 1
    own = None if classes is None else classes[shown].tolist()
    return [
        {
            "title": "before diffusion" if k == 0 else f"layer {k} of {last}",
            "x": maps[k].x,
            "y": maps[k].y,
            "classes": own,
            "values": None,
            "pairs": _pairs(latent[k - 1]) if k and latent else [],
        }
        for k in dict.fromkeys((0, min(1, last), last))
    ]


def _snapshot(loaded: Loaded, task: Task, number: int) -> dict[str, Any]:
    """Attention of the first layer at one snapshot, with nodes coloured by their targets."""
    scene = make_scene(loaded, number)
    assert scene.states is not None
    latent = _latent(scene, torch.arange(scene.size), None)
    first = project([scene.states[min(1, len(scene.states) - 1)]])[0]
    return {
        "title": f"snapshot {number}, layer 1",
        "x": first.x,
        "y": first.y,
        "classes": None,
        "values": [round(value, 4) for value in task.y[number].tolist()],
        "pairs": _pairs(latent[0]) if latent else [],
    }


def _pairs(layer: Any) -> list[list[float]]:
    return [list(one) for one in zip(layer.source[:PAIRS], layer.target[:PAIRS], layer.weight[:PAIRS], strict=True)]
