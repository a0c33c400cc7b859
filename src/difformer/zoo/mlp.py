"""The multi-layer perceptron: diffusion with the identity as coupling, each instance by itself."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.sparse import SparseMatrix
from difformer.zoo.inputs import linear


class MLP(nn.Module):
    r"""Layers :math:`Z^{(k+1)} = \mathrm{dropout}(\mathrm{ReLU}(\mathrm{norm}(Z^{(k)} W_k + b_k)))`, then a linear map.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Linear maps, the output's included.
        dropout: After each ReLU.
        norm: Whether each hidden layer has a LayerNorm.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.0,
        norm: bool = False,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers!r}")
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(b) if norm else nn.Identity() for b in sizes[1:])
        self.output = nn.Linear(sizes[-1], out_channels)
        self.dropout = dropout

    def embed(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States before the output layer; structure is not looked at."""
        z = x
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            z = dropout(functional.relu(norm(linear(layer, z))), self.dropout, self.training)  # type: ignore[arg-type]
        return z  # type: ignore[return-value]

    def decode(self, states: Tensor) -> Tensor:
        return linear(self.output, states)

    def forward(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        return self.decode(self.embed(x, edge_index, edge_weight, batch))
