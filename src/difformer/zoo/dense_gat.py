r"""Graph attention over all pairs of nodes, exact and without ever forming a pair: Dense GAT.

A score of graph attention is one number of the receiver plus one of the sender, behind a LeakyReLU of slope α:

.. math::
    P_i = \frac{\sum_j e^{\ell(u_i + w_j)} v_j}{\sum_j e^{\ell(u_i + w_j)}}, \qquad \ell(x) = \max(x, α x).

Sort the senders by w. Those with w_j > -u_i weigh e^{u_i} e^{w_j}, all before them e^{αu_i} e^{αw_j}: two running sums
over the sorted senders, one from either end, hold every numerator and denominator that any receiver can ask for. N²
scores become O(N log N + N d) operations and O(N d) memory; each weight is positive and relative to the receiver's
largest, so nothing cancels and nothing overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import as_structure
from difformer.zoo.base import Encoder, check_layers, check_rate, check_share
from difformer.zoo.gat import HEADS, SLOPE, GATLayer
from difformer.zoo.inputs import dense, observed_graph
from difformer.zoo.per_graph import by_graph


def attend_all(mask: Tensor | None, u: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """P of the module's formula for graphs side by side.

    Args:
        mask: ``[G, n]``, False at padding; None where there is none.
        u: Terms of receivers, ``[G, n, H]``.
        w: Terms of senders, ``[G, n, H]``.
        v: Values ``[G, n, H, c]``.

    Returns:
        ``[G, n, H, c]``.
    """
    if mask is not None:
        w = w.masked_fill(~mask.unsqueeze(-1), -torch.inf)
    w, order = w.transpose(1, 2).sort(dim=-1)
    u = u.transpose(1, 2)
    # Values with a column of ones: numerators and denominators are the same sums.
    v = torch.cat([v, v.new_ones(*v.shape[:3], 1)], -1).transpose(1, 2)
    v = v.gather(2, order.unsqueeze(-1).expand_as(v))
    top = w[..., -1:]
    none = v.new_zeros(*v.shape[:2], 1, v.shape[-1])
    above = torch.cat([((w - top).exp().unsqueeze(-1) * v).flip(2).cumsum(2).flip(2), none], 2)
    below = torch.cat([none, ((SLOPE * (w - top)).exp().unsqueeze(-1) * v).cumsum(2)], 2)
    # How many senders are at or below -u_i: where the sum from below ends and that from above begins.
    at = torch.searchsorted(w.detach().contiguous(), -u.detach().contiguous(), right=True)
    at = at.unsqueeze(-1).expand(*at.shape, v.shape[-1])
    strongest = u + top
    largest = functional.leaky_relu(strongest, SLOPE)
    sums = (strongest - largest).exp().unsqueeze(-1) * above.gather(2, at)
    sums = sums + (SLOPE * strongest - largest).exp().unsqueeze(-1) * below.gather(2, at)
    return (sums[..., :-1] / sums[..., -1:]).transpose(1, 2)


class DenseGAT(Encoder):
    r"""Layers :math:`Z^{(k+1)} = \mathrm{ELU}(\Vert_h S_h V_h + b)` whose attention S_h runs over all pairs.

    Where edges are given, each layer mixes in their propagation with a weight w, as DIFFormer does:
    :math:`(1 - w) S_h V_h + w \tilde D^{-1/2} (A + I) \tilde D^{-1/2} V_h`. With w = 0, or without edges, it is equal
    to PyTorch Geometric's ``GATConv`` on the complete graph; its states are then near to each other, as every node
    sees the same nodes. The last layer has one head; it is computed as (S Z) W, so `embed` gives its propagated states.
    Attention, of which no entry exists by itself, has no dropout.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state, all heads together.
        out_channels: Outputs of an instance.
        num_layers: Attention layers, the output's included.
        num_heads: Heads of the hidden layers; None takes 8, or the largest part of it that divides `hidden_channels`.
        dropout: Before every layer, on features too.
        graph_weight: w, share of the observed edges.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        num_heads: int | None = None,
        dropout: float = 0.6,
        graph_weight: float = 0.5,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_rate("dropout", dropout)
        check_share("graph_weight", graph_weight)
        heads = math.gcd(HEADS, hidden_channels) if num_heads is None else num_heads
        if heads < 1 or hidden_channels % heads:
            raise ValueError(f"num_heads must divide hidden_channels = {hidden_channels}, got {num_heads!r}")
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        self.layers = nn.ModuleList(GATLayer(size, hidden_channels // heads, heads, dropout) for size in sizes[:-1])
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(hidden_channels)) for _ in sizes[1:])
        self.last = GATLayer(sizes[-1], out_channels, 1, dropout)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.dropout, self.graph_weight = dropout, graph_weight

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Propagated states before the last linear map."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        graph = None
        if edge_index is not None and (isinstance(self.graph_weight, Tensor) or self.graph_weight > 0):
            graph = observed_graph(x.shape[0], structure.graph, self_loops=True, device=x.device)

        def spread(layer: GATLayer, values: Tensor, v: Tensor) -> Tensor:
            u, w = layer.scores(values)
            latent = by_graph(attend_all, structure.segments, u, w, v)
            return latent if graph is None else torch.lerp(latent, graph.propagate(v), self.graph_weight)

        z = x
        for layer, bias in zip(self.layers, self.biases, strict=True):
            assert isinstance(layer, GATLayer)
            values = layer.values(z)
            z = functional.elu(spread(layer, values, values).flatten(1) + bias)
        z = dropout(dense(z), self.dropout, self.training)
        return spread(self.last, self.last.values(z, drop=False), z.unsqueeze(1)).flatten(1)

    def decode(self, states: Tensor) -> Tensor:
        """The last layer's linear map."""
        return functional.linear(states, self.last.linear.weight, self.bias)
