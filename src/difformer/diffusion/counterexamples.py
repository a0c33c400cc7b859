"""Claims of the paper that do not hold, each with a minimal counterexample.

Every function returns a `Certificate` of the claim as the paper states it, with its condition met and a violation far
beyond rounding. `difformer.diffusion.certificates` has what holds instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import Certificate, largest_gap, largest_rise
from difformer.diffusion.certificates.exchange_theorems import eqn_energy_graph, in_range, regulariser_of
from difformer.diffusion.coupling import AllPairAttention, GraphCoupling
from difformer.diffusion.dynamics import diffuse, flow
from difformer.diffusion.energy import Energy, nonnegative, penalty, smoothness
from difformer.diffusion.spectrum import laplacian_spectrum
from difformer.diffusivity import softmax
from difformer.graph import Graph


# Constant couplings.
def column(*values: float) -> Tensor:
    """States of one channel, ``[N, 1]``."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def _path(nodes: int) -> Graph:
    left = torch.arange(nodes - 1)
    return Graph(torch.stack([torch.cat([left, left + 1]), torch.cat([left + 1, left])]), nodes)


def example_gcn() -> Certificate:
    """`exa-gcn`: `eqn-diffuse-iter` with S = D^-½ A D^-½ is not (1-τ)z + τSz, since rows of S do not sum to one.

    On the path of three nodes they sum to 1/√2, √2 and 1/√2.
    """
    coupling, z = GraphCoupling(_path(3), "gcn"), column(1.0, 0.0, 0.0)
    equation, layer = (diffuse(z, coupling, step_size=0.5, conservation=kept) for kept in ("degree", "unit"))
    return Certificate(
        "exa-gcn", "eqn-diffuse-iter with S = D^-½ A D^-½ is (1-τ)z + τSz", "none", True, largest_gap(equation, layer)
    )


def example_gin() -> Certificate:
    """`eqn-diffuse-iter` with S = A + I is not (1+τ)z_i + τ Σ_j z_j, in which states give up nothing."""
    coupling, z = GraphCoupling(_path(2), "gin"), column(1.0, 0.0)
    equation, layer = (diffuse(z, coupling, step_size=0.5, conservation=kept) for kept in ("degree", "none"))
    return Certificate(
        "GIN", "eqn-diffuse-iter with S = A + I is (1+τ)z + τAz", "none", True, largest_gap(equation, layer)
    )


def thm_gcn_small_weight() -> Certificate:
    """The proof of `thm-gcn` uses E(Z^(k+1), k) ≤ E(Z^(k), k), which fails for λ = 0.01 on two nodes."""
    coupling, z = GraphCoupling(_path(2), "raw"), column(1.0, -1.0)
    energy = Energy(smoothness(coupling), 0.01)
    after, met = diffuse(z, coupling, step_size=0.25), 0.25 * laplacian_spectrum(coupling).largest <= 1
    rise = largest_rise([energy(z, z)], [energy(after, z)], magnitude=1.0)
    return Certificate("thm-gcn (proof)", "E(Z^(k+1), k) ≤ E(Z^(k), k)", "0 < τ ≤ 1/λ₁", met, rise)


def prop_bound_says_nothing() -> Certificate:
    """`prop-bound` uses the smallest eigenvalue of Δ, which is 0 for every graph, so E_{k+1} ≤ 1 · E_k gives no rate.

    The violation is the distance to the true rate (1 - τμ)², on the path of four nodes.
    """
    coupling, step = GraphCoupling(_path(4), "raw"), 0.25
    matrix = coupling.matrix(torch.zeros(coupling.num_nodes, 1, dtype=torch.float64))
    smallest = float(torch.linalg.eigvalsh(torch.diag(matrix.sum(1)) - matrix)[0])
    violation = (1 - step * smallest) ** 2 - laplacian_spectrum(coupling).rate(step)
    return Certificate("prop-bound", "each step shrinks the energy by (1 - τλ_min)² < 1", "none", True, violation)


