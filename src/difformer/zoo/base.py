"""What the systems of the zoo share: states first, outputs from a linear map."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.nn.conv import check_count
from difformer.nn.protocol import Edges, Features


class Encoder(nn.Module):
    """A model of `difformer.nn.Model`'s form: a subclass gives `embed`, and `output` where its decoder is linear."""

    output: nn.Linear

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the penalty of the last pass hangs on to that pass and is left out."""
        return {**vars(self), "_penalty": None} if "_penalty" in vars(self) else vars(self)

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""
        raise NotImplementedError(f"{type(self).__name__} must say how it embeds")

    def decode(self, states: Tensor) -> Tensor:
        """Outputs of states, or of pooled states: ``[…, out_channels]``."""
        return self.output(states)

    def forward(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Outputs ``[N, out_channels]``."""
        return self.decode(self.embed(x, edge_index, edge_weight, batch))


def check_layers(num_layers: int, least: int = 1) -> None:
    """Raises a ValueError unless there are at least so many layers."""
    check_count("num_layers", num_layers, least)


def check_rate(name: str, value: float) -> None:
    """Raises a ValueError unless `value` lies in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {value!r}")


def check_share(name: str, value: float) -> None:
    """Raises a ValueError unless `value` lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raises a ValueError unless `value` is finite and above zero."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number above 0, got {value!r}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises a ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
