"""What the certificates for attention share: which couplings they speak of, how large λ must be, how a step descends.

With Ω_ij = f(||z_i - z_j||²), D̄ = diag(Ω1) and Z⁺ = Z + W, W = -τ D̄⁻¹(D̄ - Ω)Z, the tangents of the concave δ give

    Σ δ(u⁺) - Σ δ(u) ≤ -(4/τ) ⟨W, D̄W⟩ + 2 ⟨W, (D̄ - Ω)W⟩ ≤ -4 (1/τ - 1) ⟨W, D̄W⟩,

since D̄ - Ω ≤ 2D̄, or -2 (2/τ - 1) ⟨W, D̄W⟩ where Ω is positive semi-definite. So λ Σδ falls by more than the ||W||² of
the first term once λ ≥ τ / (4(1-τ) min_i d̄_i), or τ / (2(2-τ) min_i d̄_i).
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import largest_rise
from difformer.diffusion.coupling import AllPairAttention, Coupling, EdgeAttention
from difformer.diffusion.coupling.base import edge_distances
from difformer.diffusion.energy import Energy, Regulariser, penalty
from difformer.diffusion.pairs import BLOCK_SIZE, largest_squared_distance
from difformer.diffusion.quadrature import LARGEST_SQUARED_DISTANCE

SLACK = 1 + 1e-9
DEFINITE = ("gaussian", "softmax", "constant")  # positive-definite kernels, whatever the states

AnyAttention = AllPairAttention | EdgeAttention


def checked(coupling: Coupling, *, normalised: bool = True) -> AnyAttention:
    """The coupling, if the theorems speak of it.

    Raises:
        TypeError: If it is not attention.
        ValueError: If it is computed on cosines, or is not normalised where it must be.
    """
    if not isinstance(coupling, AllPairAttention | EdgeAttention):
        raise TypeError(f"coupling must be AllPairAttention or EdgeAttention, got {type(coupling).__name__}")
    if coupling.metric != "distance":
        raise ValueError(
            f"coupling has metric={coupling.metric!r}: the theorems speak of distances between states, so that no "
            f"certificate covers it; make it with metric='distance' (the two agree on unit states)"
        )
    if normalised and not coupling.normalised:
        raise ValueError("coupling must be row-normalised: make it with normalised=True")
    return coupling


def regulariser_of(coupling: AnyAttention) -> Regulariser:
    """Σ δ(u_ij) over the pairs that exchange."""
    if isinstance(coupling, EdgeAttention):
        return penalty(coupling.diffusivity, graph=coupling.graph)
    return penalty(coupling.diffusivity, batch=coupling.segments, block_size=coupling.block_size)


def in_range(states: Tensor, coupling: AnyAttention) -> bool:
    """Whether exchanges are symmetric and non-negative, and all squared distances lie in [0, 4]."""
    if isinstance(coupling, EdgeAttention):
        if not coupling.undirected or (coupling.graph.weights() < 0).any():
            return False
        source, target = coupling.graph.edge_index
        return all(bool((edge_distances(z, target, source) <= LARGEST_SQUARED_DISTANCE * SLACK).all()) for z in states)
    return all(_within(z, coupling) for z in states)


def _within(z: Tensor, coupling: AllPairAttention) -> bool:
    if float((z - z.mean(0)).norm(dim=1).max()) ** 2 * 4 <= LARGEST_SQUARED_DISTANCE:
        return True  # a ball of radius one holds them: no pair needs to be looked at
    apart = largest_squared_distance(z, batch=coupling.segments, block_size=coupling.block_size)
    return apart <= LARGEST_SQUARED_DISTANCE * SLACK


def least_weight(
    states: Tensor, coupling: AnyAttention, step_size: float, *, definite: bool = False, everywhere: bool = False
) -> float:
    """The λ from which on every step descends, over all given states.

    Args:
        states: States at which steps are taken, ``[K, N, d]``.
        coupling: The attention.
        step_size: τ.
        definite: Whether Ω is positive semi-definite, which asks for less.
        everywhere: Whether nodes that exchange with nobody count too; without a source they do not move.
    """
    left = 2 * (2 - step_size) if definite else 4 * (1 - step_size)
    if left <= 0:
        return math.inf
    needed = 0.0
    for z in states:
        sums = coupling.exchange_sums(z)
        sums = sums if everywhere else sums[sums > 0]
        if sums.numel():
            least = float(sums.min())
            needed = max(needed, step_size / (left * least)) if least > 0 else math.inf
    return needed


def smallest_exchange_eigenvalue(z: Tensor, coupling: AnyAttention) -> float:
    """The smallest eigenvalue of Ω relative to the largest: not below zero where Ω is positive semi-definite.

    It is measured up to `BLOCK_SIZE` states. Beyond, kernels that are definite on any states count as zero, and what
    is not known is not a number.
    """
    if z.shape[0] <= BLOCK_SIZE:
        values = torch.linalg.eigvalsh(dataclasses.replace(coupling, normalised=False).matrix(z))
        return float(values[0] / values.abs().max().clamp_min(1e-300))
    kernel = coupling.chosen(z).name.partition(":")[0]
    return 0.0 if isinstance(coupling, AllPairAttention) and kernel in DEFINITE else math.nan


def step_violation(energies: list[Energy], before: Tensor, after: Tensor, anchors: Tensor | None = None) -> float:
    """The largest rise from E(Z, k) at the state where step k begins to E(Z^(k+1), k), one energy a step.

    Args:
        energies: E(·, k) for each step.
        before: The states where each step begins: Z^(k), or h(Z^(k)).
        after: The states where each step ends.
        anchors: Z^(k), where it differs from `before`.
    """
    anchors = before if anchors is None else anchors
    start = [energy(z, anchor) for energy, z, anchor in zip(energies, before, anchors, strict=True)]
    end = [energy(z, anchor) for energy, z, anchor in zip(energies, after, anchors, strict=True)]
    # δ(0) need not be zero: heights are counted from the energy of states that have all come together.
    base = min(
        (energy.weight * float(energy.regulariser(torch.zeros_like(before[0]))) for energy in energies), default=0.0
    )
    magnitude = max((abs(float(value)) for value in start), default=0.0) + abs(base)
    return largest_rise(start, end, magnitude=magnitude, base=base)
