"""Graphs and point sets: batches in a new order every epoch; for evaluation always the same ones, made once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.data import Split, Task
from difformer.data.batches import GraphBatch, GraphBatches
from difformer.training.config import TrainConfig
from difformer.training.feeding import Inputs, Step, graph_of

DEFAULT_BATCH_SIZE = 256
EVALUATED_NODES = 65_536  # with less of them a GPU waits to be told what to do next


class GraphsFeed:
    """One step a batch of graphs; a graph in a batch gets the answer it gets alone."""

    whole = False

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device) -> None:
        size = config.batch_size or DEFAULT_BATCH_SIZE
        self.device = device
        self._training = GraphBatches(task, index=split.train, batch_size=size, seed=seed)
        self._all = GraphBatches(task, batch_size=graphs_at_a_time(task, size, device), shuffle=False)
        self._kept: list[Inputs] | None = None

    def _inputs(self, batch: GraphBatch) -> Inputs:
        graph = None
        if batch.edge_index is not None:
            graph = graph_of(batch.edge_index, batch.edge_weight, batch.x.shape[0], self.device)
        segments = Segments(batch.batch.to(self.device), batch.graphs.numel())
        return Inputs(batch.x.to(self.device), graph, segments)

    def steps(self, epoch: int) -> Iterator[Step]:
        count = max(1, self._training.index.numel())
        for batch in self._training.epoch(epoch):
            yield Step(self._inputs(batch), batch.y.to(self.device), part=batch.graphs.numel() / count)

    def passes(self) -> list[Inputs]:
        if self._kept is None:
            self._kept = [self._inputs(batch) for batch in self._all.epoch(0)]
        return self._kept

    def outputs(self, model: nn.Module) -> Tensor:
        """``[G, C]``."""
        return torch.cat([inputs.outputs(model) for inputs in self.passes()])

    def states(self, model: nn.Module) -> Tensor:
        """``[G, hidden]``."""
        return torch.cat([inputs.states(model) for inputs in self.passes()])


def graphs_at_a_time(task: Task, size: int, device: torch.device) -> int:
    """How many graphs evaluation, which holds no gradients, takes at a time: a batch, on a GPU more of them."""
    if device.type != "cuda":
        return size
    return max(size, EVALUATED_NODES * task.num_instances // max(task.num_nodes, 1))
