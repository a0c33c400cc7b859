r"""NodeFormer (Wu et al., NeurIPS 2022): all-pair attention on sampled latent edges, in linear time."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout, keyed_uniform
from difformer.nn.protocol import Features
from difformer.zoo.edge_operators import edge_scores
from difformer.zoo.encoder import Observed, Penalised, option, refuse_beyond_memory
from difformer.zoo.linear_maps import linear, make_norm
from difformer.zoo.node_pairs import (
    SMALLEST,
    by_graph,
    draw_projection,
    graph_max,
    graph_sum,
    key_features,
    relative_features,
)


class NodeFormer(Penalised):
    r"""Layers of `NodeFormerLayer` with residual connections, a norm and dropout.

    .. math::
        Z^{(0)} = \mathrm{ELU}(\mathrm{norm}(X W + b)), \qquad
        Z^{(k+1)} = \mathrm{dropout}(\mathrm{norm}(P(Z^{(k)}) + Z^{(k)}))

    In training, Gumbel noise and random features are determined by seed and epoch, like dropout masks. Evaluation uses
    no noise and the random features saved with the model.

    Args:
        hidden_channels: Length of a state, and of each head.
    """

    num_layers: int = option(2, "Attention layers.")
    num_heads: int = option(4, "Heads.")
    dropout: float = option(0.0, "After the input and each layer.")
    random_features: int = option(30, "m, number of random features.")
    temperature: float = option(0.25, "τ.")
    samples: int = option(5, "S, draws of Gumbel noise; 0 trains without noise.", least=0)
    bias_order: int = option(2, "Number of powers of the observed graph to add; 0 for none.", least=0)
    edge_loss: float = option(1.0, "λ, weight of the edge loss.")
    norm: bool = option(True, "Whether a LayerNorm follows each layer.")
    residual: bool = option(True, "Whether a layer adds its input.")
    activation: bool = option(False, "Whether an ELU follows each layer.")
    jumping: bool = option(False, "Whether the output layer sees the states of all layers instead of the last.")
    redraw: bool = option(True, "Whether every training pass draws new random features.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        self.input = nn.Linear(in_channels, hidden_channels)
        self.layers = nn.ModuleList(NodeFormerLayer(hidden_channels, self) for _ in range(self.num_layers))
        self.norms = nn.ModuleList(make_norm(self.norm, hidden_channels) for _ in range(self.num_layers + 1))
        self.output = nn.Linear((self.num_layers + 1 if self.jumping else 1) * hidden_channels, out_channels)
        nn.init.zeros_(self.input.bias)  # it would dominate features whose rows sum to one

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped if observed.given else None
        needed, rows = self._bytes(x.shape[0]), x.shape[0]
        remedy = "train with batch_size=…, or fewer samples, random_features or num_heads"
        refuse_beyond_memory(needed, x.device, "nodeformer on {:,} nodes", remedy, count=rows, training=True)
        z = dropout(functional.elu(self.norms[0](linear(self.input, x))), self.dropout, self.training)
        losses, layers = [], [z]
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            p, loss = layer(z, observed, graph)
            if loss is not None:
                losses.append(loss)
            z = norm(p + z if self.residual else p)
            z = dropout(functional.elu(z) if self.activation else z, self.dropout, self.training)
            layers.append(z)
        nothing = z.new_zeros(()) if graph is None else None
        self._penalty = self.edge_loss * torch.stack(losses).mean() if losses else nothing
        return torch.cat(layers, 1) if self.jumping else z

    def _bytes(self, rows: int) -> float:
        """Bytes stored in training: features of queries, keys and draws, and a few states; factors are measured."""
        channels, features = self.input.out_features, self.random_features * (4.5 * max(1, self.samples) + 5)
        return 4.0 * rows * self.num_layers * (self.num_heads * (features + 2 * channels) + 8 * channels)


class NodeFormerLayer(nn.Module):
    r"""Kernelised Gumbel-softmax attention plus a bias along observed edges.

    With the positive random features φ of `difformer.zoo.node_pairs`, a temperature τ, and S draws of Gumbel noise g_j
    (none in evaluation), each head computes

    .. math::
        P_i = \frac1S \sum_s \frac{φ(q_i / \sqrt τ)^\top \sum_j e^{g_j^s / τ} φ(k_j / \sqrt τ) v_j^\top}
                     {φ(q_i / \sqrt τ)^\top \sum_j e^{g_j^s / τ} φ(k_j / \sqrt τ)}
              + \sum_r σ(b_r) \, (\hat A^r V)_i,

    where Â is the observed graph with self-loops, normalised by degrees, and q, k are scaled by d^{-1/4}. A linear map
    joins the heads. All of this is linear in the values v = W_v z + b_v, so the states are propagated, and the product
    of both maps is applied to sums over nodes.
    """

    def __init__(self, channels: int, options: NodeFormer) -> None:
        super().__init__()
        heads = options.num_heads
        self.shape = (heads, channels)
        self.query, self.key, self.value = (nn.Linear(channels, heads * channels) for _ in range(3))
        self.join = nn.Linear(heads * channels, channels)
        self.bias = nn.Parameter(torch.full((options.bias_order, heads), 0.1)) if options.bias_order else None
        self.temperature, self.samples, self.redraw = options.temperature, options.samples, options.redraw
        self.projection = nn.Buffer(draw_projection(options.random_features, channels))

    def forward(self, z: Tensor, observed: Observed, graph: Graph | None) -> tuple[Tensor, Tensor | None]:
        """Propagated states ``[N, channels]`` and the edge loss; None without a graph or without gradients."""
        projection: Tensor = self.projection
        if self.training and self.redraw:
            features, channels = projection.shape
            projection = draw_projection(features, channels, projection.device).to(projection.dtype)
        scale = self.temperature**-0.5 * self.shape[1] ** -0.25
        # φ(q) up to a factor per query, computed from ωᵀ W_q z without q.
        omega = scale * projection
        to_features = omega @ self.query.weight.unflatten(0, self.shape)  # [H, m, c]
        offset = self.query.bias.view(self.shape) @ omega.T
        products = functional.linear(z, to_features.flatten(0, 1), offset.flatten())
        phi_q = relative_features(products.unflatten(1, offset.shape))
        k = functional.linear(z, scale * self.key.weight, scale * self.key.bias).unflatten(1, self.shape)
        phi_k = key_features(k, projection, observed.segments)
        noise = None
        if self.training and self.samples:
            noise = gumbel((*phi_k.shape[:2], self.samples), z)
            noise = ((noise - graph_max(noise, observed.segments)) / self.temperature).exp().transpose(1, 2)
        # The product of value map and joining map per head: [H, c, c].
        value, join = self.value.weight.unflatten(0, self.shape), self.join.weight.unflatten(1, self.shape)
        maps = torch.einsum("hvc,ohv->hco", value, join)
        drawn = (phi_q, phi_k, z) if noise is None else (phi_q, phi_k, z, noise)
        p = by_graph(partial(attend_drawn, maps), observed.segments, *drawn)
        shift = (join * self.value.bias.view(self.shape)).sum(2)  # [c, H]
        p = p + (self.join.bias + shift.sum(1))
        if graph is not None and self.bias is not None:
            hop, ones = z, z.new_ones(z.shape[0], 1)
            for strength in torch.sigmoid(self.bias):
                hop, ones = graph.propagate(hop), graph.propagate(ones)
                # Rows of Â do not sum to one, so the bias of the values is weighted by their sums.
                p = p + hop @ torch.einsum("h,hco->co", strength, maps) + ones * (shift @ strength)
        if graph is None or not torch.is_grad_enabled():
            return p, None
        return p, edge_loss(phi_q, phi_k, graph, observed.segments)


def gumbel(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Gumbel noise, drawn by `dropout_key` if there is one, else from torch's generator."""
    u = keyed_uniform(shape, like.device)
    if u is None:
        return -torch.empty(shape, device=like.device, dtype=like.dtype).exponential_().log()
    return -torch.log1p(-u).neg().log().to(like.dtype)


