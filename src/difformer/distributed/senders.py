r"""Rows on ranks as senders and receivers: the context of a layer whose rows are spread over processes.

A layer works row by row, except for the sums of its context (`difformer.nn.context`). Each rank holds some rows, and

* norms over all rows are all-reduced;
* a summary of fixed size (simple and constant diffusivities, polynomials) is all-reduced, so that each rank answers its
  own queries: O(d²) numbers per layer, whatever N;
* for any other diffusivity, keys and values go round a ring (`ring`);
* observed messages come from neighbours on other ranks (`ShardedGraph`).

So ``model(x, context=rows)`` is the whole model over ranks, and its outputs are those of one process, to rounding.

Ring: sums over keys only ever add, so each rank keeps its queries and meets the keys of one rank after the other: P
rounds, in each of which it works on the block it holds while the next is on its way. Backward the blocks go round once
more, and the gradients of keys and values follow them, one round behind, until they are home:

    round s, rank r:   block of rank (r - s) mod P.

Per layer each rank sends about N (1 - 1/P) rows of keys and values forward, as many backward, and N rows of their
gradients: O(N d) bytes. Time is O(N² d / P) per rank, memory O(N d / P).

Observed edges: a rank holds the edges into its own nodes O. Sources on other ranks are its *halo* H; which rows go to
which rank is planned once (`Plan`) and used by every layer of every step. The rows of S z that a rank owns are

.. math::
    (S z)_O = S_{OO} \, z_O + S_{OH} \, z_H,

and backward a rank returns ``S_{OH}ᵀ g``, which the owners add to ``S_{OO}ᵀ g``. In both directions the boundary
travels while the inner product is computed. The rank that owns a node holds all edges into it, hence knows its degree;
the degrees of the halo are fetched once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from difformer.attention.polynomial import DEFAULT_TOL
from difformer.attention.scores import find_score, score_key, working_dtype
from difformer.attention.summary import Moments, Sums, adds_up, summarise
from difformer.attention.tiles import Sums as RunningSums
from difformer.attention.tiles import add_gradients, add_keys, row_terms
from difformer.diffusivity import Diffusivity
from difformer.distributed.process_group import Exchange, Ranks, all_reduce
from difformer.distributed.watch import name_lost_rank
from difformer.errors import UserError, check_choice
from difformer.graph import GRAPH_NORMS
from difformer.nn.context import SMALLEST_NORM
from difformer.sparse import SparseMatrix, add_product


@dataclass(frozen=True)
class Plan:
    """Rows to send and to take."""

    ranks: Ranks
    send_rows: Tensor  # own rows that others need, those for rank 0 first; listed once for each rank that needs it
    sends: tuple[int, ...]  # how many of them go to each rank
    takes: tuple[int, ...]  # number of halo rows from each rank; the halo is ordered by owner

    @staticmethod
    def make(ranks: Ranks, owner: Tensor, row: Tensor) -> Plan:
        """From the owner of each halo row, ascending, and its number among the owner's rows."""
        takes = torch.bincount(owner, minlength=ranks.size)
        ones = [1] * ranks.size
        sends = ranks.exchange(takes.to(ranks.device), ones, ones, "plan").wait()
        counts = tuple(sends.tolist()), tuple(takes.tolist())
        wanted = ranks.exchange(row.to(ranks.device), counts[1], counts[0], "plan").wait()
        return Plan(ranks, wanted, *counts)

    @property
    def halo(self) -> int:
        """Rows of others that this rank needs."""
        return sum(self.takes)

    def fetch(self, z: Tensor, kind: str = "boundary") -> Exchange:
        """Starts to fetch the halo rows of ``z [n, …]``."""
        return self.ranks.exchange(z.index_select(0, self.send_rows), self.sends, self.takes, kind)


