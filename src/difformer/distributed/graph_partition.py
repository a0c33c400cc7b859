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
of their global numbers. An edge belongs to the part of its target; a source in another part is a *halo* row, identified
by that part's number and its row there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from difformer.data import Task
from difformer.data.sparse_features import take_rows
from difformer.errors import UserError, check_choice, require

METHODS = ("auto", "metis", "stream")
SLACK = 0.03
PASSES = 8
GAMMA = 1.5
NONE = torch.zeros(0, dtype=torch.long)


@dataclass(frozen=True)
class Quality:
    """How good a partition is."""

    cut: int  # edges between two parts
    edges: int  # in all, self-loops left out
    balance: float  # nodes of the largest part over N / P; 1 is perfect
    boundary: int  # rows sent each time states are exchanged: pairs of a node and another part that it has an edge into

    def describe(self) -> str:
        cut = f"cut: {self.cut:,} of {self.edges:,} edges ({self.cut / max(self.edges, 1):.1%})"
        return f"{cut}; boundary: {self.boundary:,} rows; balance: {self.balance:.3f}"


def partition(edge_index: Tensor | None, num_nodes: int, parts: int, *, method: str = "auto") -> tuple[Tensor, str]:
    """``[N]`` part of each node, and the method that found it.

    Args:
        edge_index: ``[2, E]``, taken as undirected; None cuts the nodes into equal runs.
        num_nodes: N.
        parts: How many parts.
        method: ``"metis"``, ``"stream"``, or ``"auto"``: METIS if it is installed.

    Raises:
        ValueError: If there are fewer than one part, or the method is unknown.
        ImportError: If METIS is asked for and not installed.
    """
    check_choice("method", method, METHODS)
    if parts < 1:
        raise UserError(f"parts must be at least 1, got {parts}")
    if edge_index is None or edge_index.shape[1] == 0 or parts == 1 or num_nodes <= parts:
        return torch.arange(num_nodes) * parts // max(num_nodes, 1), "runs"
    # Symmetric, without self-loops, every edge once each way with weight one.
    source, target = edge_index[:, edge_index[0] != edge_index[1]].numpy()
    rows, columns = np.concatenate([source, target]), np.concatenate([target, source])
    matrix = csr_matrix((np.ones(rows.size, dtype=np.float32), (rows, columns)), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    if method == "stream" or (method == "auto" and find_spec("pymetis") is None):
        return _stream(matrix, parts), "stream"
    pymetis = require("pymetis", extra="partition", purpose="partitioning by METIS")
    given = {"xadj": matrix.indptr, "adjncy": matrix.indices}  # of versions before 2025
    if hasattr(pymetis, "CSRAdjacency"):
        given = {"adjacency": pymetis.CSRAdjacency(matrix.indptr, matrix.indices)}
    return torch.as_tensor(np.asarray(pymetis.part_graph(parts, **given)[1]), dtype=torch.long), "metis"


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


def _stream(matrix: Any, parts: int) -> Tensor:
    n = matrix.shape[0]
    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    part = np.empty(n, dtype=np.int64)
    part[order] = np.arange(n, dtype=np.int64) * parts // n
    sizes = np.bincount(part, minlength=parts)
    capacity = max(math.ceil((1 + SLACK) * n / parts), int(sizes.max()))
    alpha = matrix.nnz / 2 * parts ** (GAMMA - 1) / n**GAMMA

    def cut() -> int:
        ends = np.repeat(part, np.diff(matrix.indptr))
        return int((ends != part[matrix.indices]).sum()) // 2

    def move(nodes: np.ndarray) -> int:
        """Lets the nodes of a block choose again; returns how many moved."""
        rows, each = matrix[nodes], np.arange(nodes.size)
        pairs = np.repeat(each, np.diff(rows.indptr)) * parts + part[rows.indices]
        counts = np.bincount(pairs, minlength=nodes.size * parts).reshape(nodes.size, parts)
        score = counts - alpha * GAMMA * sizes ** (GAMMA - 1)
        now, to = part[nodes], score.argmax(1)
        gain = score[each, to] - score[each, now]
        wishes = np.flatnonzero(gain > 1e-9)
        wishes = wishes[np.argsort(-gain[wishes], kind="stable")]
        moved = 0
        for k in np.unique(to[wishes]):
            chosen = wishes[to[wishes] == k][: max(0, capacity - sizes[k])]
            sizes[:] -= np.bincount(now[chosen], minlength=parts)
            sizes[k] += chosen.size
            part[nodes[chosen]] = k
            moved += chosen.size
        return moved

    best, fewest = part.copy(), cut()
    # Blocks small enough that neighbours seldom move at once, large enough to be worth a call.
    blocks = np.array_split(order, max(1, n // max(16, min(4096, n // (64 * parts)))))
    random = np.random.default_rng(0)
    for _ in range(PASSES):
        moved = sum(move(blocks[i]) for i in random.permutation(len(blocks)))
        if (now := cut()) < fewest:
            best, fewest = part.copy(), now
        if not moved:
            break
    return torch.from_numpy(best)


@dataclass(frozen=True)
class Part:
    """Everything about the nodes of one part."""

    nodes: Tensor  # [n] their global numbers, ascending
    x: Tensor  # [n, F] features, dense or sparse CSR
    y: Tensor  # [n, …] targets
    splits: tuple[tuple[Tensor, ...], ...]  # of every split, the rows to train on, to choose by and to test on
    source: Tensor = NONE  # [E] sources of the edges into the part: below n own rows, from n on halo rows
    target: Tensor = NONE  # [E] own rows
    edge_weight: Tensor | None = None  # [E]
    halo_part: Tensor = NONE  # [h] the part that each halo row belongs to, ascending
    halo_row: Tensor = NONE  # [h] its row there
    names: tuple[str, ...] = ()  # of the nodes, if the task has names

    def nothing(self) -> Part:
        """A part without nodes, for a rank that gets no part."""
        splits, weight = ((NONE, NONE, NONE),) * len(self.splits), self.edge_weight
        weight = None if weight is None else weight[:0]
        return Part(NONE, take_rows(self.x, NONE), self.y[:0], splits, edge_weight=weight)


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
    row_of[order] = torch.arange(order.numel()) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    edges, weight = task.edge_index, task.edge_weight
    assert edges is None or isinstance(edges, Tensor)
    assert weight is None or isinstance(weight, Tensor)
    groups: tuple[Tensor, ...] = ()
    if edges is not None:  # those into part 0 first; in each part they keep their order
        into = assignment[edges[1]]
        groups = torch.argsort(into, stable=True).split(torch.bincount(into, minlength=parts).tolist())
    for number, nodes in enumerate(order.split(sizes.tolist())):
        splits = tuple(
            tuple(row_of[index[assignment[index] == number]] for index in split.parts().values())
            for split in task.splits
        )
        names = tuple(task.instance_names[i] for i in nodes.tolist()) if task.instance_names else ()
        part = Part(nodes, take_rows(task.x, nodes), task.y[nodes], splits, names=names)
        if edges is not None:
            (source, target), own = edges[:, groups[number]], groups[number]
            owner = assignment[source]
            away = owner != number
            # By owner, then by node: the order in which rows will come.
            key, place = torch.unique(owner[away] * assignment.numel() + source[away], return_inverse=True)
            halo, local = key % assignment.numel(), row_of[source]
            local[away] = nodes.numel() + place
            ends: dict[str, Any] = {"source": local, "target": row_of[target]}
            ends |= {"halo_part": assignment[halo], "halo_row": row_of[halo]}
            part = replace(part, edge_weight=None if weight is None else weight[own], **ends)
        yield part
