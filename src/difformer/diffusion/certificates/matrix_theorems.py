"""Certificates for a constant coupling, with and without a source.

Without a source the step is Z⁺ = Z - τΔZ, where Δ = D̃ - S and S is symmetric and non-negative. The energy is
E(Z, k) = ||Z - Z^(k)||² + λ Σ_ij s_ij ||z_i - z_j||², and E_k = E(Z^(k), k - 1); λ₁ is the largest eigenvalue of Δ and
μ its smallest non-zero one.

With a source the step is Z⁺ = Z - τΔZ + τβH. The paper's claim for this case (`prop-convergence`, E_{k+1} ≤ E_k) is
false, see `difformer.diffusion.counterexamples`; this module has what holds instead.

The certificates take `step_size` (τ) and `steps`, those with a source also `source` (H) and `source_weight` (β), as
`Static.of` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.diffusion.certificates.certificate import SLACK, Certificate, double, largest_gap, largest_rise
from difformer.diffusion.coupling import AnyCoupling, Coupling, GraphCoupling, as_coupling
from difformer.diffusion.dynamics import diffuse, flow
from difformer.diffusion.energy import Energy, normalised_dirichlet_energy, smoothness
from difformer.diffusion.spectrum import Laplacian, component_labels, laplacian_spectrum, stable_step_size
from difformer.errors import UserError
from difformer.graph import Graph


@dataclass(frozen=True)
class Static:
    """A constant coupling with its data."""

    z: Tensor
    coupling: Coupling
    largest: float  # λ₁
    step_size: float
    steps: int
    symmetric: bool
    inflow: Tensor
    source_weight: float

    @staticmethod
    def of(
        z: Tensor,
        coupling: AnyCoupling,
        share: float,
        *,
        step_size: float | None = None,
        steps: int = 8,
        source: Tensor | None = None,
        source_weight: float = 1.0,
    ) -> Static:
        """With H = `source`, by default the states, and τ = `step_size`, by default `share` / λ₁."""
        z = double(z)
        chosen = as_coupling(coupling, num_nodes=z.shape[0])
        if not chosen.static:
            raise UserError("coupling depends on the states: this certificate is for constant ones; see thm_main")
        largest = 2 / stable_step_size(chosen, z)
        usual = share / largest if largest > 0 else 1.0
        step_size, inflow = usual if step_size is None else step_size, z if source is None else double(source)
        return Static(z, chosen, largest, step_size, steps, chosen.symmetric(z), inflow, source_weight)

    @cached_property
    def states(self) -> Tensor:
        """The trajectory, ``[steps + 1, N, d]``."""
        options: dict[str, Any] = {"source": self.inflow, "source_weight": self.source_weight, "save": "all"}
        return diffuse(self.z, self.coupling, steps=self.steps, step_size=self.step_size, **options)

    @cached_property
    def rate(self) -> float:
        """ρ = max(|1 - τμ|, |1 - τλ₁|), the factor of the slowest mode; NaN unless S is symmetric."""
        return math.sqrt(laplacian_spectrum(self.coupling, self.z).rate(self.step_size)) if self.symmetric else math.nan

    def up_to(self, share: float) -> bool:
        """Whether S is symmetric and 0 < τ ≤ share/λ₁."""
        return self.symmetric and self.step_size > 0 and self.step_size * self.largest <= share * SLACK

    def means(self, values: Tensor) -> Tensor:
        """The mean of its connected component at each node: the limit of diffusion."""
        components = Segments(component_labels(self.coupling, values))
        return components.means(values)[components.batch]

    def away_from(self, limit: Tensor, name: str, claim: str, condition: str, magnitude: float) -> Certificate:
        """That the states converge to `limit` at least as fast as ρ^k, ρ < 1."""
        away = (self.states - limit).flatten(1).norm(dim=1)
        bound = away[0] * self.rate ** torch.arange(self.steps + 1, dtype=torch.float64, device=away.device)
        rise = largest_rise(bound, away, magnitude=magnitude)
        met, details = self.up_to(2) and self.rate < 1, self.details(rate=self.rate, left=float(away[-1]))
        return Certificate(name, claim, condition, met, rise, details=details)

    def magnitude(self, weight: float) -> float:
        return float((self.z**2).sum()) * (1 + weight * self.largest)

    def details(self, **more: float) -> dict[str, float]:
        return {"step_size": self.step_size, "largest eigenvalue": self.largest, **more}


def thm_gcn(z: Tensor, coupling: AnyCoupling, *, weight: float = 1.0, **settings: Any) -> Certificate:
    """E_{k+1} ≤ E_k for every λ ≥ 0 and 0 < τ ≤ 2/λ₁; the paper requires τ ≤ 1/λ₁."""
    case = Static.of(z, coupling, 2.0, source_weight=0.0, **settings)
    energies = Energy(smoothness(case.coupling), weight).along(case.states)
    rise = largest_rise(energies[:-1], energies[1:], magnitude=case.magnitude(weight))
    claim, condition = "E(Z^(k+1), k) ≤ E(Z^(k), k-1)", "S = Sᵀ ≥ 0, 0 < τ ≤ 2/λ₁, λ ≥ 0"
    met = case.up_to(2) and weight >= 0
    return Certificate("thm-gcn", claim, condition, met, rise, details=case.details(weight=weight))


def thm_gcn_step(z: Tensor, coupling: AnyCoupling, **settings: Any) -> Certificate:
    """The stronger E(Z^(k+1), k) ≤ E(Z^(k), k), for τ < 2/λ₁ and λ ≥ τ / (2(2 - τλ₁))."""
    found = prop_convergence_step(z, coupling, source_weight=0.0, **settings)
    details = {name: value for name, value in found.details.items() if name not in ("source_weight", "eta")}
    return replace(found, name="thm-gcn (one step)", claim="E(Z^(k+1), k) ≤ E(Z^(k), k)", details=details)


def prop_bound(z: Tensor, coupling: AnyCoupling, *, weight: float = 1.0, **settings: Any) -> Certificate:
    """(1 - τλ₁)² E_k ≤ E_{k+1} ≤ (1 - τμ)² E_k for τ ≤ 1/λ₁, on disconnected graphs too.

    The paper has the smallest eigenvalue instead of μ, which is 0 for every graph and gives no bound.
    """
    case = Static.of(z, coupling, 1.0, source_weight=0.0, **settings)
    slowest = (laplacian_spectrum(case.coupling, case.z).gap if case.symmetric else None) or 0.0
    energies = Energy(smoothness(case.coupling), weight).along(case.states)
    low, high = (1 - case.step_size * case.largest) ** 2, (1 - case.step_size * slowest) ** 2
    magnitude = case.magnitude(weight)
    below = largest_rise(energies[1:], low * energies[:-1], magnitude=magnitude)
    above = largest_rise(high * energies[:-1], energies[1:], magnitude=magnitude)
    claim = "(1 - τλ₁)² E_k ≤ E_{k+1} ≤ (1 - τμ)² E_k"
    condition = "S = Sᵀ ≥ 0, 0 < τ ≤ 1/λ₁, λ ≥ 0, μ the smallest non-zero eigenvalue"
    met, details = case.up_to(1) and weight >= 0, case.details(gap=slowest, weight=weight)
    return Certificate("prop-bound", claim, condition, met, max(below, above), details=details)


def cora_conv(z: Tensor, coupling: AnyCoupling, **settings: Any) -> Certificate:
    """Z^(k) converges to component means at least as fast as ρ^k, ρ = max(|1 - τμ|, |1 - τλ₁|) < 1.

    The paper says "a single point", which holds if the graph is connected. By default there are 30 steps.
    """
    settings.setdefault("steps", 30)
    case = Static.of(z, coupling, 1.0, source_weight=0.0, **settings)
    claim = "||Z^(k) - component means|| ≤ ρ^k ||Z^(0) - component means||, ρ < 1"
    condition, magnitude = "S = Sᵀ ≥ 0, 0 < τ < 2/λ₁", float(case.z.norm())
    return case.away_from(case.means(case.z), "cora-conv", claim, condition, magnitude)


def corollary_gcn_cont(z: Tensor, coupling: AnyCoupling) -> Certificate:
    """dz_i/dt = Σ_j s_ij (z_j - z_i) = -½ ∇E at Z = Z(t), with λ = ½."""
    case = Static.of(z, coupling, 1.0, source_weight=0.0)
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
    # I - S has the spectrum of D̃ - S for random-walk weights, but for isolated nodes, of which it keeps nothing.
    largest = 2 / stable_step_size(GraphCoupling(graph, "random_walk"), z) if symmetric else 2.0
    largest = max(largest, float((graph.degree(z.dtype) <= 0).any()))
    step_size = (2 / largest if largest > 0 else 1.0) if step_size is None else step_size
    states = diffuse(z, coupling, steps=steps, step_size=step_size, conservation="unit", save="all")
    energies = [normalised_dirichlet_energy(now, graph) for now in states]
    rise = largest_rise(energies[:-1], energies[1:], magnitude=float((z**2).sum()))
    claim = "½ Σ_ij a_ij ||z_i/√d_i - z_j/√d_j||² + Σ_isolated ||z_i||² does not rise"
    condition = "A = Aᵀ ≥ 0, Z⁺ = (1-τ)Z + τSZ, 0 < τ ≤ 2/λ₁(I - S)"
    met = symmetric and step_size > 0 and step_size * largest <= 2 * SLACK
    details = {"step_size": step_size, "largest eigenvalue": largest}
    return Certificate("exa-gcn", claim, condition, met, rise, details=details)


def prop_convergence(z: Tensor, coupling: AnyCoupling, **settings: Any) -> Certificate:
    """F(Z) = ½ tr(ZᵀΔZ) - β⟨Z, H⟩ does not rise for 0 < τ ≤ 2/λ₁: the iteration is gradient descent on F."""
    case = Static.of(z, coupling, 2.0, **settings)
    beta, inflow = case.source_weight, case.inflow
    values = [case.coupling.variation(now) / 4 - beta * (now * inflow).sum() for now in case.states]
    size = float(case.states.flatten(1).norm(dim=1).max())
    magnitude = size**2 * case.largest + abs(beta) * size * float(inflow.norm())
    rise = largest_rise(values[:-1], values[1:], magnitude=magnitude)
    claim, condition = "F(Z) = ½ tr(ZᵀΔZ) - β⟨Z, H⟩ does not rise", "S = Sᵀ ≥ 0, 0 < τ ≤ 2/λ₁"
    details = case.details(source_weight=beta)
    return Certificate("prop-convergence", claim, condition, case.up_to(2), rise, details=details)


def prop_convergence_step(
    z: Tensor, coupling: AnyCoupling, *, weight: float | None = None, **settings: Any
) -> Certificate:
    """E(Z^(k+1), k) ≤ E(Z^(k), k), E(Z, k) = ||Z - (Z^(k) + ηH)||² + λ Σ_ij s_ij ||z_i - z_j||², η = 2λβ."""
    case = Static.of(z, coupling, 1.0, **settings)
    left = 2 - case.step_size * case.largest
    least = case.step_size / (2 * left) if left > 0 else math.inf
    weight = (least if math.isfinite(least) else 1.0) if weight is None else weight
    eta = 2 * weight * case.source_weight
    energy = Energy(smoothness(case.coupling), weight, source=case.inflow, source_weight=eta)
    size = float(case.states.flatten(1).norm(dim=1).max()) + abs(eta) * float(case.inflow.norm())
    starts = [energy(now, now) for now in case.states[:-1]]
    ends = [energy(after, now) for now, after in pairwise(case.states)]
    return Certificate(
        name="prop-convergence (one step)",
        claim="E(Z^(k+1), k) ≤ E(Z^(k), k) with η = 2λβ",
        condition="S = Sᵀ ≥ 0, 0 < τ < 2/λ₁, λ ≥ τ / (2(2 - τλ₁))",
        condition_met=case.up_to(2) and weight * SLACK >= least,
        violation=largest_rise(starts, ends, magnitude=size**2 * (1 + weight * case.largest)),
        details=case.details(weight=weight, source_weight=case.source_weight, eta=eta),
    )


def source_drift(z: Tensor, coupling: AnyCoupling, **settings: Any) -> Certificate:
    """Component means grow by τβ·mean(H) per step without bound: Δ is singular, and the paper's Δ⁻¹H need not exist."""
    case = Static.of(z, coupling, 1.0, **settings)
    start, end, growth = (case.means(values) for values in (case.z, case.states[-1], case.inflow))
    expected = start + case.steps * case.step_size * case.source_weight * growth
    gap = largest_gap(end, expected, magnitude=float(case.states.abs().max()))
    name, claim = "prop-convergence (drift)", "mean(Z^(k)) = mean(Z^(0)) + kτβ·mean(H) on each component"
    details = case.details(source_weight=case.source_weight)
    return Certificate(name, claim, "S = Sᵀ", case.symmetric, gap, details=details)


