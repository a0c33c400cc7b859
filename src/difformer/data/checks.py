"""What must hold between the parts of a task, checked once when it is made, so that no model meets a wrong shape.

Every check is one pass over what it checks: a graph of sixty million edges costs a second, not a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from difformer.errors import UserError

if TYPE_CHECKING:
    from difformer.data.task import Task


def check_task(task: Task) -> None:
    """Raise ValueError, naming the task and the field, where two parts of a task contradict each other."""
    if task.kind not in ("nodes", "series", "graphs"):
        _refuse(task, f"kind must be 'nodes', 'series' or 'graphs', got {task.kind!r}")
    if task.problem not in ("multiclass", "multilabel", "regression"):
        _refuse(task, f"problem must be 'multiclass', 'multilabel' or 'regression', got {task.problem!r}")
    _check_features(task)
    _check_targets(task)
    _check_pointer(task)
    _check_structure(task)
    _check_names(task)
    _check_splits(task)


def _refuse(task: Task, problem: str) -> NoReturn:
    raise UserError(f"task {task.name!r}: {problem}")


def _check_features(task: Task) -> None:
    x = task.x
    dims, shape = (3, "[T, N, F]") if task.kind == "series" else (2, "[N, F]")
    if x.dim() != dims:
        _refuse(task, f"x of a {task.kind!r} task must have shape {shape}, got {tuple(x.shape)}")
    if not x.is_floating_point():
        _refuse(task, f"x must hold floats, got {x.dtype}; convert it with x.float()")
    if x.layout not in (torch.strided, torch.sparse_csr):
        _refuse(task, f"x must be dense or sparse CSR, got layout {x.layout}; convert it with x.to_sparse_csr()")
    if x.layout == torch.sparse_csr and task.kind != "nodes":
        _refuse(
            task, f"sparse features are for 'nodes' tasks, this one is {task.kind!r}; convert them with x.to_dense()"
        )
    if task.scaling is not None and task.scaling.rows != x.shape[0]:
        _refuse(
            task,
            f"its features were standardised over {task.scaling.rows} rows, and x holds {x.shape[0]}: bring new rows "
            f"to that scale with task.scaled(x), and leave scaling out where they join the others",
        )


def _check_targets(task: Task) -> None:
    y, outputs = task.y, task.num_outputs
    if outputs < 1:
        _refuse(task, f"num_outputs must be at least 1, got {outputs}")
    first = {"nodes": "nodes", "series": "snapshots"}.get(task.kind)
    if first is not None and (y.dim() == 0 or y.shape[0] != task.x.shape[0]):
        _refuse(task, f"y has shape {tuple(y.shape)}, but x has {task.x.shape[0]} {first}")
    if task.kind == "series" and (y.dim() < 2 or y.shape[1] != task.x.shape[1]):
        _refuse(
            task,
            f"y of a series must have shape [T, N], here [{task.x.shape[0]}, {task.x.shape[1]}], got {tuple(y.shape)}",
        )
    leading = 2 if task.kind == "series" else 1
    if task.problem == "multiclass":
        if y.dtype != torch.long or y.dim() != leading:
            _refuse(task, f"classes must be int64 with {leading} dimension(s), got {y.dtype} of shape {tuple(y.shape)}")
        if y.numel() and (int(y.min()) < -1 or int(y.max()) >= outputs):
            _refuse(
                task,
                f"classes must lie in 0 … {outputs - 1} (num_outputs = {outputs}), or be -1 where unknown; "
                f"got {int(y.min())} … {int(y.max())}",
            )
        return
    if not y.is_floating_point():
        _refuse(task, f"y of a {task.problem} task must hold floats (NaN = unlabelled), got {y.dtype}")
    with_columns = y.dim() == leading + 1 and y.shape[-1] == outputs
    if not (with_columns or (task.problem == "regression" and y.dim() == leading and outputs == 1)):
        _refuse(task, f"y of a {task.problem} task with num_outputs = {outputs} cannot have shape {tuple(y.shape)}")


def _check_pointer(task: Task) -> None:
    ptr = task.node_ptr
    if task.kind != "graphs":
        if ptr is not None:
            _refuse(task, f"node_ptr is for 'graphs' tasks, this one is {task.kind!r}")
        return
    if ptr is None or ptr.dtype != torch.long or ptr.dim() != 1 or ptr.numel() != task.y.shape[0] + 1:
        got = "none" if ptr is None else f"{ptr.dtype} of shape {tuple(ptr.shape)}"
        _refuse(
            task,
            f"a task of {task.y.shape[0]} graphs needs node_ptr, int64 of shape [{task.y.shape[0] + 1}]; got {got}",
        )
    if int(ptr[0]) != 0 or int(ptr[-1]) != task.x.shape[0] or bool((ptr.diff() < 0).any()):
        _refuse(task, f"node_ptr must rise from 0 to the number of nodes, {task.x.shape[0]}; got {ptr[0]} … {ptr[-1]}")


def _check_structure(task: Task) -> None:
    index, weight = task.edge_index, task.edge_weight
    if index is None:
        if weight is not None:
            _refuse(task, "edge_weight without edge_index")
        return
    if isinstance(index, tuple):
        if task.kind != "series" or len(index) != task.x.shape[0]:
            _refuse(
                task,
                f"a tuple of {len(index)} graphs is for a series with as many snapshots; "
                f"this is a {task.kind!r} task with {task.y.shape[0]} instances",
            )
        if weight is not None and (not isinstance(weight, tuple) or len(weight) != len(index)):
            _refuse(task, f"edge_weight must be a tuple of {len(index)}, one a snapshot, as edge_index is")
        weights = weight if isinstance(weight, tuple) else (None,) * len(index)
        for one, its_weight in zip(index, weights, strict=True):
            _check_edges(task, one, its_weight)
    elif isinstance(weight, tuple):
        _refuse(task, "edge_weight is a tuple, but edge_index is one tensor")
    else:
        _check_edges(task, index, weight)
        if task.node_ptr is not None and index.numel():
            graph = torch.bucketize(index.contiguous(), task.node_ptr, right=True)
            crossing = (graph[0] != graph[1]).nonzero()
            if crossing.numel():
                at = int(crossing[0])
                _refuse(
                    task,
                    f"edge {at} ({int(index[0, at])} → {int(index[1, at])}) joins two different graphs; "
                    f"indices must be global, offset by node_ptr",
                )


def _check_edges(task: Task, index: Tensor, weight: Tensor | None) -> None:
    if index.dtype != torch.long or index.dim() != 2 or index.shape[0] != 2:
        _refuse(task, f"edge_index must be int64 of shape [2, E], got {index.dtype} of shape {tuple(index.shape)}")
    if index.numel():
        low, high = (int(bound) for bound in torch.aminmax(index))
        if low < 0 or high >= task.x.shape[-2]:
            bad = low if low < 0 else high
            _refuse(task, f"edge_index holds node {bad}, but nodes go from 0 to {task.x.shape[-2] - 1}")
    if weight is not None and (not weight.is_floating_point() or weight.shape != index.shape[1:]):
        _refuse(
            task,
            f"edge_weight must hold one float an edge, shape [{index.shape[1]}]; "
            f"got {weight.dtype} of shape {tuple(weight.shape)}",
        )


def _check_names(task: Task) -> None:
    nodes_or_graphs = task.y.shape[0] if task.kind == "graphs" else task.x.shape[-2]
    for field, wanted in (
        ("class_names", task.num_outputs),
        ("instance_names", nodes_or_graphs),
        ("feature_names", task.x.shape[-1]),
    ):
        given = len(getattr(task, field))
        if given not in (0, wanted):
            _refuse(task, f"{field} must hold {wanted} names or none, got {given}")


def _check_splits(task: Task) -> None:
    if not task.splits:
        _refuse(task, "splits: got none, expected at least one")
    unknown = task.y == -1 if task.problem == "multiclass" else task.y.isnan()
    if unknown.dim() > 1:
        unknown = unknown.flatten(1).all(1)
    some_unknown = bool(unknown.any())
    for split in task.splits:
        split.check(task.y.shape[0])
        for part, index in split.parts().items() if some_unknown else ():
            if bool(unknown[index].any()):
                at = int(index[unknown[index]][0])
                _refuse(task, f"split {split.name!r}: {part} holds instance {at}, which carries no target")
