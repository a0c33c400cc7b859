r"""Graph diffusion as a preprocessing, of Gasteiger et al. (NeurIPS 2019): GDC's matrix, made sparse.

From :math:`T = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}` (or :math:`\tilde D^{-1} (A + I)`) one of the matrices

.. math::
    S = α (I - (1 - α) T)^{-1} \;\; \text{(ppr)}, \qquad S = e^{-t (I - T)} \;\; \text{(heat)}

is worked out, each row is cut to its k largest entries, or to those of at least ε, and what is left is divided by the
row's sum. Small graphs take the closed form; large ones polynomials of T (see `difformer.zoo.filters`), some rows at a
time, so that no N × N matrix is ever there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.sparse import SparseMatrix
from difformer.zoo.base import check_choice, check_positive
from difformer.zoo.filters import heat_filter, is_undirected, pagerank_filter
from difformer.zoo.inputs import refuse_beyond_memory

KERNELS = ("ppr", "heat")
TRANSITIONS = ("gcn", "random_walk")
DENSE = 1024  # nodes up to which the closed form is taken
BLOCK_ENTRIES = 2**23  # entries of the rows that are worked out at a time
TOLERANCE = 1e-6  # of entries in rows that sum to about one; the closed form is exact
NOTHING = 1e-10  # what rounding leaves of an entry that is zero
ENTRY_BYTES = 64  # an edge of the result: two indices, a weight, two sorted forms of them

Entries = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Diffusion:
    """Which diffusion, and how sparse.

    Args:
        kernel: ``"ppr"`` or ``"heat"``.
        teleport: α of PageRank.
        time: t of heat.
        top_k: Entries of a row that are kept, and a few more where several equal the last. None keeps by threshold.
        threshold: ε, taken where `top_k` is None.
        transition: T: ``"gcn"`` or ``"random_walk"``.
    """

    kernel: str = "ppr"
    teleport: float = 0.05
    time: float = 5.0
    top_k: int | None = 64
    threshold: float = 1e-4
    transition: str = "gcn"

    def __post_init__(self) -> None:
        check_choice("kernel", self.kernel, KERNELS)
        check_choice("graph_norm", self.transition, TRANSITIONS)
        check_positive("time", self.time)
        check_positive("threshold", self.threshold)
        if not 0 < self.teleport < 1:
            raise ValueError(f"teleport must lie between 0 and 1, got {self.teleport!r}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, or None to keep by threshold, got {self.top_k!r}")

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
        # Entries that are equal stay together, since which of them comes first is a matter of rounding; unless they
        # are many: the leaves of a star are all alike.
        keep = rows >= torch.clamp(largest.values[..., -1:] * (1 - 1e-6), min=NOTHING)
        crowded = keep.sum(-1, keepdim=True) > 2 * count
        if bool(crowded.any()):
            exact = torch.zeros_like(keep).scatter(-1, largest.indices, True)
            keep = torch.where(crowded, exact & keep, keep)
        return keep


_diffused: WeakKeyDictionary[Graph, dict[Diffusion, Graph]] = WeakKeyDictionary()


def diffused(graph: Graph, diffusion: Diffusion, segments: Segments | None = None) -> Graph:
    """The diffused graph, a weighted one; worked out once for a graph that is used again.

    Raises:
        MemoryError: If the result would not fit, before it is begun.
    """
    known = _diffused.setdefault(graph, {})
    if diffusion not in known:
        # Made under inference mode it could never be trained on.
        with torch.inference_mode(False), torch.no_grad():
            known[diffusion] = _make(graph, diffusion, segments)
    return known[diffusion]


def _make(graph: Graph, diffusion: Diffusion, segments: Segments | None) -> Graph:
    nodes = graph.num_nodes
    most = nodes if segments is None else segments.largest
    size = min(most, diffusion.top_k or most)
    if diffusion.top_k is not None or most <= DENSE:
        what = f"a diffused graph of {nodes:,} nodes with {size:,} neighbours each"
        refuse_beyond_memory(nodes * size * ENTRY_BYTES, graph.device, what, "set a smaller top_k")
    looped = graph.with_self_loops()
    if most > DENSE:
        parts = _in_blocks(looped, diffusion)
    elif segments is None:
        parts = _closed(looped, diffusion, torch.arange(nodes, device=graph.device).unsqueeze(0))
    else:
        parts = (part for block in segments.blocks for part in _closed(looped, diffusion, block.rows, block.mask))
    rows, columns, values = (torch.cat(found) for found in zip(*parts, strict=True))
    total = values.new_zeros(nodes).index_add(0, rows, values)
    weight = values / total.index_select(0, rows)
    return Graph(torch.stack([columns, rows]), nodes, weight.float(), keep=graph.keep)


def _closed(graph: Graph, diffusion: Diffusion, nodes: Tensor, mask: Tensor | None = None) -> Iterator[Entries]:
    """Entries of the closed form of graphs laid side by side, ``nodes [graphs, n]``."""
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
    yield nodes[which, i], nodes[which, j], matrix[which, i, j]


def _in_blocks(graph: Graph, diffusion: Diffusion) -> Iterator[Entries]:
    """Entries of S, some rows at a time: rows of f(T) are columns of f(Tᵀ)."""
    undirected = is_undirected(graph)
    if diffusion.kernel == "heat":
        spread = heat_filter(diffusion.time, undirected, TOLERANCE)
    else:
        spread = pagerank_filter(diffusion.teleport, undirected, TOLERANCE)
    forward = graph.matrix(diffusion.transition)
    backward = SparseMatrix(forward.shape, forward.columns, forward.rows)
    size = max(1, BLOCK_ENTRIES // graph.num_nodes)
    kept = 0
    for start in range(0, graph.num_nodes, size):
        chosen = torch.arange(start, min(start + size, graph.num_nodes), device=graph.device)
        units = torch.zeros(graph.num_nodes, chosen.numel(), device=graph.device)
        units[chosen, torch.arange(chosen.numel(), device=graph.device)] = 1.0
        rows = spread(backward.__matmul__, units).T
        i, j = diffusion.kept(rows).nonzero(as_tuple=True)
        kept += i.numel()
        # By threshold nobody knows the size beforehand: the first rows tell what the others will need.
        needed = ENTRY_BYTES * kept * graph.num_nodes / int(chosen[-1] + 1)
        what = (
            f"a diffused graph of {graph.num_nodes:,} nodes with about {kept // int(chosen[-1] + 1):,} neighbours each"
        )
        refuse_beyond_memory(needed, graph.device, what, "set a larger threshold, or top_k")
        yield chosen[i], j, rows[i, j]
