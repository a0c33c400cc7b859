"""Neighbour sampling: a batch of seed nodes, some of their neighbours, some of those neighbours' neighbours, …

Edges carry messages from source to target, so what a node needs are the sources of the edges that end in it. With
fan-outs (f₁, …, f_L), f₁ edges are drawn of those that end in each seed, f₂ of those that end in each node so found,
and so on, uniformly and without repetition; all of them where a node has no more. With fan-outs of -1 everything is
taken, and L layers of message passing give the seeds exactly what they would get in the whole graph.

The drawing is a loop over fan-outs, never over nodes or edges, and needs none of PyG's compiled companions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from difformer.data.batch import NodeBatch, epoch_generator
from difformer.data.sparse import segments, take_rows
from difformer.data.task import Task


class NeighbourSampler:
    """Edges sorted by target, ready for drawing from.

    Args:
        edge_index: ``[2, E]``.
        num_nodes: Of the graph.
        fanouts: Edges drawn for a node at each hop, -1 for all.
    """

    def __init__(self, edge_index: Tensor, *, num_nodes: int, fanouts: Sequence[int]) -> None:
        if not fanouts or min(fanouts) < -1 or 0 in fanouts:
            raise ValueError(f"fanouts: expected positive numbers, or -1 for all neighbours; got {tuple(fanouts)}")
        self.fanouts = tuple(fanouts)
        self.edge_index = edge_index
        target = edge_index[1]
        self.order = None if bool((target.diff() >= 0).all()) else target.argsort(stable=True)
        count = torch.bincount(target, minlength=num_nodes)
        self.ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
        self.num_nodes = num_nodes

    def sample(self, seeds: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Nodes, ascending, and positions in the edge list, ascending, of what is drawn around distinct `seeds`."""
        seen = torch.zeros(self.num_nodes, dtype=torch.bool)
        seen[seeds] = True
        frontier, edges = seeds, []
        for fanout in self.fanouts:
            drawn = self._draw(frontier, fanout, generator)
            drawn = drawn if self.order is None else self.order[drawn]
            edges.append(drawn)
            # A node is drawn for once, at the hop that finds it first: no edge can come twice.
            found = self.edge_index[0, drawn]
            frontier = found[~seen[found]].unique()
            seen[frontier] = True
        return seen.nonzero().squeeze(1), torch.cat(edges).sort().values

    def _draw(self, nodes: Tensor, fanout: int, generator: Generator) -> Tensor:
        degree = self.ptr[nodes + 1] - self.ptr[nodes]
        many = degree > fanout if fanout > 0 else torch.zeros_like(degree, dtype=torch.bool)
        whole, _ = segments(self.ptr, nodes[~many])
        return torch.cat(
            [whole, (self.ptr[nodes[many], None] + _distinct(degree[many], fanout, generator)).reshape(-1)]
        )


def _distinct(below: Tensor, count: int, generator: Generator) -> Tensor:
    """``[n, count]``: in row i, `count` distinct numbers drawn uniformly from 0 … ``below[i] - 1`` (Floyd's algorithm).

    For j = below - count, …, below - 1: draw t from 0 … j; take t, or j where t is taken already.
    """
    count = max(count, 0)
    chosen = torch.empty(below.numel(), count, dtype=torch.long)
    for column in range(count):
        last = below - count + column
        draw = (torch.rand(below.numel(), generator=generator, dtype=torch.double) * (last + 1)).long()
        taken = (chosen[:, :column] == draw[:, None]).any(1)
        chosen[:, column] = torch.where(taken, last, draw)
    return chosen


class NeighbourBatches:
    """Batches of seed nodes with sampled neighbourhoods.

    Args:
        task: Of kind ``"nodes"``, with a graph.
        nodes: Seeds, for example the training nodes; None takes all nodes.
        batch_size: Seeds a batch; the last one holds what is left.
        fanouts: Edges drawn for a node at each hop, -1 for all.
        shuffle: Seeds in a new random order every epoch.
        seed: Together with the numbers of epoch and batch all that the draws depend on.
    """

    def __init__(
        self,
        task: Task,
        *,
        nodes: Tensor | None = None,
        batch_size: int = 1024,
        fanouts: Sequence[int] = (10, 10),
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        edge_index = graph_of(task)
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        self.task = task
        self.nodes = torch.arange(task.num_nodes) if nodes is None else nodes
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.sampler = NeighbourSampler(edge_index, num_nodes=task.num_nodes, fanouts=fanouts)

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-self.nodes.numel() // self.batch_size)

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[NodeBatch]:
        """The batches of one epoch, from batch `start` on."""
        task, sampler = self.task, self.sampler
        order = seed_order(self.nodes, self.shuffle, self.seed, epoch)
        place = torch.empty(task.num_nodes, dtype=torch.long)
        for number, seeds in enumerate(order.split(self.batch_size)):
            if number < start or not seeds.numel():
                continue
            nodes, edges = sampler.sample(seeds, epoch_generator(self.seed, epoch, number))
            place[nodes] = torch.arange(nodes.numel())
            weight = task.edge_weight
            yield NodeBatch(
                nodes=nodes,
                x=take_rows(task.x, nodes),
                y=task.y[nodes],
                edge_index=place[sampler.edge_index[:, edges]],
                edge_weight=weight[edges] if isinstance(weight, Tensor) else None,
                seeds=place[seeds],
            )


def graph_of(task: Task) -> Tensor:
    """The one graph of a task whose neighbours can be sampled."""
    if task.kind != "nodes" or not isinstance(task.edge_index, Tensor):
        what = f"a {task.kind!r} task" if task.kind != "nodes" else "a task without a graph"
        raise ValueError(f"task {task.name!r}: neighbour sampling needs a 'nodes' task with a graph, this is {what}")
    return task.edge_index


def seed_order(nodes: Tensor, shuffle: bool, seed: int, epoch: int) -> Tensor:
    """Seeds in the order in which an epoch takes them."""
    return nodes[torch.randperm(nodes.numel(), generator=epoch_generator(seed, epoch))] if shuffle else nodes
