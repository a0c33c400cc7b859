r"""GraphGPS (Rampášek et al., NeurIPS 2022), and Exphormer (Shirzad et al., ICML 2023), which is sparse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention import propagate
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.zoo.edge_attention import attention_bytes, edge_scores, edge_sum
from difformer.zoo.encoder import Encoder, Observed, check_heads, one_of, option, refuse_beyond_memory
from difformer.zoo.linear_maps import linear, make_norm
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
        steps = self.encoding_steps
        return observed.once(self._positions, (self.encoding, steps), lambda: make(observed, steps))


LIMIT = 5.0  # scores are clamped to ± this, so exponentials need no largest one


@dataclass(frozen=True)
class Links(Observed):
    """Nodes and, behind them, virtual nodes; `kinds` are the graphs that attention runs along."""

    kinds: tuple[Graph, ...] = ()


def expander(num_nodes: int, degree: int, seed: int) -> Tensor:
    """Edges ``[2, E]`` of a random regular graph: the union of ``degree / 2`` random Hamiltonian cycles, both ways.

    With high probability its spectral gap is close to the best possible, so that information reaches every node in
    O(log N) steps. It follows from the arguments alone.
    """
    if num_nodes < 2:
        return torch.empty(2, 0, dtype=torch.long)
    # By numpy: this may run inside torch.vmap, where every run would get numbers of its own.
    cycles = [np.random.default_rng((seed, k)).permutation(num_nodes) for k in range(degree // 2)]
    ends = np.concatenate([np.stack([cycle, np.roll(cycle, -1)]) for cycle in cycles], 1)
    return torch.from_numpy(np.unique(np.concatenate([ends, ends[::-1]], 1), axis=1).astype(np.int64))


class ExphormerLayer(GPSLayer):
    r"""`GPSLayer` with sparse attention,

    .. math::
        P_i = \frac{\sum_t \sum_{j \in N_t(i)} e^{s^t_{ij}} v_j}{\sum_t \sum_{j \in N_t(i)} e^{s^t_{ij}}}, \qquad
        s^t_{ij} = \frac{(q_i ⊙ e_t)^\top k_j}{\sqrt c},

    with one learned vector e_t per head for each kind t of edge: observed, expander, to and from a virtual node.
    """

    def __init__(self, channels: int, heads: int, *, dropout: float, norm: str) -> None:
        super().__init__(channels, heads, local="gcn", attention="sparse", features=0, dropout=dropout, norm=norm)
        self.kinds = nn.Parameter(torch.ones(3, heads, channels // heads))

    def attend(self, z: Tensor, observed: Observed) -> Tensor:
        assert isinstance(observed, Links)
        q, k, v = self.qkv(z).unflatten(1, (3, self.heads, -1)).unbind(1)
        q = q * q.shape[-1] ** -0.5
        total, mass = torch.zeros_like(v), v.new_zeros(*v.shape[:2], 1)
        for kind, graph in zip(self.kinds, observed.kinds, strict=True):
            if not graph.num_edges:
                continue
            weight = edge_scores(q * kind, k, graph).clamp(-LIMIT, LIMIT).exp()
            if graph.edge_weight is not None:
                weight = weight * graph.weights(weight.dtype).unsqueeze(1)
            total = total + edge_sum(weight, v, graph)
            mass = mass + edge_sum(weight, torch.ones_like(mass), graph)
        return (total / torch.where(mass > 0, mass, 1.0)).flatten(1)


class Exphormer(Encoder):
    r"""A linear input, then layers with graph convolution and sparse attention side by side.

    Cost is O(E + N (degree + virtual nodes)): linear in the graph, while every pair of nodes is joined by a short path.
    The expander follows from the number of nodes and `expander_seed`, hence from the order of the nodes; virtual nodes
    have learned initial states.
    """

    num_layers: int = option(3, "Layers.")
    num_heads: int = option(4, "Heads; must divide `hidden_channels`.")
    dropout: float = option(0.2, "On the features and within each layer.")
    degree: int = option(6, "Degree of the expander, an even number; 0 for none.", least=0)
    virtual_nodes: int = option(1, "How many nodes are joined to all others.", least=0)
    expander_seed: int = option(0, "Of the random cycles.")
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
        links = self.links(observed)
        edges, remedy = sum(graph.num_edges for graph in links.kinds), "train with batch_size=…, or a smaller degree"
        needed = sum(attention_bytes(graph, self.num_heads, 0, self.num_layers) for graph in links.kinds)
        refuse_beyond_memory(needed, x.device, "exphormer on {:,} edges", remedy, count=edges, training=True)
        z = dropout(linear(self.input, x, self.dropout, self.training), self.dropout, self.training)
        if self.virtual is not None:
            graphs = 1 if observed.segments is None else observed.segments.num_graphs
            z = torch.cat([z, self.virtual.to(z.dtype).repeat(graphs, 1)])
        looped = links.looped
        for layer in self.layers:
            z = layer(z, links, looped)
        return z[: observed.rows]

    def links(self, observed: Observed) -> Links:
        """What attention runs along: observed edges, the expander, and virtual nodes."""
        graphs = 1 if observed.segments is None else observed.segments.num_graphs
        rows = observed.rows + graphs * self.virtual_nodes
        graph = observed.graph
        local = None
        if graph is not None:
            ends, weight = graph.edge_index, graph.edge_weight
            local = self._local.of(graph, (rows,), lambda: Graph(ends, rows, weight, keep=graph.keep))
        others = self._fixed(observed)
        nothing = Graph(torch.empty(2, 0, dtype=torch.long, device=observed.device), rows)
        return Links(rows, observed.device, local, None, observed.given, (nothing if local is None else local, *others))

    def _fixed(self, observed: Observed) -> tuple[Graph, Graph]:
        """The expander and the edges of virtual nodes, made once."""
        options = self.degree, self.virtual_nodes, self.expander_seed
        rows, segments = observed.rows, observed.segments
        if segments is None:
            return _whole(rows, *options, observed.device)

        def work() -> tuple[Graph, Graph]:
            sets = segments.by_graph.cpu().split(segments.sizes.tolist())
            return _graphs(rows, list(sets), *options, observed.device)

        return _batched.of(segments.batch, options, work)


_batched: ResultCache[tuple[Graph, Graph]] = ResultCache()


@lru_cache(maxsize=8)
def _whole(rows: int, degree: int, virtual: int, seed: int, device: torch.device) -> tuple[Graph, Graph]:
    with torch.inference_mode(False):
        return _graphs(rows, [torch.arange(rows)], degree, virtual, seed, device)


def _graphs(
    rows: int, sets: list[Tensor], degree: int, virtual: int, seed: int, device: torch.device
) -> tuple[Graph, Graph]:
    random, joined = [], []
    for number, nodes in enumerate(sets):
        if degree:
            random.append(nodes[expander(nodes.numel(), degree, seed)])
        own = rows + number * virtual + torch.arange(virtual)
        ends = torch.cartesian_prod(nodes, own).T if virtual else torch.empty(2, 0, dtype=torch.long)
        joined.append(torch.cat([ends, ends.flip(0)], 1))
    empty, total = torch.empty(2, 0, dtype=torch.long), rows + len(sets) * virtual
    return tuple(Graph(torch.cat([empty, *parts], 1).to(device), total) for parts in (random, joined))  # type: ignore[return-value]
