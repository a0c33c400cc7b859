"""Feeds: how a task reaches a model, one forward pass after the other.

A feed gives the passes of a training epoch and the outputs of all instances for evaluation. What does not change
between epochs (normalised graphs, sorted sparse features) is computed once and stays on the device.

* `NodesFeed`: all nodes in every pass.
* `BatchesFeed`: large graphs, trained on a new random partition of the nodes every epoch, evaluated on the whole.
* `GraphsFeed`: graphs and point sets, in batches.
* `SeriesFeed`: snapshots in time order, many per pass, each with the answer it gets alone. With training snapshots
  1 … T the loss of an epoch is (1/T) Σ_t ℓ(f(x_t), y_t), in one step (``steps_per_epoch="epoch"``, the gradient summed
  over passes of as many snapshots as fit) or snapshot by snapshot.
"""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from difformer._compat import has_global_hooks
from difformer.attention.segments import Segments
from difformer.data import Split, Task
from difformer.data.batches import GraphBatch, GraphBatches, NodePartitions, SnapshotBatch, SnapshotBatches
from difformer.data.knn import knn_graph
from difformer.data.sparse_features import take_rows
from difformer.data.task import update_digest
from difformer.free_memory import free_bytes
from difformer.graph import Graph
from difformer.kernels.rows import LayerNorm
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.context import Context, as_structure, store
from difformer.nn.inspection import mask_holder
from difformer.result_cache import ResultCache
from difformer.sparse import SparseMatrix
from difformer.training.config import TrainConfig, knn_of
from difformer.training.model import hook, in_units, is_as_written

AMPLE = 0.25  # of a device's free memory: what states and graph may take to live there
ROW_BY_ROW = (DIFFormer, DIFFormerConv, nn.Linear, nn.Identity, nn.ModuleList, LayerNorm)
LEAST_ROWS = 4096  # of an evaluation in chunks: below, calls cost more than rows
ADDED = ("simple", "constant", "identity", None)  # forms whose summary does not grow with the rows
DEFAULT_BATCH_SIZE = 256  # graphs
EVALUATED_NODES = 65_536  # of a batch of graphs in evaluation: with fewer, a GPU is launch-bound
# Entries of the largest tensor of a pass over a series; fixed, so that a run does not depend on the machine.
ENTRIES_AT_ONCE = 2**23
CHANNELS = 256


@dataclass(frozen=True)
class Inputs:
    """Arguments of one forward pass."""

    x: Tensor | SparseMatrix
    graph: Graph | None = None
    batch: Segments | None = None
    context: Context | None = None  # who sends, in place of graph and batch, for a DIFFormer

    def outputs(self, model: Callable[..., Tensor]) -> Tensor:
        """The outputs of a model, or of its `embed`, for these arguments."""
        if self.context is not None:
            return model(self.x, context=self.context)
        return model(self.x, self.graph, None, self.batch)


@dataclass(frozen=True)
class Step:
    """One forward and backward pass."""

    inputs: Inputs
    targets: Tensor
    rows: Tensor | None = None  # of the output that have targets; None for all
    shape: tuple[int, ...] | None = None  # leading axes of the output, [T, N] for a series; None does not reshape
    share: float = 1.0  # factor of the loss in the gradient
    part: float = 1.0  # factor of the loss in what is recorded for the epoch
    update: bool = True  # whether the optimiser steps after this pass
    numbers: Tensor | None = None  # of the rows, if others have the rest: dropout masks follow from them

    def select(self, outputs: Tensor) -> Tensor:
        """Those of the pass's outputs that have targets, in their shape."""
        if self.rows is not None:
            outputs = outputs[self.rows]
        return outputs if self.shape is None else outputs.reshape(*self.shape, outputs.shape[-1])


class Feed(ABC):
    """The interface through which the training loop sees a task."""

    whole = False  # whether an epoch is one pass over all instances, so that its outputs can serve evaluation too
    _passes: Any  # a list, or a property that makes it once

    @abstractmethod
    def steps(self, epoch: int) -> Iterator[Step]:
        """The passes of an epoch; a function of seed and epoch only."""

    def passes(self) -> list[Inputs]:
        """Forward passes that together cover all instances."""
        return self._passes

    def outputs(self, model: nn.Module) -> Tensor:
        """Outputs of all instances, ``[instances, …, C]``, for a model in evaluation mode."""
        return self._joined(lambda inputs: inputs.outputs(model))

    def states(self, model: Any) -> Tensor:
        """States of all instances before the output layer."""
        return self._joined(lambda inputs: inputs.outputs(model.embed))

    def _joined(self, ask: Callable[[Inputs], Tensor]) -> Tensor:
        found = [ask(inputs) for inputs in self.passes()]
        return found[0] if len(found) == 1 else torch.cat(found)


