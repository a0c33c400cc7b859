"""A task piece by piece: parts of a graph, some graphs, or some snapshots.

Each feed is made from a task and a seed, has a length (batches per epoch), and gives ``epoch(e)``, an iterator that is
a pure function of (seed, e): a run that is resumed at some epoch, or in the middle of one (``epoch(e, start=b)``),
continues as if it had never stopped. Tasks stay in main memory; a batch is moved to the model with `to`.
`NodePartitions` may keep its task on a GPU and cut batches there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from difformer.data.sparse import segments, take_rows
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
    """Some nodes of a graph and the edges between them.

    Args:
        nodes: ``[n]`` their numbers in the task, ascending: row i of everything below is node ``nodes[i]``.
        x: ``[n, F]`` features, sparse CSR where the task's are.
        y: ``[n, …]`` targets.
        edge_index: ``[2, e]`` in positions 0 … n - 1; None where the task has no graph.
        edge_weight: ``[e]``, or None.
    """

    nodes: Tensor
    x: Tensor
    y: Tensor
    edge_index: Tensor | None
    edge_weight: Tensor | None

    def local(self, index: Tensor) -> Tensor:
        """Positions in this batch of those nodes of `index` that are in it, ascending."""
        place = torch.searchsorted(self.nodes, index).clamp_(max=max(self.nodes.numel() - 1, 0))
        here = self.nodes[place] == index if self.nodes.numel() else torch.zeros_like(index, dtype=torch.bool)
        return place[here].sort().values


@dataclass(frozen=True)
class GraphBatch(_Movable):
    """Some graphs laid end to end, no edge between two of them.

    Args:
        graphs: ``[g]`` their numbers in the task.
        x: ``[n, F]`` features of all their nodes.
        y: ``[g, …]`` targets.
        edge_index: ``[2, e]`` in positions 0 … n - 1 of this batch, or None.
        edge_weight: ``[e]``, or None.
        batch: ``[n]`` which of the g graphs a node belongs to, ascending.
        node_ptr: ``[g + 1]`` nodes of the i-th graph are ``node_ptr[i]:node_ptr[i + 1]``.
    """

    graphs: Tensor
    x: Tensor
    y: Tensor
    edge_index: Tensor | None
    edge_weight: Tensor | None
    batch: Tensor
    node_ptr: Tensor


@dataclass(frozen=True)
class SnapshotBatch(_Movable):
    """Consecutive snapshots of one set of nodes, in time order.

    Args:
        times: ``[s]`` which snapshots of the task.
        x: ``[s, N, F]`` features.
        y: ``[s, N, …]`` targets.
        edge_index: One graph for all, one per snapshot, or None.
        edge_weight: Likewise.
    """

    times: Tensor
    x: Tensor
    y: Tensor
    edge_index: Tensor | tuple[Tensor, ...] | None
    edge_weight: Tensor | tuple[Tensor, ...] | None

    def disjoint(self) -> GraphBatch:
        """The snapshots as s separate graphs of N nodes each, so that one pass of a model handles all of them."""
        count, nodes = self.x.shape[:2]
        index, weight = self.edge_index, self.edge_weight
        if index is not None:
            parts = index if isinstance(index, tuple) else (index,) * count
            index = torch.cat([part + i * nodes for i, part in enumerate(parts)], 1)
        if weight is not None:
            weight = torch.cat(weight if isinstance(weight, tuple) else (weight,) * count)
        return GraphBatch(
            graphs=self.times,
            x=self.x.flatten(0, 1),
            y=self.y,
            edge_index=index,
            edge_weight=weight,
            batch=torch.arange(count, device=self.x.device).repeat_interleave(nodes),
            node_ptr=torch.arange(count + 1, device=self.x.device) * nodes,
        )


def partition_nodes(num_nodes: int, *, batch_size: int, seed: int = 0, epoch: int = 0) -> tuple[Tensor, ...]:
    """All nodes in random order, cut into parts of `batch_size`, the last of what is left, each part sorted.

    Seed and epoch are those of the run; other epochs have other parts.
    """
    if batch_size < 1:
        raise UserError(f"batch_size: expected at least 1, got {batch_size}")
    order = torch.randperm(num_nodes, generator=epoch_generator(seed, epoch))
    return tuple(part.sort().values for part in order.split(batch_size))


def induced_subgraph(
    nodes: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, *, num_nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Edges with both ends among `nodes` (ascending), renumbered by position in it; order of edges is kept.

    Raises:
        ValueError: If `nodes` is not strictly ascending: positions would no longer be those of sorted features.
    """
    if nodes.numel() > 1 and not bool((nodes.diff() > 0).all()):
        raise UserError("nodes: expected strictly ascending numbers; sort them, so that features follow the same order")
    place = torch.full((num_nodes,), -1, dtype=torch.long, device=edge_index.device)
    place[nodes] = torch.arange(nodes.numel(), device=edge_index.device)
    source, target = place[edge_index[0]], place[edge_index[1]]
    kept = (source >= 0) & (target >= 0)
    return torch.stack([source[kept], target[kept]]), None if edge_weight is None else edge_weight[kept]


