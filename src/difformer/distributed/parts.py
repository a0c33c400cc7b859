"""A task cut into parts: each has the features, targets and incoming edges of its own nodes, and names of no others.

Nodes of a part are numbered 0 … n - 1 in the order of their global numbers. An edge belongs to the part of its target;
a source on another part is a *halo* row, known by that part's number and its row there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.data import Task
from difformer.data.sparse import take_rows

Rows = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Part:
    """Everything of the nodes of one part.

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
    edges = _Edges.of(task, assignment, row_of, parts)
    for number, nodes in enumerate(order.split(sizes.tolist())):
        splits = tuple(_local(split.parts(), assignment, row_of, number) for split in task.splits)
        yield Part(nodes, _rows(task.x, nodes), task.y[nodes], splits, *edges.of_part(number, nodes.numel()))


def _rows(x: Tensor, nodes: Tensor) -> Tensor:
    return x[nodes] if x.layout == torch.strided else take_rows(x, nodes)


def _local(split: dict[str, Tensor], assignment: Tensor, row_of: Tensor, number: int) -> Rows:
    """Rows of a part in each part of a split, in the split's order."""
    own = [row_of[index[assignment[index] == number]] for index in split.values()]
    return own[0], own[1], own[2]


@dataclass(frozen=True)
class _Edges:
    """All edges, those into part 0 first; in each part they keep their order."""

    index: Tensor | None
    weight: Tensor | None
    counts: list[int]
    assignment: Tensor
    row_of: Tensor

    @staticmethod
    def of(task: Task, assignment: Tensor, row_of: Tensor, parts: int) -> _Edges:
        if task.edge_index is None:
            return _Edges(None, None, [0] * parts, assignment, row_of)
        assert isinstance(task.edge_index, Tensor)
        into = assignment[task.edge_index[1]]
        order = torch.argsort(into, stable=True)
        weight = task.edge_weight
        assert weight is None or isinstance(weight, Tensor)
        counts = torch.bincount(into, minlength=parts).tolist()
        kept = None if weight is None else weight[order]
        return _Edges(task.edge_index[:, order], kept, counts, assignment, row_of)

    def of_part(self, number: int, size: int) -> tuple[Tensor | None, ...]:
        """Source, target, weight and halo of the edges into one part of `size` nodes."""
        if self.index is None:
            return None, None, None, None, None
        start = sum(self.counts[:number])
        here = slice(start, start + self.counts[number])
        source, target = self.index[0, here], self.row_of[self.index[1, here]]
        weight = None if self.weight is None else self.weight[here]
        owner = self.assignment[source]
        away = owner != number
        # By owner, then by node: the order in which rows will come.
        key, place = torch.unique(owner[away] * self.assignment.numel() + source[away], return_inverse=True)
        halo = key % self.assignment.numel()
        local = self.row_of[source]
        local[away] = size + place
        return local, target, weight, self.assignment[halo], self.row_of[halo]
