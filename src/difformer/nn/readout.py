"""Readouts: from the states of a graph's nodes to one state of the graph."""

from __future__ import annotations

from torch import Tensor, nn

from difformer.attention.segments import Segments, as_segments
from difformer.errors import UserError
from difformer.graph import Graph
from difformer.nn.protocol import Model
from difformer.sparse import SparseMatrix

READOUTS = ("mean", "sum", "max")


def readout(states: Tensor, batch: Tensor | Segments | None = None, how: str = "mean") -> Tensor:
    """``[N, c]`` → ``[graphs, c]``: mean, sum or max over the nodes of each graph.

    A graph number without a node gives zeros, so that row g of the result always is graph g.
    """
    if how not in READOUTS:
        raise UserError(f"readout must be one of {', '.join(READOUTS)}, got {how!r}")
    segments = as_segments(batch)
    if segments is None:
        if how == "max":
            return states.amax(0, keepdim=True)
        return states.sum(0, keepdim=True) if how == "sum" else states.mean(0, keepdim=True)
    if segments.batch.numel() != states.shape[0]:
        raise UserError(f"batch names {segments.batch.numel()} rows, but there are {states.shape[0]} states")
    zeros = states.new_zeros(segments.num_graphs, states.shape[1])
    if how == "max":
        index = segments.batch.unsqueeze(1).expand_as(states)
        return zeros.scatter_reduce(0, index, states, "amax", include_self=False)
    total = zeros.index_add(0, segments.batch, states)
    return total if how == "sum" else total / segments.sizes.clamp_min(1).unsqueeze(1).to(states.dtype)


class GraphLevel(nn.Module):
    """A model of nodes as a model of graphs: encode nodes, pool each graph, decode.

    Args:
        encoder: Any `Model` of the package.
        how: ``"mean"``, ``"sum"`` or ``"max"``.

    Example:
        >>> import torch
        >>> from difformer import DIFFormer
        >>> model = GraphLevel(DIFFormer(8, 32, 2), "mean")
        >>> model(torch.randn(5, 8), batch=torch.tensor([0, 0, 1, 1, 1])).shape
        torch.Size([2, 2])
    """

    def __init__(self, encoder: Model, how: str = "mean") -> None:
        super().__init__()
        if how not in READOUTS:
            raise UserError(f"readout must be one of {', '.join(READOUTS)}, got {how!r}")
        self.encoder = encoder
        self.how = how

    def embed(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States of graphs, ``[graphs, hidden]``."""
        segments = as_segments(batch)
        return readout(self.encoder.embed(x, edge_index, edge_weight, segments), segments, self.how)

    def decode(self, states: Tensor) -> Tensor:
        return self.encoder.decode(states)

    def forward(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Outputs ``[graphs, out_channels]``."""
        return self.decode(self.embed(x, edge_index, edge_weight, batch))
