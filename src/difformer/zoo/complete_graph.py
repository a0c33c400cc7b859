r"""Dense GAT: exact graph attention over all pairs of nodes, without forming the pairs.

A score of graph attention is the sum of a number per receiver and one per sender, after a LeakyReLU of slope α:

.. math::
    P_i = \frac{\sum_j e^{\ell(u_i + w_j)} v_j}{\sum_j e^{\ell(u_i + w_j)}}, \qquad \ell(x) = \max(x, α x).

Sort the senders by w. Those with w_j > -u_i have weight e^{u_i} e^{w_j}, all others e^{αu_i} e^{αw_j}. Cumulative sums
from both ends of the sorted senders therefore contain all numerators and denominators, in O(N log N + N d) operations
and O(N d) memory. Weights are positive and relative to the receiver's maximum, so nothing cancels or overflows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from difformer.nn.protocol import Features
from difformer.zoo.classic import GAT, SLOPE, GATLayer
from difformer.zoo.encoder import Observed, option
from difformer.zoo.node_pairs import by_graph


def attend_all(mask: Tensor | None, u: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """P ``[G, n, H, c]`` for a block of graphs: ``u, w [G, n, H]``, values ``v [G, n, H, c]``, ``mask [G, n]``."""
    if mask is not None:
        w = w.masked_fill(~mask.unsqueeze(-1), -torch.inf)
    w, order = w.transpose(1, 2).sort(dim=-1)
    u = u.transpose(1, 2)
    # A column of ones in the values yields the denominators.
    v = torch.cat([v, v.new_ones(*v.shape[:3], 1)], -1).transpose(1, 2)
    v = v.gather(2, order.unsqueeze(-1).expand_as(v))
    top = w[..., -1:]
    none = v.new_zeros(*v.shape[:2], 1, v.shape[-1])
    above = torch.cat([((w - top).exp().unsqueeze(-1) * v).flip(2).cumsum(2).flip(2), none], 2)
    below = torch.cat([none, ((SLOPE * (w - top)).exp().unsqueeze(-1) * v).cumsum(2)], 2)
    # The number of senders at or below -u_i, where the sum from below ends and that from above begins.
    at = torch.searchsorted(w.detach().contiguous(), -u.detach().contiguous(), right=True)
    at = at.unsqueeze(-1).expand(*at.shape, v.shape[-1])
    strongest = u + top
    largest = functional.leaky_relu(strongest, SLOPE)
    sums = (strongest - largest).exp().unsqueeze(-1) * above.gather(2, at)
    sums = sums + (SLOPE * strongest - largest).exp().unsqueeze(-1) * below.gather(2, at)
    return (sums[..., :-1] / sums[..., -1:]).transpose(1, 2)


class DenseGAT(GAT, only=()):
    r"""`difformer.zoo.classic.GAT` with attention S_h over all pairs.

    If edges are given, each layer mixes in their propagation with weight w, as DIFFormer does:
    :math:`(1 - w) S_h V_h + w \tilde D^{-1/2} (A + I) \tilde D^{-1/2} V_h`. With w = 0, or without edges, layers equal
    PyTorch Geometric's ``GATConv`` on the complete graph; states are then close to each other, since every node sees
    the same nodes. The last layer has one head. There is no dropout on the attention weights, which are never formed.
    """

    num_layers: int = option(2, "Attention layers, including the output layer.")
    num_heads: int | None = option(None, "Heads of hidden layers; None uses 8, or its largest divisor that fits.")
    dropout: float = option(0.6, "Before every layer, including on the features.")
    graph_weight: float = option(0.5, "w, share of the observed edges.")

    def surroundings(self, x: Features, observed: Observed) -> Observed:
        return observed

    def attend(self, layer: GATLayer, values: Tensor, v: Tensor, graph: Observed) -> Tensor:
        u, w = layer.scores(values)
        latent = by_graph(attend_all, graph.segments, u, w, v)
        if not graph.given or (not isinstance(self.graph_weight, Tensor) and self.graph_weight == 0):
            return latent
        return torch.lerp(latent, graph.looped.propagate(v), self.graph_weight)
