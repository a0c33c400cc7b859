"""What a run folder says of itself: everything that a result depends on, defaults included."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from difformer.data import Task
from difformer.native import library
from difformer.native.passes import FEWEST_ELEMENTS
from difformer.training.config import TrainConfig
from difformer.training.devices import describe
from difformer.training.source import TaskSource

FORMAT = 1


def description(
    task: Task,
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    device: torch.device,
    source: TaskSource | None,
    stacked: bool,
    preset: str | None = None,
) -> dict[str, Any]:
    """Everything that a result depends on, defaults included.

    `preset` is where the settings come from: a preset's name or the path of its file. It says nothing of its own, since
    the settings stand there in full, and is left out where there is none.
    """
    from difformer import __version__
    from difformer.zoo import options_of

    training = {name: value for name, value in config.to_dict().items() if name not in ("model", "options")}
    data: dict[str, Any] = {
        "task": task.name,
        "protocol": task.protocol,
        "fingerprint": task.fingerprint(),
        "kind": task.kind,
        "problem": task.problem,
        "metric": task.metric,
        "splits": [split.name for split in task.splits],
    }
    if source is not None:
        data["source"] = source.complete().to_dict()
    return {
        "run": {
            "format": FORMAT,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seeds": list(seeds),
            "stacked": stacked,
            **({} if preset is None else {"preset": preset}),
            "device": str(device),
            "device_name": describe(device),
            "threads": torch.get_num_threads(),
            **({"kernels": kernels()} if _profits_from_kernels(task, config, device) else {}),
        },
        "versions": {
            "difformer": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "data": data,
        "model": {"name": config.model, "options": {**options_of(config.model), **config.options}},
        "training": training,
    }


def kernels() -> str:
    """Which passes over rows this process has: ``"C"`` or ``"torch"``, which agree to rounding."""
    return "torch" if library() is None else "C"


def _profits_from_kernels(task: Task, config: TrainConfig, device: torch.device) -> bool:
    """Whether a pass is long enough for kernels in C; for others nothing is compiled."""
    rows = task.num_nodes * (task.num_instances if task.kind == "series" else 1)
    return device.type == "cpu" and rows * int(config.options.get("hidden_channels", 64)) >= FEWEST_ELEMENTS


def default_path(task_name: str, model: str, parent: str | Path = "runs") -> Path:
    """A folder that is not there yet, named after data set, model and time: ``runs/cora-mlp-20250131-235959``."""
    stem = f"{task_name}-{model}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = Path(parent) / stem, 1
    while path.exists():
        number += 1
        path = Path(parent) / f"{stem}-{number}"
    return path
