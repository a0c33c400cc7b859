r"""`difformer.zoo.biased_attention` on a CPU: all heads, and as many rows at a time as stay in the cache until done.

A block of scores is made, used and forgotten; backward makes it again from the logarithm ℓ_i of each row's sum:

.. math::
    p_{ij} = e^{s_{ij} - ℓ_i}, \qquad ∂s_{ij} = p_{ij} (∂P_i^\top v_j - ∂P_i^\top P_i), \qquad
    ∂b_d = \sum_{φ(i, j) = d} ∂s_{ij}.

What is subtracted from a row or multiplies it by one is a channel more of a product, not a pass over the block. Biases
of two neighbouring columns are one entry of a table of pairs, so that half as many are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.nn import functional

from difformer.eager import is_eager
from difformer.zoo.row_threads import share_out

CACHED = 1 << 17  # scores of a block: a thread works on two arrays of them
LANES = 8
SPREAD = 60.0  # of scores of a row, up to which a bound of its largest one serves as well as that itself
PAIRED = {torch.float32: torch.complex64, torch.float64: torch.complex128}  # two numbers as one


def serves(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> bool:
    """Whether `attend_blocks` is for these: plain tensors of one type on a CPU."""
    return (
        is_eager(q, k, v, table)
        and q.device.type == "cpu"
        and q.dtype in PAIRED
        and q.dtype == k.dtype == v.dtype == table.dtype
        and forward_ad._current_level < 0
    )


@dataclass(frozen=True)
class Places:
    """φ of all pairs of one graph, as blocks ask for it.

    Args:
        single: ``[N, W]`` uint8: φ, plus ``never + 1`` times the number of the column modulo `lanes`. W is N or, if
            that is odd, N + 1; φ is `never` in the last column then.
        double: ``[N, W / 2]`` int32: φ of a column times ``never + 1``, plus that of the next one.
        never: The number that stands for no node at all.
        lanes: Sums over a distance are made in so many parts: an addition need not wait for the one before it.
    """

    single: Tensor
    double: Tensor
    never: int
    lanes: int

    @staticmethod
    def of(hops: Tensor, distances: int) -> Places:
        """From ``hops [N, N]``, all below `distances`."""
        padded = functional.pad(hops, (0, 1), value=distances) if hops.shape[1] % 2 else hops
        double = padded[:, ::2].int().mul_(distances + 1).add_(padded[:, 1::2])
        lanes = min(LANES, 256 // (distances + 1))
        lane = torch.arange(padded.shape[1], device=hops.device) % lanes
        return Places(padded + (lane * (distances + 1)).to(torch.uint8), double, distances, lanes)

    def sums(self, values: Tensor, rows: slice) -> Tensor:
        """``[never + 1]``: sums of ``values [rows, W]`` of each φ."""
        size = self.never + 1
        parts = torch.bincount(self.single[rows].view(-1), values.view(-1), minlength=self.lanes * size)
        return parts.view(self.lanes, size).sum(0)

    def rows(self) -> list[slice]:
        """Blocks."""
        n, width = self.single.shape
        step = max(CACHED // max(width, 1), 8)
        return [slice(start, start + step) for start in range(0, n, step)]


class _Scores:
    """Blocks of s_ij - shift_i of one head after the other."""

    def __init__(self, places: Places, k: Tensor, table: Tensor) -> None:
        heads = k.shape[0]
        self.width = places.single.shape[1]
        self.places = places
        # Keys with a column of ones, by which a row is shifted.
        self.keys = _with_ones(k, places).mT.contiguous()
        values = functional.pad(table.T, (0, 1), value=-torch.inf)  # [H, distances + never]
        size = values.shape[1]
        pairs = torch.stack([values.unsqueeze(2).expand(-1, -1, size), values.unsqueeze(1).expand(-1, size, -1)], -1)
        self.table = pairs.reshape(heads, -1).view(PAIRED[k.dtype])

    def space(self) -> Tensor:
        """Memory for a block, to be used again for the next one."""
        return self.keys.new_empty(self.places.rows()[0].stop, self.width)

    def block(self, head: int, rows: slice, q: Tensor, space: Tensor) -> Tensor:
        """``[rows, W]``; `q` holds 1/√c of queries and minus the shift, ``[rows, c + 1]``."""
        index = self.places.double[rows]
        found = space[: index.shape[0]]
        torch.index_select(self.table[head], 0, index.view(-1), out=found.view(-1).view(self.table.dtype))
        return found.addmm_(q, self.keys[head])


def _shifts(q: Tensor, k: Tensor, table: Tensor, scores: _Scores) -> Tensor:
    """``[H, N]``: at least as large as the scores of a row, and not much larger than the largest."""
    reach = q.norm(dim=2) * k.norm(dim=2).amax(1, keepdim=True)
    if bool((2 * reach.amax(1) + table.amax(0) - table.amin(0)).amax() <= SPREAD):
        return reach + table.amax(0).unsqueeze(1)
    found = torch.empty_like(reach)
    still = functional.pad(q, (0, 1))

    def work(blocks: Sequence[slice]) -> None:
        space = scores.space()
        for rows in blocks:
            for h in range(q.shape[0]):
                found[h, rows] = scores.block(h, rows, still[h, rows], space).amax(1)

    share_out(work, scores.places.rows())
    return found


class _Attend(torch.autograd.Function):
    """``q, k, v [H, N, c]``, ``table [distances, H]`` → ``[H, N, c]``."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor, places: Places) -> Tensor:
        heads, n, channels = v.shape
        scores = _Scores(places, k, table)
        q = q * q.shape[2] ** -0.5
        queries = torch.cat([q, -_shifts(q, k, table, scores).unsqueeze(2)], 2)
        values = _with_ones(v, places)
        sums = v.new_empty(heads, n, channels + 1)

        def work(blocks: Sequence[slice]) -> None:
            space = scores.space()
            for rows in blocks:
                for h in range(heads):
                    torch.mm(scores.block(h, rows, queries[h, rows], space).exp_(), values[h], out=sums[h, rows])

        share_out(work, places.rows())
        total = sums[..., -1:]
        out = sums[..., :-1] / total
        # Backward needs queries with what makes a row's weights sum to one.
        queries[..., -1:] -= total.log()
        ctx.save_for_backward(queries, k, v, table, out)
        ctx.places = places
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, k, v, table, out = ctx.saved_tensors
        places: Places = ctx.places
        heads, n, channels = v.shape
        scores = _Scores(places, k, table)
        grad = grad.contiguous()
        # ∂P_iᵀ v_j - ∂P_iᵀ P_i is one product: values with a column of ones.
        outer = torch.cat([grad, -(grad * out).sum(2, keepdim=True)], 2)
        values = _with_ones(v, places).mT.contiguous()
        keys = functional.pad(k, (0, 0, 0, scores.width - n))
        to_q = torch.empty_like(k)

        def work(blocks: Sequence[slice]) -> tuple[Tensor, Tensor, Tensor]:
            to_k, to_v = k.new_zeros(heads, k.shape[2], scores.width), v.new_zeros(heads, channels, scores.width)
            to_table = table.new_zeros(heads, places.never + 1)
            space, second = scores.space(), scores.space()
            for rows in blocks:
                for h in range(heads):
                    weights = scores.block(h, rows, queries[h, rows], space).exp_()
                    to_v[h].addmm_(grad[h, rows].T, weights)
                    slopes = torch.mm(outer[h, rows], values[h], out=second[: weights.shape[0]]).mul_(weights)
                    torch.mm(slopes, keys[h], out=to_q[h, rows])
                    to_k[h].addmm_(queries[h, rows, :-1].T, slopes)
                    to_table[h] += places.sums(slopes, rows)
            return to_k, to_v, to_table

        shares = share_out(work, places.rows())
        to_k, to_v, to_table = (torch.stack(parts).sum(0) for parts in zip(*shares, strict=True))
        to_q *= k.shape[2] ** -0.5
        return to_q, to_k[..., :n].mT, to_v[..., :n].mT, to_table[:, :-1].T, None


def _with_ones(v: Tensor, places: Places) -> Tensor:
    """``[H, W, c + 1]``: keys or values with a column of ones; zero where there is no node."""
    heads, n, _ = v.shape
    return functional.pad(torch.cat([v, v.new_ones(heads, n, 1)], 2), (0, 0, 0, places.single.shape[1] - n))


def attend_blocks(q: Tensor, k: Tensor, v: Tensor, table: Tensor, places: Places) -> Tensor:
    """P of the formula for every head of one graph.

    Args:
        q, k, v: ``[N, H, c]``.
        table: b, ``[distances, H]``.
        places: φ.

    Returns:
        ``[N, H, c]``.
    """
    if q.shape[0] == 0:
        return v
    with torch.autocast("cpu", enabled=False):
        return _Attend.apply(*(x.transpose(0, 1).contiguous() for x in (q, k, v)), table, places).transpose(0, 1)
