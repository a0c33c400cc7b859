"""Predictions that need no training loop: what a series has to be foretold better than.

With lags x_{t,i} ∈ R^L of node i and target y_{t,i}:

* ``"zeros"``: ŷ = 0, the mean of what the series was standardised by;
* ``"last"``: ŷ = the newest lag;
* ``"autoregression"``: ŷ = a + bᵀx_{t,i}, with a and b the same for all nodes, by least squares over the training part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.data import Split, Task


def predict(name: str, task: Task, split: Split) -> Tensor:
    """Outputs ``[T, N, 1]`` of all snapshots.

    Raises:
        ValueError: If the task is no series, or there is no such baseline.
    """
    if task.kind != "series":
        raise ValueError(f"baseline {name!r} is for series; task {task.name!r} holds {task.kind}")
    x = task.x.double()
    if name == "zeros":
        return torch.zeros_like(x[..., :1])
    if name == "last":
        return x[..., -1:]
    if name != "autoregression":
        raise ValueError(f"unknown baseline {name!r}; known are zeros, last, autoregression")
    design = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
    seen, wanted = design[split.train].flatten(0, 1), task.y[split.train].double().flatten()
    known = ~wanted.isnan()
    weights = torch.linalg.lstsq(seen[known], wanted[known].unsqueeze(1)).solution
    return design @ weights
