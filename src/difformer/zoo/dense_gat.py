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

import torch
from torch import Tensor
from torch.nn import functional

from difformer.nn.protocol import Features
from difformer.zoo.classic import GAT, SLOPE, GATLayer
from difformer.zoo.encoder import Observed, option
from difformer.zoo.node_pairs import by_graph


def attend_all(mask: Tensor | None, u: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """P ``[G, n, H, c]`` of graphs side by side: ``u, w [G, n, H]``, values ``v [G, n, H, c]``, ``mask [G, n]``."""
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


class DenseGAT(GAT, only=()):
    r"""`difformer.zoo.classic.GAT` whose attention S_h runs over all pairs.

    Where edges are given, each layer mixes in their propagation with a weight w, as DIFFormer does:
    :math:`(1 - w) S_h V_h + w \tilde D^{-1/2} (A + I) \tilde D^{-1/2} V_h`. With w = 0, or without edges, it is equal
    to PyTorch Geometric's ``GATConv`` on the complete graph; its states are then close to each other, as every node
    sees the same nodes. The last layer has one head. No single entry of the attention exists, so it has no dropout.
    """

    num_layers: int = option(2, "Attention layers, the output's included.")
    num_heads: int | None = option(None, "Heads of hidden layers; None takes 8, or its largest divisor that fits.")
    dropout: float = option(0.6, "Before every layer, on features too.")
    graph_weight: float = option(0.5, "w, share of the observed edges.")

    def surroundings(self, x: Features, observed: Observed) -> Observed:
        return observed

    def attend(self, layer: GATLayer, values: Tensor, v: Tensor, graph: Observed) -> Tensor:
        u, w = layer.scores(values)
        latent = by_graph(attend_all, graph.segments, u, w, v)
        if not graph.given or (not isinstance(self.graph_weight, Tensor) and self.graph_weight == 0):
            return latent
        return torch.lerp(latent, graph.looped.propagate(v), self.graph_weight)
