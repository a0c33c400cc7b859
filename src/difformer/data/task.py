"""A task: everything a model and a training loop need to know of a data set, and nothing of where it came from.

Three kinds cover all inputs of the package:

* ``"nodes"``: N instances with features ``x [N, F]``, perhaps a graph, one target each; splits index instances.
* ``"series"``: T snapshots of N nodes, ``x [T, N, F]``, targets ``y [T, N]``; splits index snapshots in time order.
* ``"graphs"``: G graphs or point sets laid end to end, ``x [ΣN, F]`` with ``node_ptr [G + 1]``, one target each;
  splits index graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from difformer.data.checks import check_task
from difformer.data.scaling import Scaling
from difformer.data.split import Split
from difformer.data.splitting import labelled
from difformer.errors import UserError

if TYPE_CHECKING:
    from difformer.data.own.preprocessing import Preprocessing

Kind = Literal["nodes", "series", "graphs"]
Problem = Literal["multiclass", "multilabel", "regression"]


@dataclass(frozen=True, eq=False)  # tensors cannot say whether they are equal; `fingerprint` can
class Task:
    """Features, structure, targets, splits, metric and the protocol's name.

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
        edge_index: ``[2, E]`` int64, row 0 sources and row 1 targets, both directions of an undirected edge listed,
            self-loops present where the protocol has them; for series also a tuple with one a snapshot; None without
            a graph. For ``"graphs"`` indices are global (already offset by ``node_ptr``).
        edge_weight: ``[E]`` floats, or a tuple as for ``edge_index``; None where every weight is one.
        node_ptr: For ``"graphs"``: nodes of graph g are ``node_ptr[g]:node_ptr[g + 1]``.
        class_names: Names of the classes or target columns, where known.
        instance_names: Names of nodes or graphs, where known.
        notes: Anything a reader of results should know, one sentence each.
        feature_names: Names of the columns of `x`, where known; new rows are matched against them.
        scaling: What the columns of `x` were shifted and divided by, where they were; see `scaled`.
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
        check_task(self)

    def __repr__(self) -> str:
        """Sizes in one line; `describe` says more, and tensors say themselves what they hold."""
        facts = self.facts()
        words = [f"{value:,} {name}" for name, value in facts.items() if isinstance(value, int) and name != "splits"]
        count = len(self.splits)
        split = f"{count} split{'s' * (count != 1)} of {facts['train/valid/test']}"
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
        if self.edge_index is None:
            return None
        parts = self.edge_index if isinstance(self.edge_index, tuple) else (self.edge_index,)
        return sum(part.shape[1] for part in parts)

    def with_splits(self, splits: Split | Iterable[Split]) -> Task:
        """The same task with other splits."""
        return replace(self, splits=(splits,) if isinstance(splits, Split) else tuple(splits))

    def scaled(self, x: Tensor) -> Tensor:
        """New rows, as they come, on the scale of this task's features; unchanged where these are as they came."""
        return x if self.scaling is None else self.scaling(x)

    def check_finite(self) -> None:
        """Refuse features or weights that are NaN or infinite.

        Raises:
            ValueError: Naming the first such entry.
        """
        values = self.x.values() if self.x.layout == torch.sparse_csr else self.x
        if not bool(values.isfinite().all()):
            where = tuple((~values.isfinite()).nonzero()[0].tolist())
            raise UserError(f"task {self.name!r}: x is {values[where].item()} at {where}; features must be finite")
        for weight in self.edge_weight if isinstance(self.edge_weight, tuple) else (self.edge_weight,):
            if weight is not None and not bool(weight.isfinite().all()):
                where = tuple((~weight.isfinite()).nonzero()[0].tolist())
                raise UserError(f"task {self.name!r}: edge_weight is {weight[where].item()} at edge {where[0]}")

    def facts(self) -> dict[str, str | int]:
        """Sizes and protocol, one entry each, for tables and logs."""
        facts: dict[str, str | int] = {"name": self.name, "kind": self.kind, "problem": self.problem}
        if self.kind == "graphs":
            facts["graphs"] = self.num_instances
        if self.kind == "series":
            facts["snapshots"] = self.num_instances
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
        """SHA-256 over everything that can change a result: two tasks with one fingerprint train alike."""
        digest = hashlib.sha256(f"{self.name}|{self.kind}|{self.problem}|{self.metric}|{self.num_outputs}".encode())
        for part in (self.x, self.y, self.edge_index, self.edge_weight, self.node_ptr):
            for tensor in part if isinstance(part, tuple) else (part,):
                update_digest(digest, tensor)
        for split in self.splits:
            for tensor in (split.train, split.valid, split.test):
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
