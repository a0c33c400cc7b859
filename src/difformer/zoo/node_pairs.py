"""Graphs of a batch one by one, and their pairs of nodes: no graph sees another graph or its own padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from difformer.zoo.encoder import Segments

BlockFunction = Callable[..., Tensor]


def by_graph(function: BlockFunction, segments: Segments | None, *tensors: Tensor) -> Tensor:
    """A function of whole graphs, applied to every graph of a batch.

    Args:
        function: ``(mask, *blocks) -> block``: blocks are ``[graphs, nodes, …]``, zero at padding; ``mask [graphs,
            nodes]`` is True at rows, or None where there is no padding. Its values at padding are ignored.
        segments: The graphs of the rows; None for one graph.
        tensors: ``[N, …]`` each.

    Returns:
        ``[N, …]``.
    """
    if segments is None:
        return function(None, *(tensor.unsqueeze(0) for tensor in tensors)).squeeze(0)
    parts = [
        function(None if block.full else block.mask, *(block.pad(tensor) for tensor in tensors))
        for block in segments.blocks
    ]
    return segments.gather(parts)


def graph_sum(values: Tensor, segments: Segments | None) -> Tensor:
    """``[N, …]``: at every row the sum over the rows of its graph."""
    if segments is None:
        return values.sum(0, keepdim=True).expand_as(values)
    total = values.new_zeros(segments.num_graphs, *values.shape[1:]).index_add(0, segments.batch, values)
    return total[segments.batch]


def graph_max(values: Tensor, segments: Segments | None) -> Tensor:
    """``[N, …]``: at every row the largest of the rows of its graph; no gradients."""
    values = values.detach()
    if segments is None:
        return values.amax(0, keepdim=True).expand_as(values)
    start = values.new_full((segments.num_graphs, *values.shape[1:]), -torch.inf)
    index = segments.batch.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return start.scatter_reduce(0, index, values, "amax")[segments.batch]


def graph_sizes(num_nodes: int, segments: Segments | None, like: Tensor) -> Tensor:
    """``[N]``: how many rows the graph of each row has."""
    if segments is None:
        return like.new_full((num_nodes,), num_nodes)
    return segments.sizes.to(like.dtype)[segments.batch]


def place_in_graph(num_nodes: int, segments: Segments | None, device: torch.device) -> tuple[Tensor, int]:
    """``[N]`` numbers of the rows within their graphs, in the order of blocks; and the size of the largest graph."""
    if segments is None:
        return torch.arange(num_nodes, device=device), num_nodes
    start = segments.sizes.cumsum(0) - segments.sizes
    place = torch.arange(num_nodes, device=device) - start[segments.batch[segments.by_graph]]
    return torch.empty_like(place).index_copy(0, segments.by_graph, place), segments.largest


def pairs(num_nodes: int, segments: Segments | None) -> int:
    """Pairs of nodes of one graph, over all graphs of a batch, padding included."""
    if segments is None:
        return num_nodes**2
    return sum(graphs * nodes**2 for graphs, nodes, _ in segments.shapes)
