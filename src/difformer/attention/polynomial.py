"""A diffusivity as a polynomial on [-1, 1], with an error known beforehand: all pairs in linear time.

Scores of rows of norm at most one lie in [-1, 1], where g is smooth. Its interpolant at the p + 1 Chebyshev points,
written in powers,

    g(x) ≈ Σ_p a_p x^p,

is off by a factor 1 ± ε at most. Rows are normalised by sums of the same positive g, so that no weight of the attention
is off by more than (1 + ε) / (1 - ε). Gradients follow g', whose bound is a larger one: both are reported.

With (q·k)^p = Σ_α w_α q^α k^α over the symmetric monomials of degree p (`difformer.attention.monomials`),

    T_α = Σ_j k_j^α [v_j, 1],      [Σ_j g_ij v_j, Σ_j g_ij] ≈ Σ_α a_p w_α q_i^α T_α

takes time O(N F c) for F monomials and memory O(N c + F c). Degrees whose coefficient is zero are left out: sigmoid to
1e-3 needs 0, 1 and 3.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from difformer._compat import constant_result
from difformer.attention.monomials import degrees_of, total_count
from difformer.attention.scores import apart, diffusivity_of, working_dtype
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.shortcut import is_eager

DEFAULT_TOL = 1e-3
# What rounding may add to a norm of one.
NORM_SLACK = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
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


def _largest_ratio(gap: Tensor, size: Tensor) -> float:
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


@constant_result
def expand(diffusivity: str | Diffusivity, tol: float = DEFAULT_TOL) -> tuple[float, ...]:
    """Coefficients of the polynomial of least degree that keeps g within `tol`."""
    return _expanded(diffusivity_of(diffusivity), tol)


@functools.lru_cache(maxsize=256)
def _expanded(diffusivity: Diffusivity, tol: float) -> tuple[float, ...]:
    return apart(lambda: coefficients(diffusivity, degree_for(diffusivity, tol)))


@constant_result
def pairs_that_pay(d: int, c: int, polynomial: tuple[float, ...]) -> int:
    """The N below which N² pairs cost fewer operations than N times the monomials: N (d + c) against 2 F (c + 1)."""
    return 2 * total_count(d, degrees_of(polynomial)) * (c + 1) // (d + c)


def longest_row(x: Tensor) -> float:
    """The largest norm of a row."""
    norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=working_dtype(x.dtype))
    return float(norms.max()) if x.numel() else 0.0


def within_ball(x: Tensor) -> bool:
    """Whether all rows have norm at most one, but for rounding; taken on trust where values are out of sight."""
    return not is_eager(x) or longest_row(x) <= 1 + NORM_SLACK.get(x.dtype, 1e-4)


def check_norms(**rows: Tensor) -> None:
    """Refuses rows of norm above one, by the name of the argument."""
    for name, x in rows.items():
        if not within_ball(x):
            longest = longest_row(x)
            raise UserError(
                f"backend 'polynomial' needs rows of {name} with norm at most 1, got {longest:.4g}; "
                f"normalise them (qk_norm='row'), or use backend='blockwise', which takes any"
            )
