"""The graph isomorphism network of Xu et al. (ICLR 2019)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_choice, check_layers, check_rate
from difformer.zoo.inputs import mapped, observed_graph

NORMS = ("batch", "layer", "none")


class GINLayer(nn.Module):
    r"""One layer :math:`Z^{+} = W_2 \, \mathrm{ReLU}(\mathrm{norm}(W_1 ((1 + ε) Z + A Z)))`.

    The first map is taken before the sum over neighbours, which is linear: features may be sparse, and there are fewer
    channels to sum.
    """

    def __init__(self, in_channels: int, channels: int, eps: float, learn_eps: bool, norm: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_channels, channels), nn.Linear(channels, channels)
        self.norm = make_norm(norm, channels)
        self.eps: float | Tensor = nn.Parameter(torch.tensor(float(eps))) if learn_eps else float(eps)

    def forward(self, z: Features, graph: Graph | None) -> Tensor:
        own = mapped(self.first.weight, z)
        total = (1 + self.eps) * own
        if graph is not None:
            total = total + graph.propagate(own, "none")
        return self.second(functional.relu(self.norm(total + self.first.bias)))


def make_norm(name: str, channels: int) -> nn.Module:
    """A norm of states by its name in `NORMS`."""
    check_choice("norm", name, NORMS)
    if name == "none":
        return nn.Identity()
    return nn.BatchNorm1d(channels) if name == "batch" else nn.LayerNorm(channels)


class GIN(Encoder):
    r"""Layers :math:`Z^{(k+1)} = \mathrm{ReLU}(\mathrm{norm}(\mathrm{MLP}((1 + ε) Z^{(k)} + A Z^{(k)})))` and dropout.

    Neighbours are summed, not averaged, so that multisets can be told apart; edge weights weigh the sum. The layers are
    PyTorch Geometric's ``GINConv`` with an MLP of two maps, followed by a linear output.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Sums over neighbours.
        eps: ε, what a node's own state counts above a neighbour's.
        learn_eps: Whether ε is trained, one a layer.
        norm: ``"batch"`` (statistics over nodes, as the authors have it), ``"layer"`` or ``"none"``.
        dropout: After each layer.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        eps: float = 0.0,
        learn_eps: bool = False,
        norm: str = "batch",
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_rate("dropout", dropout)
        sizes = [in_channels] + [hidden_channels] * num_layers
        self.layers = nn.ModuleList(GINLayer(a, b, eps, learn_eps, norm) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(make_norm(norm, hidden_channels) for _ in range(num_layers))
        self.output = nn.Linear(hidden_channels, out_channels)
        self.dropout = dropout

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States after the last layer."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch)
        z: Features = x
        for layer, norm in zip(self.layers, self.norms, strict=True):
            z = dropout(functional.relu(norm(layer(z, graph))), self.dropout, self.training)
        assert isinstance(z, Tensor)  # there is at least one layer
        return z
