r"""Energies: the length of a step plus the variation of the states.

All energies of the paper have the form

.. math::
    E(Z, k) = \|Z - (h(Z^{(k)}) + \eta \odot H)\|_F^2 + \lambda R(Z) + \sum_i \psi(z_i),

where the regulariser R is one of

=====================================  ==================================  ===========================
`smoothness(coupling)`                 Σ_ij s_ij ||z_i - z_j||²            quadratic
`penalty(diffusivity)`                 Σ_ij δ(||z_i - z_j||²)              all pairs
`penalty(diffusivity, graph=graph)`    Σ_(i,j)∈E a_ij δ(||z_i - z_j||²)    observed edges
`mixture(diffusivity, coupling)`       ½ of the second, ½ of the first     both (`eqn-energy-graph`)
=====================================  ==================================  ===========================

Sums run over ordered pairs, tile by tile (or in O(N d²) for `simple` and `constant`), without an N×N matrix.

The surrogate energy of `prop-energy` is an upper bound of E that is tight where the step is taken. The penalty δ is
concave, hence the lower envelope of its tangents. With its concave conjugate on [0, 4],

.. math::
    \tilde\delta(\omega) = \min_{0 \le u \le 4} \omega u - \delta(u),   \qquad
    \delta(u) = \min_{\omega \ge 0} \omega u - \tilde\delta(\omega),

any variational parameters :math:`\omega_{ij} \ge 0` satisfy

.. math::
    \tilde E(Z, k; \Omega) = \|Z - Z^{(k)}\|^2 + \lambda \sum_{ij} \left[\omega_{ij} \|z_i - z_j\|^2
    - \tilde\delta(\omega_{ij})\right] \;\ge\; E(Z, k; \delta),

with equality at :math:`\omega_{ij} = f(\|z_i - z_j\|^2)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from difformer.diffusion.coupling import AnyCoupling, as_coupling
from difformer.diffusion.coupling.matrix import edge_distances
from difformer.diffusion.pairs import BLOCK_SIZE, Batch, penalty_sum, squared_distances
from difformer.diffusivity import LARGEST_SQUARED_DISTANCE, Diffusivity, as_diffusivity
from difformer.errors import UserError
from difformer.graph import Graph

Regulariser = Callable[[Tensor], Tensor]

HALVINGS = 40  # gives u to 4e-12, and the minimum to the square of that unless f jumps


def smoothness(coupling: AnyCoupling) -> Regulariser:
    """R(Z) = Σ_ij s_ij(Z) ||z_i - z_j||²."""
    return as_coupling(coupling).variation


def penalty(diffusivity: str | Diffusivity, *, graph: Graph | None = None, batch: Batch = None) -> Regulariser:
    """R(Z) = Σ δ(||z_i - z_j||²) over all pairs, or over the weighted edges of a graph.

    Args:
        diffusivity: A name or a `Diffusivity`.
        graph: Sum over its edges instead of all pairs.
        batch: The graph of each state; only pairs within a graph count.
    """
    if graph is not None and batch is not None:
        raise UserError("penalty runs over the edges of a graph or over the pairs of a batch: pass one of the two")

    def regulariser(z: Tensor) -> Tensor:
        chosen = as_diffusivity(diffusivity, channels=z.shape[1])
        if graph is None:
            return penalty_sum(z, chosen, batch=batch)
        source, target = graph.edge_index
        return (graph.weights(z.dtype) * chosen.delta(edge_distances(z, target, source))).sum()

    return regulariser


def mixture(diffusivity: str | Diffusivity, coupling: AnyCoupling, *, graph_scale: float = 1.0) -> Regulariser:
    """R(Z) = ½ Σ_ij δ(||z_i - z_j||²) + κ/2 Σ_ij ã_ij ||z_i - z_j||²: latent pairs and observed edges.

    κ is the paper's "re-scaling factor on the adjacency matrix": rows of the attention are normalised, those of the
    graph are not.
    """
    latent, observed = penalty(diffusivity), smoothness(coupling)
    return lambda z: (latent(z) + graph_scale * observed(z)) / 2


def nonnegative(z: Tensor) -> Tensor:
    """The ψ whose proximal step is ReLU: 0 if all entries of z_i are ≥ 0, otherwise infinite; ``[N]``."""
    return torch.where((z < 0).any(1), torch.inf, 0.0).to(z.dtype)


@dataclass(frozen=True)
class Energy:
    """E(Z, k) of a diffusion; call it with Z and Z^(k).

    Args:
        regulariser: R, made by `smoothness`, `penalty` or `mixture`.
        weight: λ.
        source: H, ``[N, d]``.
        source_weight: η, one number or ``[N]``, one per node.
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
        """h(Z^(k)) + η ⊙ H, towards which the first term pulls the states."""
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
        values = [self(after, before) for before, after in pairwise(trajectory)]
        return torch.stack(values) if values else trajectory.new_zeros(0)


