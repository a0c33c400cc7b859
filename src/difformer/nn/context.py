"""Contexts: how a layer sums over the rows that send to it.

A DIFFormer layer (`difformer.nn.conv`) works row by row except for three sums, which a `Context` provides:

======================================= =====================================================================
use                                     context
======================================= =====================================================================
one graph, or a batch of graphs         `Structure` (the default, made from ``edge_index`` and ``batch``)
senders with weights                    ``as_structure(…, weight=w)``
rows in chunks, or rows never seen      `Stored`, made by `store` from the states of the senders
several ranks                           a class with these three methods that sums over ranks
stacked runs                            the default inside `torch.vmap`
======================================= =====================================================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from difformer.attention import propagate
from difformer.attention.scores import working_dtype
from difformer.attention.segments import Segments, as_segments
from difformer.attention.summary import Summary, Sums, summarise
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.graph import Graph, as_graph
from difformer.nn.protocol import Batch, Edges, Weight
from difformer.result_cache import ResultCache

if TYPE_CHECKING:
    from difformer.nn.conv import DIFFormerConv

SMALLEST_NORM = 1e-12
# Computed once per graph, or graph and batch, for all layers and passes.
_COPIES: ResultCache[Graph] = ResultCache()
_ROWS_WITH_EDGES: ResultCache[Tensor] = ResultCache()


class Context(Protocol):
    r"""What a layer needs from its context.

    Queries ``q`` and keys ``k`` are ``[N, H, d]``, values ``v`` are ``[N, H or 1, c]``, all of the rows of this call.
    """

    @property
    def has_edges(self) -> Tensor | None:
        """``[N, 1]`` bool, whether the observed term counts for a row; None if it counts for all or for none."""

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """‖Q‖ and ‖K‖ of all senders, shaped to divide ``q`` and ``k``, for ``qk_norm="global"``."""

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        r"""The all-pair term ``[N, H, c]``: :math:`\sum_j w_j g(q_i^\top k_j) v_j / \sum_l w_l g(q_i^\top k_l)`.

        `diffusivity` is g, as an object or as the key of its score; `backend` as in `difformer.attention.propagate`.
        """

    def observed(self, v: Tensor, norm: str) -> Tensor | None:
        r"""Messages along observed edges, :math:`\sum_j s_{ij} v_j`, for ``v [N, c]``; None if there are no edges."""


@dataclass(frozen=True)
class Structure:
    """Every row sends to every row of its graph and along the observed edges; shared by all layers of a pass.

    Args:
        graph: Observed edges, or None.
        segments: The graphs of a batch; None for a single graph.
        has_edges: ``[N, 1]`` bool, whether the row's own graph has an edge; None if that holds for all rows alike.
            A graph without edges must not be affected by edges of other graphs in its batch.
        weight: ``[N]`` how often each row counts as a sender in the all-pair term; None for once.
    """

    graph: Graph | None = None
    segments: Segments | None = None
    has_edges: Tensor | None = None
    weight: Tensor | None = None

    written_here: ClassVar[bool] = True  # not inherited: kernels know this class alone, see `difformer.kernels.fused`

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """‖Q‖ and ‖K‖ over the nodes and heads of each graph."""

        def norm(x: Tensor) -> Tensor:
            if self.segments is None:
                return _norm(_squares(x).sum())
            return _norm(self.segments.sums(_squares(x)))[self.segments.batch].view(-1, 1, 1)

        of_queries = norm(q)
        return of_queries, of_queries if k is q else norm(k)

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        return propagate(q, k, v, diffusivity, batch=self.segments, backend=backend, weight=self.weight)

    def observed(self, v: Tensor, norm: str, mask: Tensor | None = None) -> Tensor | None:
        """Σ_j m_ij s_ij v_j over observed edges, with the mask of an explainer."""
        return None if self.graph is None else self.graph.propagate(v, norm, mask)


def _squares(x: Tensor) -> Tensor:
    """``[N]`` squared norms of rows ``[N, H, d]``."""
    return x.to(working_dtype(x.dtype)).square().sum((1, 2))


def _norm(squares: Tensor) -> Tensor:
    return squares.sqrt().clamp_min(SMALLEST_NORM)


def as_structure(
    num_nodes: int, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None, *, weight: Weight = None
) -> Structure:
    """Arguments of a forward pass in one form; a ValueError if edges, weights or batch do not fit `num_nodes` rows."""
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
    if edge_index is None and edge_weight is not None:
        raise UserError("edge_weight was given without edge_index")
    graph = None if edge_index is None else as_graph(edge_index, num_nodes, edge_weight)
    graph = None if graph is None or graph.num_edges == 0 else graph
    has_edges = None
    if graph is not None and segments is not None and segments.num_graphs > 1:
        work = functools.partial(_rows_with_edges, graph.edge_index, segments)
        compiled = torch.compiler.is_compiling()
        has_edges = work() if compiled else _ROWS_WITH_EDGES.of(graph, (segments,), work)
    return Structure(graph, segments, has_edges, weight)


def _rows_with_edges(edge_index: Tensor, segments: Segments) -> Tensor:
    """`Structure.has_edges`; refuses edges that join two graphs."""
    across = segments.batch[edge_index[0]] != segments.batch[edge_index[1]]
    if not torch.compiler.is_compiling() and across.any():
        i, j = edge_index[:, across.nonzero()[0, 0]].tolist()
        raise UserError(f"edge_index joins nodes {i} and {j}, which batch puts into different graphs")
    return segments.has_edges(edge_index).unsqueeze(1)


def snapshots(count: int, num_nodes: int, edge_index: Edges, edge_weight: Weight, device: torch.device) -> Structure:
    """The structure of `count` snapshots of the same nodes and edges, one after the other; computed once per graph."""
    if torch.compiler.is_compiling():
        raise ValueError(  # a compiler cannot follow the making of a UserError
            "inside torch.compile and torch.export a series must be flattened: pass x.flatten(0, 1), the edges of all "
            "snapshots and batch=difformer.attention.Segments(batch), made outside"
        )
    segments = _equal_segments(count, num_nodes, device)
    if edge_index is None:
        return as_structure(count * num_nodes, None, edge_weight, segments)
    graph = as_graph(edge_index, num_nodes, edge_weight)

    def copies() -> Graph:
        index, weight = graph.edge_index, graph.edge_weight
        shift = num_nodes * torch.arange(count, device=index.device).repeat_interleave(index.shape[1])
        return Graph(
            index.repeat(1, count) + shift, count * num_nodes, None if weight is None else weight.repeat(count)
        )

    known = _COPIES.of(graph, (count,), copies) if graph.is_kept else copies()
    return as_structure(count * num_nodes, known, None, segments)


@functools.lru_cache(maxsize=8)
def _equal_segments(count: int, num_nodes: int, device: torch.device) -> Segments:
    return Segments(torch.arange(count, device=device).repeat_interleave(num_nodes), count)


@dataclass(frozen=True)
class Stored:
    """A population that was summarised beforehand: rows of a call, perhaps unseen, receive from it and do not send.

    Args:
        summary: Of the population; None if a layer has no senders (identity, or no diffusivity).
        query_norm, key_norm: ‖Q‖ and ‖K‖ of the population, for ``qk_norm="global"``.
        sent: ``[n, c]`` values of the population, mean over heads, for observed edges, or None without edges.
        edges: From `sent` to what the rows of the call receive, ``[M, c]``; None for rows without edges.
    """

    summary: Summary | None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    sent: Tensor | None = None
    edges: Callable[[Tensor], Tensor] | None = None
    has_edges: ClassVar[None] = None

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_norm is None or self.key_norm is None:
            raise UserError("this context holds no norms of its senders; make it with store()")
        return self.query_norm.to(q), self.key_norm.to(k)

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        return v if self.summary is None else self.summary.answer(q)

    def observed(self, v: Tensor, norm: str) -> Tensor | None:
        if self.sent is None:
            return None
        return torch.zeros_like(v) if self.edges is None else self.edges(self.sent).to(v)


def store(
    conv: DIFFormerConv,
    states: Tensor,
    *,
    weight: Tensor | None = None,
    observed: bool = False,
    size: int | None = None,
    device: torch.device | str | None = None,
    tol: float | None = None,
) -> Stored:
    """A context whose senders are rows with given states; the device holds one chunk of them at a time.

    Args:
        conv: The layer.
        states: ``[n, in_channels]`` of the senders before the layer.
        weight: ``[n]`` how often each sender counts; None for once.
        observed: Whether rows will receive along observed edges, so that the senders' values must be kept.
        size: Rows processed at a time; None for all at once.
        device: Where chunks are processed; None for the device of `states`, where everything of n rows stays.
        tol: Relative error allowed in g, see `difformer.attention.summarise`; None for exact sums.
    """
    place = states.device if device is None else torch.device(device)
    step = max(states.shape[0] if size is None else size, 1)
    chunks = states.split(step)
    known = Stored(None)
    if conv.query is not None and conv.qk_norm == "global":
        squares = [torch.stack([_squares(x).sum() for x in conv._queries_and_keys(z.to(place))]) for z in chunks]
        known = Stored(None, *_norm(torch.stack(squares).sum(0)))
    sent = states.new_empty(states.shape[0], conv.out_channels) if observed else None
    summary: Summary | None = None
    for i, chunk in enumerate(chunks):
        z, rows = chunk.to(place), slice(i * step, (i + 1) * step)
        v = conv.values(z)
        if sent is not None:
            sent[rows] = v.mean(1).to(sent)
        if conv.diffusivity is None or conv.form == "identity":
            continue
        k = v if conv.query is None else conv.queries_and_keys(z, known)[1]
        own = None if weight is None else weight[rows].to(place)
        part = summarise(k, v.to(k.dtype), conv.diffusivity, own, tol=tol)
        if isinstance(part, Sums):  # many small chunks would round many times
            part = Sums(part.sums.double())
        part = part.to(states.device) if place != states.device and tol is None else part
        summary = part if summary is None else summary + part
    return replace(known, summary=summary, sent=sent)
