"""Large graphs: training on a random partition of the nodes, a new one every epoch; evaluation on the whole graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.data.batches import NodePartitions
from difformer.graph import Graph
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.training.config import TrainConfig
from difformer.training.feeding import Inputs, Step, features, graph_of
from difformer.training.inference import can_chunk, choose_storage, decode_in_batches, embed_in_batches, has_room

LEAST_ROWS = 4096  # of an evaluation in batches: below, calls cost more than rows
ADDED = ("simple", "constant", "identity", None)  # forms whose summary does not grow with the rows


class BatchesFeed:
    """One step a part of the nodes, with the edges inside it; parts without a training label are left out.

    Evaluation is exact: over the whole graph in one pass; a DIFFormer goes layer by layer in batches of rows on a CPU,
    and on a GPU of which its states would take much.
    """

    whole = False

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device) -> None:
        assert config.batch_size is not None
        self.task, self.device, self.batch_size = task, device, config.batch_size
        home = device if has_room(device, _bytes(task)) else None
        self.partitions = NodePartitions(task, batch_size=config.batch_size, seed=seed, device=home)
        self.train = split.train.to(self.partitions.device)
        self._storage: torch.device | None = None
        self._in_one_pass: bool | None = None
        self._graph: Graph | None = None
        self._whole: Inputs | None = None

    def steps(self, epoch: int) -> Iterator[Step]:
        count = max(1, self.train.numel())
        for batch in self.partitions.epoch(epoch):
            rows = batch.local(self.train)
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
        if not isinstance(model, DIFFormer) or self._fits(model):
            return self._inputs().outputs(model)
        return decode_in_batches(model, self.states(model), batch_size=self._rows(model), device=self.device)

    def states(self, model: nn.Module) -> Tensor:
        if not isinstance(model, DIFFormer) or self._fits(model):
            return self._inputs().states(model)
        task = self.task
        if self._storage is None:
            # Kept: the whole graph is moved and normalised once, whatever the number of evaluations.
            self._storage = choose_storage(model, task.num_nodes, task.num_edges or 0, self.device)
            if task.edge_index is not None:
                self._graph = self._graph_on(self._storage)
        x = self.partitions.x
        rows = self._rows(model)
        return embed_in_batches(model, x, self._graph, batch_size=rows, device=self.device, storage=self._storage)

    def _rows(self, model: DIFFormer) -> int:
        """Rows at a time in evaluation: where they are added up one by one, few save nothing and cost time."""
        sums = all(layer.form in ADDED for layer in _layers(model))
        return max(self.batch_size, LEAST_ROWS) if sums else self.batch_size

    def _fits(self, model: DIFFormer) -> bool:
        """Whether the whole graph goes through a model in one pass; asked once, so that all evaluations are alike."""
        if self._in_one_pass is None:
            heads = max((layer.num_heads for layer in _layers(model)), default=1)
            # The one holds all pairs at once, the other is not exact.
            other = any(layer.backend in ("reference", "polynomial") for layer in _layers(model))
            # Queries, keys, values and sums of every head, in float32.
            states = 4 * self.task.num_nodes * model.input.out_features * (4 + 4 * heads)
            room = has_room(self.device, states + _bytes(self.task))
            self._in_one_pass = not can_chunk(model) or (not other and room)
        return self._in_one_pass

    def passes(self) -> list[Inputs]:
        return [self._inputs()]

    def _inputs(self) -> Inputs:
        if self._whole is None:
            graph = None if self.task.edge_index is None else self._graph_on(self.device)
            self._whole = Inputs(features(self.partitions.x, self.device), graph)
        return self._whole

    def _graph_on(self, device: torch.device) -> Graph:
        """The whole graph; edges that are on the device for the batches are not copied there again."""
        known = self.partitions
        return graph_of(known.edge_index, known.edge_weight, self.task.num_nodes, device)


def _layers(model: DIFFormer) -> list[DIFFormerConv]:
    return [layer for layer in model.layers if isinstance(layer, DIFFormerConv)]


def _bytes(task: Task) -> int:
    """What features, targets and edges take, with what cutting them into batches needs beside them."""
    x = task.x.values() if task.x.layout == torch.sparse_csr else task.x
    each = x.element_size() + (8 if x is not task.x else 0)  # a number, and its column where it is one of a sparse row
    return x.numel() * each + task.y.numel() * task.y.element_size() + 64 * (task.num_edges or 0)
