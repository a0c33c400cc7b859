r"""LINKX of Lim et al. (NeurIPS 2021): features and rows of the adjacency matrix, each with its own perceptron."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.errors import UserError
from difformer.zoo.encoder import Encoder, Features, Observed, check_count, dropout, linear


class Perceptron(nn.Module):
    """Linear maps with ReLU, BatchNorm and dropout between them, in that order; the last one is bare."""

    def __init__(self, sizes: list[int], dropout: float) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:-1])
        self.dropout = dropout

    def forward(self, z: Features) -> Tensor:
        for layer, norm in zip(self.maps, self.norms, strict=False):
            z = dropout(norm(functional.relu(linear(layer, z))), self.dropout, self.training)  # type: ignore[arg-type]
        return linear(self.maps[-1], z)  # type: ignore[arg-type]


class LINKX(Encoder):
    r"""Structure and features apart, then together:

    .. math::
        H_A = \mathrm{MLP}_A(A), \quad H_X = \mathrm{MLP}_X(X), \quad
        \hat Y = \mathrm{MLP}_f\big( σ(W_A H_A + W_X H_X + H_A + H_X) \big).

    No messages are passed, so neighbours that differ do no harm. The first map of A has a row of weights for every node
    (A W costs one sparse product), which ties the model to the nodes of one graph: new nodes may follow them, and are
    known by their edges to the old ones. The layers are those of PyTorch Geometric's ``LINKX``.

    Args:
        hidden_channels: Length of H_A, H_X and the states.
        num_layers: Linear maps of MLP_f, the output's included.
        edge_layers: Linear maps of MLP_A.
        feature_layers: Linear maps of MLP_X.
        dropout: Within the perceptrons.
        num_nodes: N; None takes it from the task, or from the first pass.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        edge_layers: int = 1,
        feature_layers: int = 1,
        dropout: float = 0.5,
        num_nodes: int | None = None,
    ) -> None:
        super().__init__(num_layers=num_layers, edge_layers=edge_layers, feature_layers=feature_layers, dropout=dropout)
        h = hidden_channels
        self.edge_bias = nn.Parameter(torch.zeros(h))
        self.edge_norm = nn.BatchNorm1d(h) if edge_layers > 1 else None
        self.edges = Perceptron([h] * edge_layers, dropout) if edge_layers > 1 else None
        self.features = Perceptron([in_channels] + [h] * feature_layers, dropout)
        self.join_edges, self.join_features = nn.Linear(h, h), nn.Linear(h, h)
        self.hidden = Perceptron([h] * num_layers, dropout) if num_layers > 1 else None
        self.hidden_norm = nn.BatchNorm1d(h) if num_layers > 1 else None
        self.output = nn.Linear(h, out_channels)
        self.hidden_channels = hidden_channels
        self.register_parameter("nodes", None)
        self.nodes: nn.Parameter | None
        if num_nodes is not None:
            check_count("num_nodes", num_nodes, 0)
            self._begin(num_nodes)

    def _begin(self, rows: int) -> None:
        like = self.edge_bias
        bound = rows**-0.5 if rows else 1.0
        weight = torch.empty(rows, self.hidden_channels, dtype=like.dtype, device=like.device).uniform_(-bound, bound)
        self.nodes = nn.Parameter(weight)

    def states(self, x: Features, observed: Observed) -> Tensor:
        """States before the output layer."""
        observed.one_graph("linkx", "knows the nodes of one graph")
        if self.nodes is None:
            self._begin(observed.rows)
        structure = self._rows(observed)
        if self.edges is not None and self.edge_norm is not None:
            structure = self.edges(dropout(self.edge_norm(functional.relu(structure)), self.dropout, self.training))
        features = self.features(x)
        both = structure + self.join_edges(structure) + features + self.join_features(features)
        z = functional.relu(both)
        if self.hidden is None or self.hidden_norm is None:
            return z
        return dropout(self.hidden_norm(functional.relu(self.hidden(z))), self.dropout, self.training)

    def _rows(self, observed: Observed) -> Tensor:
        """A W + b."""
        weight = self.nodes
        assert weight is not None
        known, rows = weight.shape[0], observed.rows
        if rows < known or (self.training and rows > known):
            raise UserError(
                f"linkx has weights for {known} nodes, got {rows} rows; give it the whole graph, without batch_size"
            )
        if observed.graph is None:
            return self.edge_bias.expand(rows, -1)
        padded = weight if rows == known else functional.pad(weight, (0, 0, 0, rows - known))
        return observed.graph.propagate(padded, "none") + self.edge_bias
