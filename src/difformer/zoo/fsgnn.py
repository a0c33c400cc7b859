r"""FSGNN of Maurya, Liu and Murata (2021): features of many hops, softly selected."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.zoo.encoder import Encoder, Features, Observed, dropout, mapped, unit_rows, without_loops


class FSGNN(Encoder):
    r"""One map for each of 2K + 1 feature matrices, weighted by a softmax, side by side.

    .. math::
        \mathcal X = \{ X, \; S X, \tilde S X, \; S^2 X, \tilde S^2 X, \; …, \; S^K X, \tilde S^K X \}, \qquad
        \hat Y = \mathrm{dropout}(\mathrm{ReLU}(\Vert_m \, α_m \, \mathrm{unit}(X_m W_m + b_m))) \, W_O + b,

    with S = D^{-1/2} A D^{-1/2} without and S̃ with self-loops, α = softmax(a), and unit the division of every row by
    its length. Propagation and map commute, so it is the mapped features that are propagated.

    Args:
        hidden_channels: Length of each mapped matrix; a state has 2K + 1 of them.
        num_layers: K, hops.
        dropout: Before the output.
        unit_length: Whether mapped rows are divided by their length.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 3,
        dropout: float = 0.5,
        unit_length: bool = True,
    ) -> None:
        super().__init__({"num_layers": 0}, num_layers=num_layers, dropout=dropout, unit_length=unit_length)
        count = 2 * num_layers + 1
        self.maps = nn.ModuleList(nn.Linear(in_channels, hidden_channels) for _ in range(count))
        self.selection = nn.Parameter(torch.ones(count))
        self.output = nn.Linear(count * hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        """Selected features side by side, ``[N, (2K + 1) hidden]``."""
        bare = without_loops(observed.graph)
        looped = observed.looped
        shares = torch.softmax(self.selection, 0)
        parts = []
        for m, layer in enumerate(self.maps):
            assert isinstance(layer, nn.Linear)
            z = mapped(layer.weight, x)
            # Matrix 2k - 1 is that of k hops without self-loops, matrix 2k with them.
            graph = bare if m % 2 else looped
            for _ in range((m + 1) // 2):
                z = torch.zeros_like(z) if graph is None else graph.propagate(z)
            z = z + layer.bias
            parts.append(shares[m] * (unit_rows(z) if self.unit_length else z))
        return dropout(functional.relu(torch.cat(parts, 1)), self.dropout, self.training)
