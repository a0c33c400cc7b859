"""Predict, then propagate: APPNP of Gasteiger et al. (ICLR 2019)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.nn.conv import check_count
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_layers, check_rate, check_share
from difformer.zoo.inputs import dense, linear, observed_graph


class APPNP(Encoder):
    r"""Steps :math:`Z^{(k+1)} = (1 - α) S Z^{(k)} + α Z^{(0)}` from the states :math:`Z^{(0)}` of an MLP.

    S is :math:`\tilde D^{-1/2} (A + I) \tilde D^{-1/2}`; after many steps Z is the personalised PageRank
    :math:`α (I - (1 - α) S)^{-1} Z^{(0)}`. The authors propagate the MLP's outputs; here its last map comes after
    propagation, which commutes with it, so that pooled states can be decoded too, and its bias is added once. The steps
    are PyTorch Geometric's ``APPNP``; no edges are dropped.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Steps K.
        alpha: α, the share of a node's own prediction.
        mlp_layers: Linear maps of the MLP, the output's included.
        dropout: Before each linear map, on features too.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 10,
        alpha: float = 0.1,
        mlp_layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_layers(num_layers, least=0)
        check_count("mlp_layers", mlp_layers)
        check_rate("dropout", dropout)
        check_share("alpha", alpha)
        sizes = [in_channels] + [hidden_channels] * (mlp_layers - 1)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], out_channels)
        self.num_layers, self.alpha, self.dropout = num_layers, alpha, dropout

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States of the MLP, propagated."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch, self_loops=True, device=x.device)
        assert graph is not None  # there always are self-loops
        features: Features = x
        for layer in self.hidden:
            features = functional.relu(linear(layer, features, self.dropout, self.training))  # type: ignore[arg-type]
        z = initial = dropout(dense(features), self.dropout, self.training)
        for _ in range(self.num_layers):
            z = torch.lerp(graph.propagate(z), initial, self.alpha)
        return z
