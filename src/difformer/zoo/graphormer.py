r"""Graphormer of Ying et al. (NeurIPS 2021): full attention that knows degrees and distances."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.kept import Kept
from difformer.nn.conv import check_count
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import as_structure
from difformer.zoo.base import Encoder, check_layers, check_rate
from difformer.zoo.biased_attention import attend
from difformer.zoo.biased_blocks import Places, attend_blocks, serves
from difformer.zoo.inputs import linear, refuse_beyond_memory
from difformer.zoo.per_graph import pairs
from difformer.zoo.structure_encodings import hop_distances

PAIR_BYTES = 32  # held for a pair at a time: one head's scores, weights and their gradients; and its distance
BLOCK_BYTES = 5  # the same where rows are gone through in blocks: distances, and what they are looked up by


class Layer(nn.Module):
    r"""Attention with a bias of distances, then a network of two layers, each after a norm and with a residual.

    .. math::
        Z' = Z + \mathrm{softmax}\Big( \frac{Q K^\top}{\sqrt d} + b_{φ(i, j)} \Big) V W_O, \qquad
        Z^+ = Z' + \mathrm{FFN}(\mathrm{norm}(Z'))
    """

    def __init__(self, channels: int, heads: int, wide: int) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.join = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.first, self.second = nn.Linear(channels, wide), nn.Linear(wide, channels)
        self.heads = heads


class Graphormer(Encoder):
    r"""Centrality of nodes in their states, distances of pairs in their attention.

    .. math::
        z_i^{(0)} = \mathrm{norm}(x_i W) + c^-_{\deg^-(i)} + c^+_{\deg^+(i)}, \qquad
        \mathrm{score}_{ij} = \frac{q_i^\top k_j}{\sqrt d} + b_{φ(i, j)},

    φ(i, j) being the number of hops from j to i, all above `max_distance` counted as that, with a bias of its own where
    there is no way. The norm gives features the say that embeddings of atoms have in the paper: rows that sum to one
    would drown in the centralities. The biases, one for each head, are shared by all layers. Edge features
    and the virtual node of the paper are left out: a graph's state is the readout of its nodes. Heads are worked out
    one after the other and again in the backward pass: memory is that of one N × N matrix and a byte a pair, and
    refused where that does not fit. One graph on a CPU takes three bytes a pair and goes through its rows in blocks
    (`difformer.zoo.biased_blocks`).

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state, all heads together.
        out_channels: Outputs of an instance.
        num_layers: Layers.
        num_heads: Heads; must divide `hidden_channels`.
        dropout: After attention and after the network of each layer.
        max_distance: Hops that are told apart.
        max_degree: Degrees that are told apart; all above count as this one.
        widening: Channels of the network within a layer, as a multiple of a state's.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.1,
        max_distance: int = 10,
        max_degree: int = 64,
        widening: int = 1,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_count("num_heads", num_heads, 1)
        check_count("max_distance", max_distance, 1)
        check_count("max_degree", max_degree, 1)
        check_count("widening", widening, 1)
        check_rate("dropout", dropout)
        if hidden_channels % num_heads:
            raise ValueError(f"num_heads must divide hidden_channels = {hidden_channels}, got {num_heads!r}")
        if max_distance > 250:
            raise ValueError(f"max_distance must be at most 250, as distances are kept in a byte; got {max_distance!r}")
        self.input, self.input_norm = nn.Linear(in_channels, hidden_channels, bias=False), nn.LayerNorm(hidden_channels)
        self.in_degree, self.out_degree = (nn.Embedding(max_degree + 1, hidden_channels) for _ in range(2))
        self.distance = nn.Embedding(max_distance + 2, num_heads)
        for table in (self.in_degree, self.out_degree, self.distance):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(
            Layer(hidden_channels, num_heads, widening * hidden_channels) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(hidden_channels)
        self.output = nn.Linear(hidden_channels, out_channels)
        self.num_heads, self.dropout, self.max_distance, self.max_degree = num_heads, dropout, max_distance, max_degree
        self._distances: Kept[Tensor] = Kept()
        self._places: Kept[Places] = Kept()

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States after the last norm."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        graph, segments = structure.graph, structure.segments
        count = pairs(x.shape[0], segments)
        largest = x.shape[0] if segments is None else segments.largest
        table = self.distance.weight
        in_blocks = segments is None and serves(table, table, table, table) and not torch.is_autocast_enabled("cpu")
        held = float(BLOCK_BYTES if in_blocks else PAIR_BYTES)
        refuse_beyond_memory(
            x.shape[0] * largest + held * (count if segments is None else min(count, largest**2 + 2**26)),
            x.device,
            f"graphormer, which looks at {count:,} pairs,",
            "take a system that is linear in the nodes, such as sgformer, or batch_size=…",
        )
        z = self.input_norm(linear(self.input, x)) + self._centrality(graph, x.shape[0], x.device)
        hops = self.hops(graph, x.shape[0], segments, x.device)
        z = dropout(z, self.dropout, self.training)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            q, k, v = layer.qkv(layer.norm(z)).unflatten(1, (3, self.num_heads, -1)).unbind(1)
            attended = self._attend(q, k, v, hops, segments).flatten(1)
            z = z + dropout(layer.join(attended), self.dropout, self.training)
            inner = functional.gelu(layer.first(layer.second_norm(z)))
            z = z + dropout(layer.second(dropout(inner, self.dropout, self.training)), self.dropout, self.training)
        return self.norm(z)

    def hops(self, graph: Graph | None, rows: int, segments: Segments | None, device: torch.device) -> Tensor:
        """φ of every pair of one graph, see `hop_distances`; worked out once for a graph."""

        def work() -> Tensor:
            return hop_distances(graph, rows, segments, self.max_distance, device)

        if graph is None:
            return work()
        key = (self.max_distance,) if segments is None else (self.max_distance, segments.batch)
        return self._distances.of(graph, key, work)

    def _centrality(self, graph: Graph | None, rows: int, device: torch.device) -> Tensor:
        degrees = [torch.zeros(rows, dtype=torch.long, device=device)] * 2
        if graph is not None:
            # A self-loop says nothing of how many others there are.
            source, target = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
            degrees = [torch.bincount(end, minlength=rows).clamp(max=self.max_degree) for end in (target, source)]
        return self.in_degree(degrees[0]) + self.out_degree(degrees[1])

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, hops: Tensor, segments: Segments | None) -> Tensor:
        """``[N, H, c]`` from queries, keys and values of the same shape."""
        table = self.distance.weight
        if segments is None and serves(q, k, v, table):
            places = self._places.of(hops, (), lambda: Places.of(hops, self.max_distance + 2))
            return attend_blocks(q, k, v, table, places)
        if segments is None:
            return self._heads(None, hops.unsqueeze(0), *(x.unsqueeze(0) for x in (q, k, v))).squeeze(0)
        parts = []
        for block in segments.blocks:
            nodes = block.rows.shape[1]
            padded = (block.pad(x) for x in (q, k, v))
            parts.append(self._heads(None if block.full else block.mask, hops[block.rows][..., :nodes], *padded))
        return segments.gather(parts)

    def _heads(self, mask: Tensor | None, hops: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        table = self.distance.weight
        found = []
        for h in range(self.num_heads):
            inputs = (mask, hops, q[:, :, h], k[:, :, h], v[:, :, h], table[:, h])
            again = torch.is_grad_enabled() and q.requires_grad
            found.append(checkpoint(attend, *inputs, use_reentrant=False) if again else attend(*inputs))
        return torch.stack(found, 2)
