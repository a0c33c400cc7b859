r"""Stable step sizes and convergence rates.

A step is Z⁺ = (I - τΔ) Z with Δ = D̃ - S. It multiplies each mode of Δ by 1 - τλ, so no mode grows for τ ≤ 2/λ₁, where
λ₁ is the largest eigenvalue, and the slowest mode that decays belongs to the smallest *non-zero* eigenvalue μ. The
modes of eigenvalue zero, one per connected component, are component means, which diffusion preserves.

A coupling with balance m (m_i s_ij = m_j s_ji) has the spectrum of the symmetric matrix √m_i s_ij / √m_j. Up to `DENSE`
nodes eigenvalues come from a dense decomposition. Beyond, λ₁ comes from ARPACK, and μ from a Lanczos recurrence on the
complement of the null space, without restarts or reorthogonalisation: for extreme eigenvalues this costs only a few
repeated Ritz values and saves most of the time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import coo_matrix, csr_matrix, diags
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from difformer.diffusion.coupling import AllPairAttention, AnyCoupling, Coupling, as_coupling
from difformer.errors import UserError

DENSE = 512
RESIDUAL = 1e-6  # of the mode of μ, relative to μ; the error of μ is of the order of its square
MOST_RESTARTS = 1000  # of ARPACK, before the largest eigenvalue is bounded instead

Vector = Any  # a numpy array [N] of doubles


@dataclass(frozen=True)
class Spectrum:
    """The ends of the spectrum of a Laplacian.

    Args:
        largest: λ₁.
        gap: μ, the smallest non-zero eigenvalue; None if all are zero.
        null: Number of zero eigenvalues, which is the number of connected components.
    """

    largest: float
    gap: float | None
    null: int

    @property
    def stable_step_size(self) -> float:
        """2/λ₁, the largest step for which no mode grows; infinite if λ₁ = 0."""
        return 2 / self.largest if self.largest > 0 else math.inf

    def rate(self, step_size: float) -> float:
        """Bound on the factor of the energy per step: max (1 - τλ)² over the non-zero eigenvalues."""
        if self.gap is None:
            return 0.0
        return max((1 - step_size * self.gap) ** 2, (1 - step_size * self.largest) ** 2)


def laplacian_spectrum(coupling: AnyCoupling, z: Tensor | None = None, *, max_iterations: int = 20_000) -> Spectrum:
    """λ₁, μ and the number of zero eigenvalues of D̃ - S.

    Args:
        coupling: Symmetric, or row-normalised from a symmetric exchange.
        z: States at which the coupling is computed; not needed for a constant coupling.
        max_iterations: Largest number of products with S to compute μ.

    Raises:
        ValueError: If S has no real spectrum or negative entries.
        RuntimeError: If `max_iterations` do not resolve μ (long chains have a μ of the order of 1/N²).
    """
    laplacian = Laplacian.of(*_prepared(coupling, z))
    return Spectrum(laplacian.largest(), laplacian.smallest(max_iterations), laplacian.null)


def stable_step_size(coupling: AnyCoupling, z: Tensor | None = None) -> float:
    """The largest step for which no mode of the diffusion grows: 2/λ₁.

    Half of it, 1/λ₁, is the largest for which no mode changes sign. For a coupling without a real spectrum (of a
    directed graph, or a mix of attention and graph) the result is 1/max_i d̃_i, up to which each new state is an
    average of old ones.

    Steps with ``conservation="unit"`` are the same where rows of S sum to one. For ``gcn`` weights take the step size
    of ``random_walk`` weights, whose D̃ - S has the eigenvalues of I - S (isolated nodes add the eigenvalue 1).

    Args:
        coupling: Any coupling with ``s_ij ≥ 0``.
        z: States at which the coupling is computed; not needed for a constant coupling.
    """
    coupling, states = _prepared(coupling, z)
    if coupling.balance(states) is not None:
        return Spectrum(Laplacian.of(coupling, states).largest(), None, 0).stable_step_size
    largest = float(coupling.degree(states).max())
    return 1 / largest if largest > 0 else math.inf


def convergence_rate(coupling: AnyCoupling, step_size: float, z: Tensor | None = None) -> float:
    """Bound (1 - τμ)² on the factor of the energy per step (`prop-bound`), for τ ≤ 1/λ₁.

    For larger steps the fastest mode may decay least: max((1 - τμ)², (1 - τλ₁)²).
    """
    return laplacian_spectrum(coupling, z).rate(step_size)


def _prepared(coupling: Any, z: Tensor | None) -> tuple[Coupling, Tensor]:
    chosen = as_coupling(coupling, num_nodes=None if z is None else z.shape[0])
    if z is None:
        if not chosen.static or chosen.num_nodes is None:
            raise UserError("z is missing: this coupling depends on the states, or fits any number of them")
        z = torch.zeros(chosen.num_nodes, 1, dtype=torch.float64)
    if z.shape[0] == 0:
        raise UserError("z has no states: there is no spectrum")
    return chosen, z.detach().double()


@dataclass(frozen=True)
class Laplacian:
    """The symmetric form of Δ as an operator, and its null space: `rest` = √m on each component of `labels`."""

    size: int
    matrix: Any | None  # scipy sparse; None for a dense coupling of more than DENSE nodes
    apply: Callable[[Vector], Vector]
    labels: Vector
    rest: Vector

    @staticmethod
    def of(coupling: Coupling, z: Tensor) -> Laplacian:
        balance = coupling.balance(z)
        if balance is None:
            raise UserError(
                "coupling has no real spectrum: it is neither symmetric nor row-normalised from a symmetric exchange "
                "(a directed graph, or a mix of attention and graph); stable_step_size gives a sufficient bound for it"
            )
        root = balance.sqrt()
        scale, kept = root.cpu().numpy(), coupling.degree(z).cpu().numpy()
        exchange, matrix = _sparse(coupling, z), None
        if exchange is None:

            def apply(x: Vector) -> Vector:
                x = x.reshape(-1)
                values = torch.from_numpy(x).to(z.device) / root
                received = root * coupling.propagate(z, values.unsqueeze(1)).squeeze(1)
                return kept * x - received.cpu().numpy()

        else:
            matrix = (diags(kept) - diags(scale) @ exchange @ diags(1 / scale)).tocsr()
            apply = matrix.__matmul__
        return Laplacian(z.shape[0], matrix, apply, _labels(exchange, coupling, z.shape[0]), scale)

    @property
    def null(self) -> int:
        """Number of zero eigenvalues: the components."""
        return int(np.unique(self.labels).size)

    def project(self, x: Vector) -> Vector:
        """The projection of x to the complement of the null space."""
        weight, inner = (np.bincount(self.labels, self.rest * part) for part in (self.rest, x))
        return x - self.rest * (inner / weight)[self.labels]

    def largest(self) -> float:
        if self.null == self.size:
            return 0.0
        if self.size <= DENSE:
            return float(self._eigenvalues()[-1])
        try:
            # The tolerance applies to residuals; the error of the eigenvalue is of the order of its square.
            return float(self._largest(tol=1e-7, maxiter=MOST_RESTARTS, return_eigenvectors=False)[0])
        except ArpackNoConvergence:
            # On long chains eigenvalues crowd, and a small residual takes hours. Adding the residual gives an upper
            # bound, hence a safe step size.
            value, vector = self._largest(tol=1e-4)
            found, direction = float(value[0]), vector[:, 0]
            return found + float(np.linalg.norm(self.apply(direction) - found * direction))

    def _largest(self, **options: Any) -> Any:
        """The largest eigenvalue, by ARPACK."""
        operator = LinearOperator((self.size, self.size), matvec=self.apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(self.size)
        return eigsh(operator, k=1, which="LA", v0=start, **options)

    def smallest(self, max_iterations: int) -> float | None:
        """The smallest eigenvalue outside the null space."""
        if self.null == self.size:
            return None
        if self.size <= DENSE:
            return float(self._eigenvalues()[self.null])
        return self._lanczos_smallest(max_iterations)

    def solve(self, h: Vector) -> Vector:
        """Δ⁺h by conjugate gradients, to 13 digits."""
        residual = self.project(h)
        x, direction, size = np.zeros_like(residual), residual, float(residual @ residual)
        goal = 1e-13**2 * size
        for _ in range(20 * self.size):
            if size <= goal:
                return x
            image = self.apply(direction)
            step = size / float(direction @ image)
            x, residual = x + step * direction, self.project(residual - step * image)
            before, size = size, float(residual @ residual)
            direction = residual + size / before * direction
        raise RuntimeError(f"CG iterations did not converge: residual {math.sqrt(size):.2g}")

    def _eigenvalues(self) -> Vector:
        assert self.matrix is not None  # there is one up to DENSE nodes
        return np.linalg.eigvalsh(self.matrix.toarray())

    def _lanczos_smallest(self, max_iterations: int) -> float:
        """The smallest eigenvalue on the complement of the null space."""
        current = self.project(np.random.default_rng(1).standard_normal(self.size))
        current /= np.linalg.norm(current)
        before, beta = np.zeros(self.size), 0.0
        diagonal: list[float] = []
        beside: list[float] = []
        value, residual, look = math.nan, math.inf, 16
        for iteration in range(1, max_iterations + 1):
            after = self.apply(current)
            diagonal.append(float(current @ after))
            after = self.project(after - diagonal[-1] * current - beta * before)
            beta = float(np.linalg.norm(after))
            exhausted = beta <= 1e-14 * max(map(abs, (diagonal[-1], diagonal[0])))
            if iteration >= look or exhausted or iteration == max_iterations:
                values, vectors = eigh_tridiagonal(diagonal, beside, select="i", select_range=(0, 0))
                value, residual = float(values[0]), beta * abs(float(vectors[-1, 0]))
                if exhausted or residual <= RESIDUAL * abs(value):
                    return value
                look = iteration + max(8, iteration // 8)
            beside.append(beta)
            before, current = current, after / beta
        problem = f"the smallest non-zero eigenvalue is not resolved after {max_iterations} products with S: it is at "
        problem += f"most {value:.4g}, with residual {residual:.2g}; raise max_iterations"
        raise RuntimeError(problem)


def component_labels(coupling: Coupling, z: Tensor) -> Tensor:
    """The weakly connected component of each node, ``[N]``.

    All-pair attention among more than `DENSE` states is assumed to connect each graph; only exchanges of exactly zero,
    as between opposite states for `simple`, could split it.
    """
    return torch.from_numpy(_labels(_sparse(coupling, z), coupling, z.shape[0])).to(z.device)


def _labels(exchange: Any | None, coupling: Coupling, size: int) -> Vector:
    if exchange is not None:
        return connected_components(exchange, directed=False)[1].astype(np.int64)
    segments = coupling.segments if isinstance(coupling, AllPairAttention) else None
    return np.zeros(size, dtype=np.int64) if segments is None else segments.batch.cpu().numpy()


def _sparse(coupling: Coupling, z: Tensor) -> Any | None:
    """S(z) as a scipy matrix without explicit zeros; None if it is dense and large."""
    entries = coupling.entries(z)
    if entries is None:
        if z.shape[0] > DENSE:
            return None
        matrix = csr_matrix(coupling.matrix(z).detach().cpu().numpy())
    else:
        row, column, value = (part.detach().cpu().numpy() for part in entries)
        matrix = coo_matrix((value, (row, column)), shape=(z.shape[0], z.shape[0])).tocsr()
    matrix.eliminate_zeros()
    if matrix.nnz and matrix.data.min() < 0:
        raise UserError(f"coupling has negative entries (down to {matrix.data.min():.4g}); S must be ≥ 0")
    return matrix
