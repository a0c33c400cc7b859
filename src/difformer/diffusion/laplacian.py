"""The Laplacian of a coupling as an operator, and the ends of its spectrum.

A coupling with balance m (m_i s_ij = m_j s_ji) has the spectrum of the symmetric matrix √m_i s_ij / √m_j, which is what
is looked at. Zero is an eigenvalue of every Laplacian, once for each connected component; what is left of a vector
without its parts on the components is orthogonal to all of these. Up to `DENSE` nodes eigenvalues come from an exact
decomposition; beyond, the largest comes from ARPACK and the smallest non-zero one from a Lanczos recurrence on the
complement of the null space. The recurrence is neither restarted nor orthogonalised again: for the extreme eigenvalues
that costs a few repeated Ritz values, which do no harm, and saves most of the time and memory.
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

from difformer.diffusion.coupling import AllPairAttention, Coupling
from difformer.errors import UserError

DENSE = 512
MOST_RESTARTS = 1000  # of Lanczos before the largest eigenvalue is taken with a margin

Vector = Any  # a numpy array [N] of doubles


@dataclass(frozen=True)
class Laplacian:
    """The symmetric form of Δ as an operator, and its null space: `rest` on each component of `labels`."""

    size: int
    matrix: Any | None  # scipy sparse or dense numpy, where there is one
    apply: Callable[[Vector], Vector]
    labels: Vector
    rest: Vector

    @staticmethod
    def of(coupling: Coupling, z: Tensor, conservation: str) -> Laplacian:
        balance = coupling.balance(z)
        if balance is None:
            raise UserError(
                "coupling has no real spectrum: it is neither symmetric nor row-normalised from a symmetric exchange "
                "(a directed graph, or a mix of attention and graph); stable_step_size gives a sufficient bound for it"
            )
        root = balance.sqrt()
        degree = coupling.degree(z)
        kept = (degree if conservation == "degree" else torch.ones_like(degree)).cpu().numpy()
        exchange, matrix = _sparse(coupling, z), None
        if exchange is None:

            def apply(x: Vector) -> Vector:
                x = x.reshape(-1)
                values = torch.from_numpy(x).to(z.device) / root
                received = root * coupling.propagate(z, values.unsqueeze(1)).squeeze(1)
                return kept * x - received.cpu().numpy()

        else:
            scale = root.cpu().numpy()
            matrix = (diags(kept) - diags(scale) @ exchange @ diags(1 / scale)).tocsr()
            apply = matrix.__matmul__
        labels = _labels(exchange, coupling, z.shape[0])
        rest = torch.ones_like(root) if conservation == "degree" else coupling.rest(z)
        resting = _confirmed(apply, (root * rest).cpu().numpy(), labels)
        if conservation == "unit" and matrix is not None and not resting.all():
            resting = _confirmed(apply, _principal(matrix, resting, labels), labels)
        return Laplacian(z.shape[0], matrix, apply, labels, resting)

    @property
    def null(self) -> int:
        """Zero eigenvalues: the components that are known to rest."""
        return int(np.unique(self.labels[self.rest != 0]).size)

    def least(self) -> float:
        """The smallest eigenvalue of all; zero where it is known not to be negative.

        States that rest are positive. Where every component has one, no mode of a non-negative S grows (Perron).
        """
        if self.null == np.unique(self.labels).size:
            return 0.0
        if self.matrix is not None and self.size <= DENSE:
            values = self._eigenvalues()
            return float(min(values[0], 0.0)) if values[0] < -1e-12 * abs(values[-1]) else 0.0
        operator = LinearOperator((self.size, self.size), matvec=self.apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(self.size)
        value = float(eigsh(operator, k=1, which="SA", v0=start, tol=1e-4, return_eigenvectors=False)[0])
        return value if value < -1e-8 else 0.0

    def project(self, x: Vector) -> Vector:
        """x without its part in the null space."""
        weight = np.bincount(self.labels, self.rest**2)
        inner = np.bincount(self.labels, self.rest * x)
        return x - self.rest * (inner / np.where(weight > 0, weight, 1.0))[self.labels]

    def largest(self) -> float:
        if self.null == self.size:
            return 0.0
        if self.size <= DENSE:
            return float(self._eigenvalues()[-1])
        operator = LinearOperator((self.size, self.size), matvec=self.apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(self.size)
        try:
            # The tolerance is one of residuals: the eigenvalue itself is known to the order of its square.
            options = {"tol": 1e-7, "maxiter": MOST_RESTARTS, "return_eigenvectors": False}
            return float(eigsh(operator, k=1, which="LA", v0=start, **options)[0])
        except ArpackNoConvergence:
            pass
        # On long chains eigenvalues crowd, and a small residual takes hours. What Lanczos finds lies below an
        # eigenvalue by at most its residual: with that added, a step size is a little too careful, which does no harm.
        value, vector = eigsh(operator, k=1, which="LA", v0=start, tol=1e-4)
        found, direction = float(value[0]), vector[:, 0]
        return found + float(np.linalg.norm(self.apply(direction) - found * direction))

    def smallest(self, tolerance: float, max_iterations: int) -> float | None:
        """The smallest eigenvalue outside the null space."""
        if self.null == self.size:
            return None
        if self.size <= DENSE:
            values = self._eigenvalues()
            # Where every component rests none is negative, see `least`: what seems so is rounding.
            grows = self.null < np.unique(self.labels).size and values[0] < -1e-9 * abs(values[-1])
            return float(values[0] if grows else values[self.null])
        return _lanczos_smallest(self.apply, self.project, self.size, tolerance, max_iterations)

    def solve(self, h: Vector, *, tolerance: float = 1e-13) -> Vector:
        """Δ⁺h, the solution without a part in the null space, by conjugate gradients."""
        residual = self.project(h)
        x, direction, size = np.zeros_like(residual), residual, float(residual @ residual)
        goal = tolerance**2 * size
        for _ in range(20 * self.size):
            if size <= goal:
                return x
            image = self.apply(direction)
            step = size / float(direction @ image)
            x, residual = x + step * direction, self.project(residual - step * image)
            before, size = size, float(residual @ residual)
            direction = residual + size / before * direction
        raise RuntimeError(f"conjugate gradients did not settle: residual {math.sqrt(size):.2g}")

    def _eigenvalues(self) -> Vector:
        assert self.matrix is not None  # there is one up to DENSE nodes
        return np.linalg.eigvalsh(self.matrix.toarray())


def component_labels(coupling: Coupling, z: Tensor) -> Tensor:
    """The connected component of each node, ``[N]``, directions left aside.

    All-pair attention among more than `DENSE` states is taken to connect all of a graph. What could split it are
    exchanges of exactly zero, such as `simple` has between opposite states.
    """
    return torch.from_numpy(_labels(_sparse(coupling, z), coupling, z.shape[0])).to(z.device)


def _labels(exchange: Any | None, coupling: Coupling, size: int) -> Vector:
    if exchange is not None:
        return connected_components(exchange, directed=False)[1].astype(np.int64)
    segments = coupling.segments if isinstance(coupling, AllPairAttention) else None
    return np.zeros(size, dtype=np.int64) if segments is None else segments.batch.cpu().numpy()


def _sparse(coupling: Coupling, z: Tensor) -> Any | None:
    """S(z) as a scipy matrix without explicit zeros; None where it is dense and large."""
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


def _confirmed(apply: Callable[[Vector], Vector], rest: Vector, labels: Vector) -> Vector:
    """`rest` on the components where Δ really sends it to zero, and zero elsewhere."""
    left, whole = (np.bincount(labels, part**2) for part in (apply(rest), rest))
    return np.where((left <= 1e-16 * whole)[labels], rest, 0.0)


def _principal(laplacian: Any, known: Vector, labels: Vector) -> Vector:
    """`known`, and on the components where it is zero the eigenvector of Δ's smallest eigenvalue.

    A matrix that somebody gives need not say what it leaves at rest. S ≥ 0 is connected there, so its principal
    eigenvector is positive and the only one that can be (Perron); whether it really rests is for the caller to confirm.
    """
    found = known.copy()
    order = np.argsort(labels, kind="stable")
    for nodes in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if known[nodes].any():
            continue
        if nodes.size == 1:
            found[nodes] = 1.0
            continue
        part = laplacian[nodes][:, nodes]
        if nodes.size <= DENSE:
            vector = np.linalg.eigh(part.toarray())[1][:, 0]
        else:
            start = np.random.default_rng(0).random(nodes.size)
            vector = eigsh(part, k=1, which="SA", v0=start, tol=1e-13)[1][:, 0]
        found[nodes] = np.abs(vector)
    return found


def _lanczos_smallest(
    apply: Callable[[Vector], Vector],
    project: Callable[[Vector], Vector],
    size: int,
    tolerance: float,
    max_iterations: int,
) -> float:
    """The smallest eigenvalue of an operator on the complement of its null space."""
    current = project(np.random.default_rng(1).standard_normal(size))
    current /= np.linalg.norm(current)
    before, beta = np.zeros(size), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    value, residual, look = math.nan, math.inf, 16
    for iteration in range(1, max_iterations + 1):
        after = apply(current)
        diagonal.append(float(current @ after))
        after = project(after - diagonal[-1] * current - beta * before)
        beta = float(np.linalg.norm(after))
        exhausted = beta <= 1e-14 * max(map(abs, (diagonal[-1], diagonal[0])))
        if iteration >= look or exhausted or iteration == max_iterations:
            values, vectors = eigh_tridiagonal(diagonal, beside, select="i", select_range=(0, 0))
            value, residual = float(values[0]), beta * abs(float(vectors[-1, 0]))
            if exhausted or residual <= tolerance * abs(value):
                return value
            look = iteration + max(8, iteration // 8)
        beside.append(beta)
        before, current = current, after / beta
    raise RuntimeError(
        f"the smallest non-zero eigenvalue is not resolved after {max_iterations} products with S: it is at most "
        f"{value:.4g}, with residual {residual:.2g}; raise max_iterations or tolerance"
    )
