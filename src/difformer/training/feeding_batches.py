"""Large graphs: training on a random partition of the nodes, a new one every epoch; evaluation on the whole graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.data.batches import NodePartitions
from difformer.graph import Graph
from difformer.nn import DIFFormer
from difformer.training.config import TrainConfig
from difformer.training.feeding import Inputs, Step, features, graph_of
from difformer.training.inference import choose_storage, decode_in_batches, embed_in_batches


class BatchesFeed:
    """One step a part of the nodes, with the edges inside it; parts without a training label are left out.

    Evaluation is exact: a DIFFormer goes over the whole graph in batches of rows, any other model in one pass.
    """

    whole = False

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device) -> None:
        assert config.batch_size is not None
        self.task, self.split, self.device, self.batch_size = task, split, device, config.batch_size
        self.partitions = NodePartitions(task, batch_size=config.batch_size, seed=seed)
        self._storage: torch.device | None = None
        self._graph: Graph | None = None
        self._whole: Inputs | None = None

    def steps(self, epoch: int) -> Iterator[Step]:
        count = max(1, self.split.train.numel())
        for batch in self.partitions.epoch(epoch):
            rows = batch.local(self.split.train)
            if not rows.numel():
                continue
            graph = None
            if batch.edge_index is not None:
                graph = graph_of(batch.edge_index, batch.edge_weight, batch.nodes.numel(), self.device)
            yield Step(
                Inputs(features(batch.x, self.device), graph),
                batch.y[rows].to(self.device),
                rows.to(self.device),
                part=rows.numel() / count,
            )

    def outputs(self, model: nn.Module) -> Tensor:
        if not isinstance(model, DIFFormer):
            return self._inputs().outputs(model)
        return decode_in_batches(model, self.states(model), batch_size=self.batch_size, device=self.device)

    def states(self, model: nn.Module) -> Tensor:
        if not isinstance(model, DIFFormer):
            return self._inputs().states(model)
        task = self.task
        if self._storage is None:
            # Kept: the whole graph is moved and normalised once, whatever the number of evaluations.
            self._storage = choose_storage(model, task.num_nodes, task.num_edges or 0, self.device)
            if task.edge_index is not None:
                self._graph = graph_of(task.edge_index, task.edge_weight, task.num_nodes, self._storage)
        return embed_in_batches(
            model, task.x, self._graph, batch_size=self.batch_size, device=self.device, storage=self._storage
        )

    def passes(self) -> list[Inputs]:
        return [self._inputs()]

    def _inputs(self) -> Inputs:
        if self._whole is None:
            task, graph = self.task, None
            if task.edge_index is not None:
                graph = graph_of(task.edge_index, task.edge_weight, task.num_nodes, self.device)
            self._whole = Inputs(features(task.x, self.device), graph)
        return self._whole
