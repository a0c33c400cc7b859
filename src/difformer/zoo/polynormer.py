r"""Polynormer (Deng, Yue and Zhang, ICLR 2024): attention whose output is a polynomial of the features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.zoo.classic import GATLayer
from difformer.zoo.edge_operators import check_attention_memory, edge_sum
from difformer.zoo.encoder import Encoder, Observed, Passes, check_heads, option
from difformer.zoo.linear_maps import linear
from difformer.zoo.node_pairs import linear_attention

FIRST_BETA = 0.9


def maps(z: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Several linear maps of the same states, as one product."""
    joined = functional.linear(z, torch.cat(list(weights)), torch.cat(list(biases)))
    return joined.split([weight.shape[0] for weight in weights], 1)


class LocalLayer(nn.Module):
    r"""Attention along edges times a gate, which raises the degree of the polynomial in every layer.

    .. math::
        M = \mathrm{ReLU}(\mathrm{GAT}(Z) + Z W), \quad H = \mathrm{ReLU}(Z U), \quad
        Z^+ = (1 - β) \, \mathrm{norm}(H ⊙ M) + β M, \qquad β = σ(b)

    β has one value per channel.
    """

    def __init__(
        self, channels: int, heads: int, dropout: float, pre_norm: bool = False, beta: float = FIRST_BETA
    ) -> None:
        super().__init__()
        self.attention = GATLayer(channels, channels // heads, heads)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.direct, self.gate = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.before = nn.LayerNorm(channels) if pre_norm else nn.Identity()
        self.beta = nn.Parameter(torch.full((channels,), math.log(beta / (1 - beta))))
        self.dropout = dropout

    def forward(self, z: Tensor, graph: Graph) -> Tensor:
        none = torch.zeros_like(self.bias)
        values, direct, gate = maps(
            self.before(z),
            (self.attention.linear.weight, self.direct.weight, self.gate.weight),
            (none, self.direct.bias + self.bias, self.gate.bias),
        )
        values = values.unflatten(1, self.attention.shape)
        attended = edge_sum(self.attention.weights(values, graph), values, graph).flatten(1)
        messages = dropout(functional.relu(attended + direct), self.dropout, self.training)
        beta = torch.sigmoid(self.beta)
        # 1 - β is folded into the scale and shift of the norm.
        scale, shift = (1 - beta) * self.norm.weight, (1 - beta) * self.norm.bias
        gated = functional.relu(gate) * messages
        return torch.addcmul(
            functional.layer_norm(gated, self.norm.normalized_shape, scale, shift, self.norm.eps), messages, beta
        )


class GlobalLayer(nn.Module):
    r"""All-pair attention with sigmoid features, linear in N, times a gate.

    .. math::
        P_i = \frac{σ(q_i)^\top \sum_j σ(k_j) v_j^\top}{σ(q_i)^\top \sum_j σ(k_j)}, \qquad
        Z^+ = \mathrm{ReLU}((\mathrm{norm}(P) ⊙ (Z U + σ(b))) W_O)

    W_O, the argument `joining`, is shared by all global layers.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.gate = (nn.Linear(channels, channels) for _ in range(4))
        self.norm = nn.LayerNorm(channels)
        self.beta = nn.Parameter(torch.zeros(channels))
        self.heads = heads

    def forward(self, z: Tensor, segments: Segments | None, joining: nn.Module) -> Tensor:
        layers = (self.query, self.key, self.value, self.gate)
        shift = self.gate.bias + torch.sigmoid(self.beta)
        biases = self.query.bias, self.key.bias, self.value.bias, shift
        *qkv, gate = maps(z, [layer.weight for layer in layers], biases)
        q, k, v = (part.unflatten(1, (self.heads, z.shape[1] // self.heads)) for part in qkv)
        attended = linear_attention(torch.sigmoid(q), torch.sigmoid(k), v, segments).flatten(1)
        return functional.relu(joining(self.norm(attended) * gate))


class Polynormer(Encoder):
    r"""Local layers, and global layers on the sum of their outputs.

    In the first `local_passes` training passes, only the local layers train, with their own decoder. The number of
    passes is saved with the model, so a model from that phase predicts as it did in training.
    """

    num_layers: int = option(5, "Local layers.")
    global_layers: int = option(2, "Global layers; 0 for none.", least=0)
    num_heads: int | None = option(None, "Heads; None uses 8, or its largest divisor that fits.")
    dropout: float = option(0.5, "After the input layer, on messages of local layers, and after global layers.")
    input_dropout: float = option(0.15, "On the features.")
    global_dropout: float | None = option(None, "After global layers; None uses `dropout`.")
    beta: float = option(FIRST_BETA, "Initial β of the local layers.", within="(0, 1)")
    local_passes: int = option(100, "Training passes without the global layers.", least=0)
    pre_norm: bool = option(True, "Whether a LayerNorm precedes each local layer, which preserves small features.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        heads = self.heads = check_heads(self.num_heads, hidden_channels)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.local = nn.ModuleList(
            LocalLayer(hidden_channels, heads, self.dropout, self.pre_norm, self.beta) for _ in range(self.num_layers)
        )
        self.joining = nn.Linear(hidden_channels, hidden_channels) if self.global_layers else nn.Identity()
        self.everywhere = nn.ModuleList(GlobalLayer(hidden_channels, heads) for _ in range(self.global_layers))
        self.norm = nn.LayerNorm(hidden_channels)
        begins = self.local_passes and self.global_layers
        self.local_output = nn.Linear(hidden_channels, out_channels) if begins else None
        self.output = nn.Linear(hidden_channels, out_channels)
        self.passes = nn.Buffer(torch.zeros((), dtype=torch.long))
        self._passes = Passes()

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped
        sizes = self.heads, 5 * self.input.out_features, len(self.local)
        check_attention_memory("polynormer", [graph], *sizes, "train with batch_size=…")
        if self.training:
            self._passes.add(self.passes)
        z = dropout(linear(self.input, x, self.input_dropout, self.training), self.dropout, self.training)
        total = torch.zeros_like(z)
        for layer in self.local:
            z = layer(z, graph)
            total = total + z
        if self._begins() or not len(self.everywhere):
            return total
        z = self.norm(total)
        for layer in self.everywhere:
            z = layer(z, observed.segments, self.joining)
            z = dropout(z, self.dropout if self.global_dropout is None else self.global_dropout, self.training)
        return z

    def decode(self, states: Tensor) -> Tensor:
        """Outputs of the decoder of the local layers while they train alone, else of the final one."""
        return self.local_output(states) if self.local_output is not None and self._begins() else self.output(states)

    def _begins(self) -> bool:
        """Whether only the local layers are in use."""
        return self.local_output is not None and self._passes.of(self.passes) <= self.local_passes
