"""The protocol of all models, checks of their inputs, and a wrapper that turns node models into graph models."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments, as_segments
from difformer.errors import UserError, check_choice
from difformer.graph import Graph
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager
from difformer.sparse import SparseMatrix

Features = Tensor | SparseMatrix
Edges = Tensor | Graph | None  # [2, E], a torch sparse matrix or a Graph
Weight = Tensor | None
Batch = Tensor | Segments | None  # the graph of each row

READOUTS = ("mean", "sum", "max")
# The sum of squares of larger values overflows in a LayerNorm.
LARGEST = {torch.float32: 1e15, torch.float64: 1e150}
_LARGEST: ResultCache[float] = ResultCache()


@runtime_checkable
class Model(Protocol):
    """What a training loop needs from a model; all are `torch.nn.Module`.

    A model may also have ``penalty() -> Tensor``: a term added to the loss of the forward pass just made.
    """

    def embed(self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""

    def decode(self, states: Tensor) -> Tensor:
        """Outputs ``[…, out_channels]`` of states."""

    def forward(self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Tensor:
        """Outputs ``[N, out_channels]``: ``decode(embed(…))``."""


def readout(states: Tensor, batch: Batch = None, how: str = "mean") -> Tensor:
    """``[N, c]`` → ``[graphs, c]``: mean, sum or max over the nodes of each graph; zeros for a graph without nodes."""
    check_choice("readout", how, READOUTS)
    segments = as_segments(batch)
    if segments is None:
        return states.amax(0, keepdim=True) if how == "max" else getattr(states, how)(0, keepdim=True)
    if segments.batch.numel() != states.shape[0]:
        raise UserError(f"batch names {segments.batch.numel()} rows, but there are {states.shape[0]} states")
    if how == "max":
        zeros = states.new_zeros(segments.num_graphs, states.shape[1])
        index = segments.batch.unsqueeze(1).expand_as(states)
        return zeros.scatter_reduce(0, index, states, "amax", include_self=False)
    return segments.sums(states) if how == "sum" else segments.means(states)


class GraphLevel(nn.Module):
    """Turns a model of nodes into a model of graphs: encode nodes, pool each graph, decode.

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
        check_choice("readout", how, READOUTS)
        self.encoder, self.how = encoder, how

    def embed(self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Tensor:
        """States of graphs, ``[graphs, hidden]``."""
        segments = as_segments(batch)
        return readout(self.encoder.embed(x, edge_index, edge_weight, segments), segments, self.how)

    def decode(self, states: Tensor) -> Tensor:
        return self.encoder.decode(states)

    def forward(self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Tensor:
        """Outputs ``[graphs, out_channels]``."""
        return self.decode(self.embed(x, edge_index, edge_weight, batch))


def check_range(x: Features) -> None:
    """Refuses features so large that a model would overflow; checks each tensor on the CPU once, and no others."""
    values = x.rows.value if isinstance(x, SparseMatrix) else x
    limit = LARGEST.get(values.dtype)
    if limit is None or values.device.type != "cpu" or not is_eager(values) or values.is_inference():
        return
    largest = _LARGEST.of(values, (), lambda: values.detach().abs().amax().item() if values.numel() else 0.0)
    if limit < largest < math.inf:  # infinities and NaN are seen in the outputs
        found = f"x holds values of up to {largest:.3g}, beyond the {limit:.0e} that {values.dtype} leaves room for"
        raise UserError(f"{found}; standardise the features")


def check_count(name: str, count: object, least: int = 1, *, optional: bool = False) -> None:
    """Raises a UserError if `count` is no integer or too small; with `optional` it says that None is possible too."""
    if not isinstance(count, Integral) or int(count) < least:
        or_none = ", or None" if optional else ""
        raise UserError(f"{name} must be an integer of at least {least}{or_none}, got {count!r}")


def check_counts(**counts: int) -> None:
    """`check_count` for several; ``in_channels`` may be -1, which means that it is taken from the first input."""
    for name, count in counts.items():
        if (name, count) != ("in_channels", -1):
            check_count(name, count)
