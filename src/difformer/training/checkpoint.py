"""Checkpoints: one file from which a run is resumed, bit-identical to an uninterrupted run.

A checkpoint is a safetensors file: parameters, their best state, the optimiser's moments and the generators' states as
tensors, everything else as JSON in the file's header. It is one file that is renamed into place, so it is always
complete and consistent; the format cannot carry code. The schedule of the learning rate and the order of batches are
functions of the epoch and need no state.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, uint8

from difformer.errors import UserError
from difformer.files import write_bytes
from difformer.training.config import TrainConfig

FORMAT = 1


class CheckpointError(UserError):
    """A checkpoint that cannot be used: damaged, of another run, or written by a newer version."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run, or of runs that are trained as one."""

    tensors: dict[str, Tensor]  # on the CPU: ``model.…``, ``best.…``, ``optimizer.0.exp_avg``, ``rng.0``, …
    facts: dict[str, Any]  # everything else, as JSON

    @property
    def epoch(self) -> int:
        return int(self.facts["epoch"])

    @staticmethod
    def copied(tensors: dict[str, Tensor], **facts: Any) -> Snapshot:
        """A snapshot of copies: training continues while it is kept."""
        copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        return Snapshot(copies, json.loads(json.dumps({"format": FORMAT, **facts})))

    def part(self, name: str) -> dict[str, Tensor]:
        """Tensors whose names begin with ``name.``, by the rest of their names."""
        start = f"{name}."
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}

    def write(self, path: Path) -> None:
        """Writes one file, completely or not at all."""
        facts = json.dumps(self.facts)
        metadata = {"difformer": facts, "hash": _digest(self.tensors, facts)}
        write_bytes(path, save_tensors(self.tensors, metadata=metadata))

    @staticmethod
    def read(path: Path) -> Snapshot:
        """Reads what `write` wrote."""
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                about = file.metadata() or {}
                facts = json.loads(about.get("difformer", "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError, RecursionError, OSError) as error:
            raise CheckpointError(f"damaged, or not a checkpoint: {error}") from error
        if not isinstance(facts, dict) or type(facts.get("format")) is not int:
            raise CheckpointError("not a checkpoint of a training run")
        if about.get("hash") != _digest(tensors, about["difformer"]):
            raise CheckpointError("damaged: its content does not match its hash")
        if newer := newer_format(facts["format"], FORMAT):
            raise CheckpointError(newer)
        return Snapshot(tensors, facts)


def newer_format(written: int, known: int) -> str:
    """What is wrong with a file in a format of a later version; empty if nothing is."""
    return "" if written <= known else f"in format {written}, this difformer reads up to {known}: upgrade difformer"


def same_shapes(found: dict[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a snapshot, after a check that they have the names and shapes of the `expected` ones."""
    for name in {**expected, **found}:
        if name not in found or name not in expected or found[name].shape != expected[name].shape:
            raise UserError(f"{name} is missing, unknown or of another shape")
    return found


def _digest(tensors: dict[str, Tensor], facts: str) -> str:
    found = hashlib.sha256(facts.encode())
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.contiguous().reshape(-1).view(uint8).numpy().data)
    return found.hexdigest()


class Due:
    """When the next checkpoint is due: by epochs or by the clock, but not for more than 2 % of the time."""

    def __init__(self, config: TrainConfig) -> None:
        self.every, self.seconds = config.checkpoint_every, config.checkpoint_seconds
        self.last = self.asked = time.perf_counter()
        self.cost = 0.0

    def __call__(self, epoch: int) -> bool:
        self.asked = time.perf_counter()
        by_count = self.every is not None and epoch % self.every == 0
        return by_count or self.asked - self.last >= max(self.seconds, 50 * self.cost)

    def done(self) -> None:
        self.last = time.perf_counter()
        self.cost = self.last - self.asked
