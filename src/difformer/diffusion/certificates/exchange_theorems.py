"""Certificates for attention: Ω_ij = f(||z_i - z_j||²), D̄ = diag(Ω1), Z⁺ = (1-τ)Z + τ D̄⁻¹ΩZ.

The energy is E(Z, k) = ||Z - Z^(k)||² + λ Σ_ij δ(||z_i - z_j||²), over all pairs or over the edges of an undirected
graph. The theorems are about distances. They cover attention on cosines (what a network computes) on unit states only,
and do not cover trained networks, whose queries and keys differ.

With Z⁺ = Z + W and W = -τ D̄⁻¹(D̄ - Ω)Z, the tangents of the concave δ give

    Σ δ(u⁺) - Σ δ(u) ≤ -(4/τ) ⟨W, D̄W⟩ + 2 ⟨W, (D̄ - Ω)W⟩ ≤ -4 (1/τ - 1) ⟨W, D̄W⟩,

since D̄ - Ω ≤ 2D̄, or -2 (2/τ - 1) ⟨W, D̄W⟩ if Ω is positive semi-definite. So λ Σδ falls by more than the ||W||² of the
first term if λ ≥ τ / (4(1-τ) min_i d̄_i), or τ / (2(2-τ) min_i d̄_i).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import SLACK, Certificate, double, largest_gap, largest_rise
from difformer.diffusion.coupling import AllPairAttention, Coupling, EdgeAttention, GraphCoupling, Mix
from difformer.diffusion.coupling.matrix import edge_distances
from difformer.diffusion.dynamics import diffuse, flow
from difformer.diffusion.energy import Energy, Regulariser, mixture, penalty, surrogate_energy
from difformer.diffusion.pairs import BLOCK_SIZE, largest_squared_distance
from difformer.diffusivity import LARGEST_SQUARED_DISTANCE, Diffusivity, as_diffusivity
from difformer.errors import UserError
from difformer.graph import Graph

DEFINITE = ("gaussian", "softmax", "constant")  # positive-definite kernels for all states

AnyAttention = AllPairAttention | EdgeAttention


def checked(coupling: Coupling, *, normalised: bool = True) -> AnyAttention:
    """The coupling, if the theorems cover it: attention on distances, row-normalised if required."""
    if not isinstance(coupling, AllPairAttention | EdgeAttention):
        raise TypeError(f"coupling must be AllPairAttention or EdgeAttention, got {type(coupling).__name__}")
    if coupling.metric != "distance":
        problem = f"coupling has metric={coupling.metric!r}, but the theorems are about distances between states, so "
        problem += "no certificate covers it; make it with metric='distance' (the two agree on unit states)"
        raise UserError(problem)
    if normalised and not coupling.normalised:
        raise UserError("coupling must be row-normalised: make it with normalised=True")
    return coupling


def regulariser_of(coupling: AnyAttention) -> Regulariser:
    """Σ δ(u_ij) over the pairs that exchange."""
    if isinstance(coupling, EdgeAttention):
        return penalty(coupling.diffusivity, graph=coupling.graph)
    return penalty(coupling.diffusivity, batch=coupling.segments)


def in_range(states: Tensor, coupling: AnyAttention) -> bool:
    """Whether exchanges are symmetric and non-negative, and all squared distances lie in [0, 4]."""
    if isinstance(coupling, EdgeAttention):
        if not coupling.undirected or (coupling.graph.weights() < 0).any():
            return False
        source, target = coupling.graph.edge_index
        return all(bool((edge_distances(z, target, source) <= LARGEST_SQUARED_DISTANCE * SLACK).all()) for z in states)
    for z in states:
        # In a ball of radius one no squared distance exceeds 4, so the pairs need no check.
        outside = float((z - z.mean(0)).norm(dim=1).max()) ** 2 * 4 > LARGEST_SQUARED_DISTANCE
        if outside and largest_squared_distance(z, batch=coupling.segments) > LARGEST_SQUARED_DISTANCE * SLACK:
            return False
    return True


def least_weight(
    states: Tensor, coupling: AnyAttention, step_size: float, *, definite: bool = False, everywhere: bool = False
) -> float:
    """The smallest λ for which every step from ``states [K, N, d]`` descends.

    It is smaller if Ω is positive semi-definite (`definite`). Nodes without an exchange partner count only with
    `everywhere`: without a source they do not move.
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
    """The smallest eigenvalue of Ω relative to the largest; beyond `BLOCK_SIZE` states zero or, if unknown, NaN."""
    if z.shape[0] <= BLOCK_SIZE:
        values = torch.linalg.eigvalsh(dataclasses.replace(coupling, normalised=False).matrix(z))
        return float(values[0] / values.abs().max().clamp_min(1e-300))
    kernel = coupling.chosen(z).name.partition(":")[0]
    return 0.0 if isinstance(coupling, AllPairAttention) and kernel in DEFINITE else math.nan


