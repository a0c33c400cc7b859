r"""GraphGPS of Rampášek et al. (NeurIPS 2022): message passing and global attention side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention import propagate
from difformer.zoo.encoder import (
    Encoder,
    Features,
    Graph,
    Observed,
    ResultCache,
    check_heads,
    dropout,
    linear,
    make_norm,
    one_of,
    option,
)
from difformer.zoo.node_pairs import draw_projection, key_features, linear_attention, relative_features
from difformer.zoo.structure_encodings import laplacian_eigenvectors, return_probabilities


class GPSLayer(nn.Module):
    r"""One layer.

    .. math::
        Z_M = \mathrm{norm}(Z + \mathrm{MPNN}(Z, A)), \quad Z_T = \mathrm{norm}(Z + \mathrm{Attention}(Z)), \quad
        Z^+ = \mathrm{norm}(Z_M + Z_T + \mathrm{MLP}(Z_M + Z_T))

    Message passing is a graph convolution, ReLU(Â Z W), or that of GIN, MLP((1 + ε) Z + A Z). Attention is softmax
    attention over all pairs: exact, O(N²) time and O(N) memory; or its estimate by positive random features, O(N).
    """

    def __init__(
        self, channels: int, heads: int, local: str, attention: str, features: int, dropout: float, norm: str
    ) -> None:
        super().__init__()
        self.heads, self.local, self.attention, self.dropout = heads, local, attention, dropout
        self.message = nn.Linear(channels, channels)
        if local == "gin":
            self.message_second = nn.Linear(channels, channels)
            self.epsilon = nn.Parameter(torch.zeros(()))
        self.qkv, self.join = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.wide, self.narrow = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.norms = nn.ModuleList(make_norm(norm, channels) for _ in range(3))
        if attention == "performer":
            self.register_buffer("projection", draw_projection(features, channels // heads))
            self.projection: Tensor

    def forward(self, z: Tensor, observed: Observed, graph: Graph) -> Tensor:
        passed = dropout(self._messages(z, observed, graph), self.dropout, self.training)
        attended = dropout(self.join(self.attend(z, observed)), self.dropout, self.training)
        both = self.norms[0](z + passed) + self.norms[1](z + attended)
        inner = dropout(functional.relu(self.wide(both)), self.dropout, self.training)
        return self.norms[2](both + dropout(self.narrow(inner), self.dropout, self.training))

    def _messages(self, z: Tensor, observed: Observed, graph: Graph) -> Tensor:
        if self.local == "gcn":
            return functional.relu(graph.propagate(self.message(z)))
        received = (1 + self.epsilon) * z
        if observed.graph is not None:
            received = received + observed.graph.propagate(z, "none")
        return self.message_second(functional.relu(self.message(received)))

    def attend(self, z: Tensor, observed: Observed) -> Tensor:
        segments = observed.segments
        q, k, v = self.qkv(z).unflatten(1, (3, self.heads, -1)).unbind(1)
        if self.attention == "softmax":
            return propagate(q, k, v, "softmax", batch=segments).flatten(1)
        scale = q.shape[-1] ** -0.25
        phi_q = relative_features(q * scale @ self.projection.T)
        phi_k = key_features(k * scale, self.projection, segments)
        return linear_attention(phi_q, phi_k, v, segments).flatten(1)


class GraphGPS(Encoder):
    r"""Features and an encoding of positions, then layers of `GPSLayer`.

    .. math::
        z_i^{(0)} = x_i W + e_i U + b, \qquad
        e_i = \big[ ((D^{-1} A)^s)_{ii} \big]_{s = 1 … S} \text{ or the first S eigenvectors of the Laplacian.}

    Eigenvectors have no sign of their own: it is drawn anew in every pass of training.
    """

    num_layers: int = option(2, "Layers.")
    num_heads: int = option(4, "Heads of attention; must divide `hidden_channels`.")
    dropout: float = option(0.5, "Of the features and within each layer.")
    local: str = one_of("gcn", "gin", about='``"gcn"`` or ``"gin"``.')
    attention: str = one_of("performer", "softmax", about="Random features, linear in N; or exact.")
    random_features: int = option(64, "Of the performer.")
    encoding: str = one_of("random_walk", "laplacian", "none")
    encoding_steps: int = option(16, "S.")
    norm: str = option("layer", '``"batch"``, ``"layer"`` or ``"none"``.')

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        check_heads(self.num_heads, hidden_channels)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.position = None if self.encoding == "none" else nn.Linear(self.encoding_steps, hidden_channels, bias=False)
        self.layers = nn.ModuleList(
            GPSLayer(
                hidden_channels,
                self.num_heads,
                self.local,
                self.attention,
                self.random_features,
                self.dropout,
                self.norm,
            )
            for _ in range(self.num_layers)
        )
        self.output = nn.Linear(hidden_channels, out_channels)
        self._positions: ResultCache[Tensor] = ResultCache()

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped
        z = linear(self.input, x, self.dropout, self.training)
        if self.position is not None:
            positions = self.positions(observed).to(z.dtype)
            if self.encoding == "laplacian" and self.training:
                # By a dropout of ones: signs then follow from seed and epoch, as all masks of a run do.
                kept = dropout(torch.ones_like(positions[:1]), 0.5, True)
                positions = positions * torch.where(kept > 0, 1.0, -1.0)
            z = z + self.position(positions)
        z = dropout(z, self.dropout, self.training)
        for layer in self.layers:
            z = layer(z, observed, graph)
        return z

    def positions(self, observed: Observed) -> Tensor:
        """e of every node; computed once per graph."""
        make = return_probabilities if self.encoding == "random_walk" else laplacian_eigenvectors
        inputs = observed.graph, observed.rows, observed.segments, self.encoding_steps, observed.device
        return observed.once(self._positions, (self.encoding, self.encoding_steps), lambda: make(*inputs))
