"""Certificates for a constant coupling, with and without a source.

Without a source the step is Z⁺ = Z - τΔZ, where Δ = D̃ - S and S is symmetric and non-negative. The energy is
E(Z, k) = ||Z - Z^(k)||² + λ Σ_ij s_ij ||z_i - z_j||², and E_k = E(Z^(k), k - 1); λ₁ is the largest eigenvalue of Δ and
μ its smallest non-zero one.

With a source the step is Z⁺ = Z - τΔZ + τβH. The paper's claim for this case (`prop-convergence`, E_{k+1} ≤ E_k) is
false, see `difformer.diffusion.counterexamples`; this module has what holds instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.diffusion.certificates.certificate import Certificate, double, largest_gap, largest_rise
from difformer.diffusion.coupling import AnyCoupling, Coupling, GraphCoupling, as_coupling
from difformer.diffusion.dynamics import diffuse, flow
from difformer.diffusion.energy import Energy, normalised_dirichlet_energy, smoothness
from difformer.diffusion.spectrum import Laplacian, component_labels, laplacian_spectrum, stable_step_size
from difformer.errors import UserError
from difformer.graph import Graph

SLACK = 1 + 1e-9  # tolerance for the rounding of λ₁ in step sizes such as 2/λ₁


@dataclass(frozen=True)
class Static:
    """A constant coupling with its data."""

    z: Tensor
    coupling: Coupling
    largest: float
    step_size: float
    symmetric: bool

    @staticmethod
    def of(z: Tensor, coupling: AnyCoupling, step_size: float | None, share: float) -> Static:
        """With `step_size`, or by default `share` / λ₁."""
        z = double(z)
        chosen = as_coupling(coupling, num_nodes=z.shape[0])
        if not chosen.static:
            raise UserError("coupling depends on the states: this certificate is for constant ones; see thm_main")
        largest = 2 / stable_step_size(chosen, z)
        usual = share / largest if largest > 0 else 1.0
        return Static(z, chosen, largest, usual if step_size is None else step_size, chosen.symmetric(z))

    def trajectory(self, steps: int, **source: Any) -> Tensor:
        return diffuse(self.z, self.coupling, steps=steps, step_size=self.step_size, save="all", **source)

    def rate(self) -> float:
        """ρ = max(|1 - τμ|, |1 - τλ₁|), the factor of the slowest mode; NaN unless S is symmetric."""
        return math.sqrt(laplacian_spectrum(self.coupling, self.z).rate(self.step_size)) if self.symmetric else math.nan

    def up_to(self, share: float) -> bool:
        """Whether S is symmetric and 0 < τ ≤ share/λ₁."""
        return self.symmetric and self.step_size > 0 and self.step_size * self.largest <= share * SLACK

    def magnitude(self, weight: float) -> float:
        return float((self.z**2).sum()) * (1 + weight * self.largest)

    def details(self, **more: float) -> dict[str, float]:
        return {"step_size": self.step_size, "largest eigenvalue": self.largest, **more}


def thm_gcn(
    z: Tensor, coupling: AnyCoupling, *, step_size: float | None = None, weight: float = 1.0, steps: int = 8
) -> Certificate:
    """E_{k+1} ≤ E_k for every λ ≥ 0 and 0 < τ ≤ 2/λ₁; the paper requires τ ≤ 1/λ₁."""
    case = Static.of(z, coupling, step_size, 2.0)
    energies = Energy(smoothness(case.coupling), weight).along(case.trajectory(steps))
    rise = largest_rise(energies[:-1], energies[1:], magnitude=case.magnitude(weight))
    claim, condition = "E(Z^(k+1), k) ≤ E(Z^(k), k-1)", "S = Sᵀ ≥ 0, 0 < τ ≤ 2/λ₁, λ ≥ 0"
    met = case.up_to(2) and weight >= 0
    return Certificate("thm-gcn", claim, condition, met, rise, details=case.details(weight=weight))


def thm_gcn_step(
    z: Tensor, coupling: AnyCoupling, *, step_size: float | None = None, weight: float | None = None, steps: int = 8
) -> Certificate:
    """The stronger E(Z^(k+1), k) ≤ E(Z^(k), k), for τ < 2/λ₁ and λ ≥ τ / (2(2 - τλ₁))."""
    found = prop_convergence_step(z, coupling, source_weight=0.0, step_size=step_size, weight=weight, steps=steps)
    details = {name: value for name, value in found.details.items() if name not in ("source_weight", "eta")}
    return replace(found, name="thm-gcn (one step)", claim="E(Z^(k+1), k) ≤ E(Z^(k), k)", details=details)


def prop_bound(
    z: Tensor, coupling: AnyCoupling, *, step_size: float | None = None, weight: float = 1.0, steps: int = 8
) -> Certificate:
    """(1 - τλ₁)² E_k ≤ E_{k+1} ≤ (1 - τμ)² E_k for τ ≤ 1/λ₁, on disconnected graphs too.

    The paper has the smallest eigenvalue instead of μ, which is 0 for every graph and gives no bound.
    """
    case = Static.of(z, coupling, step_size, 1.0)
    slowest = (laplacian_spectrum(case.coupling, case.z).gap if case.symmetric else None) or 0.0
    energies = Energy(smoothness(case.coupling), weight).along(case.trajectory(steps))
    low, high = (1 - case.step_size * case.largest) ** 2, (1 - case.step_size * slowest) ** 2
    magnitude = case.magnitude(weight)
    below = largest_rise(energies[1:], low * energies[:-1], magnitude=magnitude)
    above = largest_rise(high * energies[:-1], energies[1:], magnitude=magnitude)
    claim = "(1 - τλ₁)² E_k ≤ E_{k+1} ≤ (1 - τμ)² E_k"
    condition = "S = Sᵀ ≥ 0, 0 < τ ≤ 1/λ₁, λ ≥ 0, μ the smallest non-zero eigenvalue"
    met, details = case.up_to(1) and weight >= 0, case.details(gap=slowest, weight=weight)
    return Certificate("prop-bound", claim, condition, met, max(below, above), details=details)


def component_means(z: Tensor, coupling: Coupling) -> Tensor:
    """The mean of its connected component at each node: the limit of diffusion."""
    components = Segments(component_labels(coupling, z))
    return components.means(z)[components.batch]


def cora_conv(z: Tensor, coupling: AnyCoupling, *, step_size: float | None = None, steps: int = 30) -> Certificate:
    """Z^(k) converges to component means at least as fast as ρ^k, ρ = max(|1 - τμ|, |1 - τλ₁|) < 1.

    The paper says "a single point", which holds if the graph is connected.
    """
    case = Static.of(z, coupling, step_size, 1.0)
    rate = case.rate()
    away = (case.trajectory(steps) - component_means(case.z, case.coupling)).flatten(1).norm(dim=1)
    bound = away[0] * rate ** torch.arange(steps + 1, dtype=torch.float64, device=away.device)
    rise = largest_rise(bound, away, magnitude=float(case.z.norm()))
    claim = "||Z^(k) - component means|| ≤ ρ^k ||Z^(0) - component means||, ρ < 1"
    met, details = case.up_to(2) and rate < 1, case.details(rate=rate, left=float(away[-1]))
    return Certificate("cora-conv", claim, "S = Sᵀ ≥ 0, 0 < τ < 2/λ₁", met, rise, details=details)


def corollary_gcn_cont(z: Tensor, coupling: AnyCoupling) -> Certificate:
    """dz_i/dt = Σ_j s_ij (z_j - z_i) = -½ ∇E at Z = Z(t), with λ = ½."""
    case = Static.of(z, coupling, None, 1.0)
    at = case.z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Energy(smoothness(case.coupling), 0.5)(at, case.z), at)
    size = float(case.coupling.degree(case.z).max() * case.z.abs().max())
    gap = largest_gap(flow(case.z, case.coupling), -gradient / 2, magnitude=size)
    claim = "dZ/dt = -½ ∇E(Z, t) with λ = ½"
    return Certificate("corollary-gcn-cont", claim, "S = Sᵀ", case.symmetric, gap, details={"weight": 0.5})


def example_gcn(z: Tensor, graph: Graph, *, step_size: float | None = None, steps: int = 8) -> Certificate:
    """Graph convolution with a residual descends tr(Zᵀ(I - S)Z), S = D^-½ A D^-½, for 0 < τ ≤ 2/λ₁(I - S).

    The paper derives (1-τ)Z + τSZ from `eqn-diffuse-iter`, which has D̃ instead of I and is a different iteration.
    """
    z, coupling = double(z), GraphCoupling(graph, "gcn")
    symmetric = coupling.symmetric(z)
    stable = stable_step_size(coupling, z, conservation="unit") if symmetric else 1.0
    step_size = (stable if math.isfinite(stable) else 1.0) if step_size is None else step_size
    states = diffuse(z, coupling, steps=steps, step_size=step_size, conservation="unit", save="all")
    energies = [normalised_dirichlet_energy(now, graph) for now in states]
    rise = largest_rise(energies[:-1], energies[1:], magnitude=float((z**2).sum()))
    claim = "½ Σ_ij a_ij ||z_i/√d_i - z_j/√d_j||² + Σ_isolated ||z_i||² does not rise"
    condition = "A = Aᵀ ≥ 0, Z⁺ = (1-τ)Z + τSZ, 0 < τ ≤ 2/λ₁(I - S)"
    met = symmetric and 0 < step_size <= stable * SLACK
    details = {"step_size": step_size, "largest eigenvalue": 2 / stable}
    return Certificate("exa-gcn", claim, condition, met, rise, details=details)


def prop_convergence(
    z: Tensor,
    coupling: AnyCoupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 1.0,
    step_size: float | None = None,
    steps: int = 8,
) -> Certificate:
    """F(Z) = ½ tr(ZᵀΔZ) - β⟨Z, H⟩ does not rise for 0 < τ ≤ 2/λ₁: the iteration is gradient descent on F."""
    case, inflow = Static.of(z, coupling, step_size, 2.0), double(z if source is None else source)
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    values = [case.coupling.variation(now) / 4 - source_weight * (now * inflow).sum() for now in states]
    size = float(states.flatten(1).norm(dim=1).max())
    magnitude = size**2 * case.largest + abs(source_weight) * size * float(inflow.norm())
    rise = largest_rise(values[:-1], values[1:], magnitude=magnitude)
    claim, condition = "F(Z) = ½ tr(ZᵀΔZ) - β⟨Z, H⟩ does not rise", "S = Sᵀ ≥ 0, 0 < τ ≤ 2/λ₁"
    details = case.details(source_weight=source_weight)
    return Certificate("prop-convergence", claim, condition, case.up_to(2), rise, details=details)


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
    case, inflow = Static.of(z, coupling, step_size, 1.0), double(z if source is None else source)
    left = 2 - case.step_size * case.largest
    least = case.step_size / (2 * left) if left > 0 else math.inf
    weight = (least if math.isfinite(least) else 1.0) if weight is None else weight
    eta = 2 * weight * source_weight
    energy = Energy(smoothness(case.coupling), weight, source=inflow, source_weight=eta)
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    size = float(states.flatten(1).norm(dim=1).max()) + abs(eta) * float(inflow.norm())
    starts = [energy(now, now) for now in states[:-1]]
    ends = [energy(after, now) for now, after in pairwise(states)]
    return Certificate(
        name="prop-convergence (one step)",
        claim="E(Z^(k+1), k) ≤ E(Z^(k), k) with η = 2λβ",
        condition="S = Sᵀ ≥ 0, 0 < τ < 2/λ₁, λ ≥ τ / (2(2 - τλ₁))",
        condition_met=case.up_to(2) and weight * SLACK >= least,
        violation=largest_rise(starts, ends, magnitude=size**2 * (1 + weight * case.largest)),
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
    """Component means grow by τβ·mean(H) per step without bound: Δ is singular, and the paper's Δ⁻¹H need not exist."""
    case, inflow = Static.of(z, coupling, step_size, 1.0), double(z if source is None else source)
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    start, end, growth = (component_means(values, case.coupling) for values in (case.z, states[-1], inflow))
    expected = start + steps * case.step_size * source_weight * growth
    gap = largest_gap(end, expected, magnitude=float(states.abs().max()))
    name, claim = "prop-convergence (drift)", "mean(Z^(k)) = mean(Z^(0)) + kτβ·mean(H) on each component"
    return Certificate(name, claim, "S = Sᵀ", case.symmetric, gap, details=case.details(source_weight=source_weight))


