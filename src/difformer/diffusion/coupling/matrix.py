"""Couplings that do not depend on the states: none at all, a given matrix, a graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from difformer.diffusion.coupling.interface import SparseCoupling
from difformer.errors import UserError
from difformer.graph import Graph
from difformer.sparse import SparseMatrix

GRAPH_WEIGHTS = ("gcn", "random_walk", "gin", "raw")


def is_symmetric(row: Tensor, column: Tensor, value: Tensor, num_nodes: int) -> bool:
    """Whether the entries make a matrix that equals its transpose, to rounding."""
    both = torch.cat([row * num_nodes + column, column * num_nodes + row])
    place, position = both.unique(return_inverse=True)
    gap = value.new_zeros(place.numel()).index_add(0, position, torch.cat([value, -value]))
    scale = value.new_zeros(place.numel()).index_add(0, position, torch.cat([value, value]).abs())
    return bool((gap.abs() <= 1e-6 * scale).all())


class Identity(SparseCoupling):
    """S = I: every state is on its own. With a transformation and an activation this is an MLP."""

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

    def __repr__(self) -> str:
        return "Identity()"


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
            count = (rows.crow[1:] - rows.crow[:-1]).long()
            nodes = torch.arange(count.numel(), device=count.device)
            return nodes.repeat_interleave(count), rows.col.long(), rows.value
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
        graph: The graph; self-loops count only where it has them.
        weights: One of the names above.
    """

    graph: Graph
    weights: str = "gcn"
    static = True

    def __post_init__(self) -> None:
        if not isinstance(self.graph, Graph):
            got = type(self.graph).__name__
            raise TypeError(f"graph must be a Graph, got {got}; write Graph(edge_index, num_nodes)")
        if self.weights not in GRAPH_WEIGHTS:
            raise UserError(f"weights must be one of {', '.join(GRAPH_WEIGHTS)}, got {self.weights!r}")

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

    def rest(self, z: Tensor) -> Tensor:
        """√d for ``gcn``, ones otherwise."""
        degree = self.graph.degree(z.dtype)
        return degree.clamp_min(0).sqrt() if self.weights == "gcn" else torch.ones_like(degree)