class OnePassFeed(Feed):
    """One pass over everything, which is an epoch and an evaluation."""

    whole = True

    def __init__(self, step: Step) -> None:
        self._step, self._passes = step, [step.inputs]

    def steps(self, epoch: int) -> Iterator[Step]:
        yield self._step


class NodesFeed(OnePassFeed):
    """All nodes in every pass; `weight` is how often each counts as a sender, None for once."""

    def __init__(self, task: Task, split: Split, device: torch.device, weight: Tensor | None = None) -> None:
        inputs = inputs_of(task, device)
        if weight is not None:
            context = as_structure(task.num_nodes, inputs.graph, weight=weight.to(device))
            inputs = dataclasses.replace(inputs, context=context)
        super().__init__(Step(inputs, task.y[split.train].to(device), split.train.to(device)))


class BatchesFeed(Feed):
    """One step per part of the nodes, with the edges inside it; parts without a training label are left out.

    Evaluation is exact, over the whole graph: in one pass, or layer by layer in chunks of rows for a DIFFormer on a CPU
    or on a GPU with too little room. One pass over the chunks adds up the summaries of their keys and values
    (`difformer.nn.context.store`), a second answers the rows of each chunk. That takes O(N) time if a summary is a sum
    (simple, constant), and O(N²) otherwise, tile by tile.
    """

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device) -> None:
        assert config.batch_size is not None
        self.task, self.device, self.batch_size = task, device, config.batch_size
        home = device if has_room(device, _bytes(task)) else None
        self.partitions = NodePartitions(task, batch_size=config.batch_size, seed=seed, device=home)
        self.train = split.train.to(self.partitions.device)
        self._chunked: bool | None = None  # whether evaluations go in chunks; decided once, so that all are alike
        self._stored: tuple[torch.device, Graph | None] | None = None  # where chunks keep all states, and the graph

    def steps(self, epoch: int) -> Iterator[Step]:
        for batch in self.partitions.epoch(epoch):
            rows = batch.local(self.train)
            if rows.numel():
                inputs, targets = inputs_of(batch, self.device), batch.y[rows].to(self.device)
                yield Step(inputs, targets, rows.to(self.device), part=rows.numel() / self.train.numel())

    def outputs(self, model: nn.Module) -> Tensor:
        if not self._in_chunks(model):
            return super().outputs(model)
        parts = self.states(model).split(self._rows(model))
        return in_units(model, torch.cat([model.decode(part.to(self.device)) for part in parts]))

    def states(self, model: nn.Module) -> Tensor:
        if not self._in_chunks(model):
            return super().states(model)
        known = self.partitions  # whose edges may be on the device already
        if self._stored is None:  # the whole graph is moved and normalised once
            needed = 20 * self.task.num_nodes * model.input.out_features + 64 * (self.task.num_edges or 0)
            place = self.device if has_room(self.device, needed) else torch.device("cpu")
            self._stored = place, graph_of(known.edge_index, known.edge_weight, self.task.num_nodes, place)
        storage, graph = self._stored
        rows = self._rows(model)
        return embed_in_batches(model, known.x, graph, batch_size=rows, device=self.device, storage=storage)

    def _rows(self, model: Any) -> int:
        """Rows per chunk of an evaluation; if summaries are sums, small chunks save nothing and cost time."""
        sums = all(layer.form in ADDED for layer in model.layers)
        return max(self.batch_size, LEAST_ROWS) if sums else self.batch_size

    def _in_chunks(self, model: nn.Module) -> TypeGuard[DIFFormer]:
        """Whether the graph goes through a model in chunks, not in one pass."""
        if self._chunked is None:
            self._chunked = can_chunk(model) and not self._fits(model)
        return self._chunked

    def _fits(self, model: Any) -> bool:
        """Whether one pass is exact and has room; backend reference holds all pairs, polynomial is not exact."""
        if any(layer.backend in ("reference", "polynomial") for layer in model.layers):
            return False
        heads = max((layer.num_heads for layer in model.layers), default=1)
        # Queries, keys, values and sums of every head, in float32.
        states = 4 * self.task.num_nodes * model.input.out_features * (4 + 4 * heads)
        return has_room(self.device, states + _bytes(self.task))

    @cached_property
    def _passes(self) -> list[Inputs]:
        return [inputs_of(self.partitions, self.device)]


def _bytes(task: Task) -> int:
    """Memory of features, targets and edges, with what cutting them into batches needs besides."""
    x = task.x.values() if task.x.layout == torch.sparse_csr else task.x
    each = x.element_size() + (8 if x is not task.x else 0)  # a number and, if sparse, its column
    return x.numel() * each + task.y.numel() * task.y.element_size() + 64 * (task.num_edges or 0)


