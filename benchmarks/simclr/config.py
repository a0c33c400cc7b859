"""What decides a SimCLR run, and its schedule.

The learning rate of step t of T, with W steps of warm-up, is

    η(t) = η · (t + 1)/W                        for t < W,
    η(t) = η/2 · (1 + cos(π (t - W)/(T - W)))   after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from benchmarks.simclr.augment import ViewConfig


@dataclass(frozen=True)
class SimCLRConfig:
    """Everything that decides the result. See ``train_simclr`` for the meaning of each."""

    epochs: int = 200
    batch_size: int = 500
    temperature: float = 0.2
    learning_rate: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 10.0
    width: int = 64
    projection_dim: int = 128
    views: ViewConfig = field(default_factory=ViewConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 2), ("width", 1), ("projection_dim", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("temperature", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "warmup_epochs"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


def learning_rate_at(step: int, steps_per_epoch: int, config: SimCLRConfig) -> float:
    """η(t): a linear rise, then half a cosine down to zero."""
    total = config.epochs * steps_per_epoch
    warmup = round(min(config.warmup_epochs, config.epochs / 10) * steps_per_epoch)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    return config.learning_rate / 2 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
