"""Segments: several graphs in one set of rows, kept apart.

Graphs of similar size are laid side by side into blocks ``[graphs, nodes]``, so that each block is one batched matrix
product. If a graph is shorter than its block, its own first row is repeated and masked: nothing comes from another
graph. The layout is computed once for all layers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from difformer.errors import UserError
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager

# What compiled operators take of a batch, see `blocks`: they take tensors and numbers, not objects.
Layout = Tensor | None
Shapes = Sequence[int]


@dataclass(frozen=True)
class Block:
    """Graphs of similar size side by side; or, without `rows`, all rows as they are."""

    rows: Tensor = None  # type: ignore[assignment]  # [graphs, nodes]: the row of the input at each place
    sizes: Tensor = None  # type: ignore[assignment]  # [graphs]: rows of each graph
    order: Tensor = None  # type: ignore[assignment]  # the rows that are not padding
    place: Tensor | None = None  # their places in the block; None without padding
    runs: int = 1

    @property
    def mask(self) -> Tensor:
        """``[graphs, nodes]`` bool: True where a place holds a row of its own."""
        return torch.arange(self.rows.shape[1], device=self.rows.device) < self.sizes.unsqueeze(1)

    @functools.cached_property
    def padding(self) -> Tensor | None:
        """``[runs × graphs, nodes]`` bool: True where there is no row; None if there is one everywhere."""
        return None if self.place is None else ~self.mask.repeat(self.runs, 1)

    def count(self, keys: Tensor) -> Tensor | int:
        """Keys that each row sums over, to go with ``[runs × graphs, nodes, 1]``."""
        return int(keys.shape[1]) if self.place is None else self.sizes.repeat(self.runs).view(-1, 1, 1)

    def pad(self, x: Tensor) -> Tensor:
        """``[N, …]`` to ``[graphs, nodes, …]``, zero where there is no row."""
        return self.take(x.unsqueeze(0), zero=True)

    def take(self, x: Tensor, *, zero: bool = False) -> Tensor:
        """``[runs, N, …]`` to ``[runs × graphs, nodes, …]``; with `zero`, zero at padding."""
        taken = x.index_select(1, self.rows.flatten()).view(-1, self.rows.shape[1], *x.shape[2:])
        padding = self.padding if zero else None
        return taken if padding is None else taken.masked_fill_(padding.view(*padding.shape, *[1] * (x.dim() - 2)), 0)

    def put(self, x: Tensor, result: Tensor) -> None:
        """The block's result back into rows ``[runs, N, …]``."""
        flat = result.view(x.shape[0], self.rows.numel(), *x.shape[2:])
        x.index_copy_(1, self.order, flat if self.place is None else flat.index_select(1, self.place))

    def pieces(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], state: Sequence[Tensor] = (), *, zeroed: int = 0
    ) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """For each head its number and views ``[problems, n, …]`` of `inputs`, of room for `outputs` and of `state`.

        The first `zeroed` inputs are zero at padding. After the last head the results are put into `outputs`.
        """
        if self.rows is None:
            yield from enumerate(by_head(*inputs, *outputs, *state))
            return
        graphs, nodes = self.rows.shape
        taken = [self.take(x, zero=at < zeroed) for at, x in enumerate(inputs)]
        room = [x.new_empty((x.shape[0] * graphs, nodes, *x.shape[2:])) for x in outputs]
        yield from enumerate(by_head(*taken, *room, *state))
        for x, result in zip(outputs, room, strict=True):
            self.put(x, result)


def blocks(layout: Layout, shapes: Shapes, runs: int = 1) -> Iterator[Block]:
    """The blocks that `packed` describes, or the whole graph."""
    if layout is None:
        yield Block()
        return
    counts = list(zip(shapes[0::3], shapes[1::3], shapes[2::3], strict=True))
    parts = iter(layout.split([size for g, n, real in counts for size in (g * n, real, real, g)]))
    for (graphs, nodes, real), rows, order, place, sizes in zip(counts, parts, parts, parts, parts, strict=True):
        yield Block(rows.view(graphs, nodes), sizes, order, None if real == graphs * nodes else place, runs)


