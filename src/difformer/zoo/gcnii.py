"""Deep graph convolution: GCNII of Chen et al. (ICML 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_layers, check_positive, check_rate, check_share
from difformer.zoo.inputs import linear, observed_graph


class GCNII(Encoder):
    r"""Layers with initial residual and identity mapping,

    .. math::
        Z^{(k+1)} = \mathrm{ReLU}\left( \left( (1 - α) S Z^{(k)} + α Z^{(0)} \right)
        \left( (1 - β_k) I + β_k W_k \right) \right), \qquad β_k = \ln(θ / k + 1), \; k = 1 … K,

    between a linear input with ReLU and a linear output; S is :math:`\tilde D^{-1/2} (A + I) \tilde D^{-1/2}`. The
    layers are PyTorch Geometric's ``GCN2Conv``.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: K.
        alpha: α, the share of the initial states.
        theta: θ, how much of a layer's map counts.
        dropout: Before each linear map and each layer, on features too.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 16,
        alpha: float = 0.1,
        theta: float = 0.5,
        dropout: float = 0.6,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_rate("dropout", dropout)
        check_share("alpha", alpha)
        check_positive("theta", theta)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.maps = nn.ParameterList(
            nn.Parameter(torch.empty(hidden_channels, hidden_channels)) for _ in range(num_layers)
        )
        for weight in self.maps:
            nn.init.xavier_uniform_(weight)
        self.output = nn.Linear(hidden_channels, out_channels)
        self.alpha, self.theta, self.dropout = alpha, theta, dropout

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States after the last layer."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch, self_loops=True, device=x.device)
        assert graph is not None  # there always are self-loops
        z = initial = functional.relu(linear(self.input, x, self.dropout, self.training))
        for k, weight in enumerate(self.maps, 1):
            z = graph.propagate(dropout(z, self.dropout, self.training))
            mixed = torch.lerp(z, initial, self.alpha)
            share = math.log(self.theta / k + 1)
            z = functional.relu((1 - share) * mixed + share * (mixed @ weight))
        return dropout(z, self.dropout, self.training)
