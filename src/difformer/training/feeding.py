"""Feeds: how a task reaches a model, one forward pass after the other.

A feed gives the passes of a training epoch and the outputs of all instances for evaluation. What does not change from
epoch to epoch (normalised graphs, sorted sparse features, padded blocks) is worked out once and stays on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.data import Split, Task
from difformer.data.knn import knn_graph
from difformer.graph import Graph
from difformer.sparse import SparseMatrix
from difformer.training.config import TrainConfig, knn_of
from difformer.training.model import hook
from difformer.training.neighbours import neighbours_of


@dataclass(frozen=True)
class Inputs:
    """Arguments of one forward pass."""

    x: Tensor | SparseMatrix
    graph: Graph | None = None
    batch: Segments | None = None

    def outputs(self, model: nn.Module) -> Tensor:
        return model(self.x, self.graph, None, self.batch)

    def states(self, model: Any) -> Tensor:
        return model.embed(self.x, self.graph, None, self.batch)


@dataclass(frozen=True)
class Step:
    """One forward and backward pass.

    Args:
        inputs: What goes in.
        targets: What should come out.
        rows: Which rows of the output have targets; None for all.
        shape: Leading axes of the output, ``[T, N]`` for a series; None leaves it as it is.
        share: Factor of the loss in the gradient.
        part: Factor of the loss in what is recorded for the epoch.
        update: Whether the optimiser steps after this pass.
    """

    inputs: Inputs
    targets: Tensor
    rows: Tensor | None = None
    shape: tuple[int, ...] | None = None
    share: float = 1.0
    part: float = 1.0
    update: bool = True

    def select(self, outputs: Tensor) -> Tensor:
        """Those of the pass's outputs that have targets, in their shape."""
        if self.rows is not None:
            outputs = outputs[self.rows]
        return outputs if self.shape is None else outputs.reshape(*self.shape, outputs.shape[-1])


class Feed(Protocol):
    """What a training loop asks of a task."""

    whole: bool
    """Whether an epoch is one pass whose outputs are those of all instances, so that it can serve evaluation too."""

    def steps(self, epoch: int) -> Iterator[Step]:
        """The passes of an epoch; a function of seed and epoch alone."""

    def outputs(self, model: nn.Module) -> Tensor:
        """Outputs of all instances, ``[instances, …, C]``, for a model in evaluation mode."""

    def states(self, model: nn.Module) -> Tensor:
        """States of all instances before the output layer."""

    def passes(self) -> list[Inputs]:
        """Forward passes that together cover all instances."""


class NodesFeed:
    """All nodes in every pass."""

    whole = True

    def __init__(self, task: Task, split: Split, device: torch.device) -> None:
        graph = None if task.edge_index is None else graph_of(task.edge_index, task.edge_weight, task.num_nodes, device)
        self.inputs = Inputs(features(task.x, device), graph)
        self._step = Step(self.inputs, task.y[split.train].to(device), split.train.to(device))

    def steps(self, epoch: int) -> Iterator[Step]:
        yield self._step

    def outputs(self, model: nn.Module) -> Tensor:
        return self.inputs.outputs(model)

    def states(self, model: nn.Module) -> Tensor:
        return self.inputs.states(model)

    def passes(self) -> list[Inputs]:
        return [self.inputs]


def make_feed(task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device, model: nn.Module) -> Feed:
    """The feed of a task's kind; `model` says how it wants features and graph prepared, if it has a ``prepare``."""
    task = structured(task, split, config, model)
    if task.kind == "series":
        from difformer.training.feeding_series import SeriesFeed

        return SeriesFeed(task, split, config, device)
    if task.kind == "graphs":
        from difformer.training.feeding_graphs import GraphsFeed

        return GraphsFeed(task, split, config, seed, device)
    if config.batch_size is not None and config.batch_size < task.num_nodes:
        from difformer.training.feeding_batches import BatchesFeed

        return BatchesFeed(task, split, config, seed, device)
    return NodesFeed(task, split, device)


def structured(task: Task, split: Split, config: TrainConfig, model: nn.Module) -> Task:
    """The task with the graph that the configuration asks for, and with what the model prepares once."""
    neighbours = knn_of(config.graph)
    if config.graph == "none":
        task = dataclasses.replace(task, edge_index=None, edge_weight=None)
    elif neighbours is not None:
        task = with_neighbours(task, task, split, neighbours)
    prepare = hook(model, "prepare")
    if prepare is None:
        return task
    if task.kind != "series":
        x, edges, weight = prepare(task.x, task.edge_index, task.edge_weight)
        return dataclasses.replace(task, x=x, edge_index=edges, edge_weight=weight, feature_names=())
    each = [prepare(task.x[t], *snapshot_edges(task, t)) for t in range(task.x.shape[0])]
    some = each[0][1] is not None
    return dataclasses.replace(
        task,
        x=torch.stack([x for x, _, _ in each]),
        edge_index=tuple(edges for _, edges, _ in each) if some else None,
        edge_weight=tuple(weight for _, _, weight in each) if some and each[0][2] is not None else None,
        feature_names=(),
    )


def with_neighbours(task: Task, seen: Task, split: Split, neighbours: int) -> Task:
    """The task with the neighbour graph of the instances of `seen`, which is the task itself unless it is a series.

    The nodes of a series are described by what is seen of them in the training part: new snapshots keep that graph.
    """
    if seen.kind == "series":
        points = seen.x[split.train].transpose(0, 1).flatten(1)
        edges = knn_graph(points, neighbours, include_self=True, symmetric=True)
    else:
        edges = neighbours_of(seen.x, neighbours, seen.node_ptr)
    return dataclasses.replace(task, edge_index=edges, edge_weight=None)


def snapshot_edges(task: Task, t: int) -> tuple[Tensor | None, Tensor | None]:
    """Edges and weights of snapshot t; of all snapshots where they share one graph."""
    index, weight = task.edge_index, task.edge_weight
    return index[t] if isinstance(index, tuple) else index, weight[t] if isinstance(weight, tuple) else weight


def features(x: Tensor, device: torch.device) -> Tensor | SparseMatrix:
    """Features on a device; sparse ones sorted once, and sparse for good."""
    return x.to(device) if x.layout == torch.strided else SparseMatrix.from_tensor(x).to(device)


def graph_of(edge_index: Any, edge_weight: Any, num_nodes: int, device: torch.device) -> Graph:
    """A graph on a device, to be normalised once."""
    weight = None if edge_weight is None else edge_weight.to(device)
    return Graph(edge_index.to(device), num_nodes, weight)
