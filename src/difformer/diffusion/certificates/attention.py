"""Certificates for a coupling that follows the states: Ω_ij = f(||z_i - z_j||²), Z⁺ = (1-τ)Z + τ D̄⁻¹ΩZ, D̄ = diag(Ω1).

The energy is E(Z, k) = ||Z - Z^(k)||² + λ Σ_ij δ(||z_i - z_j||²), over all pairs or over the edges of an undirected
graph. The theorems speak of distances: attention on cosines (what a network computes) is covered on unit states only,
and a trained network, whose queries and keys differ, not at all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import Certificate, double, largest_gap, largest_rise
from difformer.diffusion.certificates.moving import (
    SLACK,
    checked,
    in_range,
    least_weight,
    regulariser_of,
    smallest_exchange_eigenvalue,
    step_violation,
)
from difformer.diffusion.coupling import AllPairAttention, Coupling
from difformer.diffusion.diffusivity import Diffusivity, as_diffusivity
from difformer.diffusion.dynamics import diffuse, flow
from difformer.diffusion.energy import Energy, penalty
from difformer.diffusion.pairs import BLOCK_SIZE
from difformer.diffusion.surrogate import surrogate_energy

SAMPLE = 512  # states that prop_energy looks at


def thm_main(
    z: Tensor, coupling: Coupling, *, step_size: float = 0.5, weight: float | None = None, steps: int = 6
) -> Certificate:
    """E(Z^(k+1), k) ≤ E(Z^(k), k) for τ < 1 and λ ≥ τ / (4(1-τ) min_i d̄_i), one λ for all steps.

    The paper says that some τ does and leaves λ open; with a small λ the step fails. The λ used here is the least that
    is enough for all steps, where none is given.
    """
    return _descent(z, coupling, step_size, weight, steps, definite=False)


def thm_main_definite(
    z: Tensor, coupling: Coupling, *, step_size: float = 1.0, weight: float | None = None, steps: int = 6
) -> Certificate:
    """Where Ω is positive semi-definite, λ ≥ τ / (2(2-τ) min_i d̄_i) is enough, up to τ = 1.

    Gaussian, softmax and constant give such an Ω always, `simple` while the states are on the sphere; it is measured at
    every step.
    """
    return _descent(z, coupling, step_size, weight, steps, definite=True)


def _descent(
    z: Tensor, coupling: Coupling, step_size: float, weight: float | None, steps: int, *, definite: bool
) -> Certificate:
    z, chosen = double(z), checked(coupling)
    states = diffuse(z, chosen, steps=steps, step_size=step_size, save="all")
    before, after = states[:-1], states[1:]
    least = least_weight(before, chosen, step_size, definite=definite)
    weight = (least if math.isfinite(least) else 1.0) if weight is None else weight
    lowest = min((smallest_exchange_eigenvalue(now, chosen) for now in before), default=0.0) if definite else 0.0
    bound = "2(2-τ)" if definite else "4(1-τ)"
    limits = "0 < τ ≤ 1, Ω positive semi-definite" if definite else "0 < τ < 1"
    allowed = 0 < step_size <= 1 and lowest >= -1e-10 if definite else 0 < step_size < 1
    energy = Energy(regulariser_of(chosen), weight)
    return Certificate(
        name="thm-main (definite)" if definite else "thm-main",
        claim="E(Z^(k+1), k) ≤ E(Z^(k), k), hence ≤ E(Z^(k), k-1)",
        condition=f"Ω = Ωᵀ on distances in [0, 4], {limits}, λ ≥ τ / ({bound} min d̄)",
        condition_met=allowed and weight * SLACK >= least and in_range(before, chosen),
        violation=step_violation([energy] * steps, before, after),
        details={"step_size": step_size, "weight": weight, "smallest eigenvalue": lowest},
    )


def prop_energy(
    z: Tensor,
    diffusivity: str | Diffusivity,
    *,
    weight: float = 1.0,
    draws: int = 3,
    seed: int = 0,
    block_size: int = BLOCK_SIZE,
) -> Certificate:
    """Ẽ(Z, k; Ω) ≥ E(Z, k; δ) for every Ω ≥ 0, with equality at ω_ij = f(||z_i - z_j||²): on random Ω, and at f.

    The claim is a sum of claims about single pairs, so that of many states `SAMPLE`, drawn at random, show as much.
    """
    name, condition = "prop-energy", "Ω ≥ 0, distances in [0, 4]"
    claim = "Ẽ(Z, k; Ω) ≥ E(Z, k; δ), with equality at ω = f(u)"
    z = double(z)
    if z.shape[0] > SAMPLE:
        z = z[torch.randperm(z.shape[0], generator=torch.Generator().manual_seed(seed))[:SAMPLE]]
    chosen = as_diffusivity(diffusivity, channels=z.shape[1])
    energy = Energy(penalty(chosen, block_size=block_size), weight)(z, z)
    scale = float(chosen.f(z.new_zeros(1)))

    def random(draw: int, rows: slice) -> Tensor:
        # Seeded by the place of the rows, so that no N×N matrix needs to be kept between two looks at it.
        generator = torch.Generator().manual_seed(seed + 7919 * draw + rows.start)
        count = len(range(*rows.indices(z.shape[0])))
        return (scale * torch.empty(count, z.shape[0]).exponential_(generator=generator)).to(z)

    def surrogate(omega: object) -> Tensor:
        return surrogate_energy(z, z, omega, chosen, weight=weight, block_size=block_size)  # type: ignore[arg-type]

    covered = in_range(z.unsqueeze(0), AllPairAttention(chosen, block_size=block_size))
    if not covered:  # f may be negative there, and its conjugate knows of [0, 4] only
        return Certificate(name, claim, condition, False, math.nan)
    above = [surrogate(lambda rows, draw=draw: random(draw, rows)) for draw in range(draws)]
    tight = surrogate(None)
    base = weight * float(penalty(chosen, block_size=block_size)(torch.zeros_like(z)))
    magnitude = abs(float(energy)) + abs(base) + weight * scale * z.shape[0] ** 2
    return Certificate(
        name,
        claim,
        condition,
        condition_met=True,
        violation=max(
            largest_rise(above, [energy] * draws, magnitude=magnitude, base=base),
            largest_rise([energy], [tight], magnitude=magnitude, base=base),
            largest_rise([tight], [energy], magnitude=magnitude, base=base),
        ),
        details={"energy": float(energy), "tight": float(tight), "least above": float(min(above, default=tight))},
    )


def coro_main(z: Tensor, coupling: Coupling) -> Certificate:
    """The flow is D̄ dZ/dt = -¼ ∇Σδ for row-normalised Ω, a preconditioned one; -½ ∇E with λ = ½ where it is not.

    The paper claims -½ ∇E for the row-normalised flow too.
    """
    z, chosen = double(z), checked(coupling, normalised=False)
    at = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(regulariser_of(chosen)(at), at)
    rate, sums = flow(z, chosen), chosen.exchange_sums(z)
    # δ is known to the rounding of its range, hence its slope to that of f at distance zero.
    closest = chosen.exchange_sums(torch.zeros_like(z))
    if chosen.normalised:
        rate = sums.unsqueeze(1) * rate
    return Certificate(
        name="coro-main",
        claim="dZ/dt = -¼ D̄⁻¹ ∇Σδ" if chosen.normalised else "dZ/dt = -½ ∇E(Z, t) with λ = ½",
        condition="Ω = Ωᵀ on distances in [0, 4]" + (", row-normalised" if chosen.normalised else ", not normalised"),
        condition_met=in_range(z.unsqueeze(0), chosen),
        violation=largest_gap(rate, -gradient / 4, magnitude=float(closest.max() * z.abs().max())),
        details={"gradient": float(gradient.norm())},
    )