class NodePartitions:
    """Batches of a random partition of all nodes, a new one every epoch: each node is in exactly one batch.

    A batch holds the edges whose two ends it holds. Nodes are in ascending order, so that features, targets and
    renumbered edges of a batch can only be paired correctly. An epoch costs one pass over the edges.

    Args:
        task: Of kind ``"nodes"``.
        batch_size: Nodes per batch; the last batch holds what is left.
        seed: Together with the epoch's number all that the batches depend on.
        device: Where features, targets and edges are kept and cut into batches; the task's own place by default. The
            batches are the same wherever that is. A GPU that has room for all of it cuts them much sooner.
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

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[NodeBatch]:
        """The batches of one epoch, from batch `start` on."""
        count = self.task.num_nodes
        parts = partition_nodes(count, batch_size=self.batch_size, seed=self.seed, epoch=epoch)
        if self.device.type != "cpu":  # in one piece: every copy to a GPU is waited for
            parts = torch.cat(parts).to(self.device).split(self.batch_size)
        edges = () if self.edge_index is None else self._edges_of(parts, self.edge_index)
        place = torch.empty(count, dtype=torch.long, device=self.device)
        for number, nodes in enumerate(parts):
            if number < start:
                continue
            edge_index = edge_weight = None
            if self.edge_index is not None:
                place[nodes] = torch.arange(nodes.numel(), device=self.device)
                edge_index = place[self.edge_index[:, edges[number]]]
                edge_weight = None if self.edge_weight is None else self.edge_weight[edges[number]]
            yield NodeBatch(nodes, take_rows(self.x, nodes), self.y[nodes], edge_index, edge_weight)

    def _edges_of(self, parts: tuple[Tensor, ...], edge_index: Tensor) -> tuple[Tensor, ...]:
        """Positions in the edge list of every part's edges, in order."""
        # The smallest type keeps the table of parts in the processor's cache, and the two look-ups of every edge fast.
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
        batch_size: Graphs per batch; the last one holds what is left.
        shuffle: In a new random order every epoch; otherwise in the order of `index`.
        seed: Together with the epoch's number all that the order depends on.
    """

    def __init__(
        self, task: Task, *, index: Tensor | None = None, batch_size: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        _check(task, "graphs", batch_size)
        assert task.node_ptr is not None
        self.task, self.batch_size, self.shuffle, self.seed = task, batch_size, shuffle, seed
        self.node_ptr = task.node_ptr
        self.index = torch.arange(task.num_instances) if index is None else index
        self.edge_order: Tensor | None = None
        if isinstance(task.edge_index, Tensor):
            graph = torch.bucketize(task.edge_index[0].contiguous(), task.node_ptr, right=True) - 1
            if bool((graph.diff() < 0).any()):  # edges of a graph need not be together in the task
                self.edge_order = graph.argsort(stable=True)
            count = torch.bincount(graph, minlength=task.num_instances)
            self.edge_ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])

    def __len__(self) -> int:
        return -(-self.index.numel() // self.batch_size)

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[GraphBatch]:
        """The batches of one epoch, from batch `start` on."""
        index = self.index
        if self.shuffle:
            index = index[torch.randperm(index.numel(), generator=epoch_generator(self.seed, epoch))]
        for graphs in index.split(self.batch_size)[start:]:
            if graphs.numel():
                yield self.batch(graphs)

    def batch(self, graphs: Tensor) -> GraphBatch:
        """The graphs with these numbers, in this order."""
        task = self.task
        nodes, ptr = segments(self.node_ptr, graphs)
        edge_index = edge_weight = None
        if isinstance(task.edge_index, Tensor):
            edges, edge_ptr = segments(self.edge_ptr, graphs)
            edges = edges if self.edge_order is None else self.edge_order[edges]
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
        index: Which snapshots; None takes all. They are taken in time order, and no run leaps over a gap.
        length: Snapshots per run; a run before a gap or the end may be shorter.
        shuffle: Give the runs in a new random order every epoch; inside a run time goes on forwards.
        seed: Together with the epoch's number all that the order depends on.
    """

    def __init__(
        self, task: Task, *, index: Tensor | None = None, length: int = 1, shuffle: bool = False, seed: int = 0
    ) -> None:
        _check(task, "series", length)
        self.task, self.shuffle, self.seed = task, shuffle, seed
        times = torch.arange(task.num_instances) if index is None else index.sort().values
        gaps = (times.diff() > 1).nonzero().squeeze(1) + 1
        self.runs = [run for piece in times.tensor_split(gaps) for run in piece.split(length) if run.numel()]

    def __len__(self) -> int:
        return len(self.runs)

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[SnapshotBatch]:
        """The batches of one epoch, from batch `start` on."""
        order = list(range(len(self.runs)))
        if self.shuffle:
            order = torch.randperm(len(self.runs), generator=epoch_generator(self.seed, epoch)).tolist()
        for number in order[start:]:
            yield self.batch(self.runs[number])

    def batch(self, times: Tensor) -> SnapshotBatch:
        """These snapshots, in this order."""

        def at(part: Tensor | tuple[Tensor, ...] | None) -> Tensor | tuple[Tensor, ...] | None:
            return tuple(part[t] for t in times.tolist()) if isinstance(part, tuple) else part

        task = self.task
        return SnapshotBatch(times, task.x[times], task.y[times], at(task.edge_index), at(task.edge_weight))
