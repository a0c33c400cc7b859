r"""A graph in parts: which node goes to which part (few edges between parts, equal sizes), and what each part holds.

What training sends grows with the *boundary*, the pairs (node, part) where the node has an edge into that other part.
Two ways to keep it small:

* ``"metis"``: the multilevel partitioner METIS, by the package pymetis (``pip install 'difformer[partition]'``);
* ``"stream"``: always available. Nodes are ordered so that neighbours lie close (reverse Cuthill-McKee) and cut into
  equal runs; then they are streamed several times, in blocks, and each may move to the part k that maximises Fennel's
  score

  .. math::
      |N(i) ∩ V_k| - α γ |V_k|^{γ - 1}, \qquad γ = \tfrac32, \quad α = E P^{γ - 1} / N^γ,

  as long as no part exceeds (1 + `SLACK`) N / P. Memory is that of the graph and one block.

A part (`Part`) has the features, targets and incoming edges of its own nodes. They are numbered 0 … n - 1 in the order
of their global numbers. An edge belongs to the part of its target; a source on another part is a *halo* row, known by
that part's number and its row there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data import Task
from difformer.data.errors import require
from difformer.data.sparse import take_rows
from difformer.errors import UserError

METHODS = ("auto", "metis", "stream")
SLACK = 0.03
PASSES = 8
GAMMA = 1.5


@dataclass(frozen=True)
class Quality:
    """How good a partition is.

    Args:
        cut: Edges, self-loops left out, between two parts.
        edges: Edges in all, self-loops left out.
        balance: Nodes of the largest part over N / P; 1 is perfect.
        boundary: Rows that are sent each time states are exchanged: pairs of a node and another part that it has an
            edge into.
    """

    cut: int
    edges: int
    balance: float
    boundary: int

    @property
    def share(self) -> float:
        """Of the edges that are cut."""
        return self.cut / self.edges if self.edges else 0.0

    def describe(self) -> str:
        return (
            f"cut: {self.cut:,} of {self.edges:,} edges ({self.share:.1%}); boundary: {self.boundary:,} rows; "
            f"balance: {self.balance:.3f}"
        )


def partition(
    edge_index: Tensor | None, num_nodes: int, parts: int, *, method: str = "auto", seed: int = 0
) -> tuple[Tensor, str]:
    """``[N]`` part of each node, and the method that found it.

    Args:
        edge_index: ``[2, E]``, taken as undirected; None cuts the nodes into equal runs.
        num_nodes: N.
        parts: How many parts.
        method: ``"metis"``, ``"stream"``, or ``"auto"``: METIS if it is installed.
        seed: Of the order of the blocks.

    Raises:
        ValueError: If there are fewer than one part, or the method is unknown.
        ImportError: If METIS is asked for and not installed.
    """
    if method not in METHODS:
        raise UserError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if parts < 1:
        raise UserError(f"parts must be at least 1, got {parts}")
    runs = torch.arange(num_nodes) * parts // max(num_nodes, 1)
    if edge_index is None or edge_index.shape[1] == 0 or parts == 1 or num_nodes <= parts:
        return runs, "runs"
    matrix = _adjacency(edge_index, num_nodes)
    if method == "metis" or (method == "auto" and _has_metis()):
        return _metis(matrix, parts), "metis"
    return _stream(matrix, parts, seed), "stream"


def quality(edge_index: Tensor | None, assignment: Tensor, parts: int) -> Quality:
    """Cut, boundary and balance of an assignment."""
    n = assignment.numel()
    sizes = torch.bincount(assignment, minlength=parts)
    balance = float(sizes.max()) * parts / n if n else 1.0
    if edge_index is None:
        return Quality(0, 0, balance, 0)
    source, target = edge_index
    ends = assignment[source], assignment[target]
    across = ends[0] != ends[1]
    boundary = torch.unique(source[across] * parts + ends[1][across]).numel()
    return Quality(int(across.sum()), int((source != target).sum()), balance, boundary)


def _adjacency(edge_index: Tensor, num_nodes: int) -> Any:
    """Symmetric, without self-loops, every edge once each way with weight one."""
    from scipy.sparse import csr_matrix

    source, target = edge_index.numpy()
    kept = source != target
    rows, columns = np.concatenate([source[kept], target[kept]]), np.concatenate([target[kept], source[kept]])
    matrix = csr_matrix((np.ones(rows.size, dtype=np.float32), (rows, columns)), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def _has_metis() -> bool:
    from importlib.util import find_spec

    return find_spec("pymetis") is not None


def _metis(matrix: Any, parts: int) -> Tensor:
    pymetis = require("pymetis", extra="partition", purpose="partitioning by METIS")
    if hasattr(pymetis, "CSRAdjacency"):
        given = {"adjacency": pymetis.CSRAdjacency(matrix.indptr, matrix.indices)}
    else:  # versions before 2025
        given = {"xadj": matrix.indptr, "adjncy": matrix.indices}
    _, found = pymetis.part_graph(parts, **given)
    return torch.as_tensor(np.asarray(found), dtype=torch.long)


def _stream(matrix: Any, parts: int, seed: int) -> Tensor:
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    n = matrix.shape[0]
    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    part = np.empty(n, dtype=np.int64)
    part[order] = np.arange(n, dtype=np.int64) * parts // n
    state = _Streaming(matrix, part, parts)
    best, fewest = part.copy(), state.cut()
    # Blocks small enough that neighbours seldom move at once, large enough to be worth a call.
    blocks = np.array_split(order, max(1, n // max(16, min(4096, n // (64 * parts)))))
    random = np.random.default_rng(seed)
    for _ in range(PASSES):
        moved = sum(state.move(blocks[i]) for i in random.permutation(len(blocks)))
        if (now := state.cut()) < fewest:
            best, fewest = state.part.copy(), now
        if not moved:
            break
    return torch.from_numpy(best)


class _Streaming:
    """The part of each node, and the size of each part."""

    def __init__(self, matrix: Any, part: np.ndarray, parts: int) -> None:
        self.matrix, self.part, self.parts = matrix, part, parts
        n = part.size
        self.sizes = np.bincount(part, minlength=parts)
        self.capacity = max(math.ceil((1 + SLACK) * n / parts), int(self.sizes.max()))
        self.alpha = matrix.nnz / 2 * parts ** (GAMMA - 1) / n**GAMMA

    def cut(self) -> int:
        """Edges between parts."""
        ends = np.repeat(self.part, np.diff(self.matrix.indptr))
        return int((ends != self.part[self.matrix.indices]).sum()) // 2

    def move(self, nodes: np.ndarray) -> int:
        """Lets the nodes of a block choose again; returns how many moved."""
        rows = self.matrix[nodes]
        here = np.repeat(np.arange(nodes.size), np.diff(rows.indptr))
        pairs = here * self.parts + self.part[rows.indices]
        counts = np.bincount(pairs, minlength=nodes.size * self.parts).reshape(nodes.size, self.parts)
        now, each = self.part[nodes], np.arange(nodes.size)
        score = counts - self.alpha * GAMMA * self.sizes ** (GAMMA - 1)
        to = score.argmax(1)
        gain = score[each, to] - score[each, now]
        wishes = np.flatnonzero(gain > 1e-9)
        wishes = wishes[np.argsort(-gain[wishes], kind="stable")]
        moved = 0
        for k in np.unique(to[wishes]):
            chosen = wishes[to[wishes] == k][: max(0, self.capacity - self.sizes[k])]
            self.sizes -= np.bincount(now[chosen], minlength=self.parts)
            self.sizes[k] += chosen.size
            self.part[nodes[chosen]] = k
            moved += chosen.size
        return moved


Rows = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Part:
    """Everything about the nodes of one part.

    Args:
        nodes: ``[n]`` their global numbers, ascending.
        x: ``[n, F]`` features, dense or sparse CSR.
        y: ``[n, …]`` targets.
        splits: Of every split, the rows to train on, to choose by and to test on.
        source: ``[E]`` sources of the edges into the part: below n own rows, from n on halo rows; None without a graph.
        target: ``[E]`` own rows.
        edge_weight: ``[E]``, or None.
        halo_part: ``[h]`` the part that each halo row belongs to, ascending.
        halo_row: ``[h]`` its row there.
    """

    nodes: Tensor
    x: Tensor
    y: Tensor
    splits: tuple[Rows, ...]
    source: Tensor | None = None
    target: Tensor | None = None
    edge_weight: Tensor | None = None
    halo_part: Tensor | None = None
    halo_row: Tensor | None = None


def cut(task: Task, assignment: Tensor, parts: int) -> Iterator[Part]:
    """The parts of a task, one after the other.

    Args:
        task: Of kind ``"nodes"``.
        assignment: ``[N]`` part of each node.
        parts: How many there are; some may be empty.
    """
    sizes = torch.bincount(assignment, minlength=parts)
    order = torch.argsort(assignment, stable=True)
    row_of = torch.empty_like(order)
    starts = sizes.cumsum(0) - sizes
    row_of[order] = torch.arange(order.numel()) - starts.repeat_interleave(sizes)
    edges, weight = task.edge_index, task.edge_weight
    assert edges is None or isinstance(edges, Tensor)
    assert weight is None or isinstance(weight, Tensor)
    groups: tuple[Tensor, ...] = ()
    if edges is not None:  # those into part 0 first; in each part they keep their order
        into = assignment[edges[1]]
        groups = torch.argsort(into, stable=True).split(torch.bincount(into, minlength=parts).tolist())
    for number, nodes in enumerate(order.split(sizes.tolist())):
        splits = tuple(_local(split.parts(), assignment, row_of, number) for split in task.splits)
        x = task.x[nodes] if task.x.layout == torch.strided else take_rows(task.x, nodes)
        part = Part(nodes, x, task.y[nodes], splits)
        if edges is not None:
            own = None if weight is None else weight[groups[number]]
            incoming: dict[str, Any] = _incoming(edges[:, groups[number]], number, nodes.numel(), assignment, row_of)
            part = replace(part, edge_weight=own, **incoming)
        yield part


def _local(split: dict[str, Tensor], assignment: Tensor, row_of: Tensor, number: int) -> Rows:
    """Rows of a part in each part of a split, in the split's order."""
    own = [row_of[index[assignment[index] == number]] for index in split.values()]
    return own[0], own[1], own[2]


def _incoming(edges: Tensor, number: int, size: int, assignment: Tensor, row_of: Tensor) -> dict[str, Tensor]:
    """Sources, targets and halo of the edges into one part of `size` nodes."""
    source, owner = edges[0], assignment[edges[0]]
    away = owner != number
    # By owner, then by node: the order in which rows will come.
    key, place = torch.unique(owner[away] * assignment.numel() + source[away], return_inverse=True)
    halo, local = key % assignment.numel(), row_of[source]
    local[away] = size + place
    rows = {"source": local, "target": row_of[edges[1]]}
    return rows | {"halo_part": assignment[halo], "halo_row": row_of[halo]}
