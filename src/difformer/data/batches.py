"""Mini-batches of a task: parts of a graph, some graphs, or some snapshots.

``epoch(e)`` is an iterator over the batches of one epoch and a pure function of (seed, e): a run that is resumed at
some epoch continues as if it had never stopped. The task stays in main memory, and `to` moves a batch to the model;
`NodePartitions` may keep its task on a GPU and cut batches there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from difformer.data.sparse_features import segments, take_rows
from difformer.data.task import Task
from difformer.errors import UserError

Batch = TypeVar("Batch", bound="_Movable")


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A CPU generator that depends on (seed, epoch) and on nothing else."""
    if min(seed, epoch) < 0:
        raise UserError(f"seed, epoch: expected whole numbers ≥ 0, got {seed} and {epoch}")
    state = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def _check(task: Task, kind: str, size: int) -> None:
    if task.kind != kind:
        raise UserError(f"task {task.name!r}: these batches need a {kind!r} task, this one is {task.kind!r}")
    if size < 1:
        raise UserError(f"{'length' if kind == 'series' else 'batch_size'}: expected at least 1, got {size}")


class _Movable:
    def to(self: Batch, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch with every tensor on `device`."""

        def move(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(move(part) for part in value)
            return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value

        return replace(self, **{f.name: move(getattr(self, f.name)) for f in fields(self)})  # type: ignore[type-var, arg-type]


@dataclass(frozen=True)
class NodeBatch(_Movable):
    """Some nodes of a graph and the edges between them."""

    nodes: Tensor  # [n] numbers in the task, ascending: row i of everything below is node nodes[i]
    x: Tensor  # [n, F] features, sparse CSR where the task's are
    y: Tensor  # [n, …] targets
    edge_index: Tensor | None  # [2, e] in positions 0 … n - 1; None where the task has no graph
    edge_weight: Tensor | None  # [e]

    def local(self, index: Tensor) -> Tensor:
        """Positions in this batch of those nodes of `index` that are in it, ascending."""
        place = torch.searchsorted(self.nodes, index).clamp_(max=self.nodes.numel() - 1)
        return place[self.nodes[place] == index].sort().values


@dataclass(frozen=True)
class GraphBatch(_Movable):
    """Some graphs laid end to end, no edge between two of them."""

    graphs: Tensor  # [g] numbers in the task
    x: Tensor  # [n, F] features of all their nodes
    y: Tensor  # [g, …] targets
    edge_index: Tensor | None  # [2, e] in positions 0 … n - 1 of this batch
    edge_weight: Tensor | None  # [e]
    batch: Tensor  # [n] which of the g graphs a node belongs to, ascending
    node_ptr: Tensor  # [g + 1] nodes of the i-th graph are node_ptr[i]:node_ptr[i + 1]


@dataclass(frozen=True)
class SnapshotBatch(_Movable):
    """Consecutive snapshots of one set of nodes, in time order."""

    times: Tensor  # [s] numbers in the task
    x: Tensor  # [s, N, F] features
    y: Tensor  # [s, N, …] targets
    edge_index: Tensor | tuple[Tensor, ...] | None  # one graph for all, or one per snapshot
    edge_weight: Tensor | tuple[Tensor, ...] | None  # likewise

    def disjoint(self) -> GraphBatch:
        """The snapshots as s separate graphs of N nodes each, so that one pass of a model handles all of them."""
        count, nodes = self.x.shape[:2]
        given = self.edge_index, self.edge_weight
        index, weight = ((part,) * count if isinstance(part, Tensor) else part for part in given)
        edge_index = None if index is None else torch.cat([part + i * nodes for i, part in enumerate(index)], 1)
        edge_weight = None if weight is None else torch.cat(weight)
        batch = torch.arange(count, device=self.x.device).repeat_interleave(nodes)
        ptr = torch.arange(count + 1, device=self.x.device) * nodes
        return GraphBatch(self.times, self.x.flatten(0, 1), self.y, edge_index, edge_weight, batch, ptr)


def partition_nodes(num_nodes: int, *, batch_size: int, seed: int = 0, epoch: int = 0) -> tuple[Tensor, ...]:
    """All nodes in random order, cut into parts of at most `batch_size`, each part sorted."""
    if batch_size < 1:
        raise UserError(f"batch_size: expected at least 1, got {batch_size}")
    order = torch.randperm(num_nodes, generator=epoch_generator(seed, epoch))
    return tuple(part.sort().values for part in order.split(batch_size))


def induced_subgraph(
    nodes: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, *, num_nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Edges with both ends among `nodes` (strictly ascending), renumbered by position in it, in their old order."""
    if nodes.numel() > 1 and not bool((nodes.diff() > 0).all()):
        raise UserError("nodes: expected strictly ascending numbers; sort them, so that features follow the same order")
    place = torch.full((num_nodes,), -1, dtype=torch.long, device=edge_index.device)
    place[nodes] = torch.arange(nodes.numel(), device=edge_index.device)
    source, target = place[edge_index[0]], place[edge_index[1]]
    kept = (source >= 0) & (target >= 0)
    return torch.stack([source[kept], target[kept]]), None if edge_weight is None else edge_weight[kept]


class NodePartitions:
    """Batches of a random partition of all nodes, a new one every epoch: each node is in exactly one batch.

    A batch holds its nodes in ascending order, and the edges with both ends in it. An epoch costs one pass over the
    edges.

    Args:
        task: Of kind ``"nodes"``.
        batch_size: Nodes per batch; the last batch holds the remainder.
        seed: Determines the batches, together with the number of the epoch.
        device: Where features, targets and edges are kept and cut into batches, without influence on the batches; by
            default where the task is. A GPU that can hold all of it cuts them much faster.
    """

    def __init__(self, task: Task, *, batch_size: int, seed: int = 0, device: torch.device | str | None = None) -> None:
        _check(task, "nodes", batch_size)
        self.task, self.batch_size, self.seed = task, batch_size, seed
        self.device = task.x.device if device is None else torch.device(device)
        self.x, self.y = task.x.to(self.device), task.y.to(self.device)
        self.edge_index, self.edge_weight = (
            part.to(self.device) if isinstance(part, Tensor) else None for part in (task.edge_index, task.edge_weight)
        )

    def __len__(self) -> int:
        return -(-self.task.num_nodes // self.batch_size)

    def epoch(self, epoch: int) -> Iterator[NodeBatch]:
        """The batches of one epoch."""
        count = self.task.num_nodes
        parts = partition_nodes(count, batch_size=self.batch_size, seed=self.seed, epoch=epoch)
        if self.device.type != "cpu":  # in one piece: every copy to a GPU synchronises
            parts = torch.cat(parts).to(self.device).split(self.batch_size)
        edges = () if self.edge_index is None else self._edges_of(parts, self.edge_index)
        place = torch.empty(count, dtype=torch.long, device=self.device)
        for number, nodes in enumerate(parts):
            edge_index = edge_weight = None
            if self.edge_index is not None:
                place[nodes] = torch.arange(nodes.numel(), device=self.device)
                edge_index = place[self.edge_index[:, edges[number]]]
                edge_weight = None if self.edge_weight is None else self.edge_weight[edges[number]]
            yield NodeBatch(nodes, take_rows(self.x, nodes), self.y[nodes], edge_index, edge_weight)

    def _edges_of(self, parts: tuple[Tensor, ...], edge_index: Tensor) -> tuple[Tensor, ...]:
        """Positions in the edge list of every part's edges, in order."""
        # The smallest type keeps the table of parts in the processor's cache, so that its look-ups are fast.
        small = torch.int16 if len(parts) < 2**15 else torch.int32
        part_of = torch.empty(self.task.num_nodes, dtype=small, device=self.device)
        sizes = torch.tensor([nodes.numel() for nodes in parts], device=self.device)
        part_of[torch.cat(parts)] = torch.arange(len(parts), dtype=small, device=self.device).repeat_interleave(sizes)
        part = part_of[edge_index[0]]
        inside = (part == part_of[edge_index[1]]).nonzero().squeeze(1)
        part = part[inside]
        order = part.argsort(stable=True)
        count = torch.bincount(part, minlength=len(parts)).tolist()
        return inside[order].split(count)


class GraphBatches:
    """Graphs of a task in batches.

    Args:
        task: Of kind ``"graphs"``.
        index: Which graphs; None takes all.
        batch_size: Graphs per batch; the last one holds the remainder.
        shuffle: In a new random order every epoch; otherwise in the order of `index`.
        seed: Determines the order, together with the number of the epoch.
    """

    def __init__(
        self, task: Task, *, index: Tensor | None = None, batch_size: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        _check(task, "graphs", batch_size)
        assert task.node_ptr is not None
        self.task, self.batch_size, self.shuffle, self.seed = task, batch_size, shuffle, seed
        self.node_ptr = task.node_ptr
        self.index = torch.arange(task.num_instances) if index is None else index
        if isinstance(task.edge_index, Tensor):
            graph = torch.bucketize(task.edge_index[0].contiguous(), task.node_ptr, right=True) - 1
            self.edge_order = graph.argsort(stable=True)  # edges of a graph need not be together in the task
            count = torch.bincount(graph, minlength=task.num_instances)
            self.edge_ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])

    def __len__(self) -> int:
        return -(-self.index.numel() // self.batch_size)

    def order(self, epoch: int) -> list[Tensor]:
        """Numbers of the graphs of every batch of one epoch."""
        index = self.index
        if self.shuffle:
            index = index[torch.randperm(index.numel(), generator=epoch_generator(self.seed, epoch))]
        return [graphs for graphs in index.split(self.batch_size) if graphs.numel()]

    def epoch(self, epoch: int) -> Iterator[GraphBatch]:
        """The batches of one epoch."""
        return map(self.batch, self.order(epoch))

    def batch(self, graphs: Tensor) -> GraphBatch:
        """The graphs with these numbers, in this order."""
        task = self.task
        nodes, ptr = segments(self.node_ptr, graphs)
        edge_index = edge_weight = None
        if isinstance(task.edge_index, Tensor):
            places, edge_ptr = segments(self.edge_ptr, graphs)
            edges = self.edge_order[places]
            shift = torch.repeat_interleave(ptr[:-1] - self.node_ptr[graphs], edge_ptr.diff())
            edge_index = task.edge_index[:, edges] + shift
            if isinstance(task.edge_weight, Tensor):
                edge_weight = task.edge_weight[edges]
        batch = torch.repeat_interleave(torch.arange(graphs.numel()), ptr.diff())
        return GraphBatch(graphs, task.x[nodes], task.y[graphs], edge_index, edge_weight, batch, ptr)


class SnapshotBatches:
    """Runs of consecutive snapshots of a series.

    Args:
        task: Of kind ``"series"``.
        index: Which snapshots; None takes all. They are taken in time order, and no run crosses a gap.
        length: Snapshots per run; a run before a gap or the end may be shorter.
    """

    def __init__(self, task: Task, *, index: Tensor | None = None, length: int = 1) -> None:
        _check(task, "series", length)
        self.task = task
        times = torch.arange(task.num_instances) if index is None else index.sort().values
        gaps = (times.diff() > 1).nonzero().squeeze(1) + 1
        self.runs = [run for piece in times.tensor_split(gaps) for run in piece.split(length) if run.numel()]

    def __len__(self) -> int:
        return len(self.runs)

    def epoch(self, epoch: int) -> Iterator[SnapshotBatch]:
        """The runs in time order, in every epoch."""
        return map(self.batch, self.runs)

    def batch(self, times: Tensor) -> SnapshotBatch:
        """These snapshots, in this order."""

        def at(part: Tensor | tuple[Tensor, ...] | None) -> Tensor | tuple[Tensor, ...] | None:
            return tuple(part[t] for t in times.tolist()) if isinstance(part, tuple) else part

        task = self.task
        return SnapshotBatch(times, task.x[times], task.y[times], at(task.edge_index), at(task.edge_weight))
