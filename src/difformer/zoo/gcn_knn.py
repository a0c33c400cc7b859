"""Graph convolution over nearest neighbours of the features: GCN-kNN."""

from __future__ import annotations

from torch import Tensor

from difformer.attention.segments import Segments, as_segments
from difformer.nn.protocol import Edges, Features
from difformer.zoo.gcn import GCN
from difformer.zoo.neighbour_graph import NeighbourGraph


class GCNkNN(GCN):
    r"""`difformer.zoo.gcn.GCN` with :math:`A_{ij} = [\, i \in kNN(x_j) \text{ or } j \in kNN(x_i) \,]`.

    Observed edges are not looked at. In a batch, and in every snapshot of a series, neighbours are those of the same
    graph.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Convolutions, the output's included.
        dropout: After each ReLU.
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
        dropout: float = 0.5,
        k: int = 5,
        metric: str = "cosine",
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers=num_layers, dropout=dropout)
        self.neighbours = NeighbourGraph(k, metric)

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Propagated states before the last linear map; edges are not looked at."""
        segments = as_segments(batch)
        return super().embed(x, self.neighbours(x, segments), None, segments)
