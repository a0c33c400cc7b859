"""The training loop of `difformer.training.loop` over ranks.

Every rank runs the same loop on its own rows. Gradients are summed before each step, so that parameters and optimiser
stay the same everywhere; losses and metrics are over all rows, so that every rank finds the same best epoch and
stops at the same one; a request to stop counts as soon as any rank has it. A snapshot is that of a single process.

`sharded_trainer` spreads the nodes of one graph. `graphs_trainer` shares batches of graphs: every rank holds the whole
task and takes an equal number of graphs of each batch. The loss is a sum over labels divided by the number of
labels in the *whole* batch, and dropout masks follow from the position of a row in the whole batch, so the steps are
the same as in one process. In an evaluation batches are distributed, and every rank then knows all outputs, ``[G, C]``.

A loss is a ratio of sums over labelled entries (`difformer.training.losses`). Its mass depends on targets only and is
summed over ranks once; a rank's share of the loss is its own part of the sum over that, zero if it has no label.
Metrics are counts, which are added over ranks, except ROC-AUC, which needs the order of all scores: rank 0 gathers
those of the measured rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.distributed.graph_partition import NONE
from difformer.distributed.partition_folder import Partition
from difformer.distributed.process_group import Ranks
from difformer.distributed.shard import Shard
from difformer.errors import UserError
from difformer.nn import DIFFormer, GraphLevel
from difformer.training.config import TrainConfig, knn_of
from difformer.training.feeds import GraphsFeed, Inputs, OnePassFeed, Step, features, structured
from difformer.training.loop import Trainer
from difformer.training.losses import Ratio, make_loss
from difformer.training.metrics import chosen_metric
from difformer.training.model import build_model, prepared_model


def check_config(partition: Partition, config: TrainConfig) -> None:
    """Refuses settings that cannot be trained over ranks, before anything is read."""
    if config.batch_size is not None and config.batch_size < partition.num_nodes:
        raise UserError(f"batch_size={config.batch_size}: a partitioned graph is trained whole; leave batch_size out")
    if knn_of(config.graph) is not None:
        advice = "use `difformer partition … --data knn=K` if the data set has that option"
        raise UserError(f"graph={config.graph!r}: neighbours must be found before a task is partitioned: {advice}")
    task, cpu = partition.stand_in(), torch.device("cpu")
    make_loss(task, Split("none", NONE, NONE, NONE), config, cpu)
    if chosen_metric(config, task).name == "broadcast-mse":
        raise UserError(
            "metric broadcast-mse does not work over ranks; use accuracy, rocauc, f1, f1-micro, mse or mae",
            argument="metric",
        )
    model = build_model(task, config)
    if not isinstance(model, DIFFormer):
        problem = f"model {config.model!r} cannot be trained on a partitioned graph; difformer, difformer-s and "
        problem += "difformer-a can. Seeds of any model are spread over ranks if the data set is given by name"
        raise UserError(problem)


def sharded_trainer(partition: Partition, shard: Shard, number: int, config: TrainConfig, seed: int) -> Trainer:
    """A model on every rank, rows on one; `number` is that of the split."""
    ranks, split, own = shard.rows.ranks, shard.splits[number], partition.stand_in(shard.y)
    device = ranks.device
    check_config(partition, config)

    def summed(x: Tensor) -> Tensor:
        return ranks.sum_(x.to(device), "plan").to(x.device)

    targets = shard.y[split.train].to(device)
    model = prepared_model(own, split, config, seed, device, summed)
    for value in model.state_dict().values():  # the same on every rank, also on unlike machines
        if ranks.rank:
            value.zero_()
        ranks.sum_(value, "plan")
    loss = make_loss(own, split, config, device, summed)
    mass = summed(loss.mass(targets).double().reshape(1)).item()
    rows = shard.rows if config.graph == "given" else replace(shard.rows, graph=None)
    inputs = Inputs(features(shard.x, device), context=rows)
    # The loss is a sum here; its mean is over the labels of all ranks.
    weight: dict[str, Any] = {"share": 1 / mass, "part": 1 / mass, "numbers": rows.numbers}
    feed = OnePassFeed(Step(inputs, targets, split.train.to(device), **weight))
    given: dict[str, Any] = {"model": model, "feed": feed, "loss": loss.total, "ranks": ranks, "spread": True}
    return Trainer(own, split, config, seed, device, **given)


def shares_batches(task: Task, config: TrainConfig) -> bool:
    """Whether ranks can share the batches of this configuration: a DIFFormer on graphs."""
    if task.kind != "graphs" or config.loss != "auto":
        return False
    model = build_model(task, config)
    return isinstance(model, GraphLevel) and isinstance(model.encoder, DIFFormer)


class SharedGraphsFeed(GraphsFeed):
    """Of every batch, the graphs of one rank."""

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, ranks: Ranks, loss: Ratio) -> None:
        super().__init__(task, split, config, seed, ranks.device)
        self.ranks, self.mass = ranks, loss.mass
        self.parts = torch.arange(task.num_instances).split(self.batches.batch_size)[ranks.rank :: ranks.size]

    def steps(self, epoch: int) -> Iterator[Step]:
        for graphs in self.batches.order(epoch):
            shares = graphs.tensor_split(self.ranks.size)
            own, before = shares[self.ranks.rank], torch.cat([graphs[:0], *shares[: self.ranks.rank]])
            # A rank without a graph takes the first one without its label: a step that adds nothing.
            idle = not own.numel()
            batch, sizes = self.batches.batch(graphs[:1] if idle else own), self.batches.node_ptr.diff()
            targets, first = batch.y, 0 if idle else int(sizes[before].sum())
            if idle:
                targets = torch.full_like(targets, torch.nan if targets.is_floating_point() else -1)
            mass, part = float(self.mass(self.task.y[graphs])), graphs.numel() / self.batches.index.numel()
            numbers = first + torch.arange(batch.x.shape[0], device=self.device)
            weight: dict[str, Any] = {"share": 1 / mass, "part": part / mass, "numbers": numbers}
            yield Step(self._inputs(batch), targets.to(self.device), **weight)

    def _joined(self, ask: Callable[[Inputs], Tensor]) -> Tensor:
        """``[G, …]`` of all graphs, on every rank."""
        found = [ask(inputs).float() for inputs in self.passes()]
        width = int(self.ranks.max_(torch.tensor([found[0].shape[1] if found else 0], device=self.device)).item())
        every = torch.zeros(self.task.num_instances, width, device=self.device)
        for graphs, part in zip(self.parts, found, strict=True):
            every[graphs.to(self.device)] = part
        return self.ranks.sum_(every, "metrics")


def graphs_trainer(task: Task, split: Split, config: TrainConfig, seed: int, ranks: Ranks) -> Trainer:
    """One model of graphs, trained by all ranks."""
    model = prepared_model(task, split, config, seed, ranks.device)
    loss = make_loss(task, split, config, ranks.device)
    feed = SharedGraphsFeed(structured(task, split, config, model), split, config, seed, ranks, loss)
    return Trainer(task, split, config, seed, ranks.device, model=model, feed=feed, loss=loss.total, ranks=ranks)
