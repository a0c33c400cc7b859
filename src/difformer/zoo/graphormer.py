r"""Graphormer of Ying et al. (NeurIPS 2021): full attention that knows degrees and distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from difformer.errors import UserError
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.zoo.encoder import Encoder, Observed, check_heads, option, refuse_beyond_memory
from difformer.zoo.linear_maps import linear
from difformer.zoo.node_pairs import by_graph
from difformer.zoo.structure_encodings import hop_distances

PAIR_BYTES = 32  # held per pair at a time: one head's scores, weights and their gradients; and its distance


class Layer(nn.Module):
    r"""Attention with a bias of distances, then a network of two layers, each after a norm and with a residual.

    .. math::
        Z' = Z + \mathrm{softmax}\Big( \frac{Q K^\top}{\sqrt d} + b_{φ(i, j)} \Big) V W_O, \qquad
        Z^+ = Z' + \mathrm{FFN}(\mathrm{norm}(Z'))
    """

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.join = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.first, self.second = nn.Linear(channels, wide), nn.Linear(wide, channels)


class Graphormer(Encoder):
    r"""Centrality of nodes in their states, distances of pairs in their attention.

    .. math::
        z_i^{(0)} = \mathrm{norm}(x_i W) + c^-_{\deg^-(i)} + c^+_{\deg^+(i)}, \qquad
        \mathrm{score}_{ij} = \frac{q_i^\top k_j}{\sqrt d} + b_{φ(i, j)},

    φ(i, j) being the number of hops from j to i, with a bias of its own where j cannot reach i. The biases, one per
    head, are shared by all layers. The norm keeps rows that sum to one from vanishing beside the centralities. Heads
    are computed one after the other and again in the backward pass: memory is that of one N × N matrix and one byte per
    pair.
    """

    num_layers: int = option(2, "Layers.")
    num_heads: int = option(4, "Heads; must divide `hidden_channels`.")
    dropout: float = option(0.1, "After the input, after attention and after the network of each layer.")
    attention_dropout: float = option(0.0, "On the weights of attention.")
    input_dropout: float = option(0.0, "On the features.")
    max_distance: int = option(10, "Hops that are told apart.")
    max_degree: int = option(64, "Degrees that are told apart; all above count as this one.")
    widening: int = option(1, "Channels of the network within a layer, as a multiple of a state's.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        check_heads(self.num_heads, hidden_channels)
        if self.max_distance > 250:
            raise UserError(
                f"max_distance must be at most 250, as distances are kept in a byte; got {self.max_distance!r}"
            )
        self.input, self.input_norm = nn.Linear(in_channels, hidden_channels, bias=False), nn.LayerNorm(hidden_channels)
        self.in_degree, self.out_degree = (nn.Embedding(self.max_degree + 1, hidden_channels) for _ in range(2))
        self.distance = nn.Embedding(self.max_distance + 2, self.num_heads)
        for table in (self.in_degree, self.out_degree, self.distance):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(
            Layer(hidden_channels, self.widening * hidden_channels) for _ in range(self.num_layers)
        )
        self.norm = nn.LayerNorm(hidden_channels)
        self.output = nn.Linear(hidden_channels, out_channels)
        self._distances: ResultCache[Tensor] = ResultCache()

    def states(self, x: Features, observed: Observed) -> Tensor:
        segments, count = observed.segments, observed.pairs
        largest = observed.rows if segments is None else segments.largest
        held = count if segments is None else min(count, largest**2 + 2**26)
        remedy = "take a system that is linear in the nodes, such as sgformer, or batch_size=…"
        what = f"graphormer, which looks at {count:,} pairs,"
        refuse_beyond_memory(observed.rows * largest + PAIR_BYTES * held, x.device, what, remedy)
        drop_input = self.training and self.input_dropout > 0
        z = self.input_norm(linear(self.input, x, self.input_dropout, drop_input)) + self._centrality(observed)
        hops = self.hops(observed)
        z = dropout(z, self.dropout, self.training)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            q, k, v = layer.qkv(layer.norm(z)).unflatten(1, (3, self.num_heads, -1)).unbind(1)
            attended = by_graph(self._heads, segments, hops, q, k, v).flatten(1)
            z = z + dropout(layer.join(attended), self.dropout, self.training)
            inner = functional.gelu(layer.first(layer.second_norm(z)))
            z = z + dropout(layer.second(dropout(inner, self.dropout, self.training)), self.dropout, self.training)
        return self.norm(z)

    def hops(self, observed: Observed) -> Tensor:
        """φ of every pair of one graph, see `hop_distances`; computed once per graph."""
        return observed.once(self._distances, (self.max_distance,), lambda: hop_distances(observed, self.max_distance))

    def _centrality(self, observed: Observed) -> Tensor:
        degrees = [torch.zeros(observed.rows, dtype=torch.long, device=observed.device)] * 2
        if observed.graph is not None:
            ends = observed.graph.edge_index
            ends = ends[:, ends[0] != ends[1]]  # a self-loop says nothing about how many others there are
            degrees = [torch.bincount(end, minlength=observed.rows).clamp(max=self.max_degree) for end in ends.flip(0)]
        return self.in_degree(degrees[0]) + self.out_degree(degrees[1])

    def _heads(self, mask: Tensor | None, hops: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        table, rate, found = self.distance.weight, self.attention_dropout, []
        hops = hops[..., : q.shape[1]]
        for h in range(self.num_heads):
            # Masks are drawn out here: within a checkpoint they would be drawn twice.
            drop = dropout(torch.ones_like(hops, dtype=q.dtype), rate, True) if self.training and rate else None
            inputs = (mask, hops, q[:, :, h], k[:, :, h], v[:, :, h], table[:, h], drop)
            again = torch.is_grad_enabled() and q.requires_grad
            found.append(checkpoint(attend, *inputs, use_reentrant=False) if again else attend(*inputs))
        return torch.stack(found, 2)


def attend(
    mask: Tensor | None, hops: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor, drop: Tensor | None = None
) -> Tensor:
    r"""One head of graphs side by side: ``q, k, v [G, n, c]``, φ and d ``[G, n, n]``, ``mask [G, n]`` False at padding.

    .. math::
        P_i = \sum_j d_{ij} \, \mathrm{softmax}_j(q_i^\top k_j / \sqrt c + b_{φ(i, j)}) \, v_j
    """
    bias = _Biases.apply(table, hops).to(q.dtype)
    if mask is not None:
        bias = bias.masked_fill(~mask.unsqueeze(1), -torch.inf)
    if drop is None:
        # With an axis of one head: torch's fused kernels take four axes.
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(1)).squeeze(1)
    return (torch.softmax(torch.baddbmm(bias, q, k.mT, alpha=q.shape[-1] ** -0.5), -1) * drop) @ v


class _Biases(torch.autograd.Function):
    """Entries of a small table; the gradient adds up in one pass, without an index per pair."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, hops: Tensor) -> Tensor:
        ctx.save_for_backward(hops)
        ctx.size = table.numel()
        return table.index_select(0, hops.reshape(-1).int()).view(hops.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (hops,) = ctx.saved_tensors
        return torch.bincount(hops.reshape(-1), grad.reshape(-1), minlength=ctx.size).to(grad.dtype), None
