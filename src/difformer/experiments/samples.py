"""Data made for experiments: small samples for quick forms, altered tasks, and predictions without training.

With lags x_{t,i} ∈ R^L of node i and target y_{t,i}, the baselines of a series are

* ``"zeros"``: ŷ = 0, the mean that the series was standardised with;
* ``"last"``: ŷ = the newest lag;
* ``"autoregression"``: ŷ = a + bᵀx_{t,i}, with the same a and b for all nodes, by least squares on the training part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from difformer.data import Split, Task, knn_graph, load, random_split, time_split
from difformer.errors import UserError
from difformer.experiments.spec import Data


def load_data(data: Data, options: Mapping[str, Any]) -> Task:
    """The task of a section."""
    return altered(load(data.dataset, **options), **data.alter)


def waves(*, num_nodes: int = 8, length: int = 40, lags: int = 3, seed: int = 0) -> Task:
    """A noisy wave on a ring of nodes, to be predicted from its past: y_{t,i} = sin(t/3 - i) + ε."""
    time, node = torch.arange(length).unsqueeze(1), torch.arange(num_nodes)
    noise = torch.randn(length, num_nodes, generator=torch.Generator().manual_seed(seed))
    values = torch.sin(time / 3 - node) + 0.3 * noise
    following = (node + 1) % num_nodes
    ring = torch.stack([torch.cat([node, following, node]), torch.cat([following, node, node])])
    said = f"generated: waves on a ring of {num_nodes}, {lags} lags, split 2:2:6 in time order; MSE"
    x, y = values.unfold(0, lags, 1)[:-1].contiguous(), values[lags:].contiguous()
    splits = (time_split(length - lags, ratio=(2, 2, 6)),)
    return Task("waves", "series", "regression", "mse", said, x, y, splits, num_outputs=1, edge_index=ring)


def clouds(*, count: int = 60, size: int = 6, num_splits: int = 2, seed: int = 0) -> Task:
    """Point clouds in space, stretched along one axis in the positive class, with a graph of three neighbours."""
    y, node_ptr = torch.arange(count) % 2, torch.arange(count + 1) * size
    points = torch.randn(count, size, 3, generator=torch.Generator().manual_seed(seed))
    points[:, :, 0] *= 1 + y.unsqueeze(1)
    x = points.reshape(-1, 3)
    said = f"generated: {count} clouds of {size} points, random 30/20/50; AUROC"
    splits = tuple(random_split(y, fractions=(0.3, 0.2, 0.5), seed=s, stratify=True) for s in range(num_splits))
    edges = knn_graph(x, 3, include_self=True, node_ptr=node_ptr)
    return Task("clouds", "graphs", "multiclass", "rocauc", said, x, y, splits, 2, edges, node_ptr=node_ptr)


def altered(task: Task, *, labels_per_class: int | None = None, edges_removed: float = 0.0) -> Task:
    """A task on the nodes of one graph, with other training labels or without some of its edges.

    `labels_per_class` draws that many training labels per class, or all if there are fewer, from the nodes outside the
    validation and test parts, seeded by the number of the split; a larger number contains a smaller one's.
    `edges_removed` is the share of the undirected edges to remove at random. Self-loops stay, and a larger share
    contains a smaller one.
    """
    said = []
    if labels_per_class is not None:
        task = replace(task, splits=tuple(_relabelled(task, n, labels_per_class) for n in range(len(task.splits))))
        said.append(f"{labels_per_class} training labels per class")
    if edges_removed:
        task = replace(task, edge_index=_thinned(task.edge_index, task.num_nodes, edges_removed))
        said.append(f"{100 * edges_removed:g} % of edges removed")
    return replace(task, protocol="; ".join([task.protocol, *said])) if said else task


def _relabelled(task: Task, number: int, per_class: int) -> Split:
    split = task.splits[number]
    # Nodes without features carry a filler label in some data sets.
    free = (task.x.crow_indices().diff() if task.x.layout == torch.sparse_csr else task.x.abs().sum(1)) > 0
    free[split.valid] = free[split.test] = False
    order = torch.randperm(task.num_nodes, generator=torch.Generator().manual_seed(number))
    order = order[free[order]]
    train = [order[task.y[order] == label][:per_class] for label in range(task.num_outputs)]
    return Split(f"{split.name}, {per_class} per class", torch.cat(train).sort().values, split.valid, split.test)


def _thinned(edge_index: Any, num_nodes: int, share: float) -> Tensor:
    low, high = edge_index.min(0).values, edge_index.max(0).values
    pairs, place = torch.unique(low * num_nodes + high, return_inverse=True)
    rank = torch.rand(pairs.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return edge_index[:, (rank[place] >= share) | (low == high)]


def baseline(name: str, task: Task, split: Split) -> Tensor:
    """Predictions ``[T, N, 1]`` for all snapshots of a series."""
    x = task.x.double()
    if name == "zeros":
        return torch.zeros_like(x[..., :1])
    if name == "last":
        return x[..., -1:]
    if name != "autoregression":
        raise UserError(f"unknown baseline {name!r}; known are zeros, last, autoregression")
    design = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
    seen, wanted = design[split.train].flatten(0, 1), task.y[split.train].double().flatten()
    known = ~wanted.isnan()
    weights = torch.linalg.lstsq(seen[known], wanted[known].unsqueeze(1)).solution
    return design @ weights
