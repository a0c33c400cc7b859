"""Couplings by name, mixed, and from what a caller may hold instead of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.diffusion.coupling.exchange import AllPairAttention, Attention, EdgeAttention
from difformer.diffusion.coupling.interface import Coupling, SparseCoupling
from difformer.diffusion.coupling.matrix import GRAPH_WEIGHTS, GraphCoupling, Identity, MatrixCoupling
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError, or_near
from difformer.graph import Graph
from difformer.sparse import SparseMatrix

__all__ = [
    "COUPLINGS",
    "GRAPH_WEIGHTS",
    "AllPairAttention",
    "Attention",
    "Coupling",
    "EdgeAttention",
    "GraphCoupling",
    "Identity",
    "MatrixCoupling",
    "Mix",
    "SparseCoupling",
    "as_coupling",
    "make_coupling",
]


@dataclass(frozen=True, eq=False)
class Mix(Coupling):
    """A weighted sum S = Σ_m w_m S_m of couplings.

    ``Mix((AllPairAttention(), GraphCoupling(graph)), (0.5, 0.5))`` is the paper's mixture of latent and observed
    structure (`eqn-diffuse-graph`); with a single part it scales a coupling.

    Args:
        parts: The couplings.
        weights: Their weights; equal ones that sum to one where they are left out.
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
        rows, columns, values = [], [], []
        for weight, part in zip(self.weights, self.parts, strict=True):
            entries = part.entries(z)
            if entries is None:
                return None
            rows.append(entries[0])
            columns.append(entries[1])
            values.append(weight * entries[2])
        return torch.cat(rows), torch.cat(columns), torch.cat(values)

    def balance(self, z: Tensor) -> Tensor | None:
        # The identity is in balance with every m.
        parts = [part for part in self.parts if not isinstance(part, Identity)] or list(self.parts)
        first, *others = [part.balance(z) for part in parts]
        same = all(first is not None and other is not None and torch.allclose(first, other) for other in others)
        return first if same else None

    def rest(self, z: Tensor) -> Tensor:
        parts = [part for part in self.parts if not isinstance(part, Identity)]
        return parts[0].rest(z) if len(parts) == 1 else super().rest(z)


def _graph(weights: str) -> Callable[..., Coupling]:
    return lambda graph, diffusivity: GraphCoupling(_needed(graph, weights), weights)


def _needed(graph: Graph | None, name: str) -> Graph:
    if graph is None:
        raise UserError(f"coupling {name!r} runs over observed edges: pass graph=Graph(edge_index, num_nodes)")
    return graph


# What a name stands for, given a graph (where it needs one) and a diffusivity (where it has one).
COUPLINGS: dict[str, Callable[[Graph | None, str | Diffusivity], Coupling]] = {
    "identity": lambda graph, diffusivity: Identity(),
    **{weights: _graph(weights) for weights in GRAPH_WEIGHTS},
    "edge_attention": lambda graph, diffusivity: EdgeAttention(_needed(graph, "edge_attention"), diffusivity),
    "all_pair": lambda graph, diffusivity: AllPairAttention(diffusivity),
    "mixed": lambda graph, diffusivity: Mix((AllPairAttention(diffusivity), GraphCoupling(_needed(graph, "mixed")))),
}


def make_coupling(name: str, *, graph: Graph | None = None, diffusivity: str | Diffusivity = "simple") -> Coupling:
    """A coupling by its name in `COUPLINGS`.

    Raises:
        ValueError: If the name is not known (the error names the nearest one), or if it needs a graph.
    """
    if name not in COUPLINGS:
        raise UserError(f"unknown coupling {name!r}{or_near(name, COUPLINGS)} Known: {', '.join(COUPLINGS)}")
    return COUPLINGS[name](graph, diffusivity)


def as_coupling(given: Coupling | Tensor | SparseMatrix, *, num_nodes: int | None = None) -> Coupling:
    """A coupling as it is; a square matrix, dense or sparse, as a constant one.

    Raises:
        TypeError: If `given` is neither.
        ValueError: If it belongs to another number of nodes than `num_nodes`.
    """
    if isinstance(given, Tensor | SparseMatrix):
        given = MatrixCoupling(given)
    if isinstance(given, Graph):
        raise TypeError("coupling is a Graph: say which weights, as in GraphCoupling(graph, 'gcn')")
    if not isinstance(given, Coupling):
        raise TypeError(f"coupling must be a Coupling or a square matrix, got {type(given).__name__}")
    if num_nodes is not None and given.num_nodes not in (None, num_nodes):
        raise UserError(f"coupling belongs to {given.num_nodes} nodes, but there are {num_nodes} states")
    return given
