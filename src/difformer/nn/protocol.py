"""What every model of the package is, so that one loop trains them all; and models of nodes as models of graphs.

A model encodes instances into states and decodes states into outputs. Between the two a graph-level task pools the
states of each graph. `edge_index` may be a ``[2, E]`` tensor, a torch sparse matrix or a `Graph`, and `batch` names the
graph of each row, as everywhere in the package.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from difformer.attention.segments import Segments, as_segments
from difformer.errors import UserError
from difformer.graph import Graph
from difformer.sparse import SparseMatrix

Features = Tensor | SparseMatrix
Edges = Tensor | Graph
Weight = Tensor | None
Batch = Tensor | Segments | None

READOUTS = ("mean", "sum", "max")


@runtime_checkable
class Model(Protocol):
    """What a training loop asks of a model; all are `torch.nn.Module`.

    A model may also have ``penalty() -> Tensor``: a term added to the loss of the forward pass just made.
    """

    def embed(
        self, x: Features, edge_index: Edges | None = None, edge_weight: Weight = None, batch: Batch = None
    ) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""

    def decode(self, states: Tensor) -> Tensor:
        """Outputs ``[…, out_channels]`` of states."""

    def forward(
        self, x: Features, edge_index: Edges | None = None, edge_weight: Weight = None, batch: Batch = None
    ) -> Tensor:
        """Outputs ``[N, out_channels]``: ``decode(embed(…))``."""


def readout(states: Tensor, batch: Batch = None, how: str = "mean") -> Tensor:
    """``[N, c]`` → ``[graphs, c]``: mean, sum or max over the nodes of each graph.

    A graph number without a node gives zeros, so that row g of the result always is graph g.
    """
    _check_readout(how)
    segments = as_segments(batch)
    if segments is None:
        return states.amax(0, keepdim=True) if how == "max" else getattr(states, how)(0, keepdim=True)
    if segments.batch.numel() != states.shape[0]:
        raise UserError(f"batch names {segments.batch.numel()} rows, but there are {states.shape[0]} states")
    zeros = states.new_zeros(segments.num_graphs, states.shape[1])
    if how == "max":
        index = segments.batch.unsqueeze(1).expand_as(states)
        return zeros.scatter_reduce(0, index, states, "amax", include_self=False)
    total = zeros.index_add(0, segments.batch, states)
    return total if how == "sum" else total / segments.sizes.clamp_min(1).unsqueeze(1).to(states.dtype)


def _check_readout(how: str) -> None:
    if how not in READOUTS:
        raise UserError(f"readout must be one of {', '.join(READOUTS)}, got {how!r}")


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
        _check_readout(how)
        self.encoder = encoder
        self.how = how

    def embed(
        self, x: Features, edge_index: Edges | None = None, edge_weight: Weight = None, batch: Batch = None
    ) -> Tensor:
        """States of graphs, ``[graphs, hidden]``."""
        segments = as_segments(batch)
        return readout(self.encoder.embed(x, edge_index, edge_weight, segments), segments, self.how)

    def decode(self, states: Tensor) -> Tensor:
        return self.encoder.decode(states)

    def forward(
        self, x: Features, edge_index: Edges | None = None, edge_weight: Weight = None, batch: Batch = None
    ) -> Tensor:
        """Outputs ``[graphs, out_channels]``."""
        return self.decode(self.embed(x, edge_index, edge_weight, batch))
