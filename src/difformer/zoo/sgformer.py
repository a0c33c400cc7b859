r"""SGFormer of Wu et al. (NeurIPS 2023): one layer of linear all-pair attention beside a graph convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.zoo.encoder import Encoder, Observed, one_of, option
from difformer.zoo.linear_maps import linear, make_norm, mapped
from difformer.zoo.node_pairs import by_graph, graph_sum


def simple_attention(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
    r"""All-pair attention within each graph, with queries and keys divided by their Frobenius norms.

    .. math::
        D^{-1} \Big[ V + \frac1N \tilde Q (\tilde K^\top V) \Big], \quad
        D = \mathrm{diag}\Big( 1 + \frac1N \tilde Q (\tilde K^\top 1) \Big), \quad
        \tilde Q = Q / ‖Q‖_F, \; \tilde K = K / ‖K‖_F

    ``q, k [N, H, d]``, ``v [N, H, c]`` → ``[N, H, c]``.
    """
    sizes = q.new_full((q.shape[0],), q.shape[0]) if segments is None else segments.sizes.to(q.dtype)[segments.batch]
    count = sizes.view(-1, 1, 1)

    def scaled(x: Tensor) -> Tensor:
        return x * graph_sum(x.square().sum((1, 2)), segments).clamp_min(1e-24).rsqrt().view(-1, 1, 1)

    def product(mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Padding of a block is zero and adds nothing to sums over keys.
        return torch.einsum("gnhd,ghdc->gnhc", q, torch.einsum("gmhd,gmhc->ghdc", k, v))

    q, k = scaled(q), scaled(k)
    attended = by_graph(product, segments, q, k, v)
    total = 1 + (q * graph_sum(k, segments)).sum(-1, keepdim=True) / count
    return (v + attended / count) / total


class SGFormer(Encoder):
    r"""The weighted sum of a global branch (`simple_attention`) and a local branch (graph convolutions).

    .. math::
        Z^{(0)} = \mathrm{ReLU}(\mathrm{norm}(X W)), \quad
        Z = β \, \mathrm{Attention}(Z^{(0)}) + (1 - β) Z^{(0)}, \quad
        \hat Y = \big( (1 - w) Z + w \, \mathrm{GCN}(X, A) \big) W_O + b.

    Each branch starts with its own linear map. ``join="cat"`` concatenates the branches instead. Without edges the
    local branch has self-loops only.
    """

    num_layers: int = option(2, "Convolutions of the local branch.")
    attention_layers: int = option(1, "Layers of attention; the paper has one.")
    num_heads: int = option(1, "Heads of attention, averaged.")
    dropout: float = option(0.5, "After each layer of the local branch.")
    attention_dropout: float = option(0.2, "After each layer of the global branch.")
    residual_weight: float = option(0.5, "β, share of attention relative to its input.")
    graph_weight: float = option(0.8, "w, share of the local branch.")
    norm: bool = option(False, "Whether layers of the global branch have a LayerNorm.")
    local_norm: str = option("none", 'Norm of the local branch: ``"batch"``, ``"layer"`` or ``"none"``.')
    local_residual: bool = option(False, "Whether layers of the local branch after the first add their input.")
    join: str = one_of("add", "cat", about='How to combine the branches: ``"add"`` or ``"cat"``.')

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        wide = self.num_heads * hidden_channels
        self.input = nn.Linear(in_channels, hidden_channels)
        self.attention: Any = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden_channels, wide) for _ in range(3)) for _ in range(self.attention_layers)
        )
        self.norms = nn.ModuleList(make_norm(self.norm, hidden_channels) for _ in range(self.attention_layers + 1))
        self.local: Any = nn.ModuleList(
            nn.Linear(hidden_channels if k else in_channels, hidden_channels) for k in range(self.num_layers)
        )
        layers: Any = self.local
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.local_norms = nn.ModuleList(make_norm(self.local_norm, hidden_channels) for _ in range(self.num_layers))
        self.output = nn.Linear((1 if self.join == "add" else 2) * hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped
        local: Features = x
        for k, (layer, norm) in enumerate(zip(self.local, self.local_norms, strict=True)):
            spread = graph.propagate(mapped(layer.weight, local)) + layer.bias
            new = dropout(functional.relu(norm(spread)), self.dropout, self.training)
            local = new + local if self.local_residual and k and isinstance(local, Tensor) else new
        assert isinstance(local, Tensor)
        z = functional.relu(self.norms[0](linear(self.input, x)))
        z = dropout(z, self.attention_dropout, self.training)
        for maps, norm in zip(self.attention, self.norms[1:], strict=True):
            q, k, v = (layer(z).unflatten(1, (self.num_heads, -1)) for layer in maps)
            attended = simple_attention(q, k, v, observed.segments).mean(1)
            z = norm(self.residual_weight * attended + (1 - self.residual_weight) * z)
            z = dropout(z, self.attention_dropout, self.training)
        if self.join == "cat":
            return torch.cat([z, local], 1)
        return torch.lerp(z.to(local.dtype), local, self.graph_weight)  # under autocast dtypes may differ