def can_chunk(model: nn.Module) -> TypeGuard[DIFFormer]:
    """Whether rows can be answered in chunks: only by an unmodified DIFFormer.

    A part that was subclassed, replaced, hooked or wrapped may look at all rows at once, or sum in its own way.
    """
    if type(model) is not DIFFormer or has_global_hooks() or any(type(x) is not DIFFormerConv for x in model.layers):
        return False
    holders = {mask_holder(layer) for layer in model.layers}  # what explainers look for; it computes nothing
    return all(type(part) in ROW_BY_ROW and is_as_written(part) for part in model.modules() if part not in holders)


def embed_in_batches(
    model: DIFFormer, x: Tensor, graph: Graph | None, *, batch_size: int, device: torch.device, storage: torch.device
) -> Tensor:
    """Final states ``[N, hidden]`` of all nodes of one graph, as ``model.embed(x, graph)`` gives them with exact sums.

    The model is on `device`, where `batch_size` rows at a time are worked on (see `can_chunk`); the graph is on
    `storage`, where the states are kept.
    """
    count = x.shape[0]
    chunks = [slice(i, min(i + batch_size, count)) for i in range(0, count, batch_size)]
    if graph is not None and not graph.num_edges:
        graph = None
    z = torch.cat([model.encode(features(_rows_of(x, rows), device)).to(storage) for rows in chunks])
    source, dtype = z, torch.float64 if model.input.weight.dtype == torch.float64 else torch.float32
    layers: Any = model.layers
    for k, layer in enumerate(layers):
        senders = store(layer, z, observed=graph is not None, size=batch_size, device=device)
        received: Tensor | None = None
        if graph is not None and senders.sent is not None:
            received = graph.matrix(layer.graph_norm, dtype) @ senders.sent
        z, before = torch.empty_like(z), z
        for rows in chunks:
            edges = None if received is None else partial(_rows_of, received, rows)
            here, first = before[rows].to(device), source[rows].to(device)
            z[rows] = model.advance(k, here, first, context=dataclasses.replace(senders, edges=edges)).to(z)
    return z


def _rows_of(x: Tensor, rows: slice, _: Tensor | None = None) -> Tensor:
    """Some rows of a dense or a sparse tensor."""
    return x[rows] if x.layout == torch.strided else take_rows(x, torch.arange(rows.start, rows.stop, device=x.device))


def has_room(device: torch.device, needed: int) -> bool:
    """Whether a GPU has ample memory for this many bytes; false on a CPU, where the data already are."""
    return device.type == "cuda" and needed < AMPLE * free_bytes(device)


class GraphsFeed(Feed):
    """One step per batch of graphs; a graph in a batch gets the answer it gets alone."""

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device) -> None:
        size = config.batch_size or DEFAULT_BATCH_SIZE
        self.task, self.device = task, device
        self.batches = GraphBatches(task, index=split.train, batch_size=size, seed=seed)
        self.parts = torch.arange(task.num_instances).split(graphs_at_a_time(task, size, device))  # of an evaluation

    def _inputs(self, batch: GraphBatch) -> Inputs:
        return inputs_of(batch, self.device, Segments(batch.batch.to(self.device), batch.graphs.numel()))

    def steps(self, epoch: int) -> Iterator[Step]:
        for batch in self.batches.epoch(epoch):
            part = batch.graphs.numel() / max(1, self.batches.index.numel())
            yield Step(self._inputs(batch), batch.y.to(self.device), part=part)

    @cached_property
    def _passes(self) -> list[Inputs]:
        return [self._inputs(self.batches.batch(graphs)) for graphs in self.parts]


