"""New instances beside those of a task: how a trained model comes to see them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from scipy.sparse import vstack
from torch import Tensor

from difformer.data import Split, Task
from difformer.data.sparse import from_scipy, to_scipy
from difformer.errors import UserError

_EMPTY = torch.empty(0, dtype=torch.long)


def new_task(
    task: Task, features: Any, edges: Any = None, edge_weight: Any = None, *, together: bool = True
) -> tuple[Task, int]:
    """A task with new instances that carry no targets, and the position of the first of them.

    New rows stand after the task's own where they are propagated `together`: their labels stay what they were, so that
    a model that spreads labels can use them. Where every node of the task has an edge to itself, new ones get one too.

    Raises:
        ValueError: If the features do not fit the task.
    """
    if task.kind == "graphs":
        raise UserError("new graphs are given as a task of their own: on=…, see difformer.data.from_arrays(node_ptr=…)")
    x = _tensor(features).to(task.x.dtype)
    dims = 3 if task.kind == "series" else 2
    if x.dim() != dims or x.shape[-1] != task.num_features or (dims == 3 and x.shape[1] != task.num_nodes):
        expected = f"[T, {task.num_nodes}, {task.num_features}]" if dims == 3 else f"[M, {task.num_features}]"
        raise UserError(f"features of new instances must have shape {expected}, got {tuple(x.shape)}")
    if task.kind == "series":
        return _new_snapshots(task, x, edges, edge_weight), 0
    if task.scaling is not None:  # new rows come as they are, the task's own are standardised
        x, task = task.scaled(x), dataclasses.replace(task, scaling=None)
    return _new_rows(task, x, edges, edge_weight, together)


def _new_snapshots(task: Task, x: Tensor, edges: Any, edge_weight: Any) -> Task:
    index, weight = task.edge_index, task.edge_weight
    if edges is not None:
        index, weight = _each(edges, torch.long), None if edge_weight is None else _each(edge_weight, torch.float32)
    elif isinstance(index, tuple):
        raise UserError(f"every snapshot of {task.name!r} has a graph of its own: give edges, one graph a new snapshot")
    y = _unknown(task, x.shape[0])
    return dataclasses.replace(task, x=x, y=y, edge_index=index, edge_weight=weight, splits=_nothing())


def _new_rows(task: Task, x: Tensor, edges: Any, edge_weight: Any, together: bool) -> tuple[Task, int]:
    start = task.num_nodes if together else 0
    count = start + x.shape[0]
    own = task.edge_index if isinstance(task.edge_index, Tensor) else None
    loops = own is not None and int((own[0] == own[1]).sum()) == task.num_nodes
    parts = [own] if together and own is not None else []
    if edges is not None:
        parts.append(torch.as_tensor(np.asarray(edges), dtype=torch.long))
    if loops:
        parts.append(torch.arange(start, count).expand(2, -1))
    index = torch.cat(parts, 1) if parts else None
    weight = None
    if index is not None and (edge_weight is not None or (together and task.edge_weight is not None)):
        weight = torch.ones(index.shape[1])
        at = 0 if not together or own is None else own.shape[1]
        if isinstance(task.edge_weight, Tensor) and together:
            weight[:at] = task.edge_weight
        if edge_weight is not None:
            given = torch.as_tensor(np.asarray(edge_weight), dtype=weight.dtype)
            weight[at : at + given.numel()] = given
    if together:
        x = _below(task.x, x)
    y = torch.cat([task.y, _unknown(task, count - start)]) if together else _unknown(task, count)
    splits = task.splits if together else _nothing()
    joined = dataclasses.replace(task, x=x, y=y, edge_index=index, edge_weight=weight, splits=splits, instance_names=())
    return joined, start


def _unknown(task: Task, count: int) -> Tensor:
    """Targets that say nothing."""
    filler = -1 if task.problem == "multiclass" else torch.nan
    return task.y.new_full((count, *task.y.shape[1:]), filler)


def _nothing() -> tuple[Split, ...]:
    return (Split("none", _EMPTY, _EMPTY, _EMPTY),)


def _tensor(features: Any) -> Tensor:
    """Features as a tensor, dense or CSR as they come."""
    if hasattr(features, "tocsr"):
        return from_scipy(features)
    return features if isinstance(features, Tensor) else torch.as_tensor(np.asarray(features))


def _below(old: Tensor, new: Tensor) -> Tensor:
    """Rows below each other; sparse where the old ones are."""
    if old.layout == torch.strided:
        return torch.cat([old, new.to_dense() if new.layout != torch.strided else new])
    return from_scipy(vstack([to_scipy(old), to_scipy(new)]))


def _each(values: Any, dtype: torch.dtype) -> Any:
    if isinstance(values, (list, tuple)):
        return tuple(torch.as_tensor(np.asarray(value), dtype=dtype) for value in values)
    return torch.as_tensor(np.asarray(values), dtype=dtype)
