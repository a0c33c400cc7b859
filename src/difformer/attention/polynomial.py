"""A diffusivity as a polynomial on [-1, 1], with an error known beforehand: all pairs in linear time.

Scores of rows of norm at most one lie in [-1, 1], where g is smooth. Its interpolant at the p + 1 Chebyshev points,

    g(x) ≈ Σ_p a_p x^p,

is off by a factor 1 ± ε at most, and no weight of the attention by more than (1 + ε) / (1 - ε). Gradients follow g',
whose bound is larger: both are reported (`Bounds`).

A power of an inner product is (q·k)^p = Σ_α w_α q^α k^α over the C(d + p - 1, p) symmetric monomials of degree p, with
the multinomial weights w_α = p! / α!. So polynomial attention is two sums, `moments` and `evaluate`,

    T_α = Σ_j k_j^α [v_j, 1],      [Σ_j g_ij v_j, Σ_j g_ij] ≈ Σ_α a_p w_α q_i^α T_α,

in time O(N F c) for F monomials and memory O(N c + F c). Degrees whose coefficient is zero are left out: sigmoid to
1e-3 needs 0, 1 and 3. Each sum is the other's adjoint; the gradient of the rows comes with either.

The monomials x_a x_b x_c with a ≤ b ≤ c stand in lexicographic order. Those that begin with x_a are x_a times the
*tail* of the list of degree p - 1 that uses variables from a on. So a sum over monomials needs only the list of degree
p - 1, for some rows at a time, and one matrix product per leading variable a:

    T_a = Σ_i tail_a(x_i) (x_ia y_i)ᵀ,        z_i = Σ_a x_ia (T_aᵀ tail_a(x_i)).

In `add_moments` and `evaluate_rows` rows run along the last axis, ``[monomials, n]``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Polynomial, chebyshev
from torch import Tensor
from torch.nn import functional

from difformer._compat import constant_result, is_exporting
from difformer.attention.linear import add_outer
from difformer.attention.scores import apart, diffusivity_of, working_dtype
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.free_memory import elements_at_a_time
from difformer.shortcut import is_eager, row_operator

DEFAULT_TOL = 1e-3
# What rounding may add to a norm of one.
NORM_SLACK = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
LARGEST_DEGREE = 12
GRID_POINTS = 8193
NEGLIGIBLE = 1e-13  # relative to the largest coefficient: what rounding leaves of one that is zero
CPU_PART = 1 << 20  # elements of the longest list of monomials that are held at a time
GPU_PART = 1 << 28
GPU_SLICES = 16  # products side by side that fill a GPU
SMALLEST_SLICE = 1024  # rows of a slice that are worth a product of their own
GROUP = 8  # leading variables in one product, which passes over the list of the lower degree once for all of them


@dataclass(frozen=True)
class Bounds:
    """Largest relative errors of a polynomial on [-1, 1]."""

    degree: int  # p
    value: float  # error of g
    slope: float  # error of g', relative to g' itself; zero for a constant g

    def __str__(self) -> str:
        return f"degree {self.degree}: g to {self.value:.1e}, g' to {self.slope:.1e}"


@functools.lru_cache(maxsize=512)
def coefficients(diffusivity: Diffusivity, degree: int) -> tuple[float, ...]:
    """a_0 … a_p of the interpolant; exactly zero where g has none (sigmoid: 2, 4, …)."""
    if degree < 0:
        raise UserError(f"degree must not be negative, got {degree}")
    with torch.no_grad():
        g: Any = lambda x: diffusivity.g(torch.from_numpy(x)).numpy()
        series = chebyshev.chebinterpolate(g, degree)
    # Zeros are recognised in the Chebyshev basis, which rounding affects least.
    series[np.abs(series) < NEGLIGIBLE * np.abs(series).max()] = 0.0
    powers = chebyshev.cheb2poly(series)
    powers = np.pad(powers, (0, degree + 1 - len(powers)))
    powers[np.abs(powers) < NEGLIGIBLE * np.abs(powers).max()] = 0.0
    return tuple(float(a) for a in powers)


@functools.lru_cache(maxsize=512)
def bounds(diffusivity: Diffusivity, degree: int) -> Bounds:
    """How far the polynomial of this degree is from g, and its slope from g', on all of [-1, 1]."""
    near = Polynomial(coefficients(diffusivity, degree))
    x = torch.linspace(-1.0, 1.0, GRID_POINTS, dtype=torch.float64)
    g, pull, *_ = torch.func.vjp(diffusivity.g, x)
    slope = pull(torch.ones_like(x))[0]
    return Bounds(degree, _largest_error(near, x, g), _largest_error(near.deriv(), x, slope))


