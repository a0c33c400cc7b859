"""A task: everything a model and a training loop need to know about a data set. There are three kinds:

* ``"nodes"``: N instances with features ``x [N, F]``, perhaps a graph, one target each; splits index instances.
* ``"series"``: T snapshots of N nodes, ``x [T, N, F]``, targets ``y [T, N]``; splits index snapshots in time order.
* ``"graphs"``: G graphs or point sets laid end to end, ``x [ΣN, F]`` with ``node_ptr [G + 1]``, one target each;
  splits index graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from difformer.data.scaling import Scaling
from difformer.data.split import Split, labelled
from difformer.errors import UserError, counted

if TYPE_CHECKING:
    from difformer.data.own.preprocessing import Preprocessing

Kind = Literal["nodes", "series", "graphs"]
Problem = Literal["multiclass", "multilabel", "regression"]


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==; `fingerprint` can
class Task:
    """Features, structure, targets, splits, metric and protocol.

    Args:
        name: The data set, for example ``"cora"``.
        kind: ``"nodes"``, ``"series"`` or ``"graphs"``.
        problem: ``"multiclass"`` (y int64, -1 = unlabelled), ``"multilabel"`` (y float [N, C], NaN = unlabelled) or
            ``"regression"`` (y float, NaN = unlabelled).
        metric: ``"accuracy"``, ``"rocauc"``, ``"f1"`` or ``"mse"``.
        protocol: One line that says what was done: preprocessing, split, what is reported.
        x: Features; for ``"nodes"`` dense, or a torch sparse CSR matrix where most entries are zero.
        y: Targets.
        splits: At least one.
        num_outputs: Columns a model must give: classes, targets, or 1.
        edge_index: ``[2, E]`` int64, row 0 sources and row 1 targets, both directions of an undirected edge listed;
            for series also a tuple with one per snapshot; None without a graph. For ``"graphs"`` indices are global
            (already offset by ``node_ptr``).
        edge_weight: ``[E]`` floats, or a tuple as for ``edge_index``; None where every weight is one.
        node_ptr: For ``"graphs"``: nodes of graph g are ``node_ptr[g]:node_ptr[g + 1]``.
        class_names: Names of the classes or target columns, where known.
        instance_names: Names of nodes or graphs, where known.
        notes: What a reader of results should know, one sentence each.
        feature_names: Names of the columns of `x`, where known; new rows are matched against them.
        scaling: What the columns of `x` were shifted and divided by; see `scaled`.
        preprocessing: How the raw columns of a user's table became `x`, where they held more than numbers.

    Raises:
        ValueError: If shapes, types or index ranges contradict each other, or a split holds an unlabelled instance.
    """

    name: str
    kind: Kind
    problem: Problem
    metric: str
    protocol: str
    x: Tensor
    y: Tensor
    splits: tuple[Split, ...]
    num_outputs: int
    edge_index: Tensor | tuple[Tensor, ...] | None = None
    edge_weight: Tensor | tuple[Tensor, ...] | None = None
    node_ptr: Tensor | None = None
    class_names: tuple[str, ...] = ()
    instance_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    feature_names: tuple[str, ...] = ()
    scaling: Scaling | None = None
    preprocessing: Preprocessing | None = None

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise UserError(f"task {self.name!r}: {problem}")

    def __repr__(self) -> str:
        """Sizes in one line; `describe` says more."""
        facts = self.facts()
        words = [counted(value, name) for name, value in facts.items() if isinstance(value, int) and name != "splits"]
        split = f"{counted(len(self.splits), 'splits')} of {facts['train/valid/test']}"
        return f"Task({self.name!r}, {self.kind}, {self.problem}: {', '.join(words)}; {self.metric}; {split})"

    @property
    def num_features(self) -> int:
        return self.x.shape[-1]

    @property
    def num_instances(self) -> int:
        """What a split indexes: nodes, snapshots or graphs."""
        return self.y.shape[0]

    @property
    def num_nodes(self) -> int:
        """Rows of features: all nodes of all graphs, or the nodes of one snapshot."""
        return self.x.shape[-2]

    @property
    def num_edges(self) -> int | None:
        """Directed edges, self-loops counted, over all snapshots; None without a graph."""
        parts = [part.shape[1] for part in _each(self.edge_index) if part is not None]
        return None if self.edge_index is None else sum(parts)

    def with_splits(self, splits: Split | Iterable[Split]) -> Task:
        """The same task with other splits."""
        return replace(self, splits=(splits,) if isinstance(splits, Split) else tuple(splits))

    def scaled(self, x: Tensor) -> Tensor:
        """New rows on the scale of this task's features; unchanged if these were not scaled."""
        return x if self.scaling is None else self.scaling(x)

    def check_finite(self) -> None:
        """Raises a ValueError that names the first feature or weight that is NaN or infinite."""
        features = self.x.values() if self.x.layout == torch.sparse_csr else self.x
        for part, values in (("x", features), *(("edge_weight", weight) for weight in _each(self.edge_weight))):
            if values is not None and not bool(values.isfinite().all()):
                where = tuple((~values.isfinite()).nonzero()[0].tolist())
                place = f"{where}; features must be finite" if part == "x" else f"edge {where[0]}"
                raise UserError(f"task {self.name!r}: {part} is {values[where].item()} at {place}")

    def facts(self) -> dict[str, str | int]:
        """Sizes and protocol, one entry each, for tables and logs."""
        facts: dict[str, str | int] = {"name": self.name, "kind": self.kind, "problem": self.problem}
        if self.kind != "nodes":
            facts["graphs" if self.kind == "graphs" else "snapshots"] = self.num_instances
        facts["nodes"] = self.num_nodes
        if self.num_edges is not None:
            facts["edges"] = self.num_edges
        facts["features"] = self.num_features
        facts["classes" if self.problem == "multiclass" else "targets"] = self.num_outputs
        if self.kind != "series":
            facts["labelled"] = labelled(self.y).numel()
        facts |= {"metric": self.metric, "protocol": self.protocol, "splits": len(self.splits)}
        facts["train/valid/test"] = "/".join(str(size) for size in self.splits[0].sizes())
        return facts

    def describe(self) -> str:
        """What the task is, in a few lines for people."""
        facts = {name: f"{value:,}" if isinstance(value, int) else value for name, value in self.facts().items()}
        width = max(map(len, facts))
        lines = [f"{name:<{width}}  {value}" for name, value in facts.items()]
        if self.preprocessing is not None:
            lines += ["", *self.preprocessing.describe().splitlines(), ""]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def fingerprint(self) -> str:
        """SHA-256 over everything that can change a result: tasks with the same fingerprint train identically."""
        digest = hashlib.sha256(f"{self.name}|{self.kind}|{self.problem}|{self.metric}|{self.num_outputs}".encode())
        parts = (self.x, self.y, self.edge_index, self.edge_weight, self.node_ptr)
        indices = (index for split in self.splits for index in split.parts().values())
        for tensor in (*(tensor for part in parts for tensor in _each(part)), *indices):
            update_digest(digest, tensor)
        return digest.hexdigest()


