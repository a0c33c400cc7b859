"""What one rank trains on: its own parts, joined, and its connections to all others.

With K parts and P ranks, rank r takes parts ⌊rK/P⌋ … ⌊(r + 1)K/P⌋ - 1, so one folder of many parts serves any number of
ranks; with more than K ranks some have no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from difformer.data import Split
from difformer.data.sparse_features import stack_rows
from difformer.distributed.graph_partition import Part
from difformer.distributed.process_group import Ranks
from difformer.distributed.senders import Plan, Rows, ShardedGraph

STRIDE = 2**40  # more rows than a rank can have


@dataclass(frozen=True)
class Shard:
    """The nodes of one rank."""

    rows: Rows  # their global numbers, observed edges, and the sizes of all ranks
    x: Tensor  # [n, F] features
    y: Tensor  # [n, …] targets
    splits: tuple[Split, ...]  # with rows of this rank
    names: tuple[str, ...]  # of the nodes, if the task has names


def assemble(
    ranks: Ranks, read: Callable[[int], Part], sizes: Sequence[int], split_names: Sequence[str], *, num_edges: int
) -> Shard:
    """The shard of this rank; all ranks must call it together.

    Args:
        ranks: The group.
        read: Gives a part by its number.
        sizes: Nodes of every part.
        split_names: Of the splits.
        num_edges: Edges of the whole graph; with none there is no observed structure at all.
    """
    bounds = [rank * len(sizes) // ranks.size for rank in range(ranks.size + 1)]
    shares = [range(*ends) for ends in pairwise(bounds)]  # the parts of each rank
    own = shares[ranks.rank]
    parts = [read(number) for number in own] or [read(0).nothing()]
    counts = tuple(sum(sizes[number] for number in share) for share in shares)
    # Where each part begins among the rows of its rank, and that rank.
    starts = torch.tensor([sum(sizes[share.start : number]) for share in shares for number in share])
    owners = torch.tensor([rank for rank, share in enumerate(shares) for _ in share])
    offsets = starts[list(own)].tolist() or [0]
    splits = []
    for i, name in enumerate(split_names):
        each = [[rows + at for rows in part.splits[i]] for part, at in zip(parts, offsets, strict=True)]
        splits.append(Split(name, *(torch.cat(rows) for rows in zip(*each, strict=True))))
    graph = None
    if num_edges:
        keys, targets = [], []  # the source of an edge as its rank and its row there
        for part, at in zip(parts, offsets, strict=True):
            mine = ranks.rank * STRIDE + at + torch.arange(part.nodes.numel())
            halo = owners[part.halo_part] * STRIDE + starts[part.halo_part] + part.halo_row
            keys.append(torch.cat([mine, halo])[part.source])
            targets.append(part.target + at)
        key = torch.cat(keys)
        away, source = key // STRIDE != ranks.rank, key % STRIDE
        halo, place = torch.unique(key[away], return_inverse=True)  # ordered by rank and row
        source[away] = counts[ranks.rank] + place
        weights = [part.edge_weight for part in parts if part.edge_weight is not None]
        ends = (source.to(ranks.device), torch.cat(targets).to(ranks.device))
        plan = Plan.make(ranks, halo // STRIDE, halo % STRIDE)
        graph = ShardedGraph(plan, counts[ranks.rank], *ends, torch.cat(weights).to(ranks.device) if weights else None)
    numbers = torch.cat([part.nodes for part in parts]).to(ranks.device)
    x, y = stack_rows([part.x for part in parts]), torch.cat([part.y for part in parts])
    names = tuple(name for part in parts for name in part.names)
    return Shard(Rows(ranks, numbers, counts, graph), x, y, tuple(splits), names)
