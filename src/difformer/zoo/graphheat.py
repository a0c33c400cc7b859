"""GraphHeat of Xu et al. (IJCAI 2019): convolution with the heat kernel of the graph."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_layers, check_positive, check_rate
from difformer.zoo.filters import heat_filter, is_undirected
from difformer.zoo.inputs import dense, mapped, observed_graph


class GraphHeat(Encoder):
    r"""Layers :math:`Z^{(k+1)} = \mathrm{ReLU}(e^{-sL} Z^{(k)} W_k + b_k)` with :math:`L = I - D^{-1/2} A D^{-1/2}`.

    The heat kernel is a low-pass filter with a range that s sets, where a neighbourhood of K hops has a hard border. It
    is applied by its Chebyshev expansion, exact to single precision and never a matrix; the authors build the matrix
    and cut off what is small. No self-loops are added.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Convolutions, the output's included.
        time: s, how far heat spreads.
        dropout: Before each linear map, on features too.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        time: float = 3.5,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_positive("time", time)
        check_rate("dropout", dropout)
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        # The bias comes after the filter, so it is kept apart from the map that comes before.
        self.hidden = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(b)) for b in sizes[1:])
        self.output = nn.Linear(sizes[-1], out_channels)
        self.time, self.dropout = time, dropout
        for weight in (parameter for parameter in self.parameters() if parameter.dim() == 2):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.output.bias)

    def heated(self, z: Tensor, graph: Graph) -> Tensor:
        """:math:`e^{-sL} z`."""
        return heat_filter(self.time, is_undirected(graph))(graph.propagate, z)

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Filtered states before the last linear map."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch)
        if graph is None:
            graph = Graph(torch.empty(2, 0, dtype=torch.long, device=x.device), x.shape[0])
        z: Features = x
        for layer, bias in zip(self.hidden, self.biases, strict=True):
            z = mapped(layer.weight, z, self.dropout, self.training)  # type: ignore[arg-type]
            z = functional.relu(self.heated(z, graph) + bias)
        return self.heated(dropout(dense(z), self.dropout, self.training), graph)
