r"""Rows on ranks as senders and receivers: the context of a layer whose rows are spread over processes.

A layer is row by row but for what its context sums (`difformer.nn.context`). Here each rank holds some rows, and

* norms over all rows are all-reduced;
* a summary of fixed size (simple and constant diffusivities, polynomials) is all-reduced, so that each rank answers its
  own queries: O(d²) numbers per layer, whatever N;
* for any other diffusivity, keys and values go round a ring (`ring`);
* observed messages come from neighbours on other ranks (`difformer.distributed.halo`).

So ``model(x, context=rows)`` is the whole model over ranks, and its outputs are those of one process, to rounding.

Ring: sums over keys only ever add, so each rank keeps its queries and meets the keys of one rank after the other: P
rounds, in each of which it works on the block it holds while the next is on its way. Backward the blocks go round once
more, and the gradients of keys and values follow them, one round behind, until they are home:

    round s, rank r:   block of rank (r - s) mod P.

Per layer each rank sends about N (1 - 1/P) rows of keys and values forward, as many backward, and N rows of their
gradients: O(N d) bytes. Time is O(N² d / P) per rank, memory O(N d / P).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from difformer.attention.polynomial import DEFAULT_TOL
from difformer.attention.scores import find_score, score_key, working_dtype
from difformer.attention.summary import Moments, Sums, adds_up, summarise
from difformer.attention.tiles import Sums as RunningSums
from difformer.attention.tiles import add_gradients, add_keys, row_terms
from difformer.diffusivity import Diffusivity
from difformer.distributed.halo import ShardedGraph
from difformer.distributed.process_group import Ranks, all_reduce
from difformer.distributed.watch import naming_the_dead
from difformer.errors import UserError
from difformer.nn.structure import SMALLEST_NORM


@dataclass(frozen=True)
class Rows:
    """The rows of one rank, and how they reach those of the others; a context of `difformer.nn.DIFFormer`.

    Args:
        ranks: The group.
        numbers: ``[n]`` global numbers of own rows.
        sizes: Number of rows of every rank.
        graph: Observed edges into own rows; None if the whole graph has no edges.
    """

    ranks: Ranks
    numbers: Tensor
    sizes: tuple[int, ...]
    graph: ShardedGraph | None

    @property
    def total(self) -> int:
        """N, over all ranks."""
        return sum(self.sizes)

    @property
    def has_edges(self) -> None:
        return None

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        squares = torch.stack([x.to(working_dtype(x.dtype)).square().sum() for x in (q, k)])
        norms = all_reduce(squares, self.ranks).sqrt().clamp_min(SMALLEST_NORM)
        return norms[0].to(q.dtype), norms[1].to(k.dtype)

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        tol = DEFAULT_TOL if backend == "polynomial" else None
        summed = adds_up(diffusivity, tol)
        if backend == "linear" and not summed:
            raise UserError(f"backend linear is for sums of fixed size, not for {diffusivity!r}; take backend=auto")
        if not summed or backend not in ("auto", "linear", "polynomial"):
            return ring(q, k, v, score_key(diffusivity, q.shape[-1]), self.sizes, self.ranks)
        with torch.autocast(q.device.type, enabled=False):
            own = summarise(k, v, diffusivity, tol=tol)
            if isinstance(own, Sums):
                return replace(own, sums=all_reduce(own.sums, self.ranks)).answer(q)
            assert isinstance(own, Moments)
            return replace(own, moments=all_reduce(own.moments, self.ranks)).answer(q)

    def observed(self, v: Tensor, norm: str) -> Tensor | None:
        return None if self.graph is None else self.graph.propagate(v, norm)


def ring(q: Tensor, k: Tensor, v: Tensor, key: str, sizes: tuple[int, ...], ranks: Ranks) -> Tensor:
    """``q, k [n, H, d]``, ``v [n, H or 1, c]`` of one rank → ``[n, H, c]``, over the keys of all ranks.

    Args:
        q, k, v: Own rows.
        key: Of the diffusivity, see `difformer.attention.scores.score_key`.
        sizes: Number of rows of every rank.
        ranks: The group.
    """
    wide = working_dtype(q.dtype)
    values = v.to(wide).expand(-1, q.shape[1], -1)
    return _Ring.apply(q.to(wide), k.to(wide), values, key, sizes, ranks).to(q.dtype)


class _Hop:
    """A block on its way to the next rank, and one on its way from the one before."""

    def __init__(self, ranks: Ranks, block: Tensor, rows: int) -> None:
        self.ranks, self.block = ranks, block
        self.came = block.new_empty(rows, *block.shape[1:])
        ranks.traffic.add("ring", block.numel() * block.element_size())
        after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
        ops = []
        # Both sides know which blocks are empty; those are not sent.
        if block.numel():
            ops.append(dist.P2POp(dist.isend, block, after))
        if self.came.numel():
            ops.append(dist.P2POp(dist.irecv, self.came, before))
        with naming_the_dead(ranks.watch):
            self.works = dist.batch_isend_irecv(ops) if ops else []

    def wait(self) -> Tensor:
        with naming_the_dead(self.ranks.watch):
            for work in self.works:
                work.wait()
        return self.came


def _rounds(ranks: Ranks, block: Tensor, sizes: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """The owner of each block that comes by, own first, and the block ``[rows, …]``."""
    for s in range(ranks.size):
        hop = None
        if s < ranks.size - 1:
            hop = _Hop(ranks, block, sizes[(ranks.rank - s - 1) % ranks.size])
        yield (ranks.rank - s) % ranks.size, block
        if hop is not None:
            block = hop.wait()


class _Ring(torch.autograd.Function):
    """``q, k [n, H, d]``, ``v [n, H, c]`` in the working precision; `sizes` are the rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, key: str, sizes: tuple[int, ...], ranks: Ranks) -> Tensor:
        score, d = find_score(key), q.shape[-1]
        scaled = (q * score.slope if score.exponential else q).transpose(0, 1).contiguous()
        out = q.new_empty(q.shape[1], q.shape[0], v.shape[-1])
        sums = RunningSums.start(score, out)
        for _, block in _rounds(ranks, torch.cat([k, v], -1), sizes):
            if block.numel() and q.numel():
                add_keys(score, scaled, *_apart(block, d), sums)
        _, total = sums.finish(sum(sizes), score.least)
        ctx.save_for_backward(scaled, k, v, out, total)
        ctx.key, ctx.sizes, ctx.ranks = key, sizes, ranks
        return out.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, total = ctx.saved_tensors
        score, ranks, sizes, d = find_score(ctx.key), ctx.ranks, ctx.sizes, k.shape[-1]
        a, inner = row_terms(score, grad.transpose(0, 1).contiguous(), out, total, None, sum(sizes))
        log_total = total if score.exponential else None
        q_grad = torch.zeros_like(q)
        follows: _Hop | None = None  # gradients of the block of this round, on their way from the rank before
        summed = k.new_empty(0)
        for owner, block in _rounds(ranks, torch.cat([k, v], -1), sizes):
            keys, values = _apart(block, d)
            key_grad, value_grad = torch.zeros_like(keys), torch.zeros_like(values)
            if block.numel() and q.numel():
                grads = (q_grad, key_grad, value_grad)
                add_gradients(score, q, keys, values, a, inner, log_total, grads)
            summed = torch.cat([key_grad, value_grad], -1).transpose(0, 1).contiguous()
            if follows is not None:
                summed += follows.wait()
            if ranks.size > 1:
                follows = _Hop(ranks, summed, sizes[(owner - 1) % ranks.size])
        home = summed if follows is None else follows.wait()
        if score.exponential:
            q_grad.mul_(score.slope)
        return q_grad.transpose(0, 1), home[..., :d], home[..., d:], None, None, None


def _apart(block: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Keys ``[H, m, d]`` and values ``[H, m, c]`` of a block ``[m, H, d + c]``."""
    return block[..., :d].transpose(0, 1).contiguous(), block[..., d:].transpose(0, 1).contiguous()