def step_violation(energies: list[Energy], before: Tensor, after: Tensor, anchors: Tensor | None = None) -> float:
    """The largest rise of E(·, k) over a step from `before` to `after`, with one energy per step.

    The energy is relative to Z^(k), which is `before` unless given as `anchors`.
    """
    anchors = before if anchors is None else anchors
    start = [energy(z, anchor) for energy, z, anchor in zip(energies, before, anchors, strict=True)]
    end = [energy(z, anchor) for energy, z, anchor in zip(energies, after, anchors, strict=True)]
    # δ(0) need not be zero: rises are relative to the height above the energy of equal states.
    base = min(
        (energy.weight * float(energy.regulariser(torch.zeros_like(before[0]))) for energy in energies), default=0.0
    )
    magnitude = max((abs(float(value)) for value in start), default=0.0) + abs(base)
    return largest_rise(start, end, magnitude=magnitude, base=base)


SAMPLE, RANDOM = 512, 3  # numbers of states and of random Ω in `prop_energy`


def thm_main(
    z: Tensor, coupling: Coupling, *, step_size: float = 0.5, weight: float | None = None, steps: int = 6
) -> Certificate:
    """E(Z^(k+1), k) ≤ E(Z^(k), k) for τ < 1 and λ ≥ τ / (4(1-τ) min_i d̄_i), one λ for all steps.

    The paper claims this for some τ without a condition on λ; with a small λ it fails. By default `weight` is the
    smallest λ that suffices for all steps.
    """
    return _descent(z, coupling, step_size, weight, steps, definite=False)


def thm_main_definite(z: Tensor, coupling: Coupling, *, step_size: float = 1.0, steps: int = 6) -> Certificate:
    """If Ω is positive semi-definite, λ ≥ τ / (2(2-τ) min_i d̄_i) suffices, up to τ = 1.

    This is always so for gaussian, softmax and constant, and on the sphere for `simple`; it is measured at every step.
    """
    return _descent(z, coupling, step_size, None, steps, definite=True)


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


def prop_energy(z: Tensor, diffusivity: str | Diffusivity) -> Certificate:
    """Ẽ(Z, k; Ω) ≥ E(Z, k; δ) for every Ω ≥ 0, with equality at ω_ij = f(||z_i - z_j||²).

    The inequality is measured for random Ω. It holds pair by pair, so a random sample of `SAMPLE` states suffices.
    """
    name, condition = "prop-energy", "Ω ≥ 0, distances in [0, 4]"
    claim = "Ẽ(Z, k; Ω) ≥ E(Z, k; δ), with equality at ω = f(u)"
    z, generator = double(z), torch.Generator().manual_seed(0)
    if z.shape[0] > SAMPLE:
        z = z[torch.randperm(z.shape[0], generator=generator)[:SAMPLE]]
    chosen = as_diffusivity(diffusivity, channels=z.shape[1])
    if not in_range(z.unsqueeze(0), AllPairAttention(chosen)):  # f may be negative beyond 4
        return Certificate(name, claim, condition, False, math.nan)
    scale, regulariser = float(chosen.f(z.new_zeros(1))), penalty(chosen)
    energy, tight = Energy(regulariser)(z, z), surrogate_energy(z, z, None, chosen)
    draws = scale * torch.empty(RANDOM, z.shape[0], z.shape[0], dtype=z.dtype).exponential_(generator=generator)
    above = [surrogate_energy(z, z, omega.to(z.device), chosen) for omega in draws]
    base = float(regulariser(torch.zeros_like(z)))
    magnitude = abs(float(energy)) + abs(base) + scale * z.shape[0] ** 2
    pairs = (above, [energy] * RANDOM), ([energy], [tight]), ([tight], [energy])
    rise = max(largest_rise(upper, lower, magnitude=magnitude, base=base) for upper, lower in pairs)
    details = {"energy": float(energy), "tight": float(tight), "least above": float(min(above))}
    return Certificate(name, claim, condition, True, rise, details=details)