def cora_conv_two_points() -> Certificate:
    """States need not converge to a single point: each of two components keeps its mean."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    coupling, z = GraphCoupling(Graph(edges, 4), "raw"), column(1.0, 1.0, -1.0, -1.0)
    end = diffuse(z, coupling, steps=200, step_size=0.25)
    return Certificate(
        "cora-conv", "all states converge to a single point", "0 < τ ≤ 1/λ₁", True, float((end.max() - end.min()) / 2)
    )


def prop_convergence_rises(steps: int = 10) -> Certificate:
    """`prop-convergence` (E_{k+1} ≤ E_k with a source) fails at every step from Z^(0) = 0, on the path of four nodes.

    Here η = 2λβ, with the λ of the corrected claim. The violation is the *smallest* rise over the steps.
    """
    coupling, source = GraphCoupling(_path(4), "raw"), column(1.0, 0.2, -0.5, 0.3)
    largest = laplacian_spectrum(coupling).largest
    step, beta = 1 / largest, 1.0
    weight = step / (2 * (2 - step * largest))
    energy = Energy(smoothness(coupling), weight, source=source, source_weight=2 * weight * beta)
    zero = torch.zeros_like(source)
    states = diffuse(zero, coupling, steps=steps, step_size=step, source=source, source_weight=beta, save="all")
    energies = energy.along(states)
    rises = (energies.diff() / energies[:-1].abs().clamp_min(1e-12)).min()
    return Certificate(
        "prop-convergence", "E(Z^(k+1), k) ≤ E(Z^(k), k-1) with a source", "0 < τ ≤ 1/λ₁", True, float(rises)
    )


def prop_convergence_has_no_limit() -> Certificate:
    """The optimum (η/λ) Δ⁻¹H does not exist if H has a non-zero mean: with H = 1 on two nodes each step adds τβ.

    The violation is the distance between steps 100 and 200.
    """
    coupling, z = GraphCoupling(_path(2), "raw"), column(1.0, 1.0)
    states = diffuse(z, coupling, steps=200, step_size=0.25, source_weight=1.0, save="all")
    return Certificate(
        "prop-convergence (limit)", "Z^(k) converges", "0 < τ ≤ 1/λ₁", True, float((states[200] - states[100]).norm())
    )


# Diffusivities and attention.
def squared_distances_reach_four() -> Certificate:
    """Squared distances of unit vectors lie in [0, 4], not in [0, 2]: opposite vectors have 4."""
    unit = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    u = float(((unit[0] - unit[1]) ** 2).sum())
    return Certificate("simple diffusivity", "||z_i - z_j||² ≤ 2 for unit vectors", "||z|| = 1", True, u - 2)


def softmax_slip(channels: int = 4) -> Certificate:
    """The paper's f(u) = e^(1-u/2) e^(1/√d) is not its score e^(x/√d) at x = 1 - u/2, which is e^((1-u/2)/√d)."""
    u = torch.linspace(0, 4, 9, dtype=torch.float64)
    printed = torch.exp(1 - u / 2) * math.exp(1 / math.sqrt(channels))
    gap = largest_gap(printed, softmax(math.sqrt(channels)).g(1 - u / 2))
    claim = "f(u) = e^(1-u/2) e^(1/√d) is e^(x/√d) on unit vectors"
    return Certificate("eqn-trans-attn", claim, "||z|| = 1", True, gap)


def coro_main_half_gradient() -> Certificate:
    """`coro-main`: the row-normalised flow is not -½∇E for any λ; even their directions differ.

    The violation is one minus their cosine, on three unequally spaced states.
    """
    coupling, z = AllPairAttention("gaussian"), column(-0.9, 0.6, 0.9)
    at = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(regulariser_of(coupling)(at), at)
    rate = flow(z, coupling)
    violation = float(1 + (rate * gradient).sum() / (rate.norm() * gradient.norm()))
    met = in_range(z.unsqueeze(0), coupling)
    return Certificate("coro-main", "dZ/dt = -½ ∇E for row-normalised Ω", "Ω = Ωᵀ", met, violation)


