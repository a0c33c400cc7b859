"""The coupling S(z) of a diffusion, whose entry s_ij is the weight with which state i receives from state j.

A coupling provides what the iteration, the energies and the theory need, without storing a matrix:

    propagate   S(z) v          what every state receives
    degree      d̃ = S(z) 1      the share of itself that a state gives up
    matrix      S(z)            dense, for small N
    balance     m               with m_i s_ij = m_j s_ji, if S can be symmetrised

This module has the couplings that do not depend on the states: the identity, a matrix, a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from difformer.errors import UserError, check_choice
from difformer.graph import Graph
from difformer.sparse import SparseMatrix

GRAPH_WEIGHTS = ("gcn", "random_walk", "gin", "raw")
EDGE_ENTRIES = 2**23  # numbers gathered at once when a sum runs over edges: 64 MiB in double precision


class Coupling(ABC):
    """The pairwise influence S(z) between N states ``z [N, d]``."""

    static: bool = False  # whether S is the same for every z

    @property
    def num_nodes(self) -> int | None:
        """N if the coupling belongs to a fixed set of nodes, otherwise None."""
        return None

    @abstractmethod
    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        """``S(z) values`` for ``[N, c]`` values (by default the states), without building S."""

    @abstractmethod
    def degree(self, z: Tensor) -> Tensor:
        """Row sums d̃ of S(z), ``[N]``."""

    @abstractmethod
    def matrix(self, z: Tensor) -> Tensor:
        """S(z) as a dense ``[N, N]`` tensor."""

    @abstractmethod
    def balance(self, z: Tensor) -> Tensor | None:
        """Positive m ``[N]`` with m_i s_ij = m_j s_ji (ones for a symmetric S), or None if no such m exists."""

    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """``(row, column, value)`` of a sparse S(z), where repeated positions add up; None for a dense one."""
        return None

    def symmetric(self, z: Tensor) -> bool:
        """Whether S(z) equals its transpose."""
        balance = self.balance(z)
        return balance is not None and bool(((balance - 1).abs() <= 1e-12).all())

    def variation(self, z: Tensor, states: Tensor | None = None) -> Tensor:
        """Σ_ij s_ij(z) ||y_i - y_j||² of states y, by default z.

        With row sums d̃ and column sums c = m ⊙ S(1/m), this is Σ_i (d̃_i + c_i) ||y_i||² - 2 ⟨y, S y⟩.
        """
        states = z if states is None else states
        entries = self.entries(z)
        if entries is not None:
            row, column, value = entries
            return (value * edge_distances(states, row, column)).sum()
        balance = self.balance(z)
        if balance is None:
            columns = self.matrix(z).sum(0)
        else:
            columns = balance * self.propagate(z, 1 / balance.unsqueeze(1)).squeeze(1)
        states = states - states.mean(0)
        norms = (states * states).sum(1)
        return ((self.degree(z) + columns) * norms).sum() - 2 * (states * self.propagate(z, states)).sum()


class SparseCoupling(Coupling):
    """A coupling defined by its entries."""

    @abstractmethod
    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``(row, column, value)`` of S(z); repeated positions add up."""

    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        values = z if values is None else values
        out = torch.zeros_like(values)
        row, column, value = self.entries(z)
        for part in edge_chunks(row.numel(), values.shape[1]):
            out = out.index_add(0, row[part], value[part].unsqueeze(1) * values[column[part]])
        return out

    def degree(self, z: Tensor) -> Tensor:
        row, _, value = self.entries(z)
        return value.new_zeros(z.shape[0]).index_add(0, row, value)

    def matrix(self, z: Tensor) -> Tensor:
        row, column, value = self.entries(z)
        return value.new_zeros(z.shape[0], z.shape[0]).index_put((row, column), value, accumulate=True)


