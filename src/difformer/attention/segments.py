"""Segments: several graphs in one set of rows, kept apart.

All-pair propagation over a batch must never let one graph see another. Graphs are laid into zero-padded blocks
``[graphs, nodes, …]``, one block for all graphs whose sizes share a power of two, so that at most half of a block is
padding and each block is one batched matrix product. The layout is worked out once and serves every layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Graphs of similar size as one padded block.

    Args:
        rows: ``[graphs, nodes]`` int64: which row of the input stands at each place; 0 where there is padding.
        mask: ``[graphs, nodes]`` bool: True where a place holds a row.
        sizes: ``[graphs]`` int64: rows of each graph.
    """

    rows: Tensor
    mask: Tensor
    sizes: Tensor

    def pad(self, x: Tensor) -> Tensor:
        """``[N, …]`` to ``[graphs, nodes, …]``, zero where there is no row."""
        blocks = x[self.rows]
        return blocks * self.mask.view(*self.mask.shape, *[1] * (x.dim() - 1)).to(x.dtype)


class Segments:
    """The graphs of a batch vector, ready for all-pair propagation.

    Args:
        batch: ``[N]`` int64, the graph of each row, in any order; numbers without a row are allowed.
        num_graphs: How many graphs there are; worked out where it is left out.

    Raises:
        ValueError: If `batch` is not a one-dimensional tensor of non-negative integers.
    """

    def __init__(self, batch: Tensor, num_graphs: int | None = None) -> None:
        if batch.dim() != 1 or batch.is_floating_point() or batch.dtype == torch.bool:
            raise ValueError(f"batch must be a one-dimensional integer tensor, got {batch.dtype} {tuple(batch.shape)}")
        if batch.numel() and int(batch.min()) < 0:
            raise ValueError(f"batch must hold graph numbers from 0, got {int(batch.min())}")
        needed = int(batch.max()) + 1 if batch.numel() else 0
        if num_graphs is not None and num_graphs < needed:
            raise ValueError(f"num_graphs is {num_graphs}, but batch names graph {needed - 1}")
        self.batch = batch.long()
        self.num_graphs = needed if num_graphs is None else num_graphs
        self.sizes = torch.bincount(self.batch, minlength=self.num_graphs)
        self.blocks = tuple(self._blocks())

    def _blocks(self) -> list[Block]:
        order = torch.argsort(self.batch, stable=True)
        start = self.sizes.cumsum(0) - self.sizes
        # Sizes 2^(b-1) < n ≤ 2^b share block b.
        exponent = torch.ceil(torch.log2(self.sizes.clamp_min(1).double())).long()
        blocks = []
        for b in exponent[self.sizes > 0].unique().tolist():
            graphs = ((exponent == b) & (self.sizes > 0)).nonzero().squeeze(1)
            sizes = self.sizes[graphs]
            place = torch.arange(int(sizes.max()), device=order.device)
            mask = place < sizes.unsqueeze(1)
            position = torch.where(mask, start[graphs].unsqueeze(1) + place, 0)
            blocks.append(Block(torch.where(mask, order[position], 0), mask, sizes))
        return blocks

    def gather(self, parts: list[Tensor]) -> Tensor:
        """Padded results, one a block, back to rows ``[N, …]``."""
        first = parts[0]
        out = first.new_zeros(self.batch.numel(), *first.shape[2:])
        rows = torch.cat([block.rows[block.mask] for block in self.blocks])
        return out.index_copy(
            0, rows, torch.cat([part[block.mask] for part, block in zip(parts, self.blocks, strict=True)])
        )

    def has_edges(self, edge_index: Tensor) -> Tensor:
        """``[N]`` bool: whether a row's graph has at least one edge."""
        found = torch.zeros(self.num_graphs, dtype=torch.bool, device=self.batch.device)
        found[self.batch[edge_index[1]]] = True
        return found[self.batch]


def as_segments(batch: Tensor | Segments | None) -> Segments | None:
    """A batch vector as `Segments`; None (one graph) and ready ones pass through."""
    return Segments(batch) if isinstance(batch, Tensor) else batch