def update_digest(digest: hashlib._Hash, tensor: Tensor | None) -> None:
    """Adds a tensor's shape, type and every byte to a digest."""
    if tensor is None:
        digest.update(b"none")
    elif tensor.layout == torch.sparse_csr:
        digest.update(f"csr{tuple(tensor.shape)}".encode())
        for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()):
            update_digest(digest, part)
    else:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)  # a view, not a copy: graphs have gigabytes of edges


def _each(part: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor | None, ...]:
    """The parts of what may be one tensor or one per snapshot."""
    return part if isinstance(part, tuple) else (part,)


def _problems(task: Task) -> Iterator[str]:
    """Contradictions between the parts of a task, naming the field; a check may rely on those above it."""
    for name, given, known in (("kind", task.kind, get_args(Kind)), ("problem", task.problem, get_args(Problem))):
        if given not in known:
            yield f"{name} must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}, got {given!r}"
    x, y, kind, outputs = task.x, task.y, task.kind, task.num_outputs
    dims, shape = (3, "[T, N, F]") if kind == "series" else (2, "[N, F]")
    if x.dim() != dims:
        yield f"x of a {kind!r} task must have shape {shape}, got {tuple(x.shape)}"
    if not x.is_floating_point():
        yield f"x must hold floats, got {x.dtype}; convert it with x.float()"
    if x.layout not in (torch.strided, torch.sparse_csr):
        yield f"x must be dense or sparse CSR, got layout {x.layout}; convert it with x.to_sparse_csr()"
    if x.layout == torch.sparse_csr and kind != "nodes":
        yield f"sparse features are for 'nodes' tasks, this one is {kind!r}; convert them with x.to_dense()"
    if task.scaling is not None and task.scaling.rows != x.shape[0]:
        yield (
            f"its features were standardised over {task.scaling.rows} rows, and x holds {x.shape[0]}: bring new rows "
            f"to that scale with task.scaled(x), and leave scaling out where they join the others"
        )
    if outputs < 1:
        yield f"num_outputs must be at least 1, got {outputs}"
    if kind != "graphs" and (y.dim() == 0 or y.shape[0] != x.shape[0]):
        yield f"y has shape {tuple(y.shape)}, but x has {x.shape[0]} {'nodes' if kind == 'nodes' else 'snapshots'}"
    if kind == "series" and (y.dim() < 2 or y.shape[1] != x.shape[1]):
        yield f"y of a series must have shape [T, N], here [{x.shape[0]}, {x.shape[1]}], got {tuple(y.shape)}"
    leading = 2 if kind == "series" else 1
    if task.problem == "multiclass":
        if y.dtype != torch.long or y.dim() != leading:
            yield f"classes must be int64 with {leading} dimension(s), got {y.dtype} of shape {tuple(y.shape)}"
        low, high = (int(bound) for bound in torch.aminmax(y)) if y.numel() else (0, 0)
        if low < -1 or high >= outputs:
            allowed = f"0 … {outputs - 1} (num_outputs = {outputs}), or be -1 where unknown"
            yield f"classes must lie in {allowed}; got {low} … {high}"
    else:
        if not y.is_floating_point():
            yield f"y of a {task.problem} task must hold floats (NaN = unlabelled), got {y.dtype}"
        single = task.problem == "regression" and y.dim() == leading and outputs == 1
        if not single and (y.dim() != leading + 1 or y.shape[-1] != outputs):
            yield f"y of a {task.problem} task with num_outputs = {outputs} cannot have shape {tuple(y.shape)}"
    yield from _structure_problems(task)
    rows = y.shape[0] if kind == "graphs" else x.shape[-2]
    for part, count in (("class_names", outputs), ("instance_names", rows), ("feature_names", x.shape[-1])):
        if len(getattr(task, part)) not in (0, count):
            yield f"{part} must hold {count} names or none, got {len(getattr(task, part))}"
    if not task.splits:
        yield "splits: got none, expected at least one"
    usable = labelled(y)
    for split in task.splits:
        split.check(y.shape[0])
        for part, index in split.parts().items() if len(usable) < len(y) else ():
            for at in index[~torch.isin(index, usable.to(index.device))][:1].tolist():
                yield f"split {split.name!r}: {part} holds instance {at}, which carries no target"


