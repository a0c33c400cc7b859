"""Graph neural diffusion with a source: GRAND++ of Thorpe et al. (ICLR 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.zoo.grand import GRAND


class GRANDPlusPlus(GRAND):
    r"""GRAND with a source at the labelled nodes I,

    .. math::
        \frac{\partial z_i}{\partial t} = \sum_j s_{ij} z_j - z_i + β \, [\, i \in I \,] \, (z_i(0) - \bar z),
        \qquad \bar z = \frac{1}{|I|} \sum_{j \in I} z_j(0),

    which keeps states apart however long they diffuse, and adds nothing in all. `observe` tells it which nodes carry
    training labels; before, there is no source. It serves whole graphs: parts of one do not know their labelled nodes.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        source_weight: β.
        linear, num_layers, step_size, time, method, tolerance, num_heads, dropout: As for `GRAND`.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        source_weight: float = 1.0,
        linear: bool = False,
        num_layers: int = 8,
        step_size: float = 1.0,
        time: float | None = None,
        method: str = "euler",
        tolerance: float = 1e-3,
        num_heads: int | None = None,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(
            in_channels,
            hidden_channels,
            out_channels,
            linear=linear,
            num_layers=num_layers,
            step_size=step_size,
            time=time,
            method=method,
            tolerance=tolerance,
            num_heads=num_heads,
            dropout=dropout,
        )
        self.source_weight = source_weight
        # Not saved: what is labelled belongs to the graph, and each run of a stack may have labels of its own.
        self.register_buffer("labelled", None, persistent=False)
        self.labelled: Tensor | None

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Takes which nodes are labelled; the labels themselves are not looked at."""
        labelled = torch.zeros(y.shape[0], dtype=torch.bool, device=y.device)
        self.labelled = labelled.index_fill(0, train_index, True)

    def source(self, initial: Tensor) -> Tensor | None:
        """β (z_i(0) - z̄) at labelled nodes, zero elsewhere."""
        if self.labelled is None:
            return None
        if self.labelled.numel() != initial.shape[0]:
            raise ValueError(
                f"grand++ has observed {self.labelled.numel()} nodes, but there are {initial.shape[0]}: it takes the "
                f"whole graph; leave batch_size out, or call observe(y, train_index) for this graph"
            )
        here = self.labelled.unsqueeze(1).to(initial.dtype)
        mean = (here * initial).sum(0) / here.sum().clamp_min(1)
        return self.source_weight * here * (initial - mean)
