"""What one rank trains on: its own parts, joined, and its connections to all others.

With K parts and P ranks, rank r takes parts ⌊rK/P⌋ … ⌊(r + 1)K/P⌋ - 1, so one folder of many parts serves any number of
ranks; with more than K ranks some have no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.data import Split
from difformer.distributed.graph_partition import Part
from difformer.distributed.halo import Plan, ShardedGraph
from difformer.distributed.process_group import Ranks
from difformer.distributed.senders import Rows

STRIDE = 2**40  # more rows than a rank can have


@dataclass(frozen=True)
class Shard:
    """The nodes of one rank.

    Args:
        rows: Their global numbers, observed edges, and the sizes of all ranks.
        x: ``[n, F]`` features.
        y: ``[n, …]`` targets.
        splits: With rows of this rank.
    """

    rows: Rows
    x: Tensor
    y: Tensor
    splits: tuple[Split, ...]

    @property
    def ranks(self) -> Ranks:
        return self.rows.ranks


def parts_of(rank: int, ranks: int, parts: int) -> range:
    """The parts that a rank takes."""
    return range(rank * parts // ranks, (rank + 1) * parts // ranks)


def assemble(
    ranks: Ranks,
    read: Callable[[int], Part],
    sizes: Sequence[int],
    names: Sequence[str],
    *,
    num_edges: int,
    empty: Callable[[], Part],
) -> Shard:
    """The shard of this rank; all ranks must call it together.

    Args:
        ranks: The group.
        read: Gives a part by its number.
        sizes: Nodes of every part.
        names: Of the splits.
        num_edges: Edges of the whole graph; with none there is no observed structure at all.
        empty: Gives a part without nodes, for a rank that has none.
    """
    own = parts_of(ranks.rank, ranks.size, len(sizes))
    found = [read(number) for number in own] or [empty()]
    starts, owners = _places(sizes, ranks.size)
    offsets = [int(starts[number]) for number in own] or [0]
    counts = tuple(sum(sizes[number] for number in parts_of(r, ranks.size, len(sizes))) for r in range(ranks.size))
    graph = None
    if num_edges:
        graph = _graph(ranks, found, own, offsets, starts, owners, counts[ranks.rank])
    splits = tuple(_split(names[i], [part.splits[i] for part in found], offsets) for i in range(len(names)))
    x = found[0].x if len(found) == 1 else _stack([part.x for part in found])
    numbers = torch.cat([part.nodes for part in found]).to(ranks.device)
    return Shard(Rows(ranks, numbers, counts, graph), x, torch.cat([part.y for part in found]), splits)


def _stack(parts: list[Tensor]) -> Tensor:
    """Rows of all parts behind each other, dense or CSR."""
    if parts[0].layout == torch.strided:
        return torch.cat(parts)
    crow, before = [parts[0].crow_indices()], int(parts[0].crow_indices()[-1])
    for part in parts[1:]:
        crow.append(part.crow_indices()[1:] + before)
        before += int(part.crow_indices()[-1])
    columns, values = torch.cat([p.col_indices() for p in parts]), torch.cat([p.values() for p in parts])
    size = (sum(p.shape[0] for p in parts), parts[0].shape[1])
    return torch.sparse_csr_tensor(torch.cat(crow), columns, values, size)


def _places(sizes: Sequence[int], ranks: int) -> tuple[Tensor, Tensor]:
    """Where each part begins among the rows of its rank, and that rank."""
    starts, owners = torch.zeros(2, len(sizes), dtype=torch.long)
    for rank in range(ranks):
        at = 0
        for number in parts_of(rank, ranks, len(sizes)):
            starts[number], owners[number] = at, rank
            at += sizes[number]
    return starts, owners


def _split(name: str, parts: list[tuple[Tensor, Tensor, Tensor]], offsets: Sequence[int]) -> Split:
    joined = [torch.cat([part[i] + at for part, at in zip(parts, offsets, strict=True)]) for i in range(3)]
    return Split(name, joined[0], joined[1], joined[2])


def _graph(
    ranks: Ranks, parts: list[Part], own: range, offsets: Sequence[int], starts: Tensor, owners: Tensor, size: int
) -> ShardedGraph:
    """Edges of all own parts with one numbering: own rows, then a halo ordered by rank and row."""
    sources, targets, weights = [], [], []
    halos: list[Tensor] = []
    for part, at in zip(parts, offsets, strict=True):
        assert part.source is not None
        assert part.target is not None
        assert part.halo_part is not None
        assert part.halo_row is not None
        n = part.nodes.numel()
        halo = owners[part.halo_part] * STRIDE + starts[part.halo_part] + part.halo_row
        inside = owners[part.halo_part] == ranks.rank if len(own) else torch.zeros(0, dtype=torch.bool)
        # Sources as numbers from 0 on where they are own rows, from -1 down where they are not: row h of all halos.
        begun = sum(h.numel() for h in halos)
        table = torch.where(inside, starts[part.halo_part] + part.halo_row, -1 - begun - torch.arange(halo.numel()))
        place = torch.cat([at + torch.arange(n), table])
        sources.append(place[part.source])
        targets.append(part.target + at)
        halos.append(halo)
        if part.edge_weight is not None:
            weights.append(part.edge_weight)
    source, every = torch.cat(sources), torch.cat(halos)
    used = torch.zeros(every.numel(), dtype=torch.bool)
    used[-1 - source[source < 0]] = True
    halo, order = torch.unique(every[used], return_inverse=True)
    position = torch.zeros(every.numel(), dtype=torch.long)
    position[used] = order
    source = torch.where(source < 0, size + position[(-1 - source).clamp_min(0)] if every.numel() else source, source)
    plan = Plan.make(ranks, halo // STRIDE, halo % STRIDE)
    weight = torch.cat(weights).to(ranks.device) if weights else None
    return ShardedGraph(plan, size, source.to(ranks.device), torch.cat(targets).to(ranks.device), weight)