def attend_drawn(
    maps: Tensor, mask: Tensor | None, q: Tensor, k: Tensor, z: Tensor, noise: Tensor | None = None
) -> Tensor:
    """Attention ``[G, n, o]``: mapped averages of z, summed over heads and averaged over draws; padding is zero.

    `maps` is ``[H, c, o]``, q and k are ``[G, n, H, m]``, z is ``[G, n, c]``. `noise` ``[G, n, S, H]`` holds a factor
    of each key per draw; None for one draw without noise.
    """
    draws = 1 if noise is None else noise.shape[2]
    heads, features = q.shape[2:]
    # Maps heads to their features, [H, H m], by products instead of broadcasts.
    own = torch.eye(heads, dtype=q.dtype, device=q.device).repeat_interleave(features, 1)
    q, keys = q.flatten(2), k.flatten(2).unsqueeze(2)
    if noise is not None:
        keys = keys * (noise @ own)  # [G, n, S, H m]
    # A column of ones in the states yields the denominators.
    sums = keys.flatten(2).transpose(1, 2) @ torch.cat([z, z.new_ones(*z.shape[:2], 1)], -1)
    total = q @ torch.einsum("gsk,hk->gksh", sums[..., -1].unflatten(1, (draws, -1)), own).flatten(2)
    # Dividing first lets one product sum over heads and draws, without a tensor of heads × draws × channels.
    inverse = (draws * total.clamp_min(SMALLEST)).reciprocal().unflatten(2, (draws, heads))
    shares = q.unsqueeze(2) * (inverse @ own)
    by_head = sums[..., :-1].unflatten(1, (draws, heads, features))
    mapped = torch.einsum("gshmc,hco->gshmo", by_head, maps)
    return shares.flatten(2) @ mapped.flatten(1, 3)


def edge_loss(phi_q: Tensor, phi_k: Tensor, graph: Graph, segments: Segments | None) -> Tensor:
    r"""The negative log-likelihood of observed edges under the attention, a mean over nodes and heads.

    .. math::
        -\frac{1}{N H} \sum_h \sum_{(i, j) \in E} \frac{1}{d_i} \log π_{ij}^h, \qquad
        π_{ij} = \frac{φ(q_i)^\top φ(k_j)}{φ(q_i)^\top \sum_l φ(k_l)}
    """
    target = graph.edge_index[1]
    count = phi_q.new_zeros(graph.num_nodes).index_add(0, target, phi_q.new_ones(graph.num_edges))
    share = count.clamp_min(1).reciprocal().index_select(0, target)
    found = (share @ edge_scores(phi_q, phi_k, graph).log()).sum()
    # Shares of the edges into a node sum to one, so its denominator counts once.
    if segments is None:
        total = torch.einsum("nhm,hm->nh", phi_q, phi_k.sum(0))
    else:
        total = (phi_q * graph_sum(phi_k, segments)).sum(-1)
    return ((count > 0).to(total.dtype) @ total.log()).sum().sub(found) / (graph.num_nodes * phi_q.shape[1])
