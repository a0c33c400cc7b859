"""Claims of the paper about constant couplings that are not so."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.diffusion.certificates.certificate import Certificate, largest_gap, largest_rise
from difformer.diffusion.coupling import GraphCoupling
from difformer.diffusion.dynamics import diffuse
from difformer.diffusion.energy import Energy, smoothness
from difformer.diffusion.spectrum import laplacian_spectrum
from difformer.graph import Graph


def column(*values: float) -> Tensor:
    """States of one channel, ``[N, 1]``."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def _path(nodes: int) -> Graph:
    left = torch.arange(nodes - 1)
    return Graph(torch.stack([torch.cat([left, left + 1]), torch.cat([left + 1, left])]), nodes)


def example_gcn() -> Certificate:
    """`exa-gcn`: `eqn-diffuse-iter` with S = D^-½ A D^-½ is not (1-τ)z + τSz: rows of S do not sum to one.

    On the path of three nodes they sum to 1/√2, √2 and 1/√2.
    """
    coupling, z = GraphCoupling(_path(3), "gcn"), column(1.0, 0.0, 0.0)
    equation, layer = (diffuse(z, coupling, step_size=0.5, conservation=kept) for kept in ("degree", "unit"))
    return Certificate(
        "exa-gcn", "eqn-diffuse-iter with S = D^-½ A D^-½ is (1-τ)z + τSz", "none", True, largest_gap(equation, layer)
    )


def example_gin() -> Certificate:
    """The paper's S = A + I in `eqn-diffuse-iter` is not (1+τ)z_i + τ Σ_j z_j: no state may give up anything then."""
    coupling, z = GraphCoupling(_path(2), "gin"), column(1.0, 0.0)
    equation, layer = (diffuse(z, coupling, step_size=0.5, conservation=kept) for kept in ("degree", "none"))
    return Certificate(
        "GIN", "eqn-diffuse-iter with S = A + I is (1+τ)z + τAz", "none", True, largest_gap(equation, layer)
    )


def thm_gcn_small_weight() -> Certificate:
    """The proof of `thm-gcn` goes through E(Z^(k+1), k) ≤ E(Z^(k), k), which λ = 0.01 on two nodes breaks."""
    coupling, z = GraphCoupling(_path(2), "raw"), column(1.0, -1.0)
    energy = Energy(smoothness(coupling), 0.01)
    after = diffuse(z, coupling, step_size=0.25)
    return Certificate(
        name="thm-gcn (proof)",
        claim="E(Z^(k+1), k) ≤ E(Z^(k), k)",
        condition="0 < τ ≤ 1/λ₁",
        condition_met=0.25 * laplacian_spectrum(coupling).largest <= 1,
        violation=largest_rise([energy(z, z)], [energy(after, z)], magnitude=1.0),
    )


def prop_bound_says_nothing() -> Certificate:
    """`prop-bound` with the smallest eigenvalue of Δ, which is 0 for every graph: E_{k+1} ≤ 1 · E_k is no rate.

    The violation is what separates it from the true (1 - τμ)², on the path of four nodes.
    """
    coupling, step = GraphCoupling(_path(4), "raw"), 0.25
    smallest = float(torch.linalg.eigvalsh(_laplacian(coupling))[0])
    rate = laplacian_spectrum(coupling).rate(step)
    return Certificate(
        "prop-bound", "the energy shrinks by (1 - τλ_min)² < 1 a step", "none", True, (1 - step * smallest) ** 2 - rate
    )


def cora_conv_two_points() -> Certificate:
    """All states converge to a single point: not on a graph of two components, each of which keeps its mean."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    coupling, z = GraphCoupling(Graph(edges, 4), "raw"), column(1.0, 1.0, -1.0, -1.0)
    end = diffuse(z, coupling, steps=200, step_size=0.25)
    return Certificate(
        "cora-conv", "all states converge to a single point", "0 < τ ≤ 1/λ₁", True, float((end.max() - end.min()) / 2)
    )


def prop_convergence_rises(steps: int = 10) -> Certificate:
    """`prop-convergence` (E_{k+1} ≤ E_k with a source) fails at every step from Z^(0) = 0, on the path of four nodes.

    With η = 2λβ at the λ of the corrected claim. The violation is the *smallest* rise over the steps.
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
    """The optimum (η/λ) Δ⁻¹H does not exist where H has a mean: with H = 1 on two nodes every state grows by τβ a step.

    The violation is the distance between steps 100 and 200.
    """
    coupling, z = GraphCoupling(_path(2), "raw"), column(1.0, 1.0)
    states = diffuse(z, coupling, steps=200, step_size=0.25, source_weight=1.0, save="all")
    return Certificate(
        "prop-convergence (limit)", "Z^(k) converges", "0 < τ ≤ 1/λ₁", True, float((states[200] - states[100]).norm())
    )


def _laplacian(coupling: GraphCoupling) -> Tensor:
    matrix = coupling.matrix(torch.zeros(coupling.num_nodes, 1, dtype=torch.float64))
    return torch.diag(matrix.sum(1)) - matrix
