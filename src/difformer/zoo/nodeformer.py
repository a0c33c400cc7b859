r"""NodeFormer of Wu et al. (NeurIPS 2022): all-pair attention that draws latent edges, in linear time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.conv import check_count
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import Structure, as_structure
from difformer.zoo.base import Encoder, check_layers, check_positive, check_rate
from difformer.zoo.edges import edge_scores
from difformer.zoo.inputs import linear, observed_graph
from difformer.zoo.per_graph import by_graph, graph_sum
from difformer.zoo.random_features import SMALLEST, draw_projection, key_features, linear_attention, query_features


class NodeFormerLayer(nn.Module):
    r"""Kernelised Gumbel-softmax attention, and the observed edges as a bias beside it.

    With φ the positive random features of `difformer.zoo.random_features`, τ a temperature, and Gumbel noise g_j drawn
    S times while training (none in evaluation),

    .. math::
        P_i = \frac1S \sum_s \frac{φ(q_i / \sqrt τ)^\top \sum_j e^{g_j^s / τ} φ(k_j / \sqrt τ) v_j^\top}
                     {φ(q_i / \sqrt τ)^\top \sum_j e^{g_j^s / τ} φ(k_j / \sqrt τ)}
              + \sum_r σ(b_r) \, (\hat A^r V)_i,

    Â the observed graph with self-loops, normalised by degrees; q, k are scaled by d^{-1/4}, so that qᵀk is that of
    softmax attention. Heads are joined by a linear map.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        features: int,
        temperature: float,
        samples: int,
        bias_order: int,
        redraw: bool,
    ) -> None:
        super().__init__()
        self.shape = (heads, channels)
        self.query, self.key, self.value = (nn.Linear(channels, heads * channels) for _ in range(3))
        self.join = nn.Linear(heads * channels, channels)
        self.bias = nn.Parameter(torch.full((bias_order, heads), 0.1)) if bias_order else None
        self.temperature, self.samples, self.redraw = temperature, samples, redraw
        self.register_buffer("projection", draw_projection(features, channels))
        self.projection: Tensor

    def forward(self, z: Tensor, structure: Structure, graph: Graph | None) -> tuple[Tensor, Tensor]:
        """Propagated states ``[N, channels]`` and the layer's edge loss, see `NodeFormer.penalty`."""
        projection = self.projection
        if self.training and self.redraw:
            projection = draw_projection(*projection.shape).to(projection)
        q, k, v = (layer(z).unflatten(1, self.shape) for layer in (self.query, self.key, self.value))
        scale = self.temperature**-0.5 * self.shape[1] ** -0.25
        phi_q = query_features(q * scale, projection)
        phi_k = key_features(k * scale, projection, structure.segments)
        if self.training and self.samples:
            noise = -torch.empty(*k.shape[:2], self.samples, device=k.device, dtype=k.dtype).exponential_().log()
            drawn = key_features(k * scale, projection, structure.segments, noise / self.temperature)
            p = by_graph(attend_drawn, structure.segments, phi_q, drawn, v)
        else:
            p = linear_attention(phi_q, phi_k, v, structure.segments)
        loss = z.new_zeros(())
        if graph is not None:
            loss = edge_loss(phi_q, phi_k, graph, structure.segments)
            if self.bias is not None:
                spread = v
                for strength in torch.sigmoid(self.bias):
                    spread = graph.propagate(spread)
                    p = p + strength.unsqueeze(-1) * spread
        return self.join(p.flatten(1)), loss


