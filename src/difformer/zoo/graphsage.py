"""GraphSAGE of Hamilton et al. (NIPS 2017), with means over whole neighbourhoods."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_layers, check_rate
from difformer.zoo.inputs import dense, linear, mapped, observed_graph


def neighbour_mean(z: Tensor, graph: Graph | None) -> Tensor:
    """Mean over neighbours, weighted where edges are; zero for a node that has none."""
    return torch.zeros_like(z) if graph is None else graph.propagate(z, "random_walk")


class GraphSAGE(Encoder):
    r"""Layers :math:`z_i^{(k+1)} = \mathrm{ReLU}(W_k z_i^{(k)} + M_k \, \mathrm{mean}_{j \in N(i)} z_j^{(k)} + b_k)`.

    The last layer has no ReLU; its two maps, side by side, are the decoder, so that `embed` gives each state beside the
    mean of its neighbours'. Equal to PyTorch Geometric's ``SAGEConv`` layers. Neighbourhoods are taken whole: where
    they do not fit, ``batch_size`` trains on parts of the graph.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a hidden state.
        out_channels: Outputs of an instance.
        num_layers: Layers, the output's included.
        dropout: After each ReLU.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_rate("dropout", dropout)
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.neighbours = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.output = nn.Linear(2 * sizes[-1], out_channels)
        self.dropout = dropout

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States and the means of their neighbours' states, ``[N, 2 × hidden]``."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch)
        z: Features = x
        for own, neighbours in zip(self.own, self.neighbours, strict=True):
            # Mapping first: the mean is linear, and there are fewer hidden channels than features.
            received = neighbour_mean(mapped(neighbours.weight, z), graph)  # type: ignore[arg-type]
            z = functional.relu(linear(own, z) + received)  # type: ignore[arg-type]
            z = dropout(z, self.dropout, self.training)
        z = dense(z)
        return torch.cat([z, neighbour_mean(z, graph)], 1)
