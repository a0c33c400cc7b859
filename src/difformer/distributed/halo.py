r"""Observed edges over ranks: each rank holds the edges into its own nodes.

A rank computes the rows that it owns. Rows of others that its edges come from are its *halo*: which rows go to which
rank is planned once (`Plan`) and used by every layer of every step.

With own nodes O and halo H (sources of edges on other ranks), the rows of S z that a rank owns are

.. math::
    (S z)_O = S_{OO} \, z_O + S_{OH} \, z_H,

and backward a rank returns ``S_{OH}ᵀ g``, which the owners add to ``S_{OO}ᵀ g``. In both directions the boundary
travels while the inner product is computed. The rank that owns a node holds all edges into it, hence knows its
degree; the degrees of the halo are fetched once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer.distributed.process_group import Exchange, Ranks
from difformer.errors import UserError
from difformer.graph import GRAPH_NORMS
from difformer.sparse import SparseMatrix, add_product


@dataclass(frozen=True)
class Plan:
    """Rows to send and to take.

    Args:
        ranks: The group.
        send_rows: Own rows that others need, those for rank 0 first; listed once for each rank that needs it.
        sends: How many of them go to each rank.
        takes: Number of halo rows from each rank; the halo is ordered by owner.
    """

    ranks: Ranks
    send_rows: Tensor
    sends: tuple[int, ...]
    takes: tuple[int, ...]

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
        """Begins to bring the halo rows of ``z [n, …]``."""
        return self.ranks.exchange(z.index_select(0, self.send_rows), self.sends, self.takes, kind)

    def give_back(self, halo: Tensor) -> Exchange:
        """Begins to bring what others have for the rows that this rank sent, in the order of `send_rows`."""
        return self.ranks.exchange(halo, self.takes, self.sends, "boundary")


class ShardedGraph:
    """Edges into the nodes of one rank.

    Args:
        plan: How halo rows come.
        num_nodes: Own nodes n.
        source: ``[E]`` sources: 0 … n - 1 own, from n on halo rows.
        target: ``[E]`` own nodes.
        edge_weight: ``[E]``, or None if every weight is one.
    """

    def __init__(self, plan: Plan, num_nodes: int, source: Tensor, target: Tensor, edge_weight: Tensor | None) -> None:
        self.plan, self.num_nodes = plan, num_nodes
        self.source, self.target, self.edge_weight = source, target, edge_weight
        self._matrices: dict[tuple[str, torch.dtype], tuple[SparseMatrix, SparseMatrix]] = {}

    def _weights(self, norm: str, dtype: torch.dtype) -> Tensor:
        """s_ij of every edge, as `difformer.graph.Graph.normalised_weights` has them."""
        if norm not in GRAPH_NORMS:
            raise UserError(f"graph norm must be one of {', '.join(GRAPH_NORMS)}, got {norm!r}")
        if self.edge_weight is None:
            weight = torch.ones(self.source.numel(), dtype=dtype, device=self.source.device)
        else:
            weight = self.edge_weight.to(dtype)
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
                outer = SparseMatrix.from_entries(
                    self.target[~own], self.source[~own] - n, value[~own], (n, self.plan.halo)
                )
                self._matrices[key] = inner, outer
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
        back = plan.give_back(add_product(ctx.outer.columns, grad, away, beta=0))
        out = add_product(ctx.inner.columns, grad, torch.empty_like(grad), beta=0)
        return out.index_add_(0, plan.send_rows, back.wait()), None, None, None
