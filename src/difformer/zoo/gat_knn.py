"""Graph attention over nearest neighbours of the features: GAT-kNN."""

from __future__ import annotations

from torch import Tensor

from difformer.attention.segments import Segments, as_segments
from difformer.nn.protocol import Edges, Features
from difformer.zoo.gat import GAT
from difformer.zoo.neighbour_graph import NeighbourGraph


class GATkNN(GAT):
    r"""`difformer.zoo.gat.GAT` with :math:`A_{ij} = [\, i \in kNN(x_j) \text{ or } j \in kNN(x_i) \,]`.

    Observed edges are not looked at. In a batch, and in every snapshot of a series, neighbours are those of the same
    graph.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state, all heads together.
        out_channels: Outputs of an instance.
        num_layers: Attention layers, the output's included.
        num_heads: Heads of the hidden layers; None takes 8, or the largest part of it that divides `hidden_channels`.
        output_heads: Heads of the last layer.
        dropout: Before every layer, on features too, and on attention.
        k: Neighbours of a node, itself counted.
        metric: ``"cosine"`` or ``"euclidean"``, by which they are the nearest.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        num_heads: int | None = None,
        output_heads: int = 1,
        dropout: float = 0.6,
        k: int = 5,
        metric: str = "cosine",
    ) -> None:
        super().__init__(
            in_channels,
            hidden_channels,
            out_channels,
            num_layers=num_layers,
            num_heads=num_heads,
            output_heads=output_heads,
            dropout=dropout,
        )
        self.neighbours = NeighbourGraph(k, metric)

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States propagated by each head of the last layer; edges are not looked at."""
        segments = as_segments(batch)
        return super().embed(x, self.neighbours(x, segments), None, segments)
