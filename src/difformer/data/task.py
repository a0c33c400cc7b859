"""A task: everything a model and a training loop need to know of a data set, and nothing of where it came from.

Three kinds cover all inputs of the package:

* ``"nodes"``: N instances with features ``x [N, F]``, perhaps a graph, one target each; splits index instances.
* ``"series"``: T snapshots of N nodes, ``x [T, N, F]``, targets ``y [T, N]``; splits index snapshots in time order.
* ``"graphs"``: G graphs or point sets laid end to end, ``x [ΣN, F]`` with ``node_ptr [G + 1]``, one target each;
  splits index graphs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from difformer.data.split import Split

Kind = Literal["nodes", "series", "graphs"]
Problem = Literal["multiclass", "multilabel", "regression"]


@dataclass(frozen=True)
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

    @property
    def num_features(self) -> int:
        return self.x.shape[-1]

    @property
    def num_instances(self) -> int:
        """What a split indexes: nodes, snapshots or graphs."""
        return self.y.shape[0]

    def fingerprint(self) -> str:
        """SHA-256 over everything that can change a result: two tasks with one fingerprint train alike."""
        digest = hashlib.sha256(f"{self.name}|{self.kind}|{self.problem}|{self.metric}|{self.num_outputs}".encode())
        for part in (self.x, self.y, self.edge_index, self.edge_weight, self.node_ptr):
            for tensor in part if isinstance(part, tuple) else (part,):
                _update(digest, tensor)
        for split in self.splits:
            for tensor in (split.train, split.valid, split.test):
                _update(digest, tensor)
        return digest.hexdigest()


def _update(digest: hashlib._Hash, tensor: Tensor | None) -> None:
    if tensor is None:
        digest.update(b"none")
    elif tensor.layout == torch.sparse_csr:
        for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()):
            _update(digest, part)
    else:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
