"""A number for every pair of nodes of one graph, over all graphs of a batch: dense, and never across graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.attention.segments import Segments


@dataclass(frozen=True)
class PairMatrix:
    """Blocks ``[graphs, n, n]``, row i holding what node i receives by.

    Args:
        parts: One tensor a block of `segments`; a single one where there is one graph. Zero at padding.
        segments: The graphs; None for one graph.
    """

    parts: tuple[Tensor, ...]
    segments: Segments | None

    @staticmethod
    def make(
        function: Callable[..., Tensor], segments: Segments | None, *tensors: Tensor, padding: float = 0.0
    ) -> PairMatrix:
        """From a function of rows: blocks ``[graphs, n, …]`` → ``[graphs, n, n]``; pairs with padding get `padding`."""
        if segments is None:
            return PairMatrix((function(*(tensor.unsqueeze(0) for tensor in tensors)),), None)
        parts = []
        for block in segments.blocks:
            part = function(*(block.pad(tensor) for tensor in tensors))
            if not block.full:
                real = block.mask
                part = part.masked_fill(~(real.unsqueeze(1) & real.unsqueeze(2)), padding)
            parts.append(part)
        return PairMatrix(tuple(parts), segments)

    def map(self, function: Callable[..., Tensor], *others: PairMatrix) -> PairMatrix:
        """The function of each block, with the same block of others beside it."""
        parts = zip(self.parts, *(other.parts for other in others), strict=True)
        return PairMatrix(tuple(function(*blocks) for blocks in parts), self.segments)

    def __matmul__(self, z: Tensor) -> Tensor:
        """``[N, c]``: what every node receives."""
        if self.segments is None:
            return self.parts[0].squeeze(0) @ z
        blocks = zip(self.parts, self.segments.blocks, strict=True)
        return self.segments.gather([part @ block.pad(z) for part, block in blocks])

    def row_sums(self) -> Tensor:
        """``[N]``."""
        return self._rows([part.sum(2) for part in self.parts])

    def column_sums(self) -> Tensor:
        """``[N]``."""
        return self._rows([part.sum(1) for part in self.parts])

    def total(self) -> Tensor:
        """Sum of all entries."""
        return torch.stack([part.sum() for part in self.parts]).sum()

    def softmax(self) -> PairMatrix:
        """Rows that sum to one; minus infinity at padding becomes zero."""
        return self.map(lambda part: torch.softmax(part, -1).nan_to_num(0.0))

    def _rows(self, parts: list[Tensor]) -> Tensor:
        return parts[0].squeeze(0) if self.segments is None else self.segments.gather(parts)
