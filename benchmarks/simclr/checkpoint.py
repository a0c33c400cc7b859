"""Checkpoints of a training run: written whole or not at all, taken up by the very run that wrote them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from difformer.files import atomic_write


def fingerprint(images: np.ndarray[Any, Any]) -> str:
    """SHA-256 of the images' shape and values."""
    digest = hashlib.sha256(repr(images.shape).encode())
    digest.update(np.ascontiguousarray(images).tobytes())
    return digest.hexdigest()


class Checkpoint:
    """One file that holds network, optimiser and losses of a run.

    Args:
        path: The file; need not exist yet.
        config: Everything that decides the run; another one is refused.
        data: Fingerprint of what it trains on; another one is refused.
    """

    def __init__(self, path: str | Path, config: dict[str, Any], data: str) -> None:
        self.path, self.config, self.data = Path(path), config, data

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
        """Writes the state after ``len(losses)`` epochs."""
        state = {
            "config": self.config,
            "data": self.data,
            "losses": list(losses),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        with atomic_write(self.path) as file:
            torch.save(state, file)

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        """Brings model and optimiser to the saved state.

        Returns:
            The losses so far, one an epoch; empty where there is no file yet.

        Raises:
            ValueError: If the file cannot be read, or is of a run with other options or other images.
        """
        if not self.path.exists():
            return []
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            config, data, losses = state["config"], state["data"], state["losses"]
        except Exception as error:
            raise ValueError(
                f"checkpoint {self.path} cannot be read ({type(error).__name__}: {error}); "
                f"delete it to start anew, or give another path"
            ) from error
        differing = [name for name in self.config if config.get(name) != self.config[name]]
        if differing:
            what = ", ".join(
                f"{name} is {config.get(name)!r} there and {self.config[name]!r} here" for name in differing
            )
            raise ValueError(f"checkpoint {self.path} is of another run: {what}; give another path or the same options")
        if data != self.data:
            raise ValueError(f"checkpoint {self.path} was trained on other images; give another path")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return [float(loss) for loss in losses]