class ShardedGraph:
    """Edges into the n own nodes of one rank: ``source [E]``, 0 … n - 1 own and from n on halo rows, ``target [E]``.

    `plan` describes how halo rows come; without ``edge_weight [E]`` every weight is one.
    """

    def __init__(self, plan: Plan, num_nodes: int, source: Tensor, target: Tensor, edge_weight: Tensor | None) -> None:
        self.plan, self.num_nodes = plan, num_nodes
        self.source, self.target, self.edge_weight = source, target, edge_weight
        self._matrices: dict[tuple[str, torch.dtype], tuple[SparseMatrix, SparseMatrix]] = {}

    def _weights(self, norm: str, dtype: torch.dtype) -> Tensor:
        """s_ij of every edge, as in `difformer.graph.Graph.normalised_weights`."""
        check_choice("graph norm", norm, GRAPH_NORMS)
        given = self.edge_weight
        weight = torch.ones_like(self.source, dtype=dtype) if given is None else given.to(dtype)
        if norm == "none":
            return weight
        degree = weight.new_zeros(self.num_nodes).index_add(0, self.target, weight)
        power = -0.5 if norm == "gcn" else -1.0
        inverse = torch.where(degree > 0, torch.where(degree > 0, degree, 1.0).pow(power), 0.0)
        if norm == "random_walk":
            return weight * inverse[self.target]
        everywhere = torch.cat([inverse, self.plan.fetch(inverse, "plan").wait()])
        return weight * inverse[self.target] * everywhere[self.source]

    def matrices(self, norm: str, dtype: torch.dtype) -> tuple[SparseMatrix, SparseMatrix]:
        """S_OO and S_OH, sorted once; all ranks must ask for them together the first time."""
        key = (norm, dtype)
        if key not in self._matrices:
            with torch.inference_mode(False), torch.no_grad():
                value, n = self._weights(norm, dtype), self.num_nodes
                own = self.source < n
                inner = SparseMatrix.from_entries(self.target[own], self.source[own], value[own], (n, n))
                target, source, shape = self.target[~own], self.source[~own] - n, (n, self.plan.halo)
                self._matrices[key] = inner, SparseMatrix.from_entries(target, source, value[~own], shape)
        return self._matrices[key]

    def propagate(self, z: Tensor, norm: str = "gcn") -> Tensor:
        """Own rows of ``S z`` for own states ``[n, c]``."""
        dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
        return _Propagate.apply(z.to(dtype).contiguous(), self.plan, *self.matrices(norm, dtype)).to(z.dtype)


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, plan: Plan, inner: SparseMatrix, outer: SparseMatrix) -> Tensor:
        ctx.plan, ctx.inner, ctx.outer = plan, inner, outer
        halo = plan.fetch(z)
        out = add_product(inner.rows, z, torch.empty_like(z), beta=0)
        return add_product(outer.rows, halo.wait(), out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, grad = ctx.plan, grad.contiguous()
        away = grad.new_empty(plan.halo, grad.shape[1])
        # What other ranks have for the rows that this rank sent, in the order of `send_rows`.
        halo = add_product(ctx.outer.columns, grad, away, beta=0)
        back = plan.ranks.exchange(halo, plan.takes, plan.sends, "boundary")
        out = add_product(ctx.inner.columns, grad, torch.empty_like(grad), beta=0)
        return out.index_add_(0, plan.send_rows, back.wait()), None, None, None


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
    has_edges: ClassVar[None] = None  # the observed term counts for all rows, or for none

    @property
    def total(self) -> int:
        """N, over all ranks."""
        return sum(self.sizes)

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        squares = torch.stack([x.to(working_dtype(x.dtype)).square().sum() for x in (q, k)])
        norms = all_reduce(squares, self.ranks).sqrt().clamp_min(SMALLEST_NORM)
        return norms[0].to(q.dtype), norms[1].to(k.dtype)

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        tol = DEFAULT_TOL if backend == "polynomial" else None
        summed = adds_up(diffusivity, tol)
        if backend == "linear" and not summed:
            raise UserError(f"backend linear is for sums of fixed size, not for {diffusivity!r}; use backend=auto")
        with torch.autocast(q.device.type, enabled=False):
            if not summed or backend not in ("auto", "linear", "polynomial"):
                return ring(q, k, v, score_key(diffusivity, q.shape[-1]), self.sizes, self.ranks)
            own = summarise(k, v, diffusivity, tol=tol)
            assert isinstance(own, Sums | Moments)
            return replace(own, sums=all_reduce(own.sums, self.ranks)).answer(q)

    def observed(self, v: Tensor, norm: str) -> Tensor | None:
        return None if self.graph is None else self.graph.propagate(v, norm)


def ring(q: Tensor, k: Tensor, v: Tensor, key: str, sizes: tuple[int, ...], ranks: Ranks) -> Tensor:
    """``q, k [n, H, d]``, ``v [n, H or 1, c]`` of one rank → ``[n, H, c]``, over the keys of all ranks.

    `key` is that of the diffusivity (`difformer.attention.scores.score_key`), `sizes` are the rows of every rank.
    """
    wide = working_dtype(q.dtype)
    values = v.to(wide).expand(-1, q.shape[1], -1)
    return _Ring.apply(q.to(wide), k.to(wide), values, key, sizes, ranks).to(q.dtype)


def _hop(ranks: Ranks, block: Tensor, rows: int) -> Exchange:
    """Starts to send a block to the next rank, and to receive one of `rows` rows from the previous rank."""
    came = block.new_empty(rows, *block.shape[1:])
    ranks.traffic.add("ring", block.nbytes)
    after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    # Both sides know which blocks are empty; those are not sent.
    ops = [dist.P2POp(dist.isend, block, after)] if block.numel() else []
    ops += [dist.P2POp(dist.irecv, came, before)] if came.numel() else []
    with name_lost_rank(ranks.watch):
        return Exchange(ranks, block, came, dist.batch_isend_irecv(ops) if ops else [])


def _rounds(ranks: Ranks, block: Tensor, sizes: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """The blocks ``[rows, …]`` of all ranks with their owners, this rank's own first."""
    for s in range(ranks.size):
        last = s == ranks.size - 1
        hop = None if last else _hop(ranks, block, sizes[(ranks.rank - s - 1) % ranks.size])
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
        a, inner = row_terms(score, grad.transpose(0, 1).contiguous(), out, total, sum(sizes))
        log_total = total if score.exponential else None
        q_grad = torch.zeros_like(q)
        follows: Exchange | None = None  # gradients of the block of this round, on their way from the rank before
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
                follows = _hop(ranks, summed, sizes[(owner - 1) % ranks.size])
        home = summed if follows is None else follows.wait()
        if score.exponential:
            q_grad.mul_(score.slope)
        return q_grad.transpose(0, 1), home[..., :d], home[..., d:], None, None, None


def _apart(block: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Keys ``[H, m, d]`` and values ``[H, m, c]`` of a block ``[m, H, d + c]``."""
    return block[..., :d].transpose(0, 1).contiguous(), block[..., d:].transpose(0, 1).contiguous()
