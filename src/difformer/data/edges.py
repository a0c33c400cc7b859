"""Edge lists brought into the one form that tasks have: sorted, each directed edge once, self-loops as asked for.

An edge list as people keep it names an undirected edge once or twice, repeats lines, and may or may not hold loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.data.errors import DataError
from difformer.errors import UserError

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

    Args:
        edge_index: ``[2, E]``, sources and targets.
        edge_weight: ``[E]``, or None where every weight is one.
        num_nodes: Of the graph.
        directed: Keep directions as given; otherwise i → j and j → i are the same edge, and both come out.
        self_loops: ``"add"`` one to every node that has none (weight 1), ``"remove"`` all, or ``"keep"`` what is there.
        duplicates: What becomes of the weights of an edge given more than once. ``"error"`` lets equal weights pass as
            one edge and refuses different ones; ``"sum"``, ``"mean"`` and ``"max"`` merge them. The two directions of
            an undirected edge count once where they agree, and are merged or refused likewise where they do not.
        names: Of the nodes, for errors; their numbers where there are none.

    Raises:
        DataError: If an edge comes with two different weights and `duplicates` is ``"error"``.
    """
    check_choices(self_loops, duplicates)
    source, target = edge_index
    if self_loops == "remove":
        kept = source != target
        source, target = source[kept], target[kept]
        edge_weight = None if edge_weight is None else edge_weight[kept]
    called = [*names] or range(num_nodes)
    code, weight = _merge(source * num_nodes + target, edge_weight, called, duplicates, directions=False)
    if not directed:
        source, target = code // num_nodes, code % num_nodes
        code = torch.minimum(source, target) * num_nodes + torch.maximum(source, target)
        code, weight = _merge(code, weight, called, duplicates, directions=True)
        source, target = code // num_nodes, code % num_nodes
        mirrored = source != target
        code = torch.cat([code, (target * num_nodes + source)[mirrored]])
        weight = None if weight is None else torch.cat([weight, weight[mirrored]])
    if self_loops == "add":
        loops = torch.arange(num_nodes, device=code.device) * (num_nodes + 1)
        loops = loops[~torch.isin(loops, code)]
        code = torch.cat([code, loops])
        weight = None if weight is None else torch.cat([weight, weight.new_ones(loops.numel())])
    code, order = code.sort()
    return torch.stack([code // num_nodes, code % num_nodes]), None if weight is None else weight[order]


def undirected(pairs: NDArray[Any], num_nodes: int, *, self_loops: bool) -> Tensor:
    """Both directions of every edge, once each, sorted by source and target: ``A ∨ Aᵀ``, then ``∨ I`` if asked for.

    `pairs` are ``[2, E]`` in any order and direction; their self-loops and repetitions are removed first. An edge is
    one number while it is sorted, which keeps thirty million edges within seconds and two gigabytes.
    """
    source, target = (np.asarray(end) for end in pairs)
    proper = source != target
    if not proper.all():
        source, target = source[proper], target[proper]
    count, loops = len(source), num_nodes if self_loops else 0
    codes = np.empty(2 * count + loops, dtype=np.int64)
    for part, first, second in ((codes[:count], source, target), (codes[count : 2 * count], target, source)):
        np.multiply(first, num_nodes, out=part, dtype=np.int64)
        part += second
    codes[2 * count :] = np.arange(loops) * (num_nodes + 1)
    codes = sorted_unique(codes)
    edge_index = np.empty((2, codes.size), dtype=np.int64)
    np.divmod(codes, num_nodes, out=(edge_index[0], edge_index[1]))
    return torch.from_numpy(edge_index)


def sorted_unique(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each number once, ascending; the array is sorted in place."""
    codes.sort()
    first = np.ones(codes.size, dtype=bool)
    np.not_equal(codes[1:], codes[:-1], out=first[1:])
    return codes if first.all() else codes[first]


def check_choices(self_loops: str, duplicates: str) -> None:
    """Raises a UserError for a word that `tidy_edges` does not know."""
    for name, given, kind in (("self_loops", self_loops, SelfLoops), ("duplicates", duplicates, Duplicates)):
        if given not in get_args(kind):
            raise UserError(f"{name}: expected one of {', '.join(get_args(kind))}, got {given!r}")


def _merge(
    code: Tensor, weight: Tensor | None, names: Sequence[object], how: Duplicates, *, directions: bool
) -> tuple[Tensor, Tensor | None]:
    """Each code once; of its weights their `how`, or their common value where `directions` of one edge meet."""
    if weight is None:
        return code.unique(), None
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
        raise DataError(
            f"the edge between nodes {first} and {second} is given more than once, with different "
            f"weights ({found}); pass directed=true if its two directions differ, or duplicates=sum, mean or max",
            argument="duplicates",
        )
    return unique, low
