"""A diffusivity as a polynomial on [-1, 1], with an error known beforehand.

Scores of rows of norm at most one lie in [-1, 1], where g is smooth. Its interpolant at the p + 1 Chebyshev points,
written in powers,

    g(x) ≈ Σ_p a_p x^p,

is off by a factor 1 ± ε at most. Rows are normalised by sums of the same positive g, so that no weight of the attention
is off by more than (1 + ε) / (1 - ε). Gradients follow g', whose bound is a larger one: both are reported.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial import chebyshev

from difformer.diffusivity import Diffusivity
from difformer.errors import UserError

LARGEST_DEGREE = 12
GRID_POINTS = 8193
NEGLIGIBLE = 1e-13  # against the largest coefficient: what rounding leaves of one that is zero


@dataclass(frozen=True)
class Bounds:
    """Largest relative errors of a polynomial on [-1, 1].

    Args:
        degree: Degree p of the polynomial.
        value: Of g.
        slope: Of g', relative to g' itself; of a constant g it is zero.
    """

    degree: int
    value: float
    slope: float

    def __str__(self) -> str:
        return f"degree {self.degree}: g to {self.value:.1e}, g' to {self.slope:.1e}"


@functools.lru_cache(maxsize=512)
def coefficients(diffusivity: Diffusivity, degree: int) -> tuple[float, ...]:
    """a_0 … a_p of the interpolant; exactly zero where g has none (sigmoid: 2, 4, …)."""
    if degree < 0:
        raise UserError(f"degree must not be negative, got {degree}")

    points = chebyshev.chebpts1(degree + 1)
    with torch.no_grad():
        values = diffusivity.g(torch.from_numpy(points)).numpy()
    series = chebyshev.chebfit(points, values, degree)
    # Zeros are told in the Chebyshev basis, which rounding reaches last.
    series[np.abs(series) < NEGLIGIBLE * np.abs(series).max()] = 0.0
    powers = chebyshev.cheb2poly(series)
    powers = np.concatenate([powers, np.zeros(degree + 1 - len(powers))])
    powers[np.abs(powers) < NEGLIGIBLE * np.abs(powers).max()] = 0.0
    return tuple(float(a) for a in powers)


@functools.lru_cache(maxsize=512)
def bounds(diffusivity: Diffusivity, degree: int) -> Bounds:
    """How far the polynomial of this degree is from g, and its slope from g', on all of [-1, 1]."""
    powers = torch.tensor(coefficients(diffusivity, degree), dtype=torch.float64)
    x = torch.linspace(-1.0, 1.0, GRID_POINTS, dtype=torch.float64)
    g, pull, *_ = torch.func.vjp(diffusivity.g, x)
    slope = pull(torch.ones_like(x))[0]
    exponents = torch.arange(degree + 1)
    basis = x.unsqueeze(1) ** exponents
    value_gap = (basis @ powers - g).abs()
    slope_gap = (basis[:, :-1] @ (powers[1:] * exponents[1:]) - slope).abs() if degree else slope.abs()
    return Bounds(degree, _largest_ratio(value_gap, g), _largest_ratio(slope_gap, slope))


def _largest_ratio(gap: torch.Tensor, size: torch.Tensor) -> float:
    rounding = NEGLIGIBLE * size.abs().max()  # also where g itself is zero, as simple is at -1
    ratio = torch.where(gap <= rounding, 0.0, gap / size.abs())
    return float(ratio.max())


@functools.lru_cache(maxsize=512)
def degree_for(diffusivity: Diffusivity, tol: float) -> int:
    """The least degree that keeps g within a relative error of `tol`.

    Raises:
        ValueError: If `tol` is not between 0 and 1, or no degree up to `LARGEST_DEGREE` suffices.
    """
    if not 0 < tol < 1:
        raise UserError(f"tol must lie between 0 and 1, got {tol!r}; leave it out for exact sums")
    for degree in range(LARGEST_DEGREE + 1):
        if bounds(diffusivity, degree).value <= tol:
            return degree
    reached = bounds(diffusivity, LARGEST_DEGREE).value
    raise UserError(
        f"diffusivity {diffusivity.name!r} is no polynomial to tol = {tol:g}: degree {LARGEST_DEGREE} reaches "
        f"{reached:.1e}; allow more, or use backend='blockwise', which is exact"
    )
