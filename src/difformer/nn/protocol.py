"""The small protocol that every model of the package follows, so that one loop trains them all.

A model encodes instances into states and decodes states into outputs. Between the two a graph-level task pools the
states of each graph. `edge_index` may be a ``[2, E]`` tensor, a torch sparse matrix or a `Graph`, and `batch` names the
graph of each row, as everywhere in the package.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.sparse import SparseMatrix

Features = Tensor | SparseMatrix
Edges = Tensor | Graph


@runtime_checkable
class Model(Protocol):
    """What a training loop asks of a model; all are `torch.nn.Module`.

    A model may also have ``penalty() -> Tensor``: a term added to the loss of the forward pass just made.
    """

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""

    def decode(self, states: Tensor) -> Tensor:
        """Outputs ``[…, out_channels]`` of states."""

    def forward(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Outputs ``[N, out_channels]``: ``decode(embed(…))``."""
