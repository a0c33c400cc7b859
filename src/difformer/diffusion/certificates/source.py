"""Certificates for a constant coupling with a source: Z⁺ = Z - τΔZ + τβH.

The paper's claim for it (`prop-convergence`, E_{k+1} ≤ E_k) is false: see `counterexamples`. What holds is here.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import Certificate, double, largest_gap, largest_rise
from difformer.diffusion.certificates.static import SLACK, AnyCoupling, Static, component_means, needed_weight
from difformer.diffusion.energy import Energy, smoothness
from difformer.diffusion.laplacian import Laplacian


def _source(z: Tensor, source: Tensor | None) -> Tensor:
    return double(z if source is None else source)


def _solve(case: Static, h: Tensor) -> Tensor:
    """Δ⁺H, column by column."""
    laplacian = Laplacian.of(case.coupling, case.z, "degree")
    columns = [torch.from_numpy(laplacian.solve(column)) for column in h.cpu().numpy().T]
    return torch.stack(columns, 1).to(h.device)


def prop_convergence(
    z: Tensor,
    coupling: AnyCoupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 1.0,
    step_size: float | None = None,
    steps: int = 8,
) -> Certificate:
    """F(Z) = ½ tr(ZᵀΔZ) - β⟨Z, H⟩ does not rise for 0 < τ ≤ 2/λ₁: the iteration is gradient descent on it."""
    case, inflow = Static.of(z, coupling, step_size, 2.0), _source(z, source)
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    values = [case.coupling.variation(now) / 4 - source_weight * (now * inflow).sum() for now in states]
    size = float(states.flatten(1).norm(dim=1).max())
    return Certificate(
        name="prop-convergence",
        claim="F(Z) = ½ tr(ZᵀΔZ) - β⟨Z, H⟩ does not rise",
        condition="S = Sᵀ ≥ 0, 0 < τ ≤ 2/λ₁",
        condition_met=case.up_to(2),
        violation=largest_rise(
            values[:-1],
            values[1:],
            magnitude=size**2 * case.largest + abs(source_weight) * size * float(inflow.norm()),
        ),
        details=case.details(source_weight=source_weight),
    )


def prop_convergence_step(
    z: Tensor,
    coupling: AnyCoupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 1.0,
    step_size: float | None = None,
    weight: float | None = None,
    steps: int = 8,
) -> Certificate:
    """E(Z^(k+1), k) ≤ E(Z^(k), k), E(Z, k) = ||Z - (Z^(k) + ηH)||² + λ Σ_ij s_ij ||z_i - z_j||², η = 2λβ."""
    case, inflow = Static.of(z, coupling, step_size, 1.0), _source(z, source)
    least = needed_weight(case.step_size, case.largest)
    weight = (least if math.isfinite(least) else 1.0) if weight is None else weight
    eta = 2 * weight * source_weight
    energy = Energy(smoothness(case.coupling), weight, source=inflow, source_weight=eta)
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    size = float(states.flatten(1).norm(dim=1).max()) + abs(eta) * float(inflow.norm())
    return Certificate(
        name="prop-convergence (one step)",
        claim="E(Z^(k+1), k) ≤ E(Z^(k), k) with η = 2λβ",
        condition="S = Sᵀ ≥ 0, 0 < τ < 2/λ₁, λ ≥ τ / (2(2 - τλ₁))",
        condition_met=case.up_to(2) and weight * SLACK >= least,
        violation=largest_rise(
            [energy(now, now) for now in states[:-1]],
            [energy(after, now) for now, after in pairwise(states)],
            magnitude=size**2 * (1 + weight * case.largest),
        ),
        details=case.details(weight=weight, source_weight=source_weight, eta=eta),
    )


def source_drift(
    z: Tensor,
    coupling: AnyCoupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 1.0,
    step_size: float | None = None,
    steps: int = 8,
) -> Certificate:
    """Component means grow by τβ·mean(H) a step, without end: Δ is singular, and the paper's Δ⁻¹H need not exist."""
    case, inflow = Static.of(z, coupling, step_size, 1.0), _source(z, source)
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    growth = steps * case.step_size * source_weight * component_means(inflow, case.coupling)
    expected = component_means(case.z, case.coupling) + growth
    return Certificate(
        name="prop-convergence (drift)",
        claim="mean(Z^(k)) = mean(Z^(0)) + kτβ·mean(H) on each component",
        condition="S = Sᵀ",
        condition_met=case.symmetric,
        violation=largest_gap(
            component_means(states[-1], case.coupling), expected, magnitude=float(states.abs().max())
        ),
        details=case.details(source_weight=source_weight),
    )


def source_limit(
    z: Tensor,
    coupling: AnyCoupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 1.0,
    step_size: float | None = None,
    steps: int = 30,
) -> Certificate:
    """Where H has mean zero on each component, Z^(k) goes to βΔ⁺H + component means, at least as fast as ρ^k.

    H is taken less its component means, so that the condition is met.
    """
    case, inflow = Static.of(z, coupling, step_size, 1.0), _source(z, source)
    means = component_means(case.z, case.coupling)
    inflow = inflow - component_means(inflow, case.coupling)
    rate = case.rate()
    limit = source_weight * _solve(case, inflow) + means if case.symmetric else torch.full_like(means, math.nan)
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    away = (states - limit).flatten(1).norm(dim=1)
    bound = away[0] * rate ** torch.arange(steps + 1, dtype=torch.float64, device=away.device)
    return Certificate(
        name="prop-convergence (limit)",
        claim="||Z^(k) - Z*|| ≤ ρ^k ||Z^(0) - Z*||, Z* = βΔ⁺H + component means",
        condition="S = Sᵀ ≥ 0, 0 < τ < 2/λ₁, H of mean zero on each component",
        condition_met=case.up_to(2) and rate < 1,
        # Rounding adds up over the steps, and the limit itself is known to 13 digits.
        violation=largest_rise(bound, away, magnitude=10 * float(limit.norm() + states.flatten(1).norm(dim=1).max())),
        details=case.details(rate=rate, left=float(away[-1])),
    )
