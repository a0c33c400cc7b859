"""What the readers share: checked choices, seeded splits in a row, and the task of a graph with class labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from difformer.data.knn import knn_graph
from difformer.data.preprocess import feature_tensor, sentence, symmetric_edges
from difformer.data.scaling import Scaling
from difformer.data.split import Split
from difformer.data.task import Task
from difformer.errors import UserError


def choice(option: str, value: str, allowed: Sequence[str]) -> str:
    """`value`, if it is one of `allowed`.

    Raises:
        ValueError: Naming the option, what came, and what it takes.
    """
    if value not in allowed:
        raise UserError(f"{option} must be one of {', '.join(repr(a) for a in allowed)}; got {value!r}")
    return value


def seeded(make: Callable[[int], Split], *, num_splits: int, seed: int) -> tuple[Split, ...]:
    """`num_splits` splits, made from `seed`, `seed + 1`, …"""
    if num_splits < 1:
        raise UserError(f"num_splits must be at least 1, got {num_splits}")
    return tuple(make(seed + i) for i in range(num_splits))


def seeds_of(num_splits: int, seed: int) -> str:
    """How a protocol speaks of the seeds of its splits."""
    return f"seed {seed}" if num_splits == 1 else f"{num_splits} splits, seeds {seed} to {seed + num_splits - 1}"


def class_task(
    name: str,
    *,
    x: Any,
    y: Any,
    edges: Any,
    splits: tuple[Split, ...],
    num_classes: int,
    self_loops: bool,
    sparse: bool | None,
    steps: str,
    protocol: str,
    notes: Sequence[str] = (),
    class_names: Sequence[str] = (),
    metric: str = "accuracy",
) -> Task:
    """Classification of the nodes of one undirected graph.

    Args:
        name: The data set.
        x: Scipy sparse matrix or dense array of features.
        y: Classes, -1 where unknown.
        edges: ``[2, E]`` in any direction.
        splits: At least one.
        num_classes: Number of classes.
        self_loops: Whether every node gets an edge to itself.
        sparse: As in `feature_tensor`.
        steps: What was done to the features.
        protocol: Which split, which seeds.
        notes: As in `Task`.
        class_names: As in `Task`.
        metric: What is reported.
    """
    labels = torch.as_tensor(y).long()
    loops = "self-loops added" if self_loops else "self-loops removed"
    return Task(
        name=name,
        kind="nodes",
        problem="multiclass",
        metric=metric,
        protocol=sentence([protocol, steps, f"edges undirected, {loops}", metric]),
        x=feature_tensor(x, as_sparse=sparse),
        y=labels,
        splits=splits,
        num_outputs=num_classes,
        edge_index=symmetric_edges(edges, len(labels), self_loops=self_loops),
        class_names=tuple(class_names),
        notes=tuple(notes),
    )


def table_task(
    name: str,
    *,
    x: Tensor,
    y: Tensor,
    splits: tuple[Split, ...],
    knn: int | None,
    steps: str,
    protocol: str,
    notes: Sequence[str] = (),
    class_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    scaling: Scaling | None = None,
) -> Task:
    """Classification of instances without a graph, or with that of their k nearest neighbours.

    Args:
        name: The data set.
        x: ``[N, F]`` features.
        y: Classes.
        splits: At least one.
        knn: Neighbours a node is joined to, the node itself counted; None for no graph.
        steps: What was done to the features.
        protocol: Which split, which seeds.
        notes: As in `Task`.
        class_names: As in `Task`.
        feature_names: As in `Task`.
        scaling: As in `Task`.
    """
    edge_index = None
    if knn is not None:
        edge_index = knn_graph(x, knn, metric="euclidean", include_self=True, symmetric=True)
    graph = "no graph" if knn is None else f"graph of {knn} nearest neighbours (self counted), undirected"
    return Task(
        name=name,
        kind="nodes",
        problem="multiclass",
        metric="accuracy",
        protocol=sentence([protocol, steps, graph, "accuracy"]),
        x=x,
        y=y.long(),
        splits=splits,
        num_outputs=int(y.max()) + 1,
        edge_index=edge_index,
        class_names=tuple(class_names),
        feature_names=tuple(feature_names),
        notes=tuple(notes),
        scaling=scaling,
    )
