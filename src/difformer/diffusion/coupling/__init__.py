"""Mixtures of couplings, and couplings from matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.diffusion.coupling.exchange import AllPairAttention, Attention, EdgeAttention
from difformer.diffusion.coupling.matrix import (
    GRAPH_WEIGHTS,
    Coupling,
    GraphCoupling,
    Identity,
    MatrixCoupling,
    SparseCoupling,
)
from difformer.errors import UserError
from difformer.graph import Graph
from difformer.sparse import SparseMatrix

__all__ = [
    "GRAPH_WEIGHTS", "AllPairAttention", "AnyCoupling", "Attention", "Coupling", "EdgeAttention", "GraphCoupling",
    "Identity", "MatrixCoupling", "Mix", "SparseCoupling", "as_coupling",
]  # fmt: skip

AnyCoupling = Coupling | Tensor | SparseMatrix  # the argument of `as_coupling`


@dataclass(frozen=True, eq=False)
class Mix(Coupling):
    """A weighted sum S = Σ_m w_m S_m of couplings.

    ``Mix((AllPairAttention(), GraphCoupling(graph)), (0.5, 0.5))`` is the paper's mixture of latent and observed
    structure (`eqn-diffuse-graph`); with a single part it scales a coupling.

    Args:
        parts: The couplings.
        weights: Their weights; by default equal, with sum one.
    """

    parts: tuple[Coupling, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        given = tuple(float(weight) for weight in self.weights)
        object.__setattr__(self, "weights", given or (1 / len(self.parts),) * len(self.parts) if self.parts else ())
        if not self.parts or len(self.weights) != len(self.parts):
            raise UserError(f"a mix needs one weight per part, got {len(self.parts)} parts and {len(given)} weights")

    @property
    def static(self) -> bool:  # type: ignore[override]
        return all(part.static for part in self.parts)

    @property
    def num_nodes(self) -> int | None:
        return next((part.num_nodes for part in self.parts if part.num_nodes is not None), None)

    def _sum(self, terms: list[Tensor]) -> Tensor:
        total = self.weights[0] * terms[0]
        for weight, term in zip(self.weights[1:], terms[1:], strict=True):
            total = total + weight * term
        return total

    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        return self._sum([part.propagate(z, values) for part in self.parts])

    def degree(self, z: Tensor) -> Tensor:
        return self._sum([part.degree(z) for part in self.parts])

    def matrix(self, z: Tensor) -> Tensor:
        return self._sum([part.matrix(z) for part in self.parts])

    def variation(self, z: Tensor, states: Tensor | None = None) -> Tensor:
        return self._sum([part.variation(z, states) for part in self.parts])

    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        found = [part.entries(z) for part in self.parts]
        known = [entries for entries in found if entries is not None]
        if len(known) < len(found):
            return None
        rows, columns, values = zip(*known, strict=True)
        weighted = [weight * value for weight, value in zip(self.weights, values, strict=True)]
        return torch.cat(rows), torch.cat(columns), torch.cat(weighted)

    def balance(self, z: Tensor) -> Tensor | None:
        # Every m balances the identity.
        parts = [part for part in self.parts if not isinstance(part, Identity)] or list(self.parts)
        first, *others = [part.balance(z) for part in parts]
        same = all(first is not None and other is not None and torch.allclose(first, other) for other in others)
        return first if same else None


def as_coupling(given: AnyCoupling, *, num_nodes: int | None = None) -> Coupling:
    """Returns a coupling unchanged, and a square matrix, dense or sparse, as a constant coupling.

    Raises:
        TypeError: If `given` is neither.
        ValueError: If it does not fit `num_nodes`.
    """
    if isinstance(given, Tensor | SparseMatrix):
        given = MatrixCoupling(given)
    if isinstance(given, Graph):
        raise TypeError("coupling is a Graph: choose its weights, as in GraphCoupling(graph, 'gcn')")
    if not isinstance(given, Coupling):
        raise TypeError(f"coupling must be a Coupling or a square matrix, got {type(given).__name__}")
    if num_nodes is not None and given.num_nodes not in (None, num_nodes):
        raise UserError(f"coupling belongs to {given.num_nodes} nodes, but there are {num_nodes} states")
    return given