def attend_drawn(mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Answers ``[G, n, H, c]`` to ``q [G, n, H, m]``, a mean over draws of ``k [G, n, H, S, m]``; padding is zero."""
    # Values with a column of ones: numerators and denominators are the same sums.
    sums = torch.einsum("gnhsm,gnhc->ghsmc", k, torch.cat([v, v.new_ones(*v.shape[:3], 1)], -1))
    total = torch.einsum("gnhm,ghsm->gnhs", q, sums[..., -1])
    # Divided before the product: what is summed over draws and features then never exists for every draw.
    shares = q.unsqueeze(3) / (k.shape[3] * total.clamp_min(SMALLEST)).unsqueeze(-1)
    return torch.einsum("gnhsm,ghsmc->gnhc", shares, sums[..., :-1])


def edge_loss(phi_q: Tensor, phi_k: Tensor, graph: Graph, segments: Segments | None) -> Tensor:
    r"""How unlikely attention finds the observed edges, a mean over nodes and heads.

    .. math::
        -\frac{1}{N H} \sum_h \sum_{(i, j) \in E} \frac{1}{d_i} \log π_{ij}^h, \qquad
        π_{ij} = \frac{φ(q_i)^\top φ(k_j)}{φ(q_i)^\top \sum_l φ(k_l)}
    """
    weight = edge_scores(phi_q, phi_k, graph)
    total = (phi_q * graph_sum(phi_k, segments)).sum(-1)
    target = graph.edge_index[1]
    likely = weight.log() - total.log().index_select(0, target)
    count = torch.bincount(target, minlength=graph.num_nodes).to(likely.dtype).index_select(0, target)
    return -(likely / count.unsqueeze(1)).sum() / (graph.num_nodes * phi_q.shape[1])


class NodeFormer(Encoder):
    r"""Layers of `NodeFormerLayer` with residual connections, a norm and dropout.

    .. math::
        Z^{(0)} = \mathrm{ELU}(\mathrm{norm}(X W + b)), \qquad
        Z^{(k+1)} = \mathrm{dropout}(\mathrm{norm}(P(Z^{(k)}) + Z^{(k)}))

    While it trains, Gumbel noise and random features come from torch's generator; in evaluation there is no noise, and
    the features are those that are saved with the model.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state, and of each head.
        out_channels: Outputs of an instance.
        num_layers: Attention layers.
        num_heads: Heads.
        dropout: After the input and each layer.
        random_features: m.
        temperature: τ.
        samples: S, draws of Gumbel noise; 0 trains without it.
        bias_order: Powers of the observed graph that are added; 0 for none.
        edge_loss: λ, weight of the edge loss.
        norm: Whether there is a LayerNorm after each layer.
        residual: Whether a layer adds to its input.
        redraw: Whether random features are drawn anew in every pass of training.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.0,
        random_features: int = 30,
        temperature: float = 0.25,
        samples: int = 5,
        bias_order: int = 2,
        edge_loss: float = 1.0,
        norm: bool = True,
        residual: bool = True,
        redraw: bool = True,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_count("num_heads", num_heads, 1)
        check_count("random_features", random_features, 1)
        check_count("samples", samples, 0)
        check_count("bias_order", bias_order, 0)
        check_positive("temperature", temperature)
        check_rate("dropout", dropout)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.layers = nn.ModuleList(
            NodeFormerLayer(
                hidden_channels,
                num_heads,
                features=random_features,
                temperature=temperature,
                samples=samples,
                bias_order=bias_order,
                redraw=redraw,
            )
            for _ in range(num_layers)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(hidden_channels) if norm else nn.Identity() for _ in range(num_layers + 1)
        )
        self.output = nn.Linear(hidden_channels, out_channels)
        self.dropout, self.edge_loss, self.residual = dropout, edge_loss, residual
        self._penalty: Tensor | None = None

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States after the last layer."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        graph = None
        if edge_index is not None:
            graph = observed_graph(x.shape[0], structure.graph, self_loops=True, device=x.device)
        z = dropout(functional.elu(self.norms[0](linear(self.input, x))), self.dropout, self.training)
        losses = []
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            p, loss = layer(z, structure, graph)
            losses.append(loss)
            z = dropout(norm(p + z if self.residual else p), self.dropout, self.training)
        self._penalty = torch.stack(losses).mean()
        return z

    def penalty(self) -> Tensor:
        """λ times the edge loss of the last pass, a mean over layers; zero where nothing is observed."""
        if self._penalty is None:
            raise ValueError("nodeformer has made no pass yet: its penalty is that of the last one")
        return self.edge_loss * self._penalty