def dirichlet_energy(z: Tensor, coupling: AnyCoupling) -> Tensor:
    """½ Σ_ij s_ij ||z_i - z_j||², which is tr(Zᵀ(D̃ - S)Z) for a symmetric S."""
    return as_coupling(coupling, num_nodes=z.shape[0]).variation(z) / 2


def normalised_dirichlet_energy(z: Tensor, graph: Graph) -> Tensor:
    """½ Σ_ij a_ij ||z_i/√d_i - z_j/√d_j||² + Σ_isolated ||z_i||² = tr(Zᵀ(I - S)Z) with S = D^-½ A D^-½.

    The iteration (1-τ)z + τSz with gcn weights descends it.
    """
    degree = graph.degree(z.dtype)
    connected = degree > 0
    scaled = z / torch.where(connected, degree, 1.0).sqrt().unsqueeze(1)
    source, target = graph.edge_index
    across = (graph.weights(z.dtype) * edge_distances(scaled, target, source)).sum() / 2
    return across + (z[~connected] ** 2).sum()


def effective_rank(z: Tensor) -> Tensor:
    """exp(entropy of the singular values of Z, scaled to sum to one): between 1 and min(N, d), 0 for Z = 0.

    It is 1 if all states coincide, so over-smoothing shows as a fall to 1.
    """
    wide = z.detach().to(torch.float64)
    tall = torch.linalg.qr(wide, mode="r").R if wide.shape[0] > wide.shape[1] else wide
    values = torch.linalg.svdvals(tall)
    total = values.sum()
    if total == 0:
        return z.new_zeros(())
    share = values / total
    return torch.special.entr(share).sum().exp().to(z.dtype)


def concave_conjugate(omega: Tensor, diffusivity: Diffusivity) -> Tensor:
    """δ̃(ω) = min over u in [0, 4] of ωu - δ(u), element by element.

    ωu - δ(u) is convex in u with the non-decreasing slope ω - f(u), so bisection finds the minimum, where f crosses ω.
    An error in u changes the minimum only by its square.
    """
    low, high = torch.zeros_like(omega), torch.full_like(omega, LARGEST_SQUARED_DISTANCE)
    with torch.no_grad():
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            beyond = diffusivity.f(middle) <= omega  # slope ≥ 0: the minimum is not to the right
            low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    # Evaluating both ends keeps minima at 0 and 4 exact.
    return torch.minimum(omega * low - diffusivity.delta(low), omega * high - diffusivity.delta(high))


def surrogate_energy(
    z: Tensor, previous: Tensor, omega: Tensor | None, diffusivity: str | Diffusivity, *, weight: float = 1.0
) -> Tensor:
    """Ẽ(Z, k; Ω), summed over blocks of rows.

    Args:
        z: States Z, ``[N, d]``, with squared distances of at most 4.
        previous: States Z^(k), ``[N, d]``.
        omega: Ω ≥ 0, ``[N, N]``, or None for the exchange of the diffusion, f(||z^(k)_i - z^(k)_j||²).
        diffusivity: A name or a `Diffusivity`.
        weight: λ.
    """
    chosen = as_diffusivity(diffusivity, channels=z.shape[1])
    centred, anchored = z - z.mean(0), previous - previous.mean(0)
    total = ((z - previous) ** 2).sum()
    rounding = 64 * torch.finfo(z.dtype).eps * float(chosen.f(z.new_zeros(1)))
    for start in range(0, z.shape[0], BLOCK_SIZE):
        rows = slice(start, start + BLOCK_SIZE)
        parameters = chosen.f(squared_distances(anchored[rows], anchored)) if omega is None else omega[rows]
        # By rounding, squared distances of opposite unit states may exceed 4, where f is negative.
        if (parameters < -rounding).any():
            raise UserError(f"omega must be ≥ 0, got {parameters.min().item():.3g}")
        parameters = parameters.clamp_min(0.0)
        bound = parameters * squared_distances(centred[rows], centred) - concave_conjugate(parameters, chosen)
        total = total + weight * bound.sum()
    return total