def _structure_problems(task: Task) -> Iterator[str]:
    """What is wrong with pointers, edges and weights."""
    ptr, index, weight, nodes = task.node_ptr, task.edge_index, task.edge_weight, task.x.shape[-2]
    if task.kind != "graphs":
        if ptr is not None:
            yield f"node_ptr is for 'graphs' tasks, this one is {task.kind!r}"
    elif ptr is None or ptr.dtype != torch.long or ptr.shape != (len(task.y) + 1,):
        got = "none" if ptr is None else f"{ptr.dtype} of shape {tuple(ptr.shape)}"
        yield f"a task of {len(task.y)} graphs needs node_ptr, int64 of shape [{len(task.y) + 1}]; got {got}"
    elif int(ptr[0]) != 0 or int(ptr[-1]) != nodes or bool((ptr.diff() < 0).any()):
        yield f"node_ptr must rise from 0 to the number of nodes, {nodes}; got {ptr[0]} … {ptr[-1]}"
    if index is None:
        if weight is not None:
            yield "edge_weight without edge_index"
        return
    graphs = index if isinstance(index, tuple) else (index,)
    weights: tuple[Tensor | None, ...] = (None,) * len(graphs) if weight is None else _each(weight)
    if isinstance(index, tuple):
        if task.kind != "series" or len(index) != task.x.shape[0]:
            this = f"this is a {task.kind!r} task with {task.y.shape[0]} instances"
            yield f"a tuple of {len(index)} graphs is for a series with as many snapshots; {this}"
        if isinstance(weight, Tensor) or len(weights) != len(index):
            yield f"edge_weight must be a tuple of {len(index)}, one per snapshot, as edge_index is"
    elif isinstance(weight, tuple):
        yield "edge_weight is a tuple, but edge_index is one tensor"
    for ends, its_weight in zip(graphs, weights, strict=True):
        if ends.dtype != torch.long or ends.dim() != 2 or ends.shape[0] != 2:
            yield f"edge_index must be int64 of shape [2, E], got {ends.dtype} of shape {tuple(ends.shape)}"
        if ends.numel():
            low, high = (int(bound) for bound in torch.aminmax(ends))
            if low < 0 or high >= nodes:
                yield f"edge_index holds node {low if low < 0 else high}, but nodes go from 0 to {nodes - 1}"
        if its_weight is not None and (not its_weight.is_floating_point() or its_weight.shape != ends.shape[1:]):
            got = f"{its_weight.dtype} of shape {tuple(its_weight.shape)}"
            yield f"edge_weight must hold one float per edge, shape [{ends.shape[1]}]; got {got}"
        if ptr is not None:
            graph = torch.bucketize(ends.contiguous(), ptr, right=True)
            for at in (graph[0] != graph[1]).nonzero()[:1].flatten().tolist():
                edge = f"edge {at} ({int(ends[0, at])} → {int(ends[1, at])})"
                yield f"{edge} joins two different graphs; indices must be global, offset by node_ptr"
