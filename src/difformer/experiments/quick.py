"""Small series and small sets of points, made from a seed, for forms of experiments that need no files."""

from __future__ import annotations

import torch

from difformer.data import Task, knn_graph, random_split, time_split


def waves(*, num_nodes: int = 8, length: int = 40, lags: int = 3, seed: int = 0) -> Task:
    """A noisy wave that runs around a ring of nodes: y_{t,i} = sin(t/3 - i) + ε, to be foretold from its past."""
    generator = torch.Generator().manual_seed(seed)
    time, node = torch.arange(length).unsqueeze(1), torch.arange(num_nodes)
    values = torch.sin(time / 3 - node) + 0.3 * torch.randn(length, num_nodes, generator=generator)
    following = (node + 1) % num_nodes
    ring = torch.stack([torch.cat([node, following, node]), torch.cat([following, node, node])])
    return Task(
        name="waves",
        kind="series",
        problem="regression",
        metric="mse",
        protocol=f"made: waves on a ring of {num_nodes}, {lags} lags, split 2:2:6 in time order; MSE",
        x=values.unfold(0, lags, 1)[:-1].contiguous(),
        y=values[lags:].contiguous(),
        splits=(time_split(length - lags, ratio=(2, 2, 6)),),
        num_outputs=1,
        edge_index=ring,
    )


def clouds(*, count: int = 60, size: int = 6, num_splits: int = 2, seed: int = 0) -> Task:
    """Clouds of points in space, stretched along one axis in the positive class; joined to their three nearest."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    points = torch.randn(count, size, 3, generator=generator)
    points[:, :, 0] *= 1 + y.unsqueeze(1)
    x, node_ptr = points.reshape(-1, 3), torch.arange(count + 1) * size
    return Task(
        name="clouds",
        kind="graphs",
        problem="multiclass",
        metric="rocauc",
        protocol=f"made: {count} clouds of {size} points, random 30/20/50; AUROC",
        x=x,
        y=y,
        splits=tuple(random_split(y, fractions=(0.3, 0.2, 0.5), seed=s, stratify=True) for s in range(num_splits)),
        num_outputs=2,
        edge_index=knn_graph(x, 3, include_self=True, node_ptr=node_ptr),
        node_ptr=node_ptr,
    )