def packed(segments: Segments | None) -> tuple[Layout, list[int]]:
    """What `blocks` takes; None is one graph."""
    if segments is None:
        return None, []
    return segments.layout, [number for shape in segments.shapes for number in shape]


def by_head(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views ``[problems, n, …]`` of tensors ``[B, n, H or 1, …]``: all heads of one problem together, or one by one."""
    heads = max(x.shape[2] for x in tensors)
    if heads > 1 and all(x.shape[0] == 1 and x.shape[2] == heads for x in tensors):
        yield tuple(x[0].transpose(0, 1) for x in tensors)
        return
    for h in range(heads):
        yield tuple(x[:, :, h if x.shape[2] > 1 else 0] for x in tensors)


class Policy(NamedTuple):
    """How graphs are put into blocks."""

    stretch: float  # a block takes sizes up to this multiple of its smallest
    enough: int  # a block with this many pairs takes no larger graph: another block costs less than padding
    most: int  # pairs of a block of more than one graph


# On a CPU a block should stay in the cache, and padding costs more than another call; on a GPU it is the reverse.
CPU_POLICY = Policy(stretch=1.25, enough=1 << 17, most=1 << 19)
GPU_POLICY = Policy(stretch=2.0, enough=1 << 24, most=1 << 26)


class Segments:
    """The graphs of a batch vector, ready for all-pair propagation.

    Args:
        batch: ``[N]`` int64, the graph of each row, in any order; a graph may have no rows.
        num_graphs: How many graphs there are; None for as many as `batch` names.

    Attributes:
        batch: ``[N]`` int64, as given.
        sizes: ``[num_graphs]`` int64, rows of each graph.
        by_graph: ``[N]``: the rows, graph after graph.
        layout: `rows`, `order`, `place` and `sizes` of each `Block`.
        shapes: For each block its graphs, its nodes and its places that are no padding.
        largest: Rows of the largest graph.

    Raises:
        ValueError: If `batch` is not a one-dimensional tensor of non-negative integers.
    """

    def __init__(self, batch: Tensor, num_graphs: int | None = None) -> None:
        if batch.dim() != 1 or batch.is_floating_point() or batch.dtype == torch.bool:
            raise UserError(f"batch must be a one-dimensional integer tensor, got {batch.dtype} {tuple(batch.shape)}")
        if batch.numel() and int(batch.min()) < 0:
            raise UserError(f"batch must hold graph numbers from 0, got {int(batch.min())}")
        needed = int(batch.max()) + 1 if batch.numel() else 0
        if num_graphs is not None and num_graphs < needed:
            raise UserError(f"num_graphs is {num_graphs}, but batch names graph {needed - 1}")
        self.num_graphs = needed if num_graphs is None else num_graphs
        with torch.inference_mode(False):  # tensors of inference mode could never be trained on
            self.batch = batch.long().clone() if batch.is_inference() else batch.long()
            self.sizes = torch.bincount(self.batch, minlength=self.num_graphs)
            self._lay_out(CPU_POLICY if batch.device.type == "cpu" else GPU_POLICY)

    def _lay_out(self, policy: Policy) -> None:
        self.by_graph = torch.argsort(self.batch, stable=True)
        sizes, device = self.sizes.cpu(), self.batch.device  # blocks are cut by a loop: one copy to the host per batch
        graphs = torch.argsort(sizes, stable=True)[int((sizes == 0).sum()) :]
        lengths, start = sizes[graphs], (sizes.cumsum(0) - sizes)[graphs]
        self.shapes = tuple(_cut(lengths, policy))
        self.largest = self.shapes[-1][1] if self.shapes else 0
        each, position, place = [graphs for graphs, _, _ in self.shapes], [start[:0]], [start[:0]]
        for (_, nodes, _), first, size in zip(self.shapes, start.split(each), lengths.split(each), strict=True):
            within = torch.arange(nodes)
            real = within < size.unsqueeze(1)
            # The nodes of a graph from `first` in `by_graph`, then its first one again and again.
            position.append((first.unsqueeze(1) + torch.where(real, within, 0)).flatten())
            place.append(real.flatten().nonzero().squeeze(1))
        rows = self.by_graph[torch.cat(position).to(device)].split([len(part) for part in position])
        places = torch.cat(place).to(device).split([len(part) for part in place])
        parts = zip(rows, places, [places[0], *lengths.to(device).split(each)], strict=True)
        self.layout = torch.cat([part for row, at, size in parts for part in (row, row[at], at, size)])

    @functools.cached_property
    def place_by_graph(self) -> Tensor:
        """``[N]``: the place of each row in `by_graph`."""
        return torch.argsort(self.by_graph)

    @functools.cached_property
    def ranges(self) -> Tensor:
        """``[3, N]`` int32, rows taken graph after graph: where a row's graph begins, where it ends, which it is."""
        graph = self.batch[self.by_graph]
        end = self.sizes.cumsum(0)
        return torch.stack([(end - self.sizes)[graph], end[graph], graph]).int()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks, smallest graphs first."""
        return tuple(blocks(*packed(self)))

    def sums(self, x: Tensor) -> Tensor:
        """Sums of rows ``[N, …]`` over each graph, ``[num_graphs, …]``."""
        return x.new_zeros(self.num_graphs, *x.shape[1:]).index_add(0, self.batch, x)

    def means(self, x: Tensor) -> Tensor:
        """Means likewise; zero for a graph without rows."""
        return self.sums(x) / self.sizes.to(x.dtype).clamp_min(1).view(-1, *[1] * (x.dim() - 1))

    def gather(self, parts: list[Tensor]) -> Tensor:
        """Padded results ``[graphs, nodes, …]``, one per block, back to rows ``[N, …]``."""
        blocks, flat = self.blocks, [part.flatten(0, 1) for part in parts]
        flat = [x if block.place is None else x[block.place] for x, block in zip(flat, blocks, strict=True)]
        order = torch.cat([block.order for block in blocks])
        return flat[0].new_zeros(self.batch.numel(), *flat[0].shape[1:]).index_copy(0, order, torch.cat(flat))

    def has_edges(self, edge_index: Tensor) -> Tensor:
        """``[N]`` bool: whether a row's graph has at least one edge."""
        found = torch.zeros(self.num_graphs, dtype=torch.bool, device=self.batch.device)
        found[self.batch[edge_index[1]]] = True
        return found[self.batch]

    def __repr__(self) -> str:
        return f"Segments({self.batch.numel()} rows, {self.num_graphs} graphs, {len(self.shapes)} blocks)"


def _cut(lengths: Tensor, policy: Policy) -> list[tuple[int, int, int]]:
    """Ascending sizes cut into blocks: graphs, nodes and real places of each."""
    blocks: list[tuple[int, int, int]] = []
    smallest = 0  # graph of the last block
    for size, count in zip(*(x.tolist() for x in torch.unique_consecutive(lengths, return_counts=True)), strict=True):
        graphs, nodes, real = blocks[-1] if blocks else (0, 0, 0)
        begins = not blocks or size > policy.stretch * smallest or graphs * nodes**2 >= policy.enough
        while count:
            most = max(policy.most // size**2, 1)
            if begins or graphs >= most:
                blocks.append((0, 0, 0))
                (graphs, _, real), smallest, begins = blocks[-1], size, False
            taken = min(count, most - graphs)
            graphs, real, count = graphs + taken, real + taken * size, count - taken
            blocks[-1] = (graphs, size, real)
    return blocks


_SEGMENTS: ResultCache[Segments] = ResultCache()


def as_segments(batch: Tensor | Segments | None) -> Segments | None:
    """A batch vector as `Segments`, computed once per tensor; None (one graph) and `Segments` pass through."""
    if not isinstance(batch, Tensor):
        return batch
    if not is_eager(batch) or batch.is_inference():
        return Segments(batch)
    return _SEGMENTS.of(batch, (), lambda: Segments(batch.detach()))
