"""Series: snapshots in time order, many in one pass, each getting the answer it gets alone.

With training snapshots 1 … T the loss of an epoch is (1/T) Σ_t ℓ(f(x_t), y_t). It is taken in one step
(``steps_per_epoch="epoch"``, the gradient summed over passes of as many snapshots as fit) or snapshot by snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.data import Split, Task
from difformer.data.batches import SnapshotBatch, SnapshotBatches
from difformer.graph import Graph
from difformer.training.config import TrainConfig
from difformer.training.feeding import Inputs, Step, graph_of

# Entries of the largest tensor of a pass; a fixed number, so that a run does not depend on the machine it is made on.
ENTRIES_AT_ONCE = 2**23
CHANNELS = 256


class SeriesFeed:
    """Passes over runs of consecutive snapshots, made once and kept on the device."""

    whole = False

    def __init__(self, task: Task, split: Split, config: TrainConfig, device: torch.device) -> None:
        nodes = task.num_nodes
        length = config.batch_size or max(1, ENTRIES_AT_ONCE // (nodes * max(nodes, CHANNELS)))
        self.device, self.shape = device, task.x.shape[:2]
        # One graph for all snapshots is normalised once, also where every snapshot is a pass of its own.
        self._shared: Graph | None = None
        if isinstance(task.edge_index, Tensor):
            self._shared = graph_of(task.edge_index, task.edge_weight, nodes, device)
        each = config.steps_per_epoch == "snapshot"
        training = SnapshotBatches(task, index=split.train, length=1 if each else length)
        count = max(1, split.train.numel())
        batches = list(training.epoch(0))
        self._steps = [
            Step(
                self._inputs(batch),
                batch.y.to(device),
                shape=tuple(batch.x.shape[:2]),
                share=1.0 if each else batch.times.numel() / count,
                part=batch.times.numel() / count,
                update=each or number == len(batches) - 1,
            )
            for number, batch in enumerate(batches)
        ]
        self._all = [self._inputs(batch) for batch in SnapshotBatches(task, length=length).epoch(0)]

    def _inputs(self, batch: SnapshotBatch) -> Inputs:
        count, nodes = batch.x.shape[:2]
        joined = batch.disjoint()
        graph = None
        if joined.edge_index is not None:
            graph = self._shared if count == 1 else None
            if graph is None:
                graph = graph_of(joined.edge_index, joined.edge_weight, count * nodes, self.device)
        segments = None if count == 1 else Segments(joined.batch.to(self.device), count)
        return Inputs(joined.x.to(self.device), graph, segments)

    def steps(self, epoch: int) -> Iterator[Step]:
        yield from self._steps

    def outputs(self, model: nn.Module) -> Tensor:
        """``[T, N, C]``."""
        return self._join([inputs.outputs(model) for inputs in self._all])

    def states(self, model: nn.Module) -> Tensor:
        """``[T, N, hidden]``."""
        return self._join([inputs.states(model) for inputs in self._all])

    def passes(self) -> list[Inputs]:
        return self._all

    def _join(self, parts: list[Tensor]) -> Tensor:
        flat = torch.cat(parts)
        return flat.reshape(*self.shape, flat.shape[-1])
