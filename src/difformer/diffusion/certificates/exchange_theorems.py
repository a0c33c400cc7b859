"""Certificates for attention: Ω_ij = f(||z_i - z_j||²), D̄ = diag(Ω1), Z⁺ = (1-τ)Z + τ D̄⁻¹ΩZ.

The energy is E(Z, k) = ||Z - Z^(k)||² + λ Σ_ij δ(||z_i - z_j||²), over all pairs or over the edges of an undirected
graph. The theorems are about distances: attention on cosines (what a network computes) is covered on unit states only,
and a trained network, whose queries and keys differ, not at all.

With Z⁺ = Z + W and W = -τ D̄⁻¹(D̄ - Ω)Z, the tangents of the concave δ give

    Σ δ(u⁺) - Σ δ(u) ≤ -(4/τ) ⟨W, D̄W⟩ + 2 ⟨W, (D̄ - Ω)W⟩ ≤ -4 (1/τ - 1) ⟨W, D̄W⟩,

since D̄ - Ω ≤ 2D̄, or -2 (2/τ - 1) ⟨W, D̄W⟩ where Ω is positive semi-definite. So λ Σδ falls by more than the ||W||² of
the first term once λ ≥ τ / (4(1-τ) min_i d̄_i), or τ / (2(2-τ) min_i d̄_i).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import Certificate, double, largest_gap, largest_rise
from difformer.diffusion.coupling import AllPairAttention, Coupling, EdgeAttention, GraphCoupling, Mix
from difformer.diffusion.coupling.interface import edge_distances
from difformer.diffusion.dynamics import diffuse, flow
from difformer.diffusion.energy import Energy, Regulariser, mixture, penalty
from difformer.diffusion.pairs import BLOCK_SIZE, largest_squared_distance
from difformer.diffusion.surrogate import surrogate_energy
from difformer.diffusivity import LARGEST_SQUARED_DISTANCE, Diffusivity, as_diffusivity
from difformer.errors import UserError
from difformer.graph import Graph

SLACK = 1 + 1e-9
DEFINITE = ("gaussian", "softmax", "constant")  # positive-definite kernels, whatever the states

AnyAttention = AllPairAttention | EdgeAttention


def checked(coupling: Coupling, *, normalised: bool = True) -> AnyAttention:
    """The coupling, if the theorems speak of it: attention on distances, normalised where it must be."""
    if not isinstance(coupling, AllPairAttention | EdgeAttention):
        raise TypeError(f"coupling must be AllPairAttention or EdgeAttention, got {type(coupling).__name__}")
    if coupling.metric != "distance":
        raise UserError(
            f"coupling has metric={coupling.metric!r}: the theorems speak of distances between states, so that no "
            f"certificate covers it; make it with metric='distance' (the two agree on unit states)"
        )
    if normalised and not coupling.normalised:
        raise UserError("coupling must be row-normalised: make it with normalised=True")
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
    """The λ from which on every step from ``states [K, N, d]`` descends.

    It is less where Ω is positive semi-definite (`definite`). Nodes without an exchange partner do not move without a
    source; with `everywhere` they count, too.
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
    """The largest rise from E(Z, k) at the state where step k begins to E(Z^(k+1), k), one energy per step.

    A step begins at Z^(k), or at h(Z^(k)), and then `anchors` are the Z^(k).
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


Transform = Callable[[Tensor], Tensor]


def prop_feattrans(
    z: Tensor,
    coupling: Coupling,
    transform: Transform,
    *,
    step_size: float = 0.5,
    weight: float | None = None,
    steps: int = 4,
    coupling_at: str = "transformed",
) -> Certificate:
    """From h(Z^(k)) to Z^(k+1) the energy ||Z - h(Z^(k))||² + λΣδ does not rise, where Ω is computed at h(Z^(k)).

    The paper computes Ω at Z^(k) (``coupling_at="input"``), where the step can rise for every λ.
    """
    z, chosen = double(z), checked(coupling)
    states = diffuse(
        z, chosen, steps=steps, step_size=step_size, transform=transform, coupling_at=coupling_at, save="all"
    )
    moved = torch.stack([transform(now) for now in states[:-1]]) if steps else states[:0]
    least = least_weight(moved, chosen, step_size)
    weight = (least if math.isfinite(least) else 1.0) if weight is None else weight
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
    """An element-wise 1-Lipschitz activation never raises Σδ: what remains of `prop-feattrans` with an activation.

    As a proximal step ReLU makes the claim empty: where h(Z) has a negative entry its energy is infinite beforehand.
    """
    z = double(z)
    after = activation(z)
    entries = z.flatten().sort().values
    slopes = activation(entries).diff().abs() <= entries.diff() * SLACK + 1e-15
    regulariser = penalty(diffusivity)
    base = float(regulariser(torch.zeros_like(z)))
    value = regulariser(z)
    reach = torch.stack([z, after])
    return Certificate(
        name="prop-feattrans (activation)",
        claim="Σ δ(||σ(z_i) - σ(z_j)||²) ≤ Σ δ(||z_i - z_j||²)",
        condition="σ element-wise and 1-Lipschitz, distances in [0, 4]",
        condition_met=bool(slopes.all()) and in_range(reach, AllPairAttention(diffusivity)),
        violation=largest_rise([value], [regulariser(after)], magnitude=abs(float(value)) + abs(base), base=base),
        details={"before": float(value), "after": float(regulariser(after))},
    )


def prop_trans_oversmooth(
    z: Tensor,
    coupling: Coupling,
    *,
    source: Tensor | None = None,
    source_weight: float = 0.1,
    step_size: float = 0.5,
    weight: float | None = None,
    steps: int = 4,
) -> Certificate:
    """With a source τβH, E(Z, k) = ||Z - (Z^(k) + η⊙H)||² + λΣδ does not rise over step k, with η_i = 2λβ d̄_i.

    The paper has one number η for all nodes, with which the step can rise.
    """
    z, chosen = double(z), checked(coupling)
    inflow = z if source is None else double(source)
    states = diffuse(
        z, chosen, steps=steps, step_size=step_size, source=inflow, source_weight=source_weight, save="all"
    )
    before = states[:-1]
    least = least_weight(before, chosen, step_size, everywhere=True)
    weight = (least if math.isfinite(least) else 1.0) if weight is None else weight
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
    """Attention and graph mixed (`eqn-diffuse-graph`): some λ gave descent in every case tried. There is no proof.

    With R = ½ Σδ + κ/2 Σ ã_ij ||z_i - z_j||², a step W descends ||Z - Z^(k)||² + λR from the λ = ||W||² / (R - R⁺) on,
    if R falls at all: the λ used is the largest of these over the steps. The re-scaling κ is the mean of d̄ where none
    is given; where all d̄ are equal to it, the step is one of gradient descent on R. With κ = 1, as `eqn-energy-graph`
    is printed, R can rise: a graph then pulls states out of large clusters, whose penalty grows with their size.
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
    symmetric = observed.undirected
    usable = weight if math.isfinite(weight) else 1.0
    return Certificate(
        name="eqn-energy-graph",
        claim="some λ: E(Z^(k+1), k) ≤ E(Z^(k), k), E = ||Z - Z^(k)||² + λ/2 Σδ + λκ/2 Σ ã_ij ||z_i - z_j||²",
        condition="Ω = Ωᵀ on distances in [0, 4], A = Aᵀ ≥ 0, 0 < τ < 1 (measured: there is no proof)",
        condition_met=symmetric and 0 < step_size < 1 and in_range(states[:-1], AllPairAttention(diffusivity)),
        violation=step_violation([Energy(regulariser, usable * SLACK)] * steps, states[:-1], states[1:]),
        proved=False,
        details={"step_size": step_size, "weight": weight, "graph_scale": scale},
    )
