"""A user's own data as a task: from arrays here, from files in `own_files`, from PyG objects in `own_pyg`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from difformer.data.arrays import features_from, label_columns, row_ids
from difformer.data.assemble import Splits, assemble, drawn_splits, given_splits, graph_protocol
from difformer.data.edges import Duplicates, SelfLoops, tidy_edges
from difformer.data.errors import DataError
from difformer.data.own_files import from_files, read_features
from difformer.data.own_pyg import from_pyg
from difformer.data.structure import edges_from
from difformer.data.tables import index_of_ids
from difformer.data.targets import encode_targets
from difformer.data.task import Problem, Task

__all__ = ["from_arrays", "from_files", "from_pyg", "read_features"]


def from_arrays(
    x: Any,
    y: Any,
    edge_index: Any = None,
    edge_weight: Any = None,
    *,
    name: str = "own data",
    problem: Problem | None = None,
    metric: str | None = None,
    splits: Splits = None,
    fractions: Sequence[float] | None = None,
    seeds: Sequence[int] = (0,),
    node_ptr: Any = None,
    directed: bool = False,
    self_loops: SelfLoops = "add",
    duplicates: Duplicates = "error",
    missing: Sequence[str] | None = None,
    class_names: Sequence[str] = (),
    instance_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    standardize: bool = False,
) -> Task:
    """A task from objects in memory: numpy, scipy sparse, torch, pandas and polars, plain lists.

    Args:
        x: Features ``[N, F]``; ``[T, N, F]`` for a series of snapshots. A sparse matrix stays sparse. The index of a
            pandas frame names its rows, unless it only counts them.
        y: Labels, one a row, or several columns: see `difformer.data.targets`; of a series ``[T, N]`` numbers. With a
            frame for `x` also the name of its column, or a list of names. What comes from pandas is matched with `x` by
            index where both have one.
        edge_index: The graph, if any: ``[2, E]``, ``[E, 2]``, pairs of ids, an adjacency matrix, a frame of edges; for
            a series also a list with one a snapshot.
        edge_weight: ``[E]`` weights ≥ 0; for a list of graphs a list.
        name: How the data are called in reports.
        problem: ``"multiclass"``, ``"multilabel"`` or ``"regression"``; found out from `y` where it is None.
        metric: None takes accuracy, ROC-AUC or MSE, after the problem.
        splits: Ready-made ones, or a file of them; None draws them.
        fractions: Of train, valid and test where splits are drawn; None takes 50, 25 and 25 %, and for a series the
            first 20, the next 20 and the last 60 %.
        seeds: One split each.
        node_ptr: ``[G + 1]`` where rows belong to G separate graphs, ``node_ptr[g]:node_ptr[g + 1]`` to graph g; then
            `y` and the splits are of graphs.
        directed: Keep directions; otherwise both directions of every edge are listed.
        self_loops: ``"add"`` to every node that has none, ``"remove"``, or ``"keep"`` as given.
        duplicates: What becomes of an edge given with different weights: see `tidy_edges`.
        missing: Texts that stand for no label, instead of the rule of `difformer.data.targets`.
        class_names: The classes in order, instead of numerical or alphabetical order.
        instance_names: Ids of the rows, or of the graphs.
        feature_names: Of the columns.
        standardize: Bring columns to mean 0 and deviation 1 over all rows (of a sparse matrix to quadratic mean 1, so
            that zeros stay). Without it features are used as they are.

    Raises:
        DataError: If the parts contradict each other; the message says where.
    """
    if edge_index is None and edge_weight is not None:
        raise DataError("edge_weight: weights without edges; pass edge_index too")
    if hasattr(x, "columns") and (isinstance(y, str) or (isinstance(y, list) and all(isinstance(c, str) for c in y))):
        wanted, known = [y] if isinstance(y, str) else y, list(x.columns)
        # Labels of rows come more than once, names of columns do not.
        if len(set(wanted)) == len(wanted) and all(column in known for column in wanted):
            x, y = x[[column for column in known if column not in wanted]], x[wanted]
        elif isinstance(y, str):
            raise DataError(f"y: x has no column {y!r}; it has {', '.join(map(repr, known[:20]))}")
    features, columns = features_from(x)
    tidy = {"directed": directed, "self_loops": self_loops, "duplicates": duplicates}
    common = {
        "name": name,
        "metric": metric,
        "feature_names": tuple(str(column) for column in feature_names) or columns,
    }
    if features.dim() == 3:
        if standardize:
            raise DataError(
                "standardize: a series is not scaled here; standardise it by its training part before lags are taken"
            )
        return _series(features, y, edge_index, edge_weight, problem, splits, fractions, tidy, instance_names, common)
    ids = tuple(str(i) for i in instance_names) or (row_ids(x) if node_ptr is None else ())
    index = index_of_ids(ids, lambda text, row: DataError(text, row=row)) if ids and node_ptr is None else None
    ptr = None if node_ptr is None else _pointer(node_ptr)
    expected = features.shape[0] if ptr is None else ptr.numel() - 1
    cells, names = label_columns(y, x, expected)
    targets = encode_targets(cells, names=names, problem=problem, class_names=class_names, missing=missing)
    edges, notes = None, tuple[str, ...]()
    if edge_index is not None:
        *raw, notes = edges_from(edge_index, edge_weight, num_nodes=features.shape[0], ids=index)
        edges = tidy_edges(*raw, num_nodes=features.shape[0], names=ids if node_ptr is None else (), **tidy)  # type: ignore[arg-type]
    return assemble(
        features,
        targets,
        edges,
        graph=graph_protocol(directed, self_loops),
        splits=splits,
        fractions=fractions,
        seeds=seeds,
        node_ptr=ptr,
        instance_names=ids,
        notes=notes,
        standardize=standardize,
        **common,  # type: ignore[arg-type]
    )


def _pointer(node_ptr: Any) -> Tensor:
    given = torch.as_tensor(node_ptr)
    if given.dim() != 1 or bool((given != given.long()).any()):
        raise DataError(f"node_ptr: expected whole numbers, [G + 1], got {given.dtype} of shape {list(given.shape)}")
    return given.long()


def _series(
    x: Tensor,
    y: Any,
    edge_index: Any,
    edge_weight: Any,
    problem: Problem | None,
    splits: Splits,
    fractions: Sequence[float] | None,
    tidy: Mapping[str, Any],
    instance_names: Sequence[str],
    common: Mapping[str, Any],
) -> Task:
    """Snapshots in time order: numbers to predict for every node at every time."""
    if problem not in (None, "regression"):
        raise DataError(f"problem: a series of snapshots is regression, got {problem!r}")
    wanted = f"[T, N] = {list(x.shape[:2])} for a series x {list(x.shape)}"
    target, _ = features_from(y, name="y", finite=False, shape=wanted)
    if target.dim() not in (2, 3) or target.shape[:2] != x.shape[:2]:
        raise DataError(f"y: expected {wanted}, got shape {list(target.shape)}")
    several = (
        isinstance(edge_index, (list, tuple)) and len(edge_index) == x.shape[0] and hasattr(edge_index[0], "shape")
    )
    if not several and isinstance(edge_index, (list, tuple)) and any(getattr(g, "ndim", 0) > 1 for g in edge_index):
        raise DataError(f"edge_index: a list of {len(edge_index)} graphs for {x.shape[0]} snapshots; give one each")
    graphs = list(edge_index) if several else [] if edge_index is None else [edge_index]
    weights = list(edge_weight) if several and edge_weight is not None else [edge_weight] * len(graphs)
    raw = [edges_from(graph, weight, num_nodes=x.shape[1]) for graph, weight in zip(graphs, weights, strict=True)]
    done = [tidy_edges(index, weight, num_nodes=x.shape[1], **tidy) for index, weight, _ in raw]
    weighted = [w for _, w in done if w is not None]
    if several and 0 < len(weighted) < len(done):  # a matrix of ones has no weights, its neighbours may have
        done = [(i, torch.ones(i.shape[1]) if w is None else w) for i, w in done]
    chosen = given_splits(splits) or drawn_splits(None, x.shape[0], fractions, (0,), series=True)
    notes = [note for _, _, guessed in raw for note in guessed]
    if splits is None:
        train, valid, test = chosen[0].sizes()
        notes.append(
            f"snapshots were split in time order: the first {train} train, the next {valid} choose the model, the last "
            f"{test} test; pass fractions= or splits= for another split"
        )
    outputs = 1 if target.dim() == 2 else target.shape[2]
    return Task(
        name=common["name"],
        kind="series",
        problem="regression",
        metric=common["metric"] or "mse",
        protocol=f"own data, series; {chosen[0].name}",
        x=x,
        y=target,
        splits=chosen,
        num_outputs=outputs,
        edge_index=tuple(i for i, _ in done) if several else done[0][0] if done else None,
        edge_weight=tuple(w for _, w in done if w is not None) or None if several else done[0][1] if done else None,
        instance_names=tuple(str(i) for i in instance_names),
        feature_names=common["feature_names"],
        notes=tuple(dict.fromkeys(notes)),
    )
