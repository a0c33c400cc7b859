"""The graph convolutional network of Kipf and Welling (ICLR 2017)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.sparse import SparseMatrix
from difformer.zoo.inputs import linear, observed_graph


class GCN(nn.Module):
    r"""Layers :math:`Z^{(k+1)} = \mathrm{ReLU}(\tilde D^{-1/2} (A + I) \tilde D^{-1/2} Z^{(k)} W_k + b_k)`.

    The last layer propagates as well: `embed` gives the states before it, `decode` its linear map, and the propagation
    between the two belongs to `embed`, so that pooled states can be decoded too. Equal to PyTorch Geometric's
    ``GCNConv`` layers, on a graph that is normalised once (a self-loop that stands twice counts twice here, once
    there).

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Convolutions, the output's included.
        dropout: After each ReLU.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers!r}")
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        # The bias comes after propagation, so it is kept apart from the map that comes before.
        self.hidden = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(b)) for b in sizes[1:])
        self.output = nn.Linear(sizes[-1], out_channels)
        self.dropout = dropout
        for weight in (parameter for parameter in self.parameters() if parameter.dim() == 2):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.output.bias)

    def embed(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Propagated states before the last linear map."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch, self_loops=True, device=x.device)
        assert graph is not None  # there always are self-loops
        z = x
        for layer, bias in zip(self.hidden, self.biases, strict=True):
            # Mapping first: propagation is linear, and there are fewer hidden channels than features.
            z = functional.relu(graph.propagate(linear(layer, z)) + bias)  # type: ignore[arg-type]
            z = dropout(z, self.dropout, self.training)
        return graph.propagate(z if isinstance(z, Tensor) and z.layout == torch.strided else z.to_dense())

    def decode(self, states: Tensor) -> Tensor:
        return self.output(states)

    def forward(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        return self.decode(self.embed(x, edge_index, edge_weight, batch))
