r"""Couplings that depend on the states: attention on observed edges, and between all pairs.

A diffusivity defines the exchange :math:`\omega_{ij}` between two states in one of two ways:

    metric="distance"   ω_ij = f(||z_i - z_j||²)            as in the theorems
    metric="cosine"     ω_ij = g(z_iᵀz_j / ||z_i|| ||z_j||)  as in the network

which agree on unit states. The coupling is s_ij = ω_ij / Σ_l ω_il, or without normalisation ω_ij. Squared distances
should lie in [0, 4], as in the unit ball; beyond, a diffusivity such as `simple` is negative.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention import propagate
from difformer.attention.reference import attention_matrix, exchange
from difformer.attention.scores import diffusivity_of, form_of, score_key, slope_of
from difformer.attention.segments import Segments, as_segments
from difformer.diffusion.coupling.matrix import Coupling, EdgeCoupling, edge_distances, edge_products
from difformer.diffusion.pairs import distance_factors, exchange_sums
from difformer.diffusivity import IDENTITY, Diffusivity, as_diffusivity
from difformer.errors import UserError, check_choice
from difformer.graph import Graph


class Attention(Coupling):
    """Base class of edge and all-pair attention."""

    diffusivity: str | Diffusivity
    metric: str
    normalised: bool

    @abstractmethod
    def exchange_sums(self, z: Tensor) -> Tensor:
        """d̄ = Ω1, the row sums before normalisation, ``[N]``."""

    def chosen(self, z: Tensor) -> Diffusivity:
        """The diffusivity; the default temperature of ``softmax`` is √d."""
        return diffusivity_of(score_key(self.diffusivity, z.shape[1]))

    def _check(self) -> None:
        as_diffusivity(self.diffusivity)
        check_choice("metric", self.metric, ("distance", "cosine"))

    def _balance(self, z: Tensor) -> Tensor:
        sums = self.exchange_sums(z)
        # The row of a node without an exchange partner is empty, so any weight balances it.
        return torch.where(sums > 0, sums, 1.0) if self.normalised else torch.ones_like(sums)


@dataclass(frozen=True, eq=False)
class AllPairAttention(Attention):
    """Attention between all pairs of states: the coupling of DIFFormer and, with ``"softmax"``, of Transformers.

    `propagate` needs O(N d²) time for ``simple`` and ``constant``, and O(N² d) time but no N×N matrix for any other
    diffusivity.

    Args:
        diffusivity: A name or a `Diffusivity`.
        metric: ``"distance"`` or ``"cosine"``.
        normalised: Whether rows are divided by their sums.
        batch: The graph of each state; graphs are independent.
    """

    diffusivity: str | Diffusivity = "simple"
    metric: str = "distance"
    normalised: bool = True
    batch: Tensor | Segments | None = None

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "batch", as_segments(self.batch))

    @property
    def segments(self) -> Segments | None:
        return as_segments(self.batch)

    @property
    def num_nodes(self) -> int | None:
        return None if self.segments is None else self.segments.batch.numel()

    def _factors(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if self.metric == "distance":
            return distance_factors(z, self.segments)
        unit = functional.normalize(z, dim=1)
        return unit, unit

    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        values = z if values is None else values
        chosen = self.chosen(z)
        if chosen is IDENTITY:
            return values
        q, k = self._factors(z)
        received = propagate(q, k, values, chosen, batch=self.segments)
        return received if self.normalised else self.exchange_sums(z).unsqueeze(1) * received

    def exchange_sums(self, z: Tensor) -> Tensor:
        return exchange_sums(*self._factors(z), self.chosen(z), batch=self.segments)

    def degree(self, z: Tensor) -> Tensor:
        return z.new_ones(z.shape[0]) if self.normalised else self.exchange_sums(z)

    def matrix(self, z: Tensor) -> Tensor:
        if self.chosen(z) is IDENTITY:
            return torch.eye(z.shape[0], dtype=z.dtype, device=z.device)
        q, k = (part.unsqueeze(1) for part in self._factors(z))
        weights = attention_matrix if self.normalised else exchange
        return weights(q, k, self.chosen(z), None if self.segments is None else self.segments.batch).squeeze(0)

    def balance(self, z: Tensor) -> Tensor:
        return self._balance(z)


@dataclass(frozen=True, eq=False)
class EdgeAttention(EdgeCoupling, Attention):
    """Attention on observed edges: the paper's extension of graph attention networks.

    The exchange on an edge of weight a_ij is a_ij f(u_ij) or a_ij g(x_ij). A node without edges receives nothing.

    Args:
        graph: The graph; no self-loops are added.
        diffusivity: A name or a `Diffusivity`.
        metric: ``"distance"`` or ``"cosine"``.
        normalised: Whether rows are divided by their sums.
    """

    graph: Graph
    diffusivity: str | Diffusivity = "simple"
    metric: str = "distance"
    normalised: bool = True

    def __post_init__(self) -> None:
        self._check()
        if self.diffusivity == "identity" or self.diffusivity is IDENTITY:
            raise UserError("diffusivity 'identity' takes nothing from neighbours; use the Identity coupling")

    def _exchange(self, z: Tensor, *, relative: bool = False) -> Tensor:
        """Exchange ``[E]``; if `relative`, exponentials are divided by the maximum per target."""
        source, target = self.graph.edge_index
        chosen, apart = self.chosen(z), self.metric == "distance"
        if apart:
            x = edge_distances(z, target, source)
        else:
            x = edge_products(functional.normalize(z, dim=1), target, source)
        if relative and form_of(chosen) == "exponential":  # prevents overflow
            score = slope_of(chosen) * (1 - x / 2 if apart else x)
            largest = score.new_full((z.shape[0],), -torch.inf).scatter_reduce(0, target, score.detach(), "amax")
            return self.graph.weights(z.dtype) * torch.exp(score - largest[target])
        return self.graph.weights(z.dtype) * (chosen.f(x) if apart else chosen.g(x))

    def exchange_sums(self, z: Tensor) -> Tensor:
        return z.new_zeros(z.shape[0]).index_add(0, self.graph.edge_index[1], self._exchange(z))

    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        source, target = self.graph.edge_index
        exchange = self._exchange(z, relative=self.normalised)
        if self.normalised:
            sums = z.new_zeros(z.shape[0]).index_add(0, target, exchange)
            exchange = exchange / torch.where(sums > 0, sums, 1.0)[target]
        return target, source, exchange

    def balance(self, z: Tensor) -> Tensor | None:
        return self._balance(z) if self.undirected else None
