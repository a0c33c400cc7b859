"""Batches of whole graphs, and of consecutive snapshots."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from difformer.data.batch import GraphBatch, SnapshotBatch, epoch_generator
from difformer.data.sparse import segments
from difformer.data.task import Task


class GraphBatches:
    """Graphs of a task in batches.

    Args:
        task: Of kind ``"graphs"``.
        index: Which graphs; None takes all.
        batch_size: Graphs a batch; the last one holds what is left.
        shuffle: In a new random order every epoch; otherwise in the order of `index`.
        seed: Together with the epoch's number all that the order depends on.
    """

    def __init__(
        self, task: Task, *, index: Tensor | None = None, batch_size: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        if task.kind != "graphs" or task.node_ptr is None:
            raise ValueError(f"task {task.name!r}: batches of graphs need a 'graphs' task, this one is {task.kind!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        self.task = task
        self.node_ptr = task.node_ptr
        self.index = torch.arange(task.num_instances) if index is None else index
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.edge_order: Tensor | None = None
        if isinstance(task.edge_index, Tensor):
            graph = torch.bucketize(task.edge_index[0].contiguous(), task.node_ptr, right=True) - 1
            if bool((graph.diff() < 0).any()):  # edges of a graph need not stand together in the task
                self.edge_order = graph.argsort(stable=True)
            count = torch.bincount(graph, minlength=task.num_instances)
            self.edge_ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])

    def __len__(self) -> int:
        """Batches an epoch."""
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
        return GraphBatch(
            graphs=graphs,
            x=task.x[nodes],
            y=task.y[graphs],
            edge_index=edge_index,
            edge_weight=edge_weight,
            batch=torch.repeat_interleave(torch.arange(graphs.numel()), ptr.diff()),
            node_ptr=ptr,
        )


class SnapshotBatches:
    """Runs of consecutive snapshots of a series.

    Args:
        task: Of kind ``"series"``.
        index: Which snapshots; None takes all. They are taken in time order, and no run leaps over a gap.
        length: Snapshots a run; a run before a gap or the end may be shorter.
        shuffle: Give the runs in a new random order every epoch; inside a run time goes on forwards.
        seed: Together with the epoch's number all that the order depends on.
    """

    def __init__(
        self, task: Task, *, index: Tensor | None = None, length: int = 1, shuffle: bool = False, seed: int = 0
    ) -> None:
        if task.kind != "series":
            raise ValueError(f"task {task.name!r}: batches of snapshots need a 'series' task, this is {task.kind!r}")
        if length < 1:
            raise ValueError(f"length: expected at least 1, got {length}")
        self.task = task
        self.shuffle = shuffle
        self.seed = seed
        times = torch.arange(task.num_instances) if index is None else index.sort().values
        gaps = (times.diff() > 1).nonzero().squeeze(1) + 1
        self.runs = [run for piece in times.tensor_split(gaps) for run in piece.split(length) if run.numel()]

    def __len__(self) -> int:
        """Batches an epoch."""
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
