"""Who sends to whom in one forward pass: observed edges, and which rows form a graph of their own.

`Structure` is the default context of a layer (`difformer.nn.context`): every row of the pass sends to every row of its
graph, and along the observed edges.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from difformer.attention import propagate
from difformer.attention.scores import working_dtype
from difformer.attention.segments import Segments, as_segments
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.graph import Graph, as_graph
from difformer.result_cache import ResultCache

SMALLEST_NORM = 1e-12


@dataclass(frozen=True)
class Structure:
    """What all layers of a forward pass share.

    Args:
        graph: Observed edges; None where there are none at all.
        segments: The graphs of a batch; None for a single graph.
        has_edges: ``[N, 1]`` bool, whether the row's own graph has an edge; None where that holds for all rows alike.
            A graph without edges must not feel that its batch mates have some.
        weight: ``[N]`` how often each row counts as a sender in the all-pair term; None for once.
    """

    graph: Graph | None = None
    segments: Segments | None = None
    has_edges: Tensor | None = None
    weight: Tensor | None = None

    written_here: ClassVar[bool] = True  # not inherited: kernels know this class alone, see `difformer.kernels.fused`

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """‖Q‖ and ‖K‖ over the nodes and heads of each graph, shaped to divide ``[N, H, d]``."""
        norm = self._norm(q)
        return norm, norm if k is q else self._norm(k)

    def _norm(self, x: Tensor) -> Tensor:
        squares = x.to(working_dtype(x.dtype)).square().sum((1, 2))
        if self.segments is None:
            return squares.sum().sqrt().clamp_min(SMALLEST_NORM)
        total = squares.new_zeros(self.segments.num_graphs).index_add(0, self.segments.batch, squares)
        return total.sqrt().clamp_min(SMALLEST_NORM)[self.segments.batch].view(-1, 1, 1)

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        """Σ_j w_j g(q_iᵀk_j) v_j / Σ_l w_l g(q_iᵀk_l) over the rows of i's graph, ``[N, H, c]``."""
        return propagate(q, k, v, diffusivity, batch=self.segments, backend=backend, weight=self.weight)

    def observed(self, v: Tensor, norm: str, mask: Tensor | None = None) -> Tensor | None:
        """Σ_j m_ij s_ij v_j over observed edges, ``[N, c]``, with the mask of an explainer; None where no edges are."""
        return None if self.graph is None else self.graph.propagate(v, norm, mask)


def as_structure(
    num_nodes: int,
    edge_index: Tensor | Graph | None = None,
    edge_weight: Tensor | None = None,
    batch: Tensor | Segments | None = None,
    *,
    weight: Tensor | None = None,
) -> Structure:
    """Arguments of a forward pass, checked and brought into one form.

    Raises:
        ValueError: If edges, weights or batch do not fit `num_nodes` rows.
    """
    if isinstance(batch, Tensor) and torch.compiler.is_compiling():
        raise ValueError(  # a compiler cannot follow the making of a UserError
            "inside torch.compile and torch.export the graphs of a batch must be known beforehand: "
            "pass batch=difformer.attention.Segments(batch), made outside"
        )
    segments = as_segments(batch)
    if segments is not None and segments.batch.numel() != num_nodes:
        raise UserError(f"batch must name a graph for each of the {num_nodes} rows of x, got {segments.batch.numel()}")
    if weight is not None and weight.shape != (num_nodes,):
        raise UserError(f"weight must have one entry per row, shape ({num_nodes},), got {tuple(weight.shape)}")
    if edge_index is None:
        if edge_weight is not None:
            raise UserError("edge_weight was given without edge_index")
        return Structure(None, segments, weight=weight)
    graph = as_graph(edge_index, num_nodes, edge_weight)
    if graph.num_edges == 0:
        return Structure(None, segments, weight=weight)
    if segments is None or segments.num_graphs == 1:
        return Structure(graph, segments, weight=weight)
    if torch.compiler.is_compiling():
        return Structure(graph, segments, segments.has_edges(graph.edge_index).unsqueeze(1), weight)
    key = (segments, graph.version())
    found = _ROWS_WITH_EDGES.of(graph, key, lambda: _rows_with_edges(graph.edge_index, segments))
    return Structure(graph, segments, found, weight)


def snapshots(
    count: int, num_nodes: int, edge_index: Tensor | Graph | None, edge_weight: Tensor | None, device: torch.device
) -> Structure:
    """The structure of `count` snapshots of the same nodes, one behind the other: each is a graph with the same edges.

    Worked out once per graph, unless weights are trained.
    """
    if torch.compiler.is_compiling():
        raise ValueError(  # a compiler cannot follow the making of a UserError
            "inside torch.compile and torch.export a series must be flattened: pass x.flatten(0, 1), the edges of all "
            "snapshots and batch=difformer.attention.Segments(batch), made outside"
        )
    segments = _equal_segments(count, num_nodes, device)
    if edge_index is None:
        return as_structure(count * num_nodes, None, edge_weight, segments)
    graph = as_graph(edge_index, num_nodes, edge_weight)
    work = functools.partial(_copies, graph.edge_index, graph.edge_weight, num_nodes, count)
    copies = _COPIES.of(graph, (count, graph.version()), work) if graph.is_kept else work()
    return as_structure(count * num_nodes, copies, None, segments)


_COPIES: ResultCache[Graph] = ResultCache()


def _copies(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, count: int) -> Graph:
    shift = num_nodes * torch.arange(count, device=edge_index.device).repeat_interleave(edge_index.shape[1])
    weight = None if edge_weight is None else edge_weight.repeat(count)
    return Graph(edge_index.repeat(1, count) + shift, count * num_nodes, weight)


@functools.lru_cache(maxsize=8)
def _equal_segments(count: int, num_nodes: int, device: torch.device) -> Segments:
    return Segments(torch.arange(count, device=device).repeat_interleave(num_nodes), count)


_ROWS_WITH_EDGES: ResultCache[Tensor] = ResultCache()  # worked out once per graph and batch, for all layers and passes


def _rows_with_edges(edge_index: Tensor, segments: Segments) -> Tensor:
    """``[N, 1]`` bool: whether the graph of each row has an edge; refuses edges that join two graphs."""
    source, target = edge_index
    across = segments.batch[source] != segments.batch[target]
    if across.any():
        i, j = edge_index[:, across.nonzero()[0, 0]].tolist()
        raise UserError(f"edge_index joins nodes {i} and {j}, which batch puts into different graphs")
    return segments.has_edges(edge_index).unsqueeze(1)
