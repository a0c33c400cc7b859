"""What a model is given at a time: part of a graph, some graphs, or some snapshots.

Which batches an epoch has, and in which order, is a pure function of (seed, epoch): a run that is taken up again at
some epoch, or in the middle of one, goes on as if it had never stopped. Tasks stay in the machine's memory; a batch is
moved to where the model is with `to`. `NodePartitions` may keep its task on a GPU and cut batches there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Batch = TypeVar("Batch", bound="_Movable")


def epoch_generator(seed: int, epoch: int, batch: int | None = None) -> torch.Generator:
    """A CPU generator that depends on (seed, epoch), or (seed, epoch, batch), and on nothing else."""
    key = [seed, epoch] if batch is None else [seed, epoch, 1 + batch]
    if min(key) < 0:
        raise ValueError(f"seed, epoch: expected whole numbers ≥ 0, got {seed} and {epoch}")
    return torch.Generator().manual_seed(
        int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
    )


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
        seeds: ``[s]`` positions of the nodes that the batch was made for: in a partition all of them, in a sampled
            neighbourhood those whose neighbours were sampled.
    """

    nodes: Tensor
    x: Tensor
    y: Tensor
    edge_index: Tensor | None
    edge_weight: Tensor | None
    seeds: Tensor

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
        edge_index: One graph for all, one a snapshot, or None.
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
