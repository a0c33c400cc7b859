"""Certificates for attention with more around it: a transformation, an activation, a source, an observed graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import Certificate, double, largest_rise
from difformer.diffusion.certificates.moving import (
    SLACK,
    checked,
    in_range,
    least_weight,
    regulariser_of,
    step_violation,
)
from difformer.diffusion.coupling import AllPairAttention, Coupling, GraphCoupling, Mix
from difformer.diffusion.diffusivity import Diffusivity
from difformer.diffusion.dynamics import diffuse
from difformer.diffusion.energy import Energy, mixture, penalty
from difformer.graph import Graph

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
