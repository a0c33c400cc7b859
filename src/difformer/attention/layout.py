"""How rows reach an operator: runs stacked by `torch.vmap`, heads, and the graphs of a batch.

Operators see ``[runs, N, heads, d]``. A whole graph is worked on where it lies; the graphs of a batch are taken out
block by block, and their results put back. Compiled operators take tensors, integers and strings, so a `Segments`
travels as `pack(segments)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer.attention.segments import Segments

Packed = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, list[int]]


def pack(segments: Segments | None) -> Packed:
    """Rows, order, place, lengths and shapes of `segments`, as a compiled operator takes them."""
    if segments is None:
        return None, None, None, None, []
    shapes = [number for shape in segments.shapes for number in shape]
    return segments.rows, segments.order, segments.place, segments.lengths, shapes


@dataclass(frozen=True)
class Piece:
    """One block of a batch, or a whole graph.

    Args:
        rows: The row at each place of the block, graph behind graph; None stands for all rows as they lie.
        order: Rows that are no padding.
        source: Their places in the block; None where nothing is padding.
        lengths: Rows of each problem, ``[runs × graphs]``; None where nothing is padding.
        graphs: Graphs in the block.
        nodes: Places of each.
    """

    rows: Tensor | None
    order: Tensor | None
    source: Tensor | None
    lengths: Tensor | None
    graphs: int
    nodes: int

    def take(self, x: Tensor) -> Tensor:
        """``[runs, N, …]`` to ``[runs × graphs, nodes, …]``."""
        if self.rows is None:
            return x
        return x.index_select(1, self.rows).view(x.shape[0] * self.graphs, self.nodes, *x.shape[2:])

    def room(self, x: Tensor) -> Tensor:
        """Where the result that belongs into `x` is written: `x` itself, or a block of its own."""
        return x if self.rows is None else x.new_empty((x.shape[0] * self.graphs, self.nodes, *x.shape[2:]))

    def put(self, x: Tensor, result: Tensor) -> None:
        """The block's result back into rows ``[runs, N, …]``."""
        if self.order is None:
            return
        flat = result.view(x.shape[0], self.graphs * self.nodes, *x.shape[2:])
        x.index_copy_(1, self.order, flat if self.source is None else flat.index_select(1, self.source))

    def padding(self) -> Tensor | None:
        """``[runs × graphs, nodes]`` bool: True where there is no row."""
        if self.lengths is None:
            return None
        return torch.arange(self.nodes, device=self.lengths.device) >= self.lengths.unsqueeze(1)


def pieces(
    rows: Tensor | None,
    order: Tensor | None,
    place: Tensor | None,
    lengths: Tensor | None,
    shapes: Sequence[int],
    *,
    runs: int,
) -> Iterator[Piece]:
    """The blocks of what `pack` gave, or the whole."""
    if rows is None or order is None or place is None or lengths is None:
        yield Piece(None, None, None, None, 1, 0)
        return
    at, start, graph = 0, 0, 0
    for graphs, nodes, real in zip(shapes[0::3], shapes[1::3], shapes[2::3], strict=True):
        full = real == graphs * nodes
        yield Piece(
            rows[at : at + graphs * nodes],
            order[start : start + real],
            None if full else place[start : start + real] - at,
            None if full else lengths[graph : graph + graphs].repeat(runs),
            graphs,
            nodes,
        )
        at, start, graph = at + graphs * nodes, start + real, graph + graphs


def by_head(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views ``[problems, n, …]`` of tensors ``[B, n, H or 1, …]``, nothing copied: one head after the other.

    The heads of one problem whose tensors all have them are taken together.
    """
    heads = max(x.shape[2] for x in tensors)
    if heads > 1 and all(x.shape[0] == 1 and x.shape[2] == heads for x in tensors):
        yield tuple(x[0].transpose(0, 1) for x in tensors)
        return
    for h in range(heads):
        yield tuple(x[:, :, h if x.shape[2] > 1 else 0] for x in tensors)


def stack_runs(info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """A vmapped axis joined to the axis of runs: ``[runs, …]`` to ``[batch × runs, …]``."""
    stacked = []
    for x, dim in zip(tensors, dims, strict=True):
        moved = x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        stacked.append(moved.flatten(0, 1))
    return stacked


def split_runs(info: Any, x: Tensor) -> Tensor:
    """The inverse of `stack_runs` for one result."""
    return x.unflatten(0, (info.batch_size, x.shape[0] // info.batch_size))


def serve_runs(operator: Any, tensors: int) -> None:
    """Teaches a custom operator `torch.vmap`: stacked runs join the axis of runs of its first `tensors` inputs.

    What follows them, such as a layout or the key of a score, is the same for all runs.
    """

    def stacked(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        results = operator(*stack_runs(info, in_dims[:tensors], args[:tensors]), *args[tensors:])
        if isinstance(results, Tensor):
            return split_runs(info, results), 0
        return tuple(split_runs(info, x) for x in results), (0,) * len(results)

    operator.register_vmap(stacked)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in: float64 for float64, float32 for all else."""
    return torch.float64 if dtype == torch.float64 else torch.float32
