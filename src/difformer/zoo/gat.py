"""The graph attention network of Veličković et al. (ICLR 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_layers, check_rate
from difformer.zoo.edges import attention_bytes, edge_softmax, edge_sum, from_sources, from_targets
from difformer.zoo.inputs import dense, linear, observed_graph, refuse_beyond_memory

SLOPE = 0.2  # of the LeakyReLU below zero
HEADS = 8


class GATLayer(nn.Module):
    r"""Values and attention of one layer.

    .. math::
        v_i = W z_i, \qquad s_{ij} \propto a_{ij} \exp(\mathrm{LeakyReLU}(a_1^\top v_i + a_2^\top v_j)),

    for each head, the weights of a node's neighbours (itself among them) summing to one.
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.shape = (heads, out_channels)
        self.dropout = dropout
        self.linear = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.to_target = nn.Parameter(torch.empty(heads, out_channels))
        self.to_source = nn.Parameter(torch.empty(heads, out_channels))
        for weight in (self.linear.weight, self.to_target, self.to_source):
            nn.init.xavier_uniform_(weight)

    def values(self, z: Features, *, drop: bool = True) -> Tensor:
        """``[N, H, C]``, after a dropout of what comes in."""
        return linear(self.linear, z, self.dropout, self.training and drop).unflatten(1, self.shape)

    def scores(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, H]`` each: what a node adds to a score as its target, and as its source."""
        both = torch.stack([self.to_target, self.to_source], 1)  # [H, 2, C]
        heads = torch.eye(self.shape[0], dtype=both.dtype, device=both.device)
        # One product with a map that is zero between heads: quicker than sums over short last axes.
        maps = torch.einsum("htc,hk->hctk", both, heads).flatten(2).flatten(0, 1)
        target, source = (values.flatten(1) @ maps).unflatten(1, (2, -1)).unbind(1)
        return target, source

    def weights(self, values: Tensor, graph: Graph) -> Tensor:
        """Attention ``[E, H]``."""
        to_target, to_source = self.scores(values)
        scores = from_targets(to_target, graph) + from_sources(to_source, graph)
        attention = edge_softmax(functional.leaky_relu(scores, SLOPE), graph)
        return dropout(attention, self.dropout, self.training)


class GAT(Encoder):
    r"""Layers :math:`Z^{(k+1)} = \mathrm{ELU}(\Vert_h S_h V_h + b)` over observed edges, see `GATLayer`.

    The last layer averages its heads: :math:`\hat Y = \frac1H \sum_h S_h V_h + b`, with V = Z W. It is computed as
    (S_h Z) W_h: `embed` gives the propagated states of all its heads, `decode` the map. Equal to PyTorch Geometric's
    ``GATConv`` layers; edge weights, which those do not take, multiply the exponentials.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state, all heads together.
        out_channels: Outputs of an instance.
        num_layers: Attention layers, the output's included.
        num_heads: Heads of the hidden layers; None takes 8, or the largest part of it that divides `hidden_channels`.
        output_heads: Heads of the last layer.
        dropout: Before every layer, on features too, and on attention.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        num_heads: int | None = None,
        output_heads: int = 1,
        dropout: float = 0.6,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_rate("dropout", dropout)
        heads = math.gcd(HEADS, hidden_channels) if num_heads is None else num_heads
        if heads < 1 or hidden_channels % heads:
            raise ValueError(f"num_heads must divide hidden_channels = {hidden_channels}, got {num_heads!r}")
        if output_heads < 1:
            raise ValueError(f"output_heads must be at least 1, got {output_heads!r}")
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        self.layers = nn.ModuleList(GATLayer(size, hidden_channels // heads, heads, dropout) for size in sizes[:-1])
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(hidden_channels)) for _ in sizes[1:])
        self.last = GATLayer(sizes[-1], out_channels, output_heads, dropout)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.hidden_channels, self.heads, self.dropout = hidden_channels, heads, dropout

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States propagated by each head of the last layer, ``[N, output_heads × hidden]``."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch, self_loops=True, device=x.device)
        assert graph is not None  # there always are self-loops
        if torch.is_grad_enabled():
            needed = attention_bytes(graph, self.heads, self.hidden_channels, len(self.layers) + 1)
            what = f"attention on {graph.num_edges:,} edges"
            refuse_beyond_memory(needed, graph.device, what, "train with batch_size=…, or fewer heads")
        z = x
        for layer, bias in zip(self.layers, self.biases, strict=True):
            values = layer.values(z)  # type: ignore[operator]
            z = functional.elu(edge_sum(layer.weights(values, graph), values, graph).flatten(1) + bias)  # type: ignore[operator]
        z = dropout(dense(z), self.dropout, self.training)
        weights = self.last.weights(self.last.values(z, drop=False), graph)
        return edge_sum(weights, z.unsqueeze(1).expand(-1, weights.shape[1], -1), graph).flatten(1)

    def decode(self, states: Tensor) -> Tensor:
        """The last layer's map of each head, averaged."""
        heads, channels = self.last.shape
        by_head = states.unflatten(-1, (heads, -1))
        maps = self.last.linear.weight.view(heads, channels, -1)
        return torch.einsum("...hd,hcd->...c", by_head, maps) / heads + self.bias
