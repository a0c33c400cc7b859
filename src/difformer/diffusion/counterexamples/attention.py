"""Claims of the paper about diffusivities and attention that are not so."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import Certificate, largest_gap, largest_rise
from difformer.diffusion.certificates.extensions import eqn_energy_graph
from difformer.diffusion.certificates.moving import in_range, regulariser_of
from difformer.diffusion.counterexamples.static import column
from difformer.diffusion.coupling import AllPairAttention
from difformer.diffusion.diffusivity import softmax
from difformer.diffusion.dynamics import diffuse, flow
from difformer.diffusion.energy import Energy, nonnegative, penalty
from difformer.graph import Graph


def squared_distances_reach_four() -> Certificate:
    """Squared distances of unit vectors lie in [0, 4], not in [0, 2]: opposite ones are at 4."""
    unit = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    u = float(((unit[0] - unit[1]) ** 2).sum())
    return Certificate("simple diffusivity", "||z_i - z_j||² ≤ 2 for unit vectors", "||z|| = 1", True, u - 2)


def softmax_slip(channels: int = 4) -> Certificate:
    """The paper's f(u) = e^(1-u/2) e^(1/√d) is not its score e^(x/√d) at x = 1 - u/2; e^((1-u/2)/√d) is."""
    u = torch.linspace(0, 4, 9, dtype=torch.float64)
    printed = torch.exp(1 - u / 2) * math.exp(1 / math.sqrt(channels))
    return Certificate(
        "eqn-trans-attn",
        "f(u) = e^(1-u/2) e^(1/√d) is e^(x/√d) on unit vectors",
        "||z|| = 1",
        True,
        largest_gap(printed, softmax(math.sqrt(channels)).g(1 - u / 2)),
    )


def coro_main_half_gradient() -> Certificate:
    """`coro-main`: the row-normalised flow is not -½∇E for any λ; the two do not even point the same way.

    The violation is one minus the cosine between them, on three unequally spaced states.
    """
    coupling, z = AllPairAttention("gaussian"), column(-0.9, 0.6, 0.9)
    at = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(regulariser_of(coupling)(at), at)
    rate = flow(z, coupling)
    cosine = -(rate * gradient).sum() / (rate.norm() * gradient.norm())
    return Certificate(
        "coro-main",
        "dZ/dt = -½ ∇E for row-normalised Ω",
        "Ω = Ωᵀ",
        in_range(z.unsqueeze(0), coupling),
        float(1 - cosine),
    )


def thm_main_small_weight() -> Certificate:
    """`thm-main` leaves λ open; its proof has E(Z^(k+1), k) ≤ E(Z^(k), k), which λ = 0.01 on two states breaks."""
    coupling, z = AllPairAttention("simple"), column(0.9, -0.9)
    energy, after = Energy(penalty("simple"), 0.01), diffuse(z, coupling, step_size=0.5)
    return Certificate(
        name="thm-main (proof)",
        claim="E(Z^(k+1), k) ≤ E(Z^(k), k)",
        condition="0 < τ ≤ 1",
        condition_met=in_range(z.unsqueeze(0), coupling),
        violation=largest_rise([energy(z, z)], [energy(after, z)], magnitude=1.0),
    )