def source_limit(
    z: Tensor,
    coupling: AnyCoupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 1.0,
    step_size: float | None = None,
    steps: int = 30,
) -> Certificate:
    """If H has mean zero on each component, Z^(k) converges to βΔ⁺H + component means at least as fast as ρ^k.

    The component means of H are subtracted to meet the condition.
    """
    case, inflow = Static.of(z, coupling, step_size, 1.0), double(z if source is None else source)
    means, rate = component_means(case.z, case.coupling), case.rate()
    inflow = inflow - component_means(inflow, case.coupling)
    limit = torch.full_like(means, math.nan)
    if case.symmetric:
        laplacian = Laplacian.of(case.coupling, case.z, "degree")
        columns = [torch.from_numpy(laplacian.solve(column)) for column in inflow.cpu().numpy().T]
        limit = source_weight * torch.stack(columns, 1).to(z.device) + means
    states = case.trajectory(steps, source=inflow, source_weight=source_weight)
    away = (states - limit).flatten(1).norm(dim=1)
    bound = away[0] * rate ** torch.arange(steps + 1, dtype=torch.float64, device=away.device)
    # Rounding accumulates over the steps, and the limit has 13 digits.
    rise = largest_rise(bound, away, magnitude=10 * float(limit.norm() + states.flatten(1).norm(dim=1).max()))
    name, claim = "prop-convergence (limit)", "||Z^(k) - Z*|| ≤ ρ^k ||Z^(0) - Z*||, Z* = βΔ⁺H + component means"
    condition = "S = Sᵀ ≥ 0, 0 < τ < 2/λ₁, H of mean zero on each component"
    met, details = case.up_to(2) and rate < 1, case.details(rate=rate, left=float(away[-1]))
    return Certificate(name, claim, condition, met, rise, details=details)
