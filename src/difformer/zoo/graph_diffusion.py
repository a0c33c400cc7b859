r"""Diffusion kernels of the observed graph: GDC (Gasteiger et al., NeurIPS 2019) and GraphHeat (Xu et al., IJCAI 2019).

With T = D^{-½} A D^{-½} (or D^{-1} A) and the Laplacian L = I - T, there are two filters:

.. math::
    e^{-tL} \;\; \text{(heat)}, \qquad α \, (I - (1 - α) T)^{-1} \;\; \text{(personalised PageRank)}.

For undirected graphs the eigenvalues of T lie in [-1, 1], and the Chebyshev expansion

.. math::
    f(T) = \sum_k c_k \, T_k(T), \qquad T_{k+1}(x) = 2 x T_k(x) - T_{k-1}(x),

needs the fewest products with T. For directed graphs they are complex, within the unit disc, where powers of T converge
and Chebyshev polynomials may not: the filter is e^{-t} Σ_k t^k/k! T^k, or α Σ_k (1 - α)^k T^k.

GraphHeat applies the filter to the states. GDC computes its matrix once (with self-loops in T), keeps the k largest
entries of each row, or those of at least ε, normalises rows and runs a GCN on the result. Small graphs use the closed
form, large ones the polynomial for a block of rows at a time, without an N × N matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.diffusion.coupling.matrix import is_symmetric
from difformer.graph import Graph
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.sparse import SparseMatrix
from difformer.zoo.classic import GCN
from difformer.zoo.encoder import Observed, one_of, option, refuse_beyond_memory

FILTER_TOLERANCE = 1e-7
LARGEST_DEGREE = 2000

_undirected: ResultCache[bool] = ResultCache()


def is_undirected(graph: Graph) -> bool:
    """Whether the weights of a graph are symmetric; checked once per graph."""
    (source, target), nodes = graph.edge_index, graph.num_nodes
    return _undirected.of(graph, (), lambda: is_symmetric(target, source, graph.weights(torch.float64), nodes))


@dataclass(frozen=True)
class Filter:
    """A polynomial of the propagation matrix."""

    coefficients: tuple[float, ...]  # c_0 … c_K
    chebyshev: bool  # of Chebyshev polynomials; otherwise of powers

    def __call__(self, product: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        """f(T) z, where `product` computes T z."""
        total = self.coefficients[0] * z
        before, current = z, z
        for k, coefficient in enumerate(self.coefficients[1:], 1):
            after = product(current)
            if self.chebyshev and k > 1:
                after = 2 * after - before
            before, current = current, after
            total = total + coefficient * current
        return total


@lru_cache(maxsize=64)
def make_filter(kernel: str, rate: float, undirected: bool, tolerance: float = FILTER_TOLERANCE) -> Filter:
    """e^{-tL} (``"heat"``) or α (I - (1 - α) T)^{-1} (``"ppr"``); `rate` is t or α."""
    if kernel == "heat":
        if undirected:
            return _expanded(lambda x: np.exp(rate * (x - 1)), tolerance)
        # Poisson weights: all positive, and together one.
        return _powers(lambda k: math.exp(k * math.log(rate) - rate - math.lgamma(k + 1)), tolerance)
    if undirected:
        return _expanded(lambda x: rate / (1 - (1 - rate) * x), tolerance)
    return _powers(lambda k: rate * (1 - rate) ** k, tolerance)


def _expanded(function: Callable[[np.ndarray], np.ndarray], tolerance: float) -> Filter:
    """The shortest Chebyshev expansion whose omitted coefficients sum to less than `tolerance`."""
    degree = 32
    while True:
        found = chebyshev.chebinterpolate(function, degree)  # type: ignore[type-var]
        tails = np.abs(found)[::-1].cumsum()[::-1]  # bounds on the error of truncation at each degree
        enough = int((tails > tolerance).sum())
        # Aliasing is negligible if the last coefficients vanish.
        if enough <= degree // 2 or degree >= LARGEST_DEGREE:
            return Filter(tuple(float(c) for c in found[: max(1, enough)]), True)
        degree *= 2


def _powers(coefficient: Callable[[int], float], tolerance: float) -> Filter:
    """Powers until the coefficients sum to one within `tolerance`."""
    found = [coefficient(0)]
    while 1 - math.fsum(found) > tolerance and len(found) <= 10 * LARGEST_DEGREE:
        found.append(coefficient(len(found)))
    return Filter(tuple(found), False)


DENSE = 1024  # nodes up to which the closed form is used
BLOCK_ENTRIES = 2**23  # entries per block of rows
TOLERANCE = 1e-6  # of entries, in rows that sum to about one; the closed form is exact
NOTHING = 1e-10  # smaller entries are rounding errors of zero
ENTRY_BYTES = 64  # per edge of the result: two indices, a weight, and two sorted forms of them

Entries = tuple[Tensor, Tensor, Tensor]  # rows, columns and values
Part = tuple[int, Entries]  # number of rows, and their entries


@dataclass(frozen=True)
class Diffusion:
    """The options of `GDC` that determine the diffused graph; `transition` is its ``graph_norm``."""

    kernel: str = "ppr"
    teleport: float = 0.05
    time: float = 5.0
    top_k: int | None = 64
    threshold: float = 1e-4
    transition: str = "gcn"

    def closed_form(self, transition: Tensor) -> Tensor:
        """S of matrices T ``[…, n, n]``, dense."""
        eye = torch.eye(transition.shape[-1], dtype=transition.dtype, device=transition.device)
        if self.kernel == "heat":
            return torch.linalg.matrix_exp(self.time * (transition - eye))
        return self.teleport * torch.linalg.inv(eye - (1 - self.teleport) * transition)

    def kept(self, rows: Tensor) -> Tensor:
        """Which entries of rows ``[…, n, N]`` stay."""
        if self.top_k is None:
            return rows >= self.threshold
        count = min(self.top_k, rows.shape[-1])
        largest = rows.topk(count, dim=-1)
        # Keep or drop equal entries together, since rounding decides their order; unless there are too many, as for
        # the leaves of a star.
        keep = rows >= torch.clamp(largest.values[..., -1:] * (1 - 1e-6), min=NOTHING)
        crowded = keep.sum(-1, keepdim=True) > 2 * count
        if bool(crowded.any()):
            exact = torch.zeros_like(keep).scatter(-1, largest.indices, True)
            keep = torch.where(crowded, exact & keep, keep)
        return keep


_diffused: ResultCache[Graph] = ResultCache()


def diffused(graph: Graph, diffusion: Diffusion, segments: Segments | None = None) -> Graph:
    """The diffused graph with weights; cached per graph."""
    return _diffused.of(graph, (diffusion,), lambda: _make(graph, diffusion, segments))


def _make(graph: Graph, diffusion: Diffusion, segments: Segments | None) -> Graph:
    nodes, looped = graph.num_nodes, graph.with_self_loops()
    if (nodes if segments is None else segments.largest) > DENSE:
        parts = _in_blocks(looped, diffusion)
    elif segments is None:
        parts = iter([_closed(looped, diffusion, torch.arange(nodes, device=graph.device).unsqueeze(0))])
    else:
        parts = (_closed(looped, diffusion, block.rows, block.mask) for block in segments.blocks)
    found: list[Entries] = []
    done = kept = 0
    for count, entries in parts:
        found.append(entries)
        done, kept = done + count, kept + entries[0].numel()
        # With a threshold the size is not known in advance; extrapolate from the rows so far.
        each = kept / max(1, done)
        what = f"a diffused graph of {nodes:,} nodes with about {each:,.0f} neighbours each"
        remedy = "set a smaller top_k, or a larger threshold"
        refuse_beyond_memory(ENTRY_BYTES * each * nodes, graph.device, what, remedy)
    rows, columns, values = (torch.cat(column) for column in zip(*found, strict=True))
    total = values.new_zeros(nodes).index_add(0, rows, values)
    weight = values / total.index_select(0, rows)
    return Graph(torch.stack([columns, rows]), nodes, weight.float(), keep=graph.keep)


def _closed(graph: Graph, diffusion: Diffusion, nodes: Tensor, mask: Tensor | None = None) -> Part:
    """The closed form for a block of graphs, ``nodes [graphs, n]``."""
    graphs, n = nodes.shape
    place = torch.full((graph.num_nodes,), -1, dtype=torch.long, device=graph.device)
    real = torch.ones_like(nodes, dtype=torch.bool) if mask is None else mask
    place[nodes[real]] = real.flatten().nonzero().squeeze(1)
    source, target = graph.edge_index
    here = place[target] >= 0
    row, column = place[target[here]], place[source[here]] % n
    value = graph.normalised_weights(diffusion.transition, torch.float64)[here]
    transition = value.new_zeros(graphs * n, n).index_put((row, column), value, accumulate=True).view(graphs, n, n)
    matrix = diffusion.closed_form(transition)
    keep = diffusion.kept(matrix) & real.unsqueeze(1) & real.unsqueeze(2)
    which, i, j = keep.nonzero(as_tuple=True)
    return int(real.sum()), (nodes[which, i], nodes[which, j], matrix[which, i, j])


def _in_blocks(graph: Graph, diffusion: Diffusion) -> Iterator[Part]:
    """S, a block of rows at a time, as columns of f(Tᵀ)."""
    rate = diffusion.time if diffusion.kernel == "heat" else diffusion.teleport
    spread = make_filter(diffusion.kernel, rate, is_undirected(graph), TOLERANCE)
    forward = graph.matrix(diffusion.transition)
    backward = SparseMatrix(forward.shape, forward.columns, forward.rows)
    size = max(1, BLOCK_ENTRIES // graph.num_nodes)
    for start in range(0, graph.num_nodes, size):
        chosen = torch.arange(start, min(start + size, graph.num_nodes), device=graph.device)
        units = torch.zeros(graph.num_nodes, chosen.numel(), device=graph.device)
        units[chosen, torch.arange(chosen.numel(), device=graph.device)] = 1.0
        rows = spread(backward.__matmul__, units).T
        i, j = diffusion.kept(rows).nonzero(as_tuple=True)
        yield chosen.numel(), (chosen[i], j, rows[i, j])


class GDC(GCN):
    r"""`difformer.zoo.classic.GCN` on a sparsified :math:`α (I - (1 - α) T)^{-1}` or :math:`e^{-t (I - T)}`.

    The diffused graph is cached per `Graph`; for edges passed as tensors it is recomputed. It has no gradient with
    respect to edge weights.
    """

    dropout: float = option(0.5, "After each activation.")
    kernel: str = one_of("ppr", "heat", about='``"ppr"`` or ``"heat"``.')
    teleport: float = option(0.05, "α of PageRank.")
    time: float = option(5.0, "t of heat.")
    top_k: int | None = option(64, "Neighbours to keep per node; None uses `threshold`.")
    threshold: float = option(1e-4, "Smallest entry of the diffusion matrix to keep if `top_k` is None.")
    graph_norm: str = one_of("gcn", "random_walk", about='T: ``"gcn"`` or ``"random_walk"``.')

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().make(in_channels, hidden_channels, out_channels)
        self.diffusion = Diffusion(self.kernel, self.teleport, self.time, self.top_k, self.threshold, self.graph_norm)

    def surroundings(self, x: Features, observed: Observed) -> Graph:
        return diffused(observed.edges, self.diffusion, observed.segments).with_self_loops()


class GraphHeat(GCN):
    r"""Layers :math:`σ(e^{-sL} Z W_k + b_k)` with :math:`L = I - D^{-1/2} A D^{-1/2}`.

    The Chebyshev expansion of the kernel is exact to single precision. No self-loops are added.
    """

    time: float = option(3.5, "s, the diffusion time.")
    dropout: float = option(0.5, "After each activation.")
    input_dropout: float | None = option(None, "On the features; None uses `dropout`.")

    def surroundings(self, x: Features, observed: Observed) -> Graph:
        return observed.edges

    def last_layer(self, z: Tensor, graph: Graph) -> Tensor:
        return make_filter("heat", self.time, is_undirected(graph))(graph.propagate, z)
