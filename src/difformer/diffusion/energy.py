r"""Energies: how far a step goes, and how much the states differ.

Every energy of the paper has one form,

.. math::
    E(Z, k) = \|Z - (h(Z^{(k)}) + \eta \odot H)\|_F^2 + \lambda R(Z) + \sum_i \psi(z_i),

with a regulariser R that is one of

=====================================  ==================================  ===========================
`smoothness(coupling)`                 Σ_ij s_ij ||z_i - z_j||²            quadratic
`penalty(diffusivity)`                 Σ_ij δ(||z_i - z_j||²)              all pairs
`penalty(diffusivity, graph=graph)`    Σ_(i,j)∈E a_ij δ(||z_i - z_j||²)    observed edges
`mixture(diffusivity, coupling)`       ½ of the second, ½ of the first     both (`eqn-energy-graph`)
=====================================  ==================================  ===========================

All sums run over ordered pairs. None of them builds an N×N matrix: all pairs are summed tile by tile, or in O(N d²) for
`simple` and `constant`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.diffusion.coupling import Coupling, as_coupling
from difformer.diffusion.coupling.interface import edge_distances
from difformer.diffusion.pairs import BLOCK_SIZE, Batch, penalty_sum
from difformer.diffusivity import Diffusivity, as_diffusivity
from difformer.errors import UserError
from difformer.graph import Graph
from difformer.sparse import SparseMatrix

Regulariser = Callable[[Tensor], Tensor]


def smoothness(coupling: Coupling | Tensor | SparseMatrix) -> Regulariser:
    """R(Z) = Σ_ij s_ij ||z_i - z_j||²; a coupling that depends on the states is computed at Z."""
    chosen = as_coupling(coupling)
    return chosen.variation


def penalty(
    diffusivity: str | Diffusivity,
    *,
    graph: Graph | None = None,
    batch: Batch = None,
    block_size: int = BLOCK_SIZE,
) -> Regulariser:
    """R(Z) = Σ δ(||z_i - z_j||²) over all pairs, or over the edges of a graph with their weights.

    Args:
        diffusivity: A name or a `Diffusivity`.
        graph: Sum over its edges instead of all pairs.
        batch: Which graph each state belongs to; pairs of different graphs do not count.
        block_size: Rows and columns of the largest tile.
    """
    if graph is not None and batch is not None:
        raise UserError("penalty runs over the edges of a graph or over the pairs of a batch: pass one of the two")

    def regulariser(z: Tensor) -> Tensor:
        chosen = as_diffusivity(diffusivity, channels=z.shape[1])
        if graph is None:
            return penalty_sum(z, chosen, batch=batch, block_size=block_size)
        source, target = graph.edge_index
        return (graph.weights(z.dtype) * chosen.delta(edge_distances(z, target, source))).sum()

    return regulariser


def mixture(
    diffusivity: str | Diffusivity,
    coupling: Coupling | Tensor | SparseMatrix,
    *,
    graph_scale: float = 1.0,
    block_size: int = BLOCK_SIZE,
) -> Regulariser:
    """R(Z) = ½ Σ_ij δ(||z_i - z_j||²) + κ/2 Σ_ij ã_ij ||z_i - z_j||²: latent pairs and observed edges.

    κ is the paper's "re-scaling factor on the adjacency matrix": the rows of the attention are divided by their sums,
    those of the graph are not.
    """
    latent, observed = penalty(diffusivity, block_size=block_size), smoothness(coupling)
    return lambda z: (latent(z) + graph_scale * observed(z)) / 2


def nonnegative(z: Tensor) -> Tensor:
    """The ψ whose proximal step is ReLU: 0 where all entries of z_i are ≥ 0, else infinite; ``[N]``."""
    return torch.where((z < 0).any(1), torch.inf, 0.0).to(z.dtype)


@dataclass(frozen=True)
class Energy:
    """E(Z, k) of a diffusion; call it with Z and Z^(k).

    Args:
        regulariser: R, made by `smoothness`, `penalty` or `mixture`.
        weight: λ.
        source: H, ``[N, d]``.
        source_weight: η, a number or one a node ``[N]``.
        transform: h, applied to Z^(k).
        proximal: ψ, from states ``[N, d]`` to ``[N]``.

    Example:
        >>> energy = Energy(penalty("simple"), weight=0.1)
        >>> z = torch.nn.functional.normalize(torch.randn(10, 3, dtype=torch.float64), dim=1)
        >>> energy(z, z) <= energy(z, 2 * z)
        tensor(True)
    """

    regulariser: Regulariser
    weight: float = 1.0
    source: Tensor | None = None
    source_weight: float | Tensor = 1.0
    transform: Callable[[Tensor], Tensor] | None = None
    proximal: Callable[[Tensor], Tensor] | None = None

    def anchor(self, previous: Tensor) -> Tensor:
        """h(Z^(k)) + η ⊙ H: where the first term pulls the states."""
        anchor = previous if self.transform is None else self.transform(previous)
        if self.source is None:
            return anchor
        eta = self.source_weight
        return anchor + (eta.unsqueeze(1) if isinstance(eta, Tensor) and eta.dim() else eta) * self.source

    def __call__(self, z: Tensor, previous: Tensor) -> Tensor:
        value = ((z - self.anchor(previous)) ** 2).sum() + self.weight * self.regulariser(z)
        return value if self.proximal is None else value + self.proximal(z).sum()

    def along(self, trajectory: Tensor) -> Tensor:
        """E_k = E(Z^(k), k - 1) for k = 1 … K along a trajectory ``[K + 1, N, d]``, as ``[K]``."""
        pairs = zip(trajectory[1:], trajectory[:-1], strict=True)
        values = [self(after, before) for after, before in pairs]
        return torch.stack(values) if values else trajectory.new_zeros(0)


def dirichlet_energy(z: Tensor, coupling: Coupling | Tensor | SparseMatrix) -> Tensor:
    """½ Σ_ij s_ij ||z_i - z_j||², which is tr(Zᵀ(D̃ - S)Z) for a symmetric S."""
    return as_coupling(coupling, num_nodes=z.shape[0]).variation(z) / 2


def normalised_dirichlet_energy(z: Tensor, graph: Graph) -> Tensor:
    """What (1-τ)z + τSz with gcn weights descends: ½ Σ_ij a_ij ||z_i/√d_i - z_j/√d_j||² + Σ_isolated ||z_i||².

    It equals tr(Zᵀ(I - S)Z), S = D^-½ A D^-½.
    """
    degree = graph.degree(z.dtype)
    connected = degree > 0
    scaled = z / torch.where(connected, degree, 1.0).sqrt().unsqueeze(1)
    source, target = graph.edge_index
    across = (graph.weights(z.dtype) * edge_distances(scaled, target, source)).sum() / 2
    return across + (z[~connected] ** 2).sum()


def effective_rank(z: Tensor) -> Tensor:
    """exp(entropy of the singular values of Z, scaled to sum to one): between 1 and min(N, d), 0 for Z = 0.

    States that have come together in one point give 1, whatever that point: over-smoothing shows as a fall to 1.
    """
    wide = z.detach().to(torch.float64)
    tall = torch.linalg.qr(wide, mode="r").R if wide.shape[0] > wide.shape[1] else wide
    values = torch.linalg.svdvals(tall)
    total = values.sum()
    if total == 0:
        return z.new_zeros(())
    share = values / total
    return torch.special.entr(share).sum().exp().to(z.dtype)
