r"""Graph learning-convolutional network of Jiang et al. (CVPR 2019): edges weighted by a learned distance."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.conv import check_count
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import as_structure
from difformer.zoo.base import Encoder, check_layers, check_rate
from difformer.zoo.edges import edge_softmax, edge_sum
from difformer.zoo.inputs import dense, linear, observed_graph, refuse_beyond_memory
from difformer.zoo.pair_matrix import PairMatrix
from difformer.zoo.per_graph import pairs
from difformer.zoo.weighted_distance import weighted_distance

PAIR_COPIES = 6  # of S: scores, weights, their gradients, and those of a layer's product


class GLCN(Encoder):
    r"""A graph learned from projected features p = x P, then graph convolutions over it.

    .. math::
        S_{ij} = \frac{A_{ij} \exp(\mathrm{ReLU}(a^\top |p_i - p_j|))}{\sum_l A_{il} \exp(\mathrm{ReLU}(a^\top
        |p_i - p_l|))}, \qquad Z^{(k+1)} = \mathrm{ReLU}(S Z^{(k)} W_k + b_k).

    A holds the observed edges and self-loops; where no edges are given it is one for all pairs, which costs N² numbers
    and is refused where they do not fit. The graph has a loss of its own, see `penalty`. The last layer propagates too:
    `embed` gives its propagated states.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Convolutions, the output's included.
        dropout: Before every convolution, on features too.
        graph_channels: Length of p.
        graph_loss: λ, weight of the graph's own loss.
        sparsity: γ, within it: how far weights of a row are kept apart from a single large one.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.6,
        graph_channels: int = 70,
        graph_loss: float = 0.01,
        sparsity: float = 0.1,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_rate("dropout", dropout)
        check_count("graph_channels", graph_channels, 1)
        self.project = nn.Linear(in_channels, graph_channels, bias=False)
        self.metric = nn.Parameter(torch.empty(graph_channels, 1))
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        self.hidden = nn.ModuleList(nn.Linear(size, hidden_channels, bias=False) for size in sizes[:-1])
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(hidden_channels)) for _ in sizes[1:])
        self.output = nn.Linear(sizes[-1], out_channels)
        self.dropout, self.graph_loss, self.sparsity = dropout, graph_loss, sparsity
        for weight in (parameter for parameter in self.parameters() if parameter.dim() == 2):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.output.bias)
        self._penalty: Tensor | None = None

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Propagated states before the last linear map."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        p = linear(self.project, x)
        learned: _OnEdges | _OnPairs
        if edge_index is None:
            learned = self._on_pairs(p, structure.segments)
        else:
            graph = observed_graph(x.shape[0], structure.graph, self_loops=True, device=x.device)
            assert graph is not None  # there always are self-loops
            learned = self._on_edges(p, graph)
        self._penalty = learned.loss(p, self.sparsity)
        z = x
        for layer, bias in zip(self.hidden, self.biases, strict=True):
            assert isinstance(layer, nn.Linear)
            # Mapping first: there are fewer hidden channels than features.
            z = functional.relu(learned.propagate(linear(layer, z, self.dropout, self.training)) + bias)
        return learned.propagate(dropout(dense(z), self.dropout, self.training))

    def penalty(self) -> Tensor:
        r"""λ times the loss of the graph of the last pass, a node's mean.

        .. math::
            \frac{1}{N} \sum_{ij} S_{ij} ‖p_i - p_j‖^2 + \frac{γ}{N} ‖S‖_F^2
        """
        if self._penalty is None:
            raise ValueError("glcn has no graph yet: its penalty is that of the last forward pass")
        return self.graph_loss * self._penalty

    def _on_edges(self, p: Tensor, graph: Graph) -> _OnEdges:
        source, target = graph.edge_index
        if not torch.compiler.is_compiling():
            needed = 16.0 * graph.num_edges * p.shape[1]
            refuse_beyond_memory(needed, p.device, f"glcn on {graph.num_edges:,} edges", "take fewer graph_channels")
        distance = (p.index_select(0, target) - p.index_select(0, source)).abs() @ self.metric
        return _OnEdges(edge_softmax(functional.relu(distance), graph), graph)

    def _on_pairs(self, p: Tensor, segments: Segments | None) -> _OnPairs:
        count = pairs(p.shape[0], segments)
        needed = 4.0 * count * (PAIR_COPIES if torch.is_grad_enabled() else 2)
        refuse_beyond_memory(
            needed, p.device, f"glcn on all {count:,} pairs", "give it edges, for example with graph=knn:5"
        )
        metric = self.metric.squeeze(1)
        scores = PairMatrix.make(
            lambda block: functional.relu(weighted_distance(block, metric)), segments, p, padding=-torch.inf
        )
        return _OnPairs(scores.softmax())


class _OnEdges:
    """S on edges: ``weight [E, 1]``."""

    def __init__(self, weight: Tensor, graph: Graph) -> None:
        self.weight, self.graph = weight, graph

    def propagate(self, z: Tensor) -> Tensor:
        return edge_sum(self.weight, z.unsqueeze(1), self.graph).squeeze(1)

    def loss(self, p: Tensor, sparsity: float) -> Tensor:
        given = p.new_zeros(p.shape[0]).index_add(0, self.graph.edge_index[0], self.weight.squeeze(1).to(p.dtype))
        return _loss(p, given, self.propagate(p), self.weight.square().sum(), sparsity)


class _OnPairs:
    """S on all pairs."""

    def __init__(self, matrix: PairMatrix) -> None:
        self.matrix = matrix

    def propagate(self, z: Tensor) -> Tensor:
        return self.matrix @ z

    def loss(self, p: Tensor, sparsity: float) -> Tensor:
        squares = self.matrix.map(torch.square).total()
        return _loss(p, self.matrix.column_sums(), self.propagate(p), squares, sparsity)


def _loss(p: Tensor, given: Tensor, received: Tensor, squares: Tensor, sparsity: float) -> Tensor:
    """Σ S_ij ‖p_i - p_j‖² = Σ_i ‖p_i‖² (1 + Σ_j S_ji) - 2 Σ_i p_iᵀ(S p)_i, as rows of S sum to one."""
    smoothness = (p.square().sum(1) * (1 + given)).sum() - 2 * (p * received).sum()
    return (smoothness + sparsity * squares) / p.shape[0]