def graphs_at_a_time(task: Task, size: int, device: torch.device) -> int:
    """Graphs per pass of an evaluation: one batch, or more on a GPU, since no gradients are stored."""
    if device.type != "cuda":
        return size
    return max(size, EVALUATED_NODES * task.num_instances // max(task.num_nodes, 1))


class SeriesFeed(Feed):
    """Passes over runs of consecutive snapshots, made once and kept on the device."""

    def __init__(self, task: Task, split: Split, config: TrainConfig, device: torch.device) -> None:
        nodes = task.num_nodes
        length = config.batch_size or max(1, ENTRIES_AT_ONCE // (nodes * max(nodes, CHANNELS)))
        self.device, self.shape = device, task.x.shape[:2]
        # One graph for all snapshots is normalised once, even if every snapshot is a pass.
        self._shared: Graph | None = None
        if isinstance(task.edge_index, Tensor):
            self._shared = graph_of(task.edge_index, task.edge_weight, nodes, device)
        each = config.steps_per_epoch == "snapshot"
        self._steps: list[Step] = []
        for batch in SnapshotBatches(task, index=split.train, length=1 if each else length).epoch(0):
            part = batch.times.numel() / split.train.numel()
            how: dict[str, Any] = {"share": 1.0 if each else part, "part": part, "update": each}
            inputs, shape = self._inputs(batch), tuple(batch.x.shape[:2])
            self._steps.append(Step(inputs, batch.y.to(device), shape=shape, **how))
        if self._steps:
            self._steps[-1] = dataclasses.replace(self._steps[-1], update=True)
        self._passes = [self._inputs(batch) for batch in SnapshotBatches(task, length=length).epoch(0)]

    def _inputs(self, batch: SnapshotBatch) -> Inputs:
        count, joined = batch.x.shape[0], batch.disjoint()
        if count == 1 and self._shared is not None:
            return Inputs(joined.x.to(self.device), self._shared)
        segments = None if count == 1 else Segments(joined.batch.to(self.device), count)
        return inputs_of(joined, self.device, segments)

    def steps(self, epoch: int) -> Iterator[Step]:
        yield from self._steps

    def _joined(self, ask: Callable[[Inputs], Tensor]) -> Tensor:
        flat = super()._joined(ask)
        return flat.reshape(*self.shape, flat.shape[-1])


def make_feed(task: Task, split: Split, config: TrainConfig, seed: int, device: torch.device, model: nn.Module) -> Feed:
    """The feed of a task's kind; a ``prepare`` of the model is applied to features and graph."""
    task = structured(task, split, config, model)
    if task.kind == "series":
        return SeriesFeed(task, split, config, device)
    if task.kind == "graphs":
        return GraphsFeed(task, split, config, seed, device)
    if config.batch_size is not None and config.batch_size < task.num_nodes:
        return BatchesFeed(task, split, config, seed, device)
    return NodesFeed(task, split, device)


def structured(task: Task, split: Split, config: TrainConfig, model: nn.Module) -> Task:
    """The task with the graph that the configuration asks for, and with what the model prepares once."""
    neighbours = knn_of(config.graph)
    if config.graph == "none":
        task = dataclasses.replace(task, edge_index=None, edge_weight=None)
    elif neighbours is not None:
        task = with_neighbours(task, task, split, neighbours)
    if (prepare := hook(model, "prepare")) is None:
        return task
    edges = task.edge_index, task.edge_weight
    if task.kind != "series":
        x, index, weight = prepare(task.x, *edges)
    else:
        each = [prepare(x, *(one[t] if isinstance(one, tuple) else one for one in edges)) for t, x in enumerate(task.x)]
        found, *both = zip(*each, strict=True)
        x, (index, weight) = torch.stack(found), (None if one[0] is None else one for one in both)
    return dataclasses.replace(task, x=x, edge_index=index, edge_weight=weight, feature_names=())


def with_neighbours(task: Task, seen: Task, split: Split, neighbours: int) -> Task:
    """The task with the neighbour graph of the instances of `seen`, which is the task itself unless it is a series.

    The nodes of a series are described by their features in the training part; new snapshots keep that graph.
    """
    points = seen.x[split.train].transpose(0, 1).flatten(1) if seen.kind == "series" else seen.x
    return dataclasses.replace(task, edge_index=neighbours_of(points, neighbours, seen.node_ptr), edge_weight=None)


def features(x: Tensor, device: torch.device) -> Tensor | SparseMatrix:
    """Features on a device; sparse ones sorted once, and sparse for good."""
    return x.to(device) if x.layout == torch.strided else SparseMatrix.from_tensor(x).to(device)


def inputs_of(part: Any, device: torch.device, segments: Segments | None = None) -> Inputs:
    """A pass over a task or a batch: anything with x, edge_index and edge_weight."""
    graph = graph_of(part.edge_index, part.edge_weight, part.x.shape[0], device)
    return Inputs(features(part.x, device), graph, segments)


def graph_of(edge_index: Any, edge_weight: Any, num_nodes: int, device: torch.device) -> Graph | None:
    """A graph on a device; None without edges."""
    if edge_index is None:
        return None
    weight = None if edge_weight is None else edge_weight.to(device)
    return Graph(edge_index.to(device), num_nodes, weight)


# Runs of one task share their neighbour graph: the search can take longer than a run.
_FOUND: ResultCache[Tensor] = ResultCache()


def neighbours_of(x: Tensor, k: int, node_ptr: Tensor | None = None) -> Tensor:
    """Edges ``[2, E]`` between every instance and its k nearest by cosine, both ways, the instance itself counted.

    With `node_ptr`, where graphs begin and end, neighbours are searched within each graph.
    """
    # By content: an array that a task shares with its maker may have been written to behind torch's back.
    digest = hashlib.sha256()
    for part in (x, node_ptr):
        update_digest(digest, part)
    key = (k, digest.hexdigest())
    return _FOUND.of(x, key, lambda: knn_graph(x, k, include_self=True, symmetric=True, node_ptr=node_ptr))