def source_limit(z: Tensor, coupling: AnyCoupling, **settings: Any) -> Certificate:
    """If H has mean zero on each component, Z^(k) converges to βΔ⁺H + component means at least as fast as ρ^k.

    The component means of H are subtracted to meet the condition; by default there are 30 steps.
    """
    settings.setdefault("steps", 30)
    case = Static.of(z, coupling, 1.0, **settings)
    case = replace(case, inflow=case.inflow - case.means(case.inflow))
    limit = torch.full_like(case.z, math.nan)
    if case.symmetric:
        laplacian = Laplacian.of(case.coupling, case.z)
        columns = [torch.from_numpy(laplacian.solve(column)) for column in case.inflow.cpu().numpy().T]
        limit = case.source_weight * torch.stack(columns, 1).to(z.device) + case.means(case.z)
    claim = "||Z^(k) - Z*|| ≤ ρ^k ||Z^(0) - Z*||, Z* = βΔ⁺H + component means"
    condition = "S = Sᵀ ≥ 0, 0 < τ < 2/λ₁, H of mean zero on each component"
    # Rounding accumulates over the steps, and the limit has 13 digits.
    magnitude = 10 * float(limit.norm() + case.states.flatten(1).norm(dim=1).max())
    return case.away_from(limit, "prop-convergence (limit)", claim, condition, magnitude)
