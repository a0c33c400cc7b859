r"""How large a step may be, and how fast a diffusion settles.

A step is Z⁺ = (I - τΔ) Z with Δ = D̃ - S (``conservation="degree"``) or I - S (``"unit"``). In every mode of Δ it
multiplies by 1 - τλ, so that it does not grow for τ ≤ 2/λ₁, λ₁ the largest eigenvalue, and the slowest mode that decays
at all belongs to the smallest *non-zero* eigenvalue μ. The modes of eigenvalue zero are the means of the connected
components, which diffusion keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer.diffusion.coupling import Coupling, as_coupling
from difformer.diffusion.laplacian import Laplacian
from difformer.errors import UserError
from difformer.sparse import SparseMatrix

_GROWS = "I - S has the negative eigenvalue {:.4g}, so that every step grows: use 'degree'"


@dataclass(frozen=True)
class Spectrum:
    """The ends of the spectrum of a Laplacian.

    Args:
        largest: λ₁.
        gap: μ, the smallest eigenvalue that is not zero; None where all are zero, and nothing moves.
        null: How many zero eigenvalues there are: the connected components.
    """

    largest: float
    gap: float | None
    null: int

    @property
    def stable_step_size(self) -> float:
        """2/λ₁, the largest step under which no mode grows; infinite where nothing moves."""
        return 2 / self.largest if self.largest > 0 else math.inf

    def rate(self, step_size: float) -> float:
        """Factor by which a step shrinks the energy at least: max (1 - τλ)² over the non-zero eigenvalues."""
        if self.gap is None:
            return 0.0
        return max((1 - step_size * self.gap) ** 2, (1 - step_size * self.largest) ** 2)


def laplacian_spectrum(
    coupling: Coupling | Tensor | SparseMatrix,
    z: Tensor | None = None,
    *,
    conservation: str = "degree",
    tolerance: float = 1e-6,
    max_iterations: int = 20_000,
) -> Spectrum:
    """λ₁, μ and the number of zero eigenvalues of D̃ - S (or of I - S).

    Args:
        coupling: Symmetric, or row-normalised from a symmetric exchange.
        z: States at which the coupling is taken; a static one needs none.
        conservation: ``"degree"`` for D̃ - S, ``"unit"`` for I - S.
        tolerance: Residual of μ's mode, relative to μ. The error of μ itself is of the order of its square.
        max_iterations: Products with S that may be spent on μ.

    Raises:
        ValueError: If S has no real spectrum or negative entries, or if I - S has a negative eigenvalue.
        RuntimeError: If `max_iterations` do not resolve μ (long chains have a μ of the order of 1/N²).
    """
    laplacian = Laplacian.of(*_prepared(coupling, z, conservation), conservation)
    largest, gap = laplacian.largest(), laplacian.smallest(tolerance, max_iterations)
    if gap is not None and gap < 0:
        raise UserError(_GROWS.format(gap))
    return Spectrum(largest, gap, laplacian.null)


def stable_step_size(
    coupling: Coupling | Tensor | SparseMatrix, z: Tensor | None = None, *, conservation: str = "degree"
) -> float:
    """The largest step that lets no mode of the diffusion grow: 2/λ₁.

    Half of it, 1/λ₁, is the largest at which no mode changes its sign. A coupling without a real spectrum (of a
    directed graph, or a mix of attention and graph) gets 1/max_i d̃_i, up to which every new state is an average of old
    ones.

    Args:
        coupling: Any coupling with ``s_ij ≥ 0``.
        z: States at which the coupling is taken; a static one needs none.
        conservation: ``"degree"`` or ``"unit"``.

    Raises:
        ValueError: With ``"unit"``, if a mode grows at every step size.
    """
    coupling, states = _prepared(coupling, z, conservation)
    if coupling.balance(states) is not None:
        laplacian = Laplacian.of(coupling, states, conservation)
        if conservation == "unit" and (least := laplacian.least()) < 0:
            raise UserError(_GROWS.format(least))
        return Spectrum(laplacian.largest(), None, 0).stable_step_size
    largest = float(coupling.degree(states).max())
    if conservation == "degree":
        return 1 / largest if largest > 0 else math.inf
    if largest <= 1 + 1e-9:
        return 1.0
    raise UserError(f"rows of S sum to {largest:.4g} > 1, so that (1 - τ)z + τSz may grow at every τ: use 'degree'")


def convergence_rate(
    coupling: Coupling | Tensor | SparseMatrix,
    step_size: float,
    z: Tensor | None = None,
    *,
    conservation: str = "degree",
) -> float:
    """Factor (1 - τμ)² by which each step shrinks the energy at least (`prop-bound`), for τ ≤ 1/λ₁.

    For larger steps the fastest mode may be the one that decays least: max((1 - τμ)², (1 - τλ₁)²).
    """
    return laplacian_spectrum(coupling, z, conservation=conservation).rate(step_size)


def _prepared(coupling: Any, z: Tensor | None, conservation: str) -> tuple[Coupling, Tensor]:
    if conservation not in ("degree", "unit"):
        raise UserError(f"conservation must be 'degree' or 'unit', got {conservation!r}: z + τSz grows at every step")
    chosen = as_coupling(coupling, num_nodes=None if z is None else z.shape[0])
    if z is None:
        if not chosen.static or chosen.num_nodes is None:
            raise UserError("z is missing: this coupling depends on the states, or fits any number of them")
        z = torch.zeros(chosen.num_nodes, 1, dtype=torch.float64)
    if z.shape[0] == 0:
        raise UserError("z has no states: there is no spectrum")
    return chosen, z.detach().double()
