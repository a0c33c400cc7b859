"""Edge lists in the form that tasks have: sorted, each directed edge once, self-loops as requested.

Edge lists found in practice list an undirected edge once or twice, repeat lines, and may or may not have self-loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.errors import DataError, UserError

SelfLoops = Literal["add", "remove", "keep"]
Duplicates = Literal["error", "sum", "mean", "max"]


def tidy_edges(
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    *,
    num_nodes: int,
    directed: bool = False,
    self_loops: SelfLoops = "add",
    duplicates: Duplicates = "error",
    names: Sequence[str] = (),
) -> tuple[Tensor, Tensor | None]:
    """Sort by source and target, list both directions of an undirected edge, merge repetitions.

    While it is sorted, edge i → j is the number i · N + j: thirty million edges take seconds and two gigabytes.

    Args:
        edge_index: ``[2, E]``, sources and targets.
        edge_weight: ``[E]``, or None where every weight is one.
        num_nodes: Nodes of the graph.
        directed: Keep directions as given; otherwise i → j and j → i are the same edge, and both come out.
        self_loops: ``"add"`` one to every node that has none (weight 1), ``"remove"`` all, or ``"keep"`` what is there.
        duplicates: How to treat the weights of an edge given more than once. ``"error"`` accepts equal weights as one
            edge and refuses different ones; ``"sum"``, ``"mean"`` and ``"max"`` merge them. The two directions of an
            undirected edge count once where they agree, and are merged or refused likewise where they do not.
        names: Of the nodes, for errors; their numbers by default.

    Raises:
        DataError: If an edge comes with two different weights and `duplicates` is ``"error"``.
    """
    check_choices(self_loops, duplicates)
    source, target = edge_index.long()
    if self_loops == "remove":
        proper = source != target
        source, target = source[proper], target[proper]
        edge_weight = None if edge_weight is None else edge_weight[proper]
    loops = torch.arange(num_nodes if self_loops == "add" else 0, device=source.device) * (num_nodes + 1)
    if edge_weight is None:
        reverse = source[:0] if directed else target * num_nodes + source
        code = torch.cat([source * num_nodes + target, reverse, loops]).unique()
        return torch.stack([code // num_nodes, code % num_nodes]), None
    called = [*names] or range(num_nodes)
    code, weight = _merge(source * num_nodes + target, edge_weight, called, duplicates, directions=False)
    if not directed:
        source, target = code // num_nodes, code % num_nodes
        code = torch.minimum(source, target) * num_nodes + torch.maximum(source, target)
        code, weight = _merge(code, weight, called, duplicates, directions=True)
        source, target = code // num_nodes, code % num_nodes
        proper = source != target
        code, weight = torch.cat([code, (target * num_nodes + source)[proper]]), torch.cat([weight, weight[proper]])
    loops = loops[~torch.isin(loops, code)]
    code, order = torch.cat([code, loops]).sort()
    weight = torch.cat([weight, weight.new_ones(loops.numel())])[order]
    return torch.stack([code // num_nodes, code % num_nodes]), weight


def undirected(pairs: NDArray[Any], num_nodes: int, self_loops: bool) -> Tensor:
    """Both directions of every edge of ``pairs [2, E]``, once each and sorted; self-loops on all nodes or on none."""
    edges = torch.from_numpy(np.asarray(pairs))
    return tidy_edges(edges, num_nodes=num_nodes, self_loops="add" if self_loops else "remove")[0]


def check_choices(self_loops: str, duplicates: str) -> None:
    """Raises a UserError for a word that `tidy_edges` does not know."""
    for name, given, kind in (("self_loops", self_loops, SelfLoops), ("duplicates", duplicates, Duplicates)):
        if given not in get_args(kind):
            raise UserError(f"{name}: expected one of {', '.join(get_args(kind))}, got {given!r}")


def _merge(
    code: Tensor, weight: Tensor, names: Sequence[object], how: Duplicates, *, directions: bool
) -> tuple[Tensor, Tensor]:
    """Each code once, its weights merged by `how`, or their common value where `directions` of one edge meet."""
    unique, place = code.unique(return_inverse=True)
    if unique.numel() == code.numel():
        return unique, torch.empty_like(weight).scatter_(0, place, weight)
    empty = weight.new_zeros(unique.numel())
    low, high = (empty.scatter_reduce(0, place, weight, how, include_self=False) for how in ("amin", "amax"))
    different = low != high
    if how != "error":
        merged = empty.scatter_reduce(0, place, weight, "amax" if how == "max" else how, include_self=False)
        return unique, torch.where(different, merged, low) if directions else merged
    for edge in unique[different][:1].tolist():
        found = ", ".join(f"{value:g}" for value in weight[code == edge].unique().tolist()[:4])
        first, second = (names[node] for node in divmod(edge, len(names)))
        problem = f"the edge between nodes {first} and {second} is given twice, with different weights ({found})"
        remedy = "pass directed=true if its two directions differ, or duplicates=sum, mean or max"
        raise DataError(f"{problem}; {remedy}", argument="duplicates")
    return unique, low
