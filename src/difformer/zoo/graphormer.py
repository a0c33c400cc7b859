r"""Graphormer (Ying et al., NeurIPS 2021): full attention with encodings of degrees and distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.zoo.encoder import Encoder, Observed, check_heads, option, refuse_beyond_memory
from difformer.zoo.linear_maps import linear
from difformer.zoo.node_pairs import by_graph
from difformer.zoo.structure_encodings import hop_distances

PAIR_BYTES = 32  # per pair: scores and weights of one head with their gradients, and the distance


class Layer(nn.Module):
    r"""The parameters of one layer: attention with a distance bias, then an MLP, both with pre-norm and residual.

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
    r"""Degree encodings in the states, distance biases in the attention.

    .. math::
        z_i^{(0)} = \mathrm{norm}(x_i W) + c^-_{\deg^-(i)} + c^+_{\deg^+(i)}, \qquad
        \mathrm{score}_{ij} = \frac{q_i^\top k_j}{\sqrt d} + b_{φ(i, j)},

    where φ(i, j) is the number of hops from j to i, with a separate bias if j cannot reach i. Biases are per head and
    shared by all layers. The norm brings features to the scale of the degree encodings. Heads are computed one at a
    time, and again in the backward pass, so memory is one N × N matrix plus one byte per pair.
    """

    num_layers: int = option(2, "Layers.")
    num_heads: int = option(4, "Heads; must divide `hidden_channels`.")
    dropout: float = option(0.1, "After the input, the attention and the MLP of each layer.")
    attention_dropout: float = option(0.0, "On the attention weights.")
    input_dropout: float = option(0.0, "On the features.")
    # Distances are kept in a byte.
    max_distance: int = option(10, "Largest distance with its own bias; longer ones share it.", within="[1, 250]")
    max_degree: int = option(64, "Largest degree with its own encoding; larger ones share it.")
    widening: int = option(1, "Width of the MLP in a layer, as a multiple of `hidden_channels`.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        check_heads(self.num_heads, hidden_channels)
        self.input, self.input_norm = nn.Linear(in_channels, hidden_channels, bias=False), nn.LayerNorm(hidden_channels)
        self.in_degree, self.out_degree = (nn.Embedding(self.max_degree + 1, hidden_channels) for _ in range(2))
        self.distance = nn.Embedding(self.max_distance + 2, self.num_heads)
        for table in (self.in_degree, self.out_degree, self.distance):
            nn.init.normal_(table.weight, std=0.02)
        self.layers: Any = nn.ModuleList(
            Layer(hidden_channels, self.widening * hidden_channels) for _ in range(self.num_layers)
        )
        self.norm = nn.LayerNorm(hidden_channels)
        self.output = nn.Linear(hidden_channels, out_channels)
        self._distances: ResultCache[Tensor] = ResultCache()

    def states(self, x: Features, observed: Observed) -> Tensor:
        segments, count = observed.segments, observed.pairs
        largest = observed.rows if segments is None else segments.largest
        held = count if segments is None else min(count, largest**2 + 2**26)
        remedy = "use a model that is linear in the nodes, such as sgformer, or batch_size=…"
        what = f"graphormer, which looks at {count:,} pairs,"
        refuse_beyond_memory(observed.rows * largest + PAIR_BYTES * held, x.device, what, remedy)
        drop_input = self.training and self.input_dropout > 0
        degrees = [torch.zeros(observed.rows, dtype=torch.long, device=observed.device)] * 2
        if observed.graph is not None:
            ends = observed.graph.edge_index
            ends = ends[:, ends[0] != ends[1]]  # self-loops do not count as neighbours
            degrees = [torch.bincount(end, minlength=observed.rows).clamp(max=self.max_degree) for end in ends.flip(0)]
        encoded = self.in_degree(degrees[0]) + self.out_degree(degrees[1])
        z = self.input_norm(linear(self.input, x, self.input_dropout, drop_input)) + encoded
        # φ of every pair, cached per graph.
        most = self.max_distance
        hops = observed.once(self._distances, (most,), lambda: hop_distances(observed, most))
        z = dropout(z, self.dropout, self.training)
        for layer in self.layers:
            q, k, v = layer.qkv(layer.norm(z)).unflatten(1, (3, self.num_heads, -1)).unbind(1)
            attended = by_graph(self._heads, segments, hops, q, k, v).flatten(1)
            z = z + dropout(layer.join(attended), self.dropout, self.training)
            inner = functional.gelu(layer.first(layer.second_norm(z)))
            z = z + dropout(layer.second(dropout(inner, self.dropout, self.training)), self.dropout, self.training)
        return self.norm(z)

    def _heads(self, mask: Tensor | None, hops: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        table, rate, found = self.distance.weight, self.attention_dropout, []
        hops = hops[..., : q.shape[1]]
        for h in range(self.num_heads):
            # A mask drawn within a checkpoint would be drawn twice.
            drop = dropout(torch.ones_like(hops, dtype=q.dtype), rate, True) if self.training and rate else None
            inputs = (mask, hops, q[:, :, h], k[:, :, h], v[:, :, h], table[:, h], drop)
            again = torch.is_grad_enabled() and q.requires_grad
            found.append(checkpoint(attend, *inputs, use_reentrant=False) if again else attend(*inputs))
        return torch.stack(found, 2)


def attend(
    mask: Tensor | None, hops: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor, drop: Tensor | None = None
) -> Tensor:
    r"""One head for a block of graphs: ``q, k, v [G, n, c]``, φ and d ``[G, n, n]``, ``mask [G, n]`` False at padding.

    .. math::
        P_i = \sum_j d_{ij} \, \mathrm{softmax}_j(q_i^\top k_j / \sqrt c + b_{φ(i, j)}) \, v_j
    """
    bias = _Biases.apply(table, hops).to(q.dtype)
    if mask is not None:
        bias = bias.masked_fill(~mask.unsqueeze(1), -torch.inf)
    if drop is None:
        # The fused kernels of torch need an axis of heads.
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(1)).squeeze(1)
    return (torch.softmax(torch.baddbmm(bias, q, k.mT, alpha=q.shape[-1] ** -0.5), -1) * drop) @ v


class _Biases(torch.autograd.Function):
    """Looks up a small table; the backward pass is one bincount."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, hops: Tensor) -> Tensor:
        ctx.save_for_backward(hops)
        ctx.size = table.numel()
        return table.index_select(0, hops.reshape(-1).int()).view(hops.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (hops,) = ctx.saved_tensors
        return torch.bincount(hops.reshape(-1), grad.reshape(-1), minlength=ctx.size).to(grad.dtype), None
