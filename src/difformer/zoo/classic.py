r"""Classic networks: MLP, GCN, GraphSAGE, GAT, GIN, SGC, APPNP and GCNII, with the options of tuned baselines.

MLP, GCN, GraphSAGE, GAT and GIN share one loop over layers (`Stack`). Its options turn them into the tuned baselines of
Luo, Shi and Wu, "Classic GNNs are Strong Baselines" (NeurIPS 2024): ``gcn+``, ``sage+`` and ``gat+`` in the catalogue
are the same classes with different defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.errors import UserError
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.zoo.edge_operators import check_attention_memory, edge_softmax, edge_sum, from_sources, from_targets
from difformer.zoo.encoder import Encoder, Observed, Penalised, check_heads, one_of, option
from difformer.zoo.linear_maps import dense, linear, make_norm, mapped

ACTIVATIONS: dict[str, Any] = {"relu": functional.relu, "elu": functional.elu}
SLOPE = 0.2  # negative slope of the LeakyReLU of graph attention


class Stack(Encoder):
    r"""A stack of layers that differ in how they combine a node with its neighbours.

    .. math::
        Z^{(k+1)} = \mathrm{dropout}(σ(\mathrm{norm}(\mathrm{layer}_k(Z^{(k)}) + Z^{(k)} R_k))),

    with :math:`Z^{(0)} = X` or dropout(X W + b), and R only with `residual`. The outputs come from a last layer without
    norm and activation or, with `linear_head`, from a linear map of the states (of their sum over all layers with
    `jumping`). A subclass defines `maps` and `combine`. All linear maps of a layer's input are computed as one product
    with one dropout mask, which also serves sparse features.
    """

    num_layers: int = option(2, "Layers; without `linear_head` the last one computes the outputs.")
    dropout: float = option(0.0, "After each activation.")
    input_dropout: float | None = option(0.0, "On the features; None uses `dropout`.")
    residual: bool = option(False, "Whether each hidden layer adds a linear map of its input.")
    norm: str = option("none", 'Before each activation: ``"batch"``, ``"layer"`` (or true) or ``"none"``.')
    jumping: bool = option(False, "Whether the output layer sees the sum of all hidden states instead of the last.")
    linear_input: bool = option(False, "Whether a linear map and dropout precede the first layer.")
    linear_head: bool = option(False, "Whether a linear map of the states follows `num_layers` hidden layers.")
    activation: str = one_of("relu", "elu")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        hidden = self.num_layers if self.linear_head else self.num_layers - 1
        if self.jumping and not hidden:
            raise UserError("jumping=True sums hidden states, and num_layers=1 has none; take more layers")
        self.sizes = [hidden_channels if self.linear_input else in_channels] + [hidden_channels] * hidden
        self.input = nn.Linear(in_channels, hidden_channels) if self.linear_input else None
        self.norms = nn.ModuleList(make_norm(self.norm, hidden_channels) for _ in range(hidden))
        self.shortcuts = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(self.sizes) if self.residual)

    def maps(self, k: int) -> list[Tensor]:
        """Weights ``[out, in]`` of the linear maps of layer k."""
        return [self.hidden[k].weight]  # type: ignore[index, union-attr]

    def combine(self, k: int, products: list[Tensor], graph: Any) -> Tensor:
        """The output of layer k, given the linear maps of its input."""
        raise NotImplementedError

    def surroundings(self, x: Features, observed: Observed) -> Any:
        """The graph that `combine` and `last_layer` receive."""
        return observed.graph

    def last_layer(self, z: Tensor, graph: Any) -> Tensor:
        """The last layer without its linear map, which is in the decoder."""
        return z

    def states(self, x: Features, observed: Observed) -> Tensor:
        """Inputs of the decoder: the states, propagated by the last layer if there is no linear head."""
        graph = self.surroundings(x, observed)
        activation: Callable[[Tensor], Tensor] = ACTIVATIONS[self.activation]
        rate = self.dropout if self.input_dropout is None else self.input_dropout
        drop = self.training and (self.input_dropout is None or self.input_dropout > 0)
        z: Features = x
        if self.input is not None:
            z, drop = dropout(linear(self.input, x, rate, drop), self.dropout, self.training), False
        total: Tensor | None = None
        for k, norm in enumerate(self.norms):
            shortcut: Any = self.shortcuts[k] if len(self.shortcuts) else None
            weights = self.maps(k) if shortcut is None else [*self.maps(k), shortcut.weight]
            joined = weights[0] if len(weights) == 1 else torch.cat(weights)
            products = list(mapped(joined, z, rate, drop).split([weight.shape[0] for weight in weights], 1))
            new = self.combine(k, products, graph)
            if shortcut is not None:
                new = new + products[-1] + shortcut.bias
            z, drop = dropout(activation(norm(new)), self.dropout, self.training), False
            if self.jumping:
                total = z if total is None else total + z
        found = dropout(dense(z), rate, drop) if drop else dense(z)
        found = found if total is None else total
        return found if self.linear_head else self.last_layer(found, graph)


class MLP(Stack):
    r"""The multi-layer perceptron: layers :math:`σ(\mathrm{norm}(Z W_k + b_k))`, without the graph."""

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().make(in_channels, hidden_channels, out_channels)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(self.sizes))
        self.output = nn.Linear(self.sizes[-1], out_channels)

    def combine(self, k: int, products: list[Tensor], graph: Any) -> Tensor:
        return products[0] + self.hidden[k].bias  # type: ignore[operator]

    def look(self, x: Features, *structure: Any) -> Observed:
        """Without structure, which is neither used nor checked."""
        return Observed(x.shape[0], x.device)

    def decode(self, states: Tensor) -> Tensor:
        return linear(self.output, states)


class GCN(Stack):
    r"""Graph convolution (Kipf and Welling, ICLR 2017): layers :math:`σ(S Z W_k + b_k)`.

    S is :math:`\tilde D^{-1/2} (A + I) \tilde D^{-1/2}`. `embed` returns the states after the propagation of the last
    layer, so that pooled states can be decoded too. The layers equal PyTorch Geometric's ``GCNConv``.
    """

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().make(in_channels, hidden_channels, out_channels)
        # Propagation comes between the map and the bias.
        self.hidden = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(self.sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(b)) for b in self.sizes[1:])
        self.output = nn.Linear(self.sizes[-1], out_channels)
        for layer in (*self.hidden, self.output):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.output.bias)

    def surroundings(self, x: Features, observed: Observed) -> Any:
        return observed.looped

    def last_layer(self, z: Tensor, graph: Any) -> Tensor:
        return graph.propagate(z)

    def combine(self, k: int, products: list[Tensor], graph: Any) -> Tensor:
        # Mapping first: propagation is linear, and there are fewer hidden channels than features.
        return self.last_layer(products[0], graph) + self.biases[k]


class GraphSAGE(Stack):
    r"""GraphSAGE (Hamilton et al., NIPS 2017): :math:`σ(W_k z_i + M_k \, \mathrm{mean}_{j \in N(i)} z_j + b_k)`.

    `embed` returns each state beside the mean of its neighbours' states; the decoder holds both maps of the last layer.
    The layers equal PyTorch Geometric's ``SAGEConv``.
    """

    dropout: float = option(0.5, "After each activation.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().make(in_channels, hidden_channels, out_channels)
        self.own: Any = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(self.sizes))
        self.neighbours: Any = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(self.sizes))
        self.output = nn.Linear((1 if self.linear_head else 2) * self.sizes[-1], out_channels)

    def maps(self, k: int) -> list[Tensor]:
        return [self.own[k].weight, self.neighbours[k].weight]

    def mean(self, z: Tensor, graph: Graph | None) -> Tensor:
        """The weighted mean over neighbours; zero for a node without neighbours."""
        return torch.zeros_like(z) if graph is None else graph.propagate(z, "random_walk")

    def combine(self, k: int, products: list[Tensor], graph: Graph | None) -> Tensor:
        return products[0] + self.own[k].bias + self.mean(products[1], graph)

    def last_layer(self, z: Tensor, graph: Graph | None) -> Tensor:
        return torch.cat([z, self.mean(z, graph)], 1)


class GATLayer(nn.Module):
    r"""Values and attention weights of one layer, per head:

    .. math::
        v_i = W z_i, \qquad s_{ij} \propto a_{ij} \exp(\mathrm{LeakyReLU}(a_1^\top v_i + a_2^\top v_j)),

    where the weights of a node's neighbours, including the node itself, sum to one.
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int) -> None:
        super().__init__()
        self.shape = (heads, out_channels)
        self.linear = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.to_target = nn.Parameter(torch.empty(heads, out_channels))
        self.to_source = nn.Parameter(torch.empty(heads, out_channels))
        for weight in (self.linear.weight, self.to_target, self.to_source):
            nn.init.xavier_uniform_(weight)

    def scores(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions ``[N, H]`` of each node to scores as target and as source, from values ``[N, H, C]``."""
        both = torch.stack([self.to_target, self.to_source], 1)  # [H, 2, C]
        heads = torch.eye(self.shape[0], dtype=both.dtype, device=both.device)
        # One block-diagonal product is faster than sums over short last axes.
        maps = torch.einsum("htc,hk->hctk", both, heads).flatten(2).flatten(0, 1)
        target, source = (values.flatten(1) @ maps).unflatten(1, (2, -1)).unbind(1)
        return target, source

    def weights(self, values: Tensor, graph: Graph) -> Tensor:
        to_target, to_source = self.scores(values)
        scores = from_targets(to_target, graph) + from_sources(to_source, graph)
        return edge_softmax(functional.leaky_relu(scores, SLOPE), graph)


class GAT(Stack):
    r"""Graph attention (Veličković et al., ICLR 2018): layers :math:`σ(\Vert_h S_h V_h + b)`, see `GATLayer`.

    The last layer averages its heads: :math:`\hat Y = \frac1H \sum_h S_h V_h + b` with V = Z W. It is computed as
    (S_h Z) W_h: `embed` returns S_h Z of all heads, and `decode` applies W_h. The layers equal PyTorch Geometric's
    ``GATConv``; edge weights, which ``GATConv`` ignores, multiply the exponentials.
    """

    num_heads: int | None = option(None, "Heads of hidden layers; None uses 8, or its largest divisor that fits.")
    output_heads: int = option(1, "Heads of the last layer.")
    dropout: float = option(0.6, "After each activation.")
    input_dropout: float | None = None
    attention_dropout: float | None = option(None, "On the attention weights; None uses `dropout`.")
    activation: str = one_of("elu", "relu")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().make(in_channels, hidden_channels, out_channels)
        self.heads, self.hidden_channels = check_heads(self.num_heads, hidden_channels), hidden_channels
        self.layers: Any = nn.ModuleList(
            GATLayer(size, hidden_channels // self.heads, self.heads) for size in self.sizes[:-1]
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(hidden_channels)) for _ in self.sizes[1:])
        if self.linear_head:
            self.output = nn.Linear(self.sizes[-1], out_channels)
        else:
            self.last = GATLayer(self.sizes[-1], out_channels, self.output_heads)
            self.bias = nn.Parameter(torch.zeros(out_channels))

    def surroundings(self, x: Features, observed: Observed) -> Any:
        graph = observed.looped
        layers, remedy = len(self.layers) + 1, "train with batch_size=…, or fewer heads"
        check_attention_memory("attention", [graph], self.heads, self.hidden_channels, layers, remedy)
        return graph

    def attend(self, layer: GATLayer, values: Tensor, v: Tensor, graph: Any) -> Tensor:
        """Propagates ``v [N, H, c]`` with the attention of ``values [N, H, C]``."""
        rate = self.dropout if self.attention_dropout is None else self.attention_dropout
        return edge_sum(dropout(layer.weights(values, graph), rate, self.training), v, graph)

    def maps(self, k: int) -> list[Tensor]:
        return [self.layers[k].linear.weight]

    def combine(self, k: int, products: list[Tensor], graph: Any) -> Tensor:
        layer = self.layers[k]
        values = products[0].unflatten(1, layer.shape)
        return self.attend(layer, values, values, graph).flatten(1) + self.biases[k]

    def last_layer(self, z: Tensor, graph: Any) -> Tensor:
        """States propagated by each head of the last layer, ``[N, output_heads × hidden]``."""
        values = self.last.linear(z).unflatten(1, self.last.shape)
        return self.attend(self.last, values, z.unsqueeze(1).expand(-1, self.last.shape[0], -1), graph).flatten(1)

    def decode(self, states: Tensor) -> Tensor:
        if self.linear_head:
            return self.output(states)
        heads, channels = self.last.shape
        maps = self.last.linear.weight.view(heads, channels, -1)
        return torch.einsum("...hd,hcd->...c", states.unflatten(-1, (heads, -1)), maps) / heads + self.bias


class GINLayer(nn.Module):
    r"""One layer :math:`W_2 \, \mathrm{ReLU}(\mathrm{norm}(W_1 ((1 + ε) Z + A Z)))`, given the products W_1 Z."""

    def __init__(self, in_channels: int, channels: int, eps: float, learn_eps: bool, norm: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_channels, channels), nn.Linear(channels, channels)
        self.norm = make_norm(norm, channels)
        self.eps: float | Tensor = nn.Parameter(torch.tensor(float(eps))) if learn_eps else float(eps)

    def forward(self, own: Tensor, graph: Graph | None) -> Tensor:
        total = (1 + self.eps) * own
        if graph is not None:
            total = total + graph.propagate(own, "none")
        return self.second(functional.relu(self.norm(total + self.first.bias)))


class GIN(Stack):
    r"""The isomorphism network (Xu et al., ICLR 2019): :math:`σ(\mathrm{norm}(\mathrm{MLP}((1 + ε) Z + A Z)))`.

    The sum over neighbours is weighted. The layers equal PyTorch Geometric's ``GINConv`` with an MLP of two maps.
    """

    eps: float = option(0.0, "ε, extra weight of a node's own state.")
    learn_eps: bool = option(False, "Whether ε is trained, one per layer.")
    norm: str = option("batch", 'After each layer and within its MLP: ``"batch"``, ``"layer"`` or ``"none"``.')
    dropout: float = option(0.5, "After each layer.")
    linear_head: bool = option(True, "Whether a linear map follows `num_layers` hidden layers; else it is the last.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().make(in_channels, hidden_channels, out_channels)
        layer = partial(GINLayer, eps=self.eps, learn_eps=self.learn_eps, norm=self.norm)
        self.layers: Any = nn.ModuleList(layer(a, b) for a, b in pairwise(self.sizes))
        self.output = nn.Linear(self.sizes[-1], out_channels)

    def maps(self, k: int) -> list[Tensor]:
        return [self.layers[k].first.weight]

    def combine(self, k: int, products: list[Tensor], graph: Graph | None) -> Tensor:
        return self.layers[k](products[0], graph)


class SGC(Encoder):
    r"""Simple graph convolution (Wu et al., ICML 2019): :math:`\hat Y = S^K X W + b`.

    S is :math:`\tilde D^{-1/2} (A + I) \tilde D^{-1/2}`. Outputs are computed as S^K (X W), which has fewer columns.

    Args:
        hidden_channels: Not used; there is no hidden layer.
    """

    num_layers: int = option(2, "K, number of propagations.", least=0)

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        self.output = nn.Linear(in_channels, out_channels)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def diffused(self, z: Tensor, observed: Observed) -> Tensor:
        graph = observed.looped
        for _ in range(self.num_layers):
            z = graph.propagate(z)
        return z

    def states(self, x: Features, observed: Observed) -> Tensor:
        """Diffused features S^K X, ``[N, in_channels]``."""
        return self.diffused(dense(x), observed)

    def outputs(self, x: Features, observed: Observed) -> Tensor:
        return self.diffused(mapped(self.output.weight, x), observed) + self.output.bias


class APPNP(Encoder):
    r"""Predict, then propagate (Gasteiger et al., ICLR 2019): :math:`Z^{(k+1)} = (1 - α) S Z^{(k)} + α Z^{(0)}`.

    Z⁰ are the states of an MLP and S is :math:`\tilde D^{-1/2} (A + I) \tilde D^{-1/2}`. The MLP's last map, which
    commutes with propagation, comes after it, so that pooled states can be decoded too.
    """

    num_layers: int = option(10, "K, number of steps.", least=0)
    alpha: float = option(0.1, "α, share of a node's own prediction.")
    mlp_layers: int = option(2, "Linear maps of the MLP, including the output layer.")
    dropout: float = option(0.5, "Before each linear map, including on the features.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        sizes = [in_channels] + [hidden_channels] * (self.mlp_layers - 1)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph, features = observed.looped, x
        for layer in self.hidden:
            features = functional.relu(linear(layer, features, self.dropout, self.training))  # type: ignore[arg-type]
        z = initial = dropout(dense(features), self.dropout, self.training)
        for _ in range(self.num_layers):
            z = torch.lerp(graph.propagate(z), initial, self.alpha)
        return z


class GCNII(Encoder):
    r"""Deep graph convolution (Chen et al., ICML 2020) with initial residual and identity mapping,

    .. math::
        Z^{(k+1)} = \mathrm{ReLU}\left( \left( (1 - α) S Z^{(k)} + α Z^{(0)} \right)
        \left( (1 - β_k) I + β_k W_k \right) \right), \qquad β_k = \ln(θ / k + 1), \; k = 1 … K,

    between a linear input layer with ReLU and a linear output layer. The layers equal PyTorch Geometric's ``GCN2Conv``.
    """

    num_layers: int = option(16, "K, number of layers.")
    alpha: float = option(0.1, "α, share of the initial states.")
    theta: float = option(0.5, "θ, strength of the maps W_k.")
    dropout: float = option(0.6, "Before each linear map and each layer, including on the features.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        self.input = nn.Linear(in_channels, hidden_channels)
        maps = (torch.empty(hidden_channels, hidden_channels) for _ in range(self.num_layers))
        self.maps = nn.ParameterList(nn.Parameter(nn.init.xavier_uniform_(weight)) for weight in maps)
        self.output = nn.Linear(hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped
        z = initial = functional.relu(linear(self.input, x, self.dropout, self.training))
        for k, weight in enumerate(self.maps, 1):
            z = graph.propagate(dropout(z, self.dropout, self.training))
            mixed = torch.lerp(z, initial, self.alpha)
            share = math.log(self.theta / k + 1)
            z = functional.relu((1 - share) * mixed + share * (mixed @ weight))
        return dropout(z, self.dropout, self.training)


def roughness(outputs: Tensor, graph: Graph | None, norm: str = "gcn") -> Tensor:
    r""":math:`\mathrm{tr}(F^\top L F)` with L = D - A (``"none"``) or D^{-1/2} (D - A) D^{-1/2} (``"gcn"``)."""
    if graph is None:
        return outputs.new_zeros(())
    degree = graph.degree(outputs.dtype)
    kept = degree if norm == "none" else (degree > 0).to(outputs.dtype)
    return (outputs * (kept.unsqueeze(1) * outputs - graph.propagate(outputs, norm))).sum()


class ManiReg(Penalised, MLP):
    r"""An MLP whose loss has the additional term :math:`\frac{λ}{N} \mathrm{tr}(F^\top L F)` of its outputs F.

    The graph is used in training only; predictions depend on the features of the instance alone.
    """

    dropout: float = option(0.5, "After each activation.")
    penalty_weight: float = option(0.1, "λ.")
    graph_norm: str = one_of("gcn", "none", about='The Laplacian L, normalised (``"gcn"``) or plain (``"none"``).')

    def look(self, x: Features, *structure: Any) -> Observed:
        """Structure is used and checked in training only."""
        return Observed.of(x, *structure) if self.training else super().look(x, *structure)

    def outputs(self, x: Features, observed: Observed) -> Tensor:
        found = super().outputs(x, observed)
        weight = self.penalty_weight / max(1, x.shape[0])
        self._penalty = weight * roughness(found, observed.graph, self.graph_norm)  # zero without a graph
        return found