def coro_main(z: Tensor, coupling: Coupling) -> Certificate:
    """The flow is D̄ dZ/dt = -¼ ∇Σδ for row-normalised Ω, and dZ/dt = -½ ∇E with λ = ½ without normalisation.

    The paper claims -½ ∇E for the row-normalised flow too.
    """
    z, chosen = double(z), checked(coupling, normalised=False)
    at = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(regulariser_of(chosen)(at), at)
    rate, sums = flow(z, chosen), chosen.exchange_sums(z)
    # The slope of δ is accurate to the rounding of f at distance zero.
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


Transform = Callable[[Tensor], Tensor]


def prop_feattrans(
    z: Tensor,
    coupling: Coupling,
    transform: Transform,
    *,
    step_size: float = 0.5,
    steps: int = 4,
    coupling_at: str = "transformed",
) -> Certificate:
    """From h(Z^(k)) to Z^(k+1) the energy ||Z - h(Z^(k))||² + λΣδ does not rise if Ω is computed at h(Z^(k)).

    The paper computes Ω at Z^(k) (``coupling_at="input"``), where a step can raise it for every λ.
    """
    z, chosen = double(z), checked(coupling)
    states = diffuse(
        z, chosen, steps=steps, step_size=step_size, transform=transform, coupling_at=coupling_at, save="all"
    )
    moved = torch.stack([transform(now) for now in states[:-1]]) if steps else states[:0]
    least = least_weight(moved, chosen, step_size)
    weight = least if math.isfinite(least) else 1.0
    energy = Energy(regulariser_of(chosen), weight, transform=transform)
    covered = coupling_at == "transformed" and 0 < step_size < 1 and in_range(moved, chosen)
    return Certificate(
        name="prop-feattrans",
        claim="E(Z^(k+1), k) ≤ E(h(Z^(k)), k), E(Z, k) = ||Z - h(Z^(k))||² + λΣδ",
        condition="Ω = Ωᵀ computed at h(Z), distances in [0, 4], 0 < τ < 1, λ ≥ τ / (4(1-τ) min d̄), no activation",
        condition_met=covered and weight * SLACK >= least,
        violation=step_violation([energy] * steps, moved, states[1:], anchors=states[:-1]),
        details={"step_size": step_size, "weight": weight},
    )


def activation_contracts(z: Tensor, diffusivity: str | Diffusivity, activation: Transform = torch.relu) -> Certificate:
    """An element-wise 1-Lipschitz activation never raises Σδ: what holds of `prop-feattrans` with an activation.

    As a proximal step, ReLU makes the claim vacuous: if h(Z) has a negative entry, the energy before is infinite.
    """
    z, regulariser = double(z), penalty(diffusivity)
    after = activation(z)
    entries = z.flatten().sort().values
    slopes = activation(entries).diff().abs() <= entries.diff() * SLACK + 1e-15
    value, image, base = regulariser(z), regulariser(after), float(regulariser(torch.zeros_like(z)))
    return Certificate(
        name="prop-feattrans (activation)",
        claim="Σ δ(||σ(z_i) - σ(z_j)||²) ≤ Σ δ(||z_i - z_j||²)",
        condition="σ element-wise and 1-Lipschitz, distances in [0, 4]",
        condition_met=bool(slopes.all()) and in_range(torch.stack([z, after]), AllPairAttention(diffusivity)),
        violation=largest_rise([value], [image], magnitude=abs(float(value)) + abs(base), base=base),
        details={"before": float(value), "after": float(image)},
    )


