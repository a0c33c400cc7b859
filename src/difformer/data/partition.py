"""Random partitions of the nodes of a large graph: every epoch each node is in exactly one batch.

A batch holds the edges whose two ends it holds. Nodes stand in ascending order, so that the features of a batch, its
targets and its renumbered edges can only be paired rightly. An epoch costs one pass over the edges, whatever the number
of parts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from difformer.data.batch import NodeBatch, epoch_generator
from difformer.data.sparse import take_rows
from difformer.data.task import Task


def partition_nodes(
    num_nodes: int, *, batch_size: int, seed: int = 0, epoch: int = 0, even: bool = False
) -> tuple[Tensor, ...]:
    """All nodes in random order, cut into parts, each part sorted.

    Args:
        num_nodes: To be distributed.
        batch_size: Nodes a part; the last part holds what is left.
        seed: Of the run.
        epoch: Of the run; other epochs have other parts.
        even: Make all parts of one size, give or take one node, and none larger than `batch_size`.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    order = torch.randperm(num_nodes, generator=epoch_generator(seed, epoch))
    parts = order.tensor_split(max(1, -(-num_nodes // batch_size))) if even else order.split(batch_size)
    return tuple(part.sort().values for part in parts)


def induced_subgraph(
    nodes: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, *, num_nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Edges with both ends among `nodes` (ascending), renumbered by position in it; order of edges is kept.

    Raises:
        ValueError: If `nodes` is not strictly ascending: positions would no longer be those of sorted features.
    """
    if nodes.numel() > 1 and not bool((nodes.diff() > 0).all()):
        raise ValueError(
            "nodes: expected strictly ascending numbers; sort them, so that features follow the same order"
        )
    place = torch.full((num_nodes,), -1, dtype=torch.long, device=edge_index.device)
    place[nodes] = torch.arange(nodes.numel(), device=edge_index.device)
    source, target = place[edge_index[0]], place[edge_index[1]]
    kept = (source >= 0) & (target >= 0)
    return torch.stack([source[kept], target[kept]]), None if edge_weight is None else edge_weight[kept]


class NodePartitions:
    """Batches of a random partition of all nodes, a new one every epoch.

    Args:
        task: Of kind ``"nodes"``.
        batch_size: Nodes a batch; the last batch holds what is left.
        seed: Together with the epoch's number all that the batches depend on.
        even: Batches of one size, give or take one node.
        device: Where features, targets and edges are kept and cut into batches; the task's own place by default. The
            batches are the same wherever that is. A GPU that has room for all of it cuts them much sooner.
    """

    def __init__(
        self,
        task: Task,
        *,
        batch_size: int,
        seed: int = 0,
        even: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        if task.kind != "nodes":
            raise ValueError(f"task {task.name!r}: partitions of nodes need a 'nodes' task, this one is {task.kind!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        self.task = task
        self.batch_size = batch_size
        self.seed = seed
        self.even = even
        self.device = task.x.device if device is None else torch.device(device)
        self.x, self.y = task.x.to(self.device), task.y.to(self.device)
        self.edge_index, self.edge_weight = (
            part.to(self.device) if isinstance(part, Tensor) else None for part in (task.edge_index, task.edge_weight)
        )

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-self.task.num_nodes // self.batch_size)

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[NodeBatch]:
        """The batches of one epoch, from batch `start` on."""
        count = self.task.num_nodes
        found = partition_nodes(count, batch_size=self.batch_size, seed=self.seed, epoch=epoch, even=self.even)
        parts = found
        if self.device.type != "cpu":  # in one piece: every copy to a GPU is waited for
            parts = torch.cat(found).to(self.device).split([nodes.numel() for nodes in found])
        edges = self._edges_of(parts)
        place = torch.empty(count, dtype=torch.long, device=self.device)
        for number, nodes in enumerate(parts):
            if number < start:
                continue
            own = torch.arange(nodes.numel(), device=self.device)
            edge_index = edge_weight = None
            if edges is not None and self.edge_index is not None:
                place[nodes] = own
                edge_index = place[self.edge_index[:, edges[number]]]
                if self.edge_weight is not None:
                    edge_weight = self.edge_weight[edges[number]]
            yield NodeBatch(
                nodes=nodes,
                x=take_rows(self.x, nodes),
                y=self.y[nodes],
                edge_index=edge_index,
                edge_weight=edge_weight,
                seeds=own,
            )

    def _edges_of(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Positions in the edge list of every part's edges, in order."""
        if self.edge_index is None:
            return None
        # The smallest type keeps the table of parts in the processor's cache, and the two look-ups of every edge fast.
        small = torch.int16 if len(parts) < 2**15 else torch.int32
        part_of = torch.empty(self.task.num_nodes, dtype=small, device=self.device)
        sizes = torch.tensor([nodes.numel() for nodes in parts], device=self.device)
        part_of[torch.cat(parts)] = torch.arange(len(parts), dtype=small, device=self.device).repeat_interleave(sizes)
        part = part_of[self.edge_index[0]]
        inside = (part == part_of[self.edge_index[1]]).nonzero().squeeze(1)
        part = part[inside]
        order = part.argsort(stable=True)
        count = torch.bincount(part, minlength=len(parts)).tolist()
        return inside[order].split(count)
