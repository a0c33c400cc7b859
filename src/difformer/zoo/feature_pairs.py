r"""What `difformer.zoo.gram_matrix` asks of features, worked out once: norms of rows, and pairs of channels.

Sums over pairs of rows of inner products of sparse rows are sums over those pairs of channels that meet in a row:

.. math::
    \sum_{ij} d_i d_j (v_i^\top v_j)^2 = \sum_{cd} \Big( \sum_i d_i v_{ic} v_{id} \Big)^2.

A row with m entries has m (m + 1) / 2 of them; a bag of words has fewer in all than there are pairs of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from difformer.nn.protocol import Features
from difformer.sparse import SparseMatrix

MOST_MEETINGS = 1 << 25  # of channels in rows: beyond, they take more room than they save time


@dataclass(frozen=True)
class ChannelPairs:
    """Pairs c ≤ d of channels, each that meets in a row once.

    Args:
        channels: c and d, ``[pairs]`` each.
        times: ``[pairs]``: 2 where c < d, as (d, c) is not there by itself; 1 where they are the same.
        products: ``[pairs, N]``: v_ic v_id.
        by_channel: ``[F, pairs]``: 1 where a channel is one of the pair.
    """

    channels: tuple[Tensor, Tensor]
    times: Tensor
    products: SparseMatrix
    by_channel: SparseMatrix

    @staticmethod
    def of(v: SparseMatrix) -> ChannelPairs:
        """Those of the rows of `v`."""
        rows, (n, width) = v.rows, v.shape
        crow, col, entries = rows.crow.long(), rows.col.long(), rows.col.numel()
        count = crow[1:] - crow[:-1]
        row = torch.arange(n, device=v.device).repeat_interleave(count)
        # Entry e of a row meets itself and all that follow in the row.
        follow = crow[1:][row] - torch.arange(entries, device=v.device)
        first = torch.arange(entries, device=v.device).repeat_interleave(follow)
        start = (follow.cumsum(0) - follow)[first]
        second = first + torch.arange(first.numel(), device=v.device) - start
        ends = torch.stack([col[first], col[second]]).sort(0).values
        known, pair = torch.unique(ends[0] * width + ends[1], return_inverse=True)
        c, d = known // width, known % width
        product = rows.value[first] * rows.value[second]
        number, apart = torch.arange(known.numel(), device=v.device), c != d
        channel = torch.cat([c, d[apart]])
        return ChannelPairs(
            (c, d),
            1 + apart.to(v.dtype),
            SparseMatrix.from_entries(pair, row[first], product, (known.numel(), n)),
            SparseMatrix.from_entries(
                channel,
                torch.cat([number, number[apart]]),
                torch.ones_like(channel, dtype=v.dtype),
                (width, len(known)),
            ),
        )


class Points:
    """Rows of features as points: they are not trained, and dense ones are moved, all alike, to lie around zero.

    Args:
        v: Features of any layout.

    Attributes:
        x: The points, ``[N, F]``.
        squares: ‖x_i‖², ``[N]``.
        serves: Whether nothing is negative, and pairs of channels are few enough.
    """

    def __init__(self, v: Features) -> None:
        self.x: Tensor | SparseMatrix
        if isinstance(v, Tensor) and v.layout != torch.strided:
            v = SparseMatrix.from_tensor(v)
        if isinstance(v, SparseMatrix):
            values, crow = v.rows.value, v.rows.crow.long()
            count = crow[1:] - crow[:-1]
            row = torch.arange(v.shape[0], device=v.device).repeat_interleave(count)
            # An object of its own: what is kept for `v` must not keep `v` alive.
            self.x = SparseMatrix(v.shape, v.rows, v.columns)
            self.squares = values.new_zeros(v.shape[0]).index_add(0, row, values.square())
            few = int((count * (count + 1)).sum()) <= 2 * MOST_MEETINGS
        else:
            values, few = v, True
            self.x = v - v.mean(0)
            self.squares = self.x.square().sum(1)
        self.serves = few and not bool((values < 0).any())

    @cached_property
    def pairs(self) -> ChannelPairs:
        """Of sparse rows."""
        assert isinstance(self.x, SparseMatrix)
        with torch.inference_mode(False), torch.no_grad():
            return ChannelPairs.of(self.x)