def _largest_error(near: Polynomial, x: Tensor, exact: Tensor) -> float:
    gap, size = (torch.from_numpy(near(x.numpy())) - exact).abs(), exact.abs()
    rounding = NEGLIGIBLE * size.max()  # also where g itself is zero, as simple is at -1
    return float(torch.where(gap <= rounding, 0.0, gap / size).max())


@functools.lru_cache(maxsize=512)
def degree_for(diffusivity: Diffusivity, tol: float) -> int:
    """The least degree that keeps g within a relative error of `tol`; a ValueError if none up to 12 does."""
    if not 0 < tol < 1:
        raise UserError(f"tol must lie between 0 and 1, got {tol!r}; leave it out for exact sums")
    for degree in range(LARGEST_DEGREE + 1):
        if (reached := bounds(diffusivity, degree).value) <= tol:
            return degree
    raise UserError(
        f"diffusivity {diffusivity.name!r} cannot be approximated to tol = {tol:g}: degree {LARGEST_DEGREE} reaches "
        f"{reached:.1e}; allow more, or use backend='blockwise', which is exact"
    )


@functools.lru_cache(maxsize=256)
def _expanded(diffusivity: Diffusivity, tol: float) -> tuple[float, ...]:
    return apart(lambda: coefficients(diffusivity, degree_for(diffusivity, tol)))


@constant_result
def expand(diffusivity: str | Diffusivity, tol: float = DEFAULT_TOL) -> tuple[float, ...]:
    """Coefficients of the polynomial of least degree that keeps g within `tol`."""
    return _expanded(diffusivity_of(diffusivity), tol)


@constant_result
def pairs_that_pay(d: int, c: int, polynomial: tuple[float, ...]) -> int:
    """The N below which N² pairs cost fewer operations than N times the monomials: N (d + c) against 2 F (c + 1)."""
    return 2 * total_count(d, degrees_of(polynomial)) * (c + 1) // (d + c)


def beyond_ball(x: Tensor) -> float | None:
    """The largest norm of a row, if it is above one beyond rounding; None also if values cannot be read."""
    if not is_eager(x) or not x.numel():
        return None
    norm = float(torch.linalg.vector_norm(x.detach(), dim=-1, dtype=working_dtype(x.dtype)).max())
    return None if norm <= 1 + NORM_SLACK.get(x.dtype, 1e-4) else norm


def check_norms(**rows: Tensor) -> None:
    """Refuses rows of norm above one, by the name of the argument."""
    for name, x in rows.items():
        if (norm := beyond_ball(x)) is not None:
            problem = f"backend 'polynomial' needs rows of {name} with norm at most 1, got {norm:.4g}; "
            problem += "normalise them (qk_norm='row'), or use backend='blockwise', which takes any"
            raise UserError(problem)


def count(d: int, degree: int) -> int:
    """Monomials of one degree in d variables."""
    return math.comb(d + degree - 1, degree)


def total_count(d: int, degrees: Sequence[int]) -> int:
    return sum(count(d, degree) for degree in degrees)


@functools.lru_cache(maxsize=64)
def weights(d: int, degree: int) -> Tensor:
    """Multinomial weights p! / α! in the order of the monomials, float64."""
    weight, leading, run = torch.ones(1, dtype=torch.float64), torch.full((1,), -1), torch.zeros(1, dtype=torch.long)
    for p in range(1, degree + 1):
        parts = []
        for a, start, _ in _leading(d, p):
            longer = torch.where(leading[start:] == a, run[start:] + 1, 1)  # how often x_a stands in front
            parts.append((weight[start:] * p / longer, torch.full_like(longer, a), longer))
        weight, leading, run = (torch.cat(part) for part in zip(*parts, strict=True))
    return weight


