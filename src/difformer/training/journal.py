"""What the journals of one run (`difformer.training.loop`) and of runs trained as one (`…training.stack`) share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.errors import UserError
from difformer.training.config import TrainConfig
from difformer.training.record import Row, RunRecord

PARTS = ("train", "valid", "test")
Measured = dict[str, float]
NOTHING: Measured = dict.fromkeys(PARTS, math.nan)
AT_ONCE = ("accuracy", "broadcast-mse")  # metrics that `vmap` can take: no shape depends on data
RECORDABLE = (*AT_ONCE, "rocauc")  # metrics that never wait for a value, so that an evaluation can be recorded


class NonFiniteLossError(UserError, ArithmeticError):
    """The training loss, or an output in an evaluation, became NaN or infinite.

    Args:
        epoch: The first epoch with such a loss or output.
        loss: The loss; None if it was finite and the outputs were not.
        config: What was trained.
    """

    def __init__(self, epoch: int, loss: float | None, config: TrainConfig) -> None:
        self.epoch, self.loss, self.config = epoch, loss, config
        what = "the outputs of an evaluation are not finite" if loss is None else f"the training loss is {loss}"
        clip = "" if config.gradient_clip else ", gradient_clip=1"
        half = "" if config.precision == "float32" else ", precision=float32"
        super().__init__(
            f"{what} at epoch {epoch}; try a smaller learning_rate (it is {config.learning_rate:g}){clip}, "
            f"warmup=10{half}, and check that the features are finite and of similar scale",
            argument="learning_rate",
        )

    def __reduce__(self) -> tuple[Any, ...]:  # errors travel between processes
        return type(self), (self.epoch, self.loss, self.config)


def divergence(rows: Sequence[Row], broken: int, config: TrainConfig) -> NonFiniteLossError | None:
    """The error of the first loss that is not finite, or of outputs that are not, first in epoch `broken` (0: none)."""
    for row in rows:
        if not math.isfinite(row["loss"]) and (not broken or row["epoch"] <= broken):
            return NonFiniteLossError(row["epoch"], row["loss"], config)
    return NonFiniteLossError(broken, None, config) if broken else None


def parts_of(task: Task, split: Split, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Indices and targets of training, validation and test part, on a device."""
    return {name: (index.to(device), task.y[index].to(device)) for name, index in split.parts().items()}


Ended = RunRecord | NonFiniteLossError  # how a run of a stack ends


@dataclass(frozen=True)
class Run:
    """One run of a stack: its seed, the number of its split, and its configuration."""

    seed: int
    split: int
    config: TrainConfig