def prop_trans_oversmooth(
    z: Tensor,
    coupling: Coupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 0.1,
    step_size: float = 0.5,
    steps: int = 4,
) -> Certificate:
    """With a source τβH, E(Z, k) = ||Z - (Z^(k) + η⊙H)||² + λΣδ does not rise over step k, with η_i = 2λβ d̄_i.

    The paper has one η for all nodes, with which a step can raise the energy.
    """
    z, chosen = double(z), checked(coupling)
    inflow = z if source is None else double(source)
    states = diffuse(
        z, chosen, steps=steps, step_size=step_size, source=inflow, source_weight=source_weight, save="all"
    )
    before = states[:-1]
    least = least_weight(before, chosen, step_size, everywhere=True)
    weight = least if math.isfinite(least) else 1.0
    regulariser = regulariser_of(chosen)
    energies = [
        Energy(regulariser, weight, inflow, 2 * weight * source_weight * chosen.exchange_sums(now)) for now in before
    ]
    return Certificate(
        name="prop-trans-oversmooth",
        claim="E(Z^(k+1), k) ≤ E(Z^(k), k) with η_i = 2λβ d̄_i",
        condition="Ω = Ωᵀ on distances in [0, 4], 0 < τ < 1, λ ≥ τ / (4(1-τ) min d̄)",
        condition_met=0 < step_size < 1 and weight * SLACK >= least and in_range(before, chosen),
        violation=step_violation(energies, before, states[1:]),
        details={"step_size": step_size, "weight": weight, "source_weight": source_weight},
    )


def eqn_energy_graph(
    z: Tensor,
    graph: Graph,
    diffusivity: str | Diffusivity,
    *,
    weights: str = "gcn",
    graph_scale: float | None = None,
    step_size: float = 0.5,
    steps: int = 6,
) -> Certificate:
    """Mixed attention and graph (`eqn-diffuse-graph`): some λ gave descent in every case tried. There is no proof.

    With R = ½ Σδ + κ/2 Σ ã_ij ||z_i - z_j||², a step W that lowers R descends ||Z - Z^(k)||² + λR for all
    λ ≥ ||W||² / (R - R⁺); λ is the largest of these bounds over the steps. The default of the re-scaling κ is the mean
    of d̄; if all d̄ are equal, the step is gradient descent on R. With κ = 1, as `eqn-energy-graph` is printed, R can
    rise: the graph pulls states out of large clusters, whose penalty grows with their size.
    """
    z, observed = double(z), GraphCoupling(graph, weights)
    coupling = Mix((AllPairAttention(diffusivity), observed), (0.5, 0.5))
    states = diffuse(z, coupling, steps=steps, step_size=step_size, save="all")
    scale = float(AllPairAttention(diffusivity).exchange_sums(z).mean()) if graph_scale is None else graph_scale
    regulariser = mixture(diffusivity, observed, graph_scale=scale)
    values = [float(regulariser(now)) for now in states]
    base = float(regulariser(torch.zeros_like(z)))
    rounding = 1e-13 * (abs(values[0]) + abs(base))
    weight = 0.0
    for k in range(steps):
        moved, fall = float(((states[k + 1] - states[k]) ** 2).sum()), values[k] - values[k + 1]
        if moved > rounding:
            weight = max(weight, moved / fall) if fall > 0 else math.inf
    usable = weight if math.isfinite(weight) else 1.0
    in_reach = observed.undirected and 0 < step_size < 1
    return Certificate(
        name="eqn-energy-graph",
        claim="some λ: E(Z^(k+1), k) ≤ E(Z^(k), k), E = ||Z - Z^(k)||² + λ/2 Σδ + λκ/2 Σ ã_ij ||z_i - z_j||²",
        condition="Ω = Ωᵀ on distances in [0, 4], A = Aᵀ ≥ 0, 0 < τ < 1 (measured: there is no proof)",
        condition_met=in_reach and in_range(states[:-1], AllPairAttention(diffusivity)),
        violation=step_violation([Energy(regulariser, usable * SLACK)] * steps, states[:-1], states[1:]),
        proved=False,
        details={"step_size": step_size, "weight": weight, "graph_scale": scale},
    )