def powers(x: Tensor, degree: int) -> list[Tensor]:
    """The lists of degree 1 … `degree` for the rows ``x [d, n]``."""
    lists = [x]
    for p in range(2, degree + 1):
        lists.append(torch.cat([x[a] * lists[-1][start:] for a, start, _ in _leading(x.shape[0], p)]))
    return lists


def pull_powers(x: Tensor, lists: list[Tensor], grads: list[Tensor]) -> Tensor:
    """The gradient of x, given those of the lists of degree 1, 2, …; overwrites them."""
    d, x_grad = x.shape[0], torch.zeros_like(x)
    for p in range(len(grads), 1, -1):
        for a, start, place in _leading(d, p):
            given = grads[p - 1][place]
            x_grad[a].add_((given * lists[p - 2][start:]).sum(0))
            grads[p - 2][start:].addcmul_(x[a], given)
    return x_grad.add_(grads[0])


def _leading(d: int, degree: int) -> Iterator[tuple[int, int, slice]]:
    """Each leading variable, where its tail begins, and its place among the monomials of this degree."""
    at, whole = 0, count(d, degree - 1)
    for a in range(d):
        size = count(d - a, degree - 1)
        yield a, whole - size, slice(at, at + size)
        at += size


@dataclass(frozen=True)
class Group:
    """Monomials of one degree with consecutive leading variables, which share the longest of their tails.

    Args:
        degree: p.
        variables: The leading variables.
        start: Where the longest tail begins in the list of degree p - 1.
        places: Where each variable's tail begins, and its place among the monomials.
    """

    degree: int
    variables: slice
    start: int
    places: tuple[tuple[int, slice], ...]

    def gather(self, state: Tensor) -> Tensor:
        """T of ``state [monomials, w]``: ``[variables · w, tail]``, with zeros before shorter tails."""
        found = state.new_zeros(len(self.places), self.places[0][1].stop - self.places[0][1].start, state.shape[1])
        for i, (start, place) in enumerate(self.places):
            found[i, start - self.start :] = state[place]
        return found.transpose(1, 2).flatten(0, 1).contiguous()


def _groups(d: int, degrees: Sequence[int]) -> list[Group]:
    """Of all degrees above one; places count from the first monomial of all."""
    found, at = [], 0
    for degree in degrees:
        leading = [(start, slice(at + own.start, at + own.stop)) for _, start, own in _leading(d, max(degree, 1))]
        for a in range(0, d if degree > 1 else 0, GROUP):
            places = tuple(leading[a : a + GROUP])
            found.append(Group(degree, slice(a, a + len(places)), places[0][0], places))
        at += count(d, degree)
    return found


def held(degrees: Sequence[int]) -> int:
    """The degree of the longest list that is needed: one less than that of the polynomial."""
    return max(max(degrees, default=0) - 1, 1)


