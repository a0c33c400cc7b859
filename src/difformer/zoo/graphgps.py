r"""GraphGPS (Rampášek et al., NeurIPS 2022), and Exphormer (Shirzad et al., ICML 2023), which is sparse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention import propagate
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.zoo.edge_operators import check_attention_memory, edge_scores, edge_sum
from difformer.zoo.encoder import Encoder, Observed, check_heads, one_of, option
from difformer.zoo.linear_maps import linear, make_norm
from difformer.zoo.node_pairs import draw_projection, key_features, linear_attention, relative_features
from difformer.zoo.structure_encodings import laplacian_eigenvectors, return_probabilities


class GPSLayer(nn.Module):
    r"""Message passing and attention in parallel, then an MLP.

    .. math::
        Z_M = \mathrm{norm}(Z + \mathrm{MPNN}(Z, A)), \quad Z_T = \mathrm{norm}(Z + \mathrm{Attention}(Z)), \quad
        Z^+ = \mathrm{norm}(Z_M + Z_T + \mathrm{MLP}(Z_M + Z_T))

    Message passing is a graph convolution, ReLU(Â Z W), or GIN, MLP((1 + ε) Z + A Z). Attention over all pairs is exact
    softmax attention, in O(N²) time and O(N) memory, or its estimate by positive random features, in O(N).
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
            self.projection = nn.Buffer(draw_projection(features, channels // heads))

    def forward(self, z: Tensor, observed: Observed, senders: Any) -> Tensor:
        """New states; `senders` is what `attend` takes."""
        if self.local == "gcn":
            messages = functional.relu(observed.looped.propagate(self.message(z)))
        else:
            received = (1 + self.epsilon) * z
            if observed.graph is not None:
                received = received + observed.graph.propagate(z, "none")
            messages = self.message_second(functional.relu(self.message(received)))
        passed = dropout(messages, self.dropout, self.training)
        attended = dropout(self.join(self.attend(z, senders)), self.dropout, self.training)
        both = self.norms[0](z + passed) + self.norms[1](z + attended)
        inner = dropout(functional.relu(self.wide(both)), self.dropout, self.training)
        return self.norms[2](both + dropout(self.narrow(inner), self.dropout, self.training))

    def attend(self, z: Tensor, segments: Any) -> Tensor:
        """Attention over all pairs of each graph."""
        q, k, v = self.qkv(z).unflatten(1, (3, self.heads, -1)).unbind(1)
        if self.attention == "softmax":
            return propagate(q, k, v, "softmax", batch=segments).flatten(1)
        scale = q.shape[-1] ** -0.25
        phi_q = relative_features(q * scale @ self.projection.T)
        phi_k = key_features(k * scale, self.projection, segments)
        return linear_attention(phi_q, phi_k, v, segments).flatten(1)


class GraphGPS(Encoder):
    r"""Features plus a positional encoding, then layers of `GPSLayer`.

    .. math::
        z_i^{(0)} = x_i W + e_i U + b, \qquad
        e_i = \big[ ((D^{-1} A)^s)_{ii} \big]_{s = 1 … S} \text{ or the first S eigenvectors of the Laplacian.}

    The sign of eigenvectors is arbitrary and drawn at random in every training pass.
    """

    num_layers: int = option(2, "Layers.")
    num_heads: int = option(4, "Heads of attention; must divide `hidden_channels`.")
    dropout: float = option(0.5, "On the features and within each layer.")
    local: str = one_of("gcn", "gin", about='Message passing: ``"gcn"`` or ``"gin"``.')
    attention: str = one_of("performer", "softmax", about="performer (random features, linear in N) or exact softmax.")
    random_features: int = option(64, "Number of random features of the performer.")
    encoding: str = one_of("random_walk", "laplacian", "none", about="Positional encoding; none for no encoding.")
    encoding_steps: int = option(16, "S, length of the encoding.")
    norm: str = option("layer", '``"batch"``, ``"layer"`` or ``"none"``.')

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        check_heads(self.num_heads, hidden_channels)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.position = None if self.encoding == "none" else nn.Linear(self.encoding_steps, hidden_channels, bias=False)
        layer = partial(GPSLayer, hidden_channels, self.num_heads, self.local, self.attention, self.random_features)
        self.layers = nn.ModuleList(layer(self.dropout, self.norm) for _ in range(self.num_layers))
        self.output = nn.Linear(hidden_channels, out_channels)
        self._positions: ResultCache[Tensor] = ResultCache()

    def states(self, x: Features, observed: Observed) -> Tensor:
        z = linear(self.input, x, self.dropout, self.training)
        if self.position is not None:
            make = return_probabilities if self.encoding == "random_walk" else laplacian_eigenvectors
            key = self.encoding, self.encoding_steps
            positions = observed.once(self._positions, key, lambda: make(observed, key[1])).to(z.dtype)
            if self.encoding == "laplacian" and self.training:
                # A dropout mask, so that signs follow from seed and epoch.
                kept = dropout(torch.ones_like(positions[:1]), 0.5, True)
                positions = positions * torch.where(kept > 0, 1.0, -1.0)
            z = z + self.position(positions)
        z = dropout(z, self.dropout, self.training)
        for layer in self.layers:
            z = layer(z, observed, observed.segments)
        return z


LIMIT = 5.0  # scores are clamped to ±LIMIT, so exponentials cannot overflow


def expander(num_nodes: int, degree: int, seed: int) -> Tensor:
    """Edges ``[2, E]`` of a random regular graph: the union of ``degree / 2`` random Hamiltonian cycles, both ways.

    With high probability its spectral gap is nearly optimal, so information reaches every node in O(log N) steps.
    """
    if num_nodes < 2:
        return torch.empty(2, 0, dtype=torch.long)
    # Numpy draws the same numbers for every run inside torch.vmap.
    cycles = [np.random.default_rng((seed, k)).permutation(num_nodes) for k in range(degree // 2)]
    ends = np.concatenate([np.stack([cycle, np.roll(cycle, -1)]) for cycle in cycles], 1)
    return torch.from_numpy(np.unique(np.concatenate([ends, ends[::-1]], 1), axis=1).astype(np.int64))


class ExphormerLayer(GPSLayer):
    r"""`GPSLayer` with sparse attention,

    .. math::
        P_i = \frac{\sum_t \sum_{j \in N_t(i)} e^{s^t_{ij}} v_j}{\sum_t \sum_{j \in N_t(i)} e^{s^t_{ij}}}, \qquad
        s^t_{ij} = \frac{(q_i ⊙ e_t)^\top k_j}{\sqrt c},

    with one learned vector e_t per head and kind t of edge: observed, expander, to and from a virtual node.
    """

    def __init__(self, channels: int, heads: int, *, dropout: float, norm: str) -> None:
        super().__init__(channels, heads, local="gcn", attention="sparse", features=0, dropout=dropout, norm=norm)
        self.kinds = nn.Parameter(torch.ones(3, heads, channels // heads))

    def attend(self, z: Tensor, graphs: tuple[Graph, ...]) -> Tensor:
        """Attention along the edges of `graphs`, one per kind."""
        q, k, v = self.qkv(z).unflatten(1, (3, self.heads, -1)).unbind(1)
        q = q * q.shape[-1] ** -0.5
        total, mass = torch.zeros_like(v), v.new_zeros(*v.shape[:2], 1)
        for kind, graph in zip(self.kinds, graphs, strict=True):
            if not graph.num_edges:
                continue
            weight = edge_scores(q * kind, k, graph).clamp(-LIMIT, LIMIT).exp()
            if graph.edge_weight is not None:
                weight = weight * graph.weights(weight.dtype).unsqueeze(1)
            total = total + edge_sum(weight, v, graph)
            mass = mass + edge_sum(weight, torch.ones_like(mass), graph)
        return (total / torch.where(mass > 0, mass, 1.0)).flatten(1)


class Exphormer(Encoder):
    r"""A linear input layer, then layers with graph convolution and sparse attention in parallel.

    The cost is O(E + N (degree + virtual nodes)), yet short paths join all pairs of nodes. The expander depends on the
    number of nodes, their order and `expander_seed`. Virtual nodes have learned initial states.
    """

    num_layers: int = option(3, "Layers.")
    num_heads: int = option(4, "Heads; must divide `hidden_channels`.")
    dropout: float = option(0.2, "On the features and within each layer.")
    degree: int = option(6, "Degree of the expander, an even number; 0 for none.", least=0)
    virtual_nodes: int = option(1, "Number of virtual nodes, which are joined to all others.", least=0)
    expander_seed: int = option(0, "Seed of the expander.", least=0)
    norm: str = option("layer", '``"batch"``, ``"layer"`` or ``"none"``.')

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        check_heads(self.num_heads, hidden_channels)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.virtual = nn.Parameter(torch.randn(self.virtual_nodes, hidden_channels)) if self.virtual_nodes else None
        self.layers = nn.ModuleList(
            ExphormerLayer(hidden_channels, self.num_heads, dropout=self.dropout, norm=self.norm)
            for _ in range(self.num_layers)
        )
        self.output = nn.Linear(hidden_channels, out_channels)
        self._local: ResultCache[Graph] = ResultCache()

    def states(self, x: Features, observed: Observed) -> Tensor:
        extended, links = self.links(observed)
        remedy = "train with batch_size=…, or a smaller degree"
        check_attention_memory("exphormer", links, self.num_heads, 0, self.num_layers, remedy)
        z = dropout(linear(self.input, x, self.dropout, self.training), self.dropout, self.training)
        if self.virtual is not None:
            graphs = 1 if observed.segments is None else observed.segments.num_graphs
            z = torch.cat([z, self.virtual.to(z.dtype).repeat(graphs, 1)])
        for layer in self.layers:
            z = layer(z, extended, links)
        return z[: observed.rows]

    def links(self, observed: Observed) -> tuple[Observed, tuple[Graph, ...]]:
        """The observed graph with virtual nodes, and the graphs of attention: observed, expander, virtual nodes."""
        graphs = 1 if observed.segments is None else observed.segments.num_graphs
        rows = observed.rows + graphs * self.virtual_nodes
        graph, segments, local = observed.graph, observed.segments, None
        if graph is not None:
            ends, weight = graph.edge_index, graph.edge_weight
            local = self._local.of(graph, (rows,), lambda: Graph(ends, rows, weight, keep=graph.keep))
        options = self.degree, self.virtual_nodes, self.expander_seed, observed.device
        if segments is None:
            others = _single(observed.rows, *options)
        else:
            order, sizes = segments.by_graph, segments.sizes
            others = _batched.of(
                segments.batch, options, lambda: _added_edges(order.cpu().split(sizes.tolist()), *options)
            )
        extended = Observed(rows, observed.device, local)
        return extended, (extended.edges, *others)


_batched: ResultCache[tuple[Graph, ...]] = ResultCache()


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _single(rows: int, *options: Any) -> tuple[Graph, ...]:
    return _added_edges([torch.arange(rows)], *options)


def _added_edges(
    sets: Sequence[Tensor], degree: int, virtual: int, seed: int, device: torch.device
) -> tuple[Graph, ...]:
    """The expander and the edges of virtual nodes, for graphs with these nodes."""
    none, rows = torch.empty(2, 0, dtype=torch.long), sum(nodes.numel() for nodes in sets)
    random, joined = [none], [none]
    for number, nodes in enumerate(sets):
        if degree:
            random.append(nodes[expander(nodes.numel(), degree, seed)])
        if virtual:
            ends = torch.cartesian_prod(nodes, rows + number * virtual + torch.arange(virtual)).T
            joined += [ends, ends.flip(0)]
    return tuple(Graph(torch.cat(parts, 1).to(device), rows + len(sets) * virtual) for parts in (random, joined))