def thm_main_small_weight() -> Certificate:
    """`thm-main` has no condition on λ; its proof uses E(Z^(k+1), k) ≤ E(Z^(k), k), which fails for λ = 0.01."""
    coupling, z = AllPairAttention("simple"), column(0.9, -0.9)
    energy, after = Energy(penalty("simple"), 0.01), diffuse(z, coupling, step_size=0.5)
    rise = largest_rise([energy(z, z)], [energy(after, z)], magnitude=1.0)
    met = in_range(z.unsqueeze(0), coupling)
    return Certificate("thm-main (proof)", "E(Z^(k+1), k) ≤ E(Z^(k), k)", "0 < τ ≤ 1", met, rise)


def prop_feattrans_at_input() -> Certificate:
    """`prop-feattrans` with Ω computed at Z, as in the paper: the step raises Σδ, so no λ makes it descend.

    At Z, eight states are opposite to two others, which exchange only with each other. An affine h puts one of these
    two between the eight and the other: moving towards the other, it leaves eight states to approach one.
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
    rise = largest_rise([regulariser(h(z))], [regulariser(after)], magnitude=1.0)
    claim = "for some λ the step descends ||Z - h(Z^(k))||² + λΣδ, Ω computed at Z^(k)"
    met = in_range(z.unsqueeze(0), coupling) and in_range(h(z).unsqueeze(0), coupling)
    return Certificate("prop-feattrans", claim, "0 < τ ≤ 1", met, rise)


def prop_feattrans_relu() -> Certificate:
    """With the ψ whose proximal step is ReLU, `prop-feattrans` is vacuous: a negative entry has infinite energy."""
    z = column(-0.5, 0.5)
    energy = Energy(penalty("simple"), 1.0, proximal=nonnegative)
    return Certificate(
        "prop-feattrans (ReLU)", "the energy that the step descends from is finite", "none", True, float(energy(z, z))
    )


def prop_trans_oversmooth_one_eta() -> Certificate:
    """`prop-trans-oversmooth` has one η for all nodes. Here a step raises the energy for every η and every λ.

    H is orthogonal to the step W, so η has no effect, and W points uphill: with G = Z - SZ, W = ε(D̄G - its part along
    G) - cG and βH = G + W/τ, Σδ rises by 4⟨W, D̄G⟩ > 0 to first order.
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
    for eta, weight in product((0.0, 0.1, 1.0, 10.0), (0.01, 1.0, 100.0)):
        energy = Energy(penalty("simple"), weight, source=source, source_weight=eta)
        before = energy(z, z)
        rises.append(largest_rise([before], [energy(after, z)], magnitude=float(before)))
    claim = "for some η and λ the step descends ||Z - (Z^(k) + ηH)||² + λΣδ"
    return Certificate("prop-trans-oversmooth", claim, "0 < τ ≤ 1", in_range(z.unsqueeze(0), coupling), min(rises))


def energy_graph_unscaled() -> Certificate:
    """`eqn-energy-graph` as printed, without re-scaling the adjacency: a step raises both sums, so no λ descends.

    Sixty states coincide, and one is opposite. The only edge joins it to one of the sixty, which the edge pulls away
    from the other 59: this relaxes one edge and raises 59 penalties.
    """
    z = column(*[-1.0] * 60, 1.0)
    graph = Graph(torch.tensor([[0, 60], [60, 0]]), 61)
    printed = eqn_energy_graph(z, graph, "gaussian:0.3", graph_scale=1.0, steps=1)
    return dataclasses.replace(
        printed, claim=printed.claim.replace("λκ/2", "λ/2"), condition="0 < τ ≤ 1", details={}, proved=True
    )


_EXAMPLES = (
    example_gcn, example_gin, thm_gcn_small_weight, prop_bound_says_nothing, cora_conv_two_points,
    prop_convergence_rises, prop_convergence_has_no_limit, squared_distances_reach_four, softmax_slip,
    coro_main_half_gradient, thm_main_small_weight, prop_feattrans_at_input, prop_feattrans_relu,
    prop_trans_oversmooth_one_eta, energy_graph_unscaled,
)  # fmt: skip
COUNTEREXAMPLES: dict[str, Callable[[], Certificate]] = {example.__name__: example for example in _EXAMPLES}