def parts(x: Tensor, degrees: Sequence[int], w: int) -> Iterator[slice]:
    """Rows of ``x [n, d]`` in parts, so that lists, and products of a group with `w` numbers, stay small."""
    if is_exporting():  # a program for any number of rows has no loop over them
        yield slice(None)
        return
    budget = elements_at_a_time(x.device, CPU_PART, GPU_PART)
    each = max(count(x.shape[1], held(degrees)), min(GROUP, x.shape[1]) * w)
    step = max(budget // each // 64, 1) * 64  # aligned, as fast products need it
    for i in range(0, x.shape[0], step):
        yield slice(i, i + step)


def _add_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds Σ_i a_i b_iᵀ of ``a [m, n]`` and ``b [w, n]`` to ``to [m, w]``."""
    add_outer(to.unsqueeze(0), a.T.unsqueeze(0), b.T.unsqueeze(0), GPU_SLICES, SMALLEST_SLICE)


def _times(variables: Tensor, values: Tensor) -> Tensor:
    """``[variables · w, n]``: every one of ``variables [·, n]`` times every one of ``values [w, n]``."""
    if is_exporting():  # which cannot flatten a product of any number of rows
        return torch.cat([x * values for x in variables])
    return (variables.unsqueeze(1) * values).flatten(0, 1)


def add_moments(x: Tensor, y: Tensor, degrees: Sequence[int], to: Tensor) -> None:
    """Adds Σ_i x_i^α y_iᵀ of ``x [n, d]`` and ``y [n, w]`` to `to` ``[monomials, w]``."""
    d, w = x.shape[1], y.shape[1]
    groups = _groups(d, degrees)
    rooms = [to.new_zeros(count(d, one.degree - 1) - one.start, len(one.places) * w) for one in groups]
    for rows in parts(x, degrees, w):
        part, values = (t[rows].T.to(to.dtype).contiguous() for t in (x, y))
        lists = powers(part, held(degrees))
        if 0 in degrees:
            to[0].add_(values.sum(1))
        if 1 in degrees:
            _add_product(to[int(0 in degrees) :][:d], part, values)
        for one, room in zip(groups, rooms, strict=True):
            _add_product(room, lists[one.degree - 2][one.start :], _times(part[one.variables], values))
    for one, room in zip(groups, rooms, strict=True):  # [tail, variables · w]
        for part, (start, place) in zip(room.unflatten(1, (-1, w)).unbind(1), one.places, strict=True):
            to[place].add_(part[start - one.start :])


def evaluate_rows(
    x: Tensor, state: Tensor, degrees: Sequence[int], to: Tensor, u: Tensor | None = None, x_grad: Tensor | None = None
) -> None:
    """Writes z_i = Σ_α x_i^α T_α of ``x [n, d]`` to `to` ``[n, w]``; given `u`, also ∂(Σ_i u_iᵀz_i)/∂x to `x_grad`."""
    d, w = x.shape[1], state.shape[1]
    groups = _groups(d, degrees)
    tails = [one.gather(state) for one in groups]
    for rows in parts(x, degrees, w):
        part = x[rows].T.to(state.dtype).contiguous()
        lists = powers(part, held(degrees))
        total = state.new_zeros(w, part.shape[1])
        given = part.new_empty(0) if u is None else u[rows].T.to(state.dtype).contiguous()
        grads = [] if u is None else [torch.zeros_like(m) for m in lists]
        if 0 in degrees:
            total.add_(state[:1].T)
        if 1 in degrees:
            first = state[int(0 in degrees) :][:d]
            total.addmm_(first.T, part)
            if u is not None:
                grads[0].addmm_(first, given)
        for one, tail in zip(groups, tails, strict=True):
            leading, inner = part[one.variables], torch.mm(tail, lists[one.degree - 2][one.start :])
            if u is not None:
                grads[one.degree - 2][one.start :].addmm_(tail.T, _times(leading, given))
                grads[0][one.variables].add_((inner.unflatten(0, (-1, w)) * given).sum(1))
            total.add_(inner.unflatten(0, (-1, w)).mul_(leading.unsqueeze(1)).sum(0))
        to[rows] = total.T
        if x_grad is not None:
            x_grad[rows] = pull_powers(part, lists, grads).T


def degrees_of(coefficients: Sequence[float]) -> list[int]:
    """The degrees that a polynomial has."""
    return [degree for degree, a in enumerate(coefficients) if a != 0]


@functools.lru_cache(maxsize=64)
def _kept_weights(d: int, coefficients: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """a_p ω_α of all degrees that have a coefficient, ``[monomials, 1]``."""
    each = lambda: torch.cat([coefficients[p] * weights(d, p) for p in degrees_of(coefficients)]).unsqueeze(1)
    return apart(lambda: each().to(device=device, dtype=dtype))


@constant_result
def _weights(d: int, coefficients: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    # A function of its own: compilers would look through the cache, at the thread behind it.
    return _kept_weights(d, coefficients, device, dtype)


def _moments_room(x: Tensor, y: Tensor, degrees: Sequence[int]) -> Tensor:
    shape = (x.shape[0], x.shape[2], total_count(x.shape[3], degrees), y.shape[-1])
    return y.new_empty(shape, dtype=working_dtype(x.dtype))


def _moments(x: Tensor, y: Tensor, degrees: Sequence[int]) -> Tensor:
    """``x [runs, N, H, d]``, ``y [runs, N, H or 1, w]`` → T ``[runs, H, monomials, w]``."""
    state, y = torch.zeros_like(_moments_room(x, y, degrees)), y.expand(-1, -1, x.shape[2], -1)
    for run, head in itertools.product(range(x.shape[0]), range(x.shape[2])):
        add_moments(x[run, :, head], y[run, :, head], degrees, state[run, head])
    return state


def _moments_backward(grad: Tensor, x: Tensor, y: Tensor, degrees: Sequence[int]) -> tuple[Tensor, Tensor]:
    y_grad, x_grad = _evaluate_and_pull(x, grad.contiguous(), degrees, y)
    shared = y.shape[2] != x.shape[2]
    return x_grad.to(x.dtype), (y_grad.sum(2, keepdim=True) if shared else y_grad).to(y.dtype)


def _evaluate_room(x: Tensor, state: Tensor, degrees: Sequence[int]) -> Tensor:
    return state.new_empty((*x.shape[:3], state.shape[-1]))


def _evaluate(x: Tensor, state: Tensor, degrees: Sequence[int]) -> Tensor:
    """``x [runs, N, H, d]`` and T ``[runs, H, monomials, w]`` → z ``[runs, N, H, w]``."""
    return _evaluate_and_pull(x, state, degrees)[0]


def _evaluate_backward(grad: Tensor, x: Tensor, state: Tensor, degrees: Sequence[int]) -> tuple[Tensor, Tensor]:
    return _evaluate_and_pull(x, state, degrees, grad)[1].to(x.dtype), _moments(x, grad, degrees)


def _evaluate_and_pull(
    x: Tensor, state: Tensor, degrees: Sequence[int], u: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Σ_α x_i^α T_α, and the gradient of x for the gradient ``u [runs, N, H or 1, w]`` of it (empty without `u`)."""
    out, x_grad = _evaluate_room(x, state, degrees), state.new_empty((0,) if u is None else x.shape)
    for run, head in itertools.product(range(x.shape[0]), range(x.shape[2])):
        pulled = () if u is None else (u.expand_as(out)[run, :, head], x_grad[run, :, head])
        evaluate_rows(x[run, :, head], state[run, head], degrees, out[run, :, head], *pulled)
    return out, x_grad


_sum_moments = row_operator("moments", _moments, _moments_backward, _moments_room, inputs=2, layouts=0)
_sum_monomials = row_operator("monomial_sum", _evaluate, _evaluate_backward, _evaluate_room, inputs=2, layouts=0)


def moments(x: Tensor, y: Tensor, coefficients: Sequence[float]) -> Tensor:
    """T for ``x [N, H, d]`` and ``y [N, H or 1, w]``: ``[H, monomials, w]``, in the working precision."""
    # An exported program must run where this package is not installed.
    work = _moments if is_exporting() else _sum_moments
    found = work(x.unsqueeze(0), _aligned(y).unsqueeze(0), degrees_of(coefficients)).squeeze(0)
    return found[..., : y.shape[-1]].contiguous()


def evaluate(x: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    """z for ``x [N, H, d]`` and the T of `moments`: ``[N, H, w]``."""
    width, state = state.shape[-1], state * _weights(x.shape[-1], tuple(coefficients), state.device, state.dtype)
    work = _evaluate if is_exporting() else _sum_monomials
    return work(x.unsqueeze(0), _aligned(state).unsqueeze(0), degrees_of(coefficients)).squeeze(0)[..., :width]


def _aligned(x: Tensor) -> Tensor:
    """With a multiple of eight columns on a GPU, without which its tensor cores take a slow path."""
    return functional.pad(x, (0, -x.shape[-1] % 8)) if x.is_cuda else x