def prop_feattrans_at_input() -> Certificate:
    """`prop-feattrans` with Ω computed at Z, as the paper has it: the step raises Σδ, so that no λ makes it descend.

    At Z eight states stand opposite to two others, which exchange with each other alone. An affine h puts one of these
    two between the eight and the other: by meeting halfway, it moves away from eight states to come nearer to one.
    """
    tilt = 0.2
    corners = torch.tensor(
        [[1.0, 0.0], [-math.cos(tilt), math.sin(tilt)], [-math.cos(tilt), -math.sin(tilt)]], dtype=torch.float64
    )
    z = torch.cat([corners[:1].expand(8, -1), corners[1:]])
    # The affine map that takes the three corners to -1, 0.15 and 1.
    extended = torch.cat([corners, torch.ones(3, 1, dtype=torch.float64)], 1)
    weights = torch.linalg.solve(extended, column(-1.0, 0.15, 1.0))

    def h(states: Tensor) -> Tensor:
        return states @ weights[:2] + weights[2]

    coupling, regulariser = AllPairAttention("simple"), penalty("simple")
    after = diffuse(z, coupling, step_size=1.0, transform=h, coupling_at="input")
    return Certificate(
        name="prop-feattrans",
        claim="for some λ the step descends ||Z - h(Z^(k))||² + λΣδ, Ω computed at Z^(k)",
        condition="0 < τ ≤ 1",
        condition_met=in_range(z.unsqueeze(0), coupling) and in_range(h(z).unsqueeze(0), coupling),
        violation=largest_rise([regulariser(h(z))], [regulariser(after)], magnitude=1.0),
    )


def prop_feattrans_relu() -> Certificate:
    """With the ψ whose proximal step is ReLU, the energy before the step is infinite where h(Z) has a negative entry.

    So `prop-feattrans` compares with infinity, and says nothing.
    """
    z = column(-0.5, 0.5)
    energy = Energy(penalty("simple"), 1.0, proximal=nonnegative)
    return Certificate(
        "prop-feattrans (ReLU)", "the energy that the step descends from is finite", "none", True, float(energy(z, z))
    )


def prop_trans_oversmooth_one_eta() -> Certificate:
    """`prop-trans-oversmooth` has one η for all nodes. Here a step rises for every η and every λ.

    H is chosen such that the step W is orthogonal to it, so that η does not matter, and yet leads uphill:
    with G = Z - SZ, W = ε(D̄G - its part along G) - cG and βH = G + W/τ, Σδ rises by 4⟨W, D̄G⟩ > 0 to first order.
    """
    step, small = 0.5, 0.02
    coupling, z = AllPairAttention("simple"), column(-0.9, -0.1, 0.5, 0.6)
    pull = -flow(z, coupling)
    weighted = coupling.exchange_sums(z).unsqueeze(1) * pull
    across = weighted - (weighted * pull).sum() / (pull * pull).sum() * pull
    ratio = float((across * across).sum() / (pull * pull).sum())
    along = step / 2 * (1 - math.sqrt(1 - 4 * small**2 * ratio / step**2))
    source = pull + (small * across - along * pull) / step
    after = diffuse(z, coupling, step_size=step, source=source)
    rises = []
    for eta in (0.0, 0.1, 1.0, 10.0):
        for weight in (0.01, 1.0, 100.0):
            energy = Energy(penalty("simple"), weight, source=source, source_weight=eta)
            before = energy(z, z)
            rises.append(largest_rise([before], [energy(after, z)], magnitude=float(before)))
    return Certificate(
        name="prop-trans-oversmooth",
        claim="for some η and λ the step descends ||Z - (Z^(k) + ηH)||² + λΣδ",
        condition="0 < τ ≤ 1",
        condition_met=in_range(z.unsqueeze(0), coupling),
        violation=min(rises),
    )


def energy_graph_unscaled() -> Certificate:
    """`eqn-energy-graph` as printed, without re-scaling the adjacency: a step raises both sums, so that no λ descends.

    Sixty states stand in one point and one opposite to it; the only edge joins it to one of the sixty. The edge pulls
    this one away from the other 59, each of which penalises it, while a single edge is relaxed.
    """
    z = column(*[-1.0] * 60, 1.0)
    graph = Graph(torch.tensor([[0, 60], [60, 0]]), 61)
    printed = eqn_energy_graph(z, graph, "gaussian:0.3", graph_scale=1.0, steps=1)
    return dataclasses.replace(
        printed, claim=printed.claim.replace("λκ/2", "λ/2"), condition="0 < τ ≤ 1", details={}, proved=True
    )