def chunks(rows: int, channels: int) -> list[slice]:
    """Slices of rows with at most `EDGE_ENTRIES` numbers each, of which one row has `channels`."""
    # At least one slice, so that a sum over no rows is zero and still a function of the states.
    size = max(1, EDGE_ENTRIES // max(1, channels))
    return [slice(start, start + size) for start in range(0, max(1, rows), size)]


def edge_chunks(edges: int, channels: int) -> list[slice]:
    """The `chunks` of edges; a single one under compilation, where E is symbolic."""
    return [slice(None)] if torch.compiler.is_compiling() else chunks(edges, channels)


def edge_distances(z: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """||z_i - z_j||² for given pairs, ``[E]``, by differences, which is exact for close states."""
    return torch.cat([((z[row[part]] - z[column[part]]) ** 2).sum(1) for part in edge_chunks(row.numel(), z.shape[1])])


def edge_products(z: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """z_iᵀz_j for given pairs, ``[E]``."""
    return torch.cat([(z[row[part]] * z[column[part]]).sum(1) for part in edge_chunks(row.numel(), z.shape[1])])


def is_symmetric(row: Tensor, column: Tensor, value: Tensor, num_nodes: int) -> bool:
    """Whether the entries make a matrix that equals its transpose, to rounding."""
    both = torch.cat([row * num_nodes + column, column * num_nodes + row])
    place, position = both.unique(return_inverse=True)
    gap = value.new_zeros(place.numel()).index_add(0, position, torch.cat([value, -value]))
    scale = value.new_zeros(place.numel()).index_add(0, position, torch.cat([value, value]).abs())
    return bool((gap.abs() <= 1e-6 * scale).all())


@dataclass(frozen=True, eq=False)
class Identity(SparseCoupling):
    """S = I: no exchange. With a transformation and an activation this is an MLP."""

    static = True

    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        return z if values is None else values

    def degree(self, z: Tensor) -> Tensor:
        return z.new_ones(z.shape[0])

    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nodes = torch.arange(z.shape[0], device=z.device)
        return nodes, nodes, z.new_ones(z.shape[0])

    def balance(self, z: Tensor) -> Tensor:
        return z.new_ones(z.shape[0])


@dataclass(frozen=True, eq=False)
class MatrixCoupling(SparseCoupling):
    """A constant matrix S, dense or sparse.

    Args:
        values: ``[N, N]``: a dense tensor, a torch sparse tensor, or a `SparseMatrix`.
    """

    values: Tensor | SparseMatrix
    static = True

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise UserError(f"a coupling matrix must be square, [N, N], got shape {shape}")
        if isinstance(self.values, Tensor) and self.values.layout != torch.strided:
            object.__setattr__(self, "values", SparseMatrix.from_tensor(self.values))

    @property
    def num_nodes(self) -> int:
        return self.values.shape[0]

    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        return self.values.to(z) @ (z if values is None else values)

    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(self.values, SparseMatrix):
            rows = self.values.rows.to(z)
            return rows.row(), rows.col.long(), rows.value
        row, column = self.values.nonzero(as_tuple=True)
        return row, column, self.values[row, column].to(z)

    @cached_property
    def _symmetric(self) -> bool:
        row, column, value = self.entries(torch.empty(0, dtype=torch.float64, device=self.values.device))
        return is_symmetric(row, column, value, self.num_nodes)

    def balance(self, z: Tensor) -> Tensor | None:
        return z.new_ones(z.shape[0]) if self._symmetric else None


class EdgeCoupling(SparseCoupling):
    """A coupling over the edges of a graph."""

    graph: Graph

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @cached_property
    def undirected(self) -> bool:
        """Whether the graph's own weights are symmetric."""
        source, target = self.graph.edge_index
        return is_symmetric(target, source, self.graph.weights(torch.float64), self.num_nodes)


@dataclass(frozen=True, eq=False)
class GraphCoupling(EdgeCoupling):
    r"""Propagation over observed edges.

    With weights :math:`a_{ij}` and in-degrees :math:`d_i`,

    ===========  ===========================  =======================================
    weights      :math:`s_{ij}`               rows sum to
    ===========  ===========================  =======================================
    gcn          a_ij / √(d_i d_j)            no fixed number
    random_walk  a_ij / d_i                   1, or 0 for a node without neighbours
    gin          a_ij + 1[i = j]              d_i + 1
    raw          a_ij                         d_i
    ===========  ===========================  =======================================

    Args:
        graph: The graph; no self-loops are added.
        weights: One of the names above.
    """

    graph: Graph
    weights: str = "gcn"
    static = True

    def __post_init__(self) -> None:
        if not isinstance(self.graph, Graph):
            got = type(self.graph).__name__
            raise TypeError(f"graph must be a Graph, got {got}; write Graph(edge_index, num_nodes)")
        check_choice("weights", self.weights, GRAPH_WEIGHTS)

    @property
    def _norm(self) -> str:
        return "none" if self.weights in ("raw", "gin") else self.weights

    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        values = z if values is None else values
        received = self.graph.propagate(values, self._norm)
        return received + values if self.weights == "gin" else received

    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        source, target = self.graph.edge_index
        value = self.graph.normalised_weights(self._norm, z.dtype)
        if self.weights != "gin":
            return target, source, value
        loops = torch.arange(self.num_nodes, device=target.device)
        return (
            torch.cat([target, loops]),
            torch.cat([source, loops]),
            torch.cat([value, value.new_ones(self.num_nodes)]),
        )

    def balance(self, z: Tensor) -> Tensor | None:
        if not self.undirected:
            return None
        degree = self.graph.degree(z.dtype)
        return torch.where(degree > 0, degree, 1.0) if self.weights == "random_walk" else torch.ones_like(degree)
