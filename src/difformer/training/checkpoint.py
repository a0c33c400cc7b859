"""Checkpoints: one file from which a run is resumed, to the same bits as if it had never stopped.

A checkpoint is a safetensors file: parameters, their best state, the optimiser's moments and the generators' states as
tensors, everything else as JSON in the file's header. Being one file that is renamed into place, it is always whole and
consistent; being safetensors, it can carry no code. The schedule of the learning rate and the order of batches are
functions of the epoch and need no state.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, uint8

from difformer.errors import UserError
from difformer.files import write_whole
from difformer.training.config import TrainConfig
from difformer.training.journal import PARTS
from difformer.training.randomness import rng_state, set_rng_state

if TYPE_CHECKING:
    from difformer.training.loop import Trainer

FORMAT = 1


class CheckpointError(UserError):
    """A checkpoint that cannot be used: damaged, of another run, or written by a newer version."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run."""

    tensors: dict[str, Tensor]  # on the CPU: ``model.…``, ``best.…``, ``optimizer.0.exp_avg``, ``rng.0``, …
    facts: dict[str, Any]  # the rest, as JSON has it

    @property
    def epoch(self) -> int:
        return int(self.facts["epoch"])

    @staticmethod
    def copied(tensors: dict[str, Tensor], **facts: Any) -> Snapshot:
        """Copies throughout: training continues while the snapshot is kept."""
        copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        return Snapshot(copies, json.loads(json.dumps({"format": FORMAT, **facts})))

    @staticmethod
    def of(trainer: Trainer) -> Snapshot:
        """Everything of a trainer that changes while it trains."""
        tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in trainer.best_state.items()}
        tensors |= {f"rng.{i}": value for i, value in enumerate(rng_state(trainer.device))}
        if trainer.optimizer is not None:
            for i, moments in trainer.optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{i}.{name}": value for name, value in moments.items()}
        journal, device = trainer.journal, trainer.device.type
        found = {"best_epoch": journal.best_epoch, "best": journal.best, "history": journal.history, "device": device}
        who = {"seed": trainer.seed, "split": trainer.split.name}
        return Snapshot.copied(tensors, **who, epoch=trainer.epoch, **found, seconds=trainer.seconds)

    def into(self, trainer: Trainer) -> None:
        """Puts a new trainer of the same run into the state of the snapshot."""
        for name, here in (("seed", trainer.seed), ("split", trainer.split.name)):
            if self.facts.get(name) != here:
                raise CheckpointError(f"the checkpoint is of {name} {self.facts.get(name)!r}, this run has {here!r}")
        try:
            trainer.model.load_state_dict(self._part("model"))
            best = self._part("best")
            for name, value in trainer.best_state.items():
                value.copy_(best[name])
            if trainer.optimizer is not None:
                moments: dict[int, dict[str, Tensor]] = {}
                for name, value in self._part("optimizer").items():
                    number, _, moment = name.partition(".")
                    moments.setdefault(int(number), {})[moment] = value
                _check_moments(moments, [p for group in trainer.optimizer.param_groups for p in group["params"]])
                described = trainer.optimizer.state_dict()
                trainer.optimizer.load_state_dict({"state": moments, "param_groups": described["param_groups"]})
            if self.facts["device"] == trainer.device.type:
                set_rng_state(trainer.device, list(self._part("rng").values()))
            trainer.epoch, trainer.seconds = self.epoch, float(self.facts["seconds"])
            journal, known = trainer.journal, self.facts["best"]
            journal.best_epoch = int(self.facts["best_epoch"])
            journal.best = None if known is None else {part: float(known[part]) for part in PARTS}
            rows = self.facts["history"]
            journal.history = [{**row, "epoch": int(row["epoch"]), "loss": float(row["loss"])} for row in rows]
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error

    def _part(self, name: str) -> dict[str, Tensor]:
        start = f"{name}."
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}

    def write(self, path: Path) -> None:
        """One file, whole or not at all."""
        facts = json.dumps(self.facts)
        metadata = {"difformer": facts, "hash": _digest(self.tensors, facts)}
        write_whole(path, save_tensors(self.tensors, metadata=metadata))

    @staticmethod
    def read(path: Path) -> Snapshot:
        """What `write` wrote."""
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                about = file.metadata() or {}
                facts = json.loads(about.get("difformer", "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError, RecursionError, OSError) as error:
            raise CheckpointError(f"damaged, or not a checkpoint: {error}") from error
        if not isinstance(facts, dict) or type(facts.get("format")) is not int:
            raise CheckpointError("not a checkpoint of a training run")
        # Checkpoints of version 0.1 have no hash.
        if about.get("hash", expected := _digest(tensors, about["difformer"])) != expected:
            raise CheckpointError("damaged: its content is not what was written")
        if facts["format"] > FORMAT:
            raise CheckpointError(
                f"written in format {facts['format']}, this difformer reads up to {FORMAT}: upgrade difformer"
            )
        return Snapshot(tensors, facts)


def _digest(tensors: dict[str, Tensor], facts: str) -> str:
    """Hash of all that a checkpoint holds."""
    found = hashlib.sha256(facts.encode())
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.contiguous().reshape(-1).view(uint8).numpy().data)
    return found.hexdigest()


def _check_moments(moments: dict[int, dict[str, Tensor]], parameters: list[Tensor]) -> None:
    """Refuses moments of another optimiser or model, which would fail in the first step."""
    kinds = {frozenset(each) for each in moments.values()}
    fits = all(
        0 <= i < len(parameters) and all(value.shape in ((), parameters[i].shape) for value in each.values())
        for i, each in moments.items()
    )
    if not fits or len(kinds) > 1 or not all("step" in kind for kind in kinds):
        raise UserError("its moments do not belong to the parameters")


class Due:
    """When the next checkpoint is due: by count of epochs, or by the clock, but never for more than 2 % of the time."""

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
