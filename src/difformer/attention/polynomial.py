"""All-pair propagation in linear time with any diffusivity, to an error that is known beforehand.

With g(x) ≈ Σ_p a_p x^p on [-1, 1] (`difformer.attention.chebyshev`) and (q·k)^p = Σ_α w_α q^α k^α over the symmetric
monomials of degree p,

    T_α = Σ_j k_j^α [v_j, 1],      [Σ_j g_ij v_j, Σ_j g_ij] ≈ Σ_α a_p w_α q_i^α T_α.

Time O(N F c) for F monomials, memory O(N c + F c). Degrees whose coefficient is zero are left out: sigmoid to 1e-3
needs 0, 1 and 3. Rows of q and k must have norm at most one: beyond [-1, 1] the polynomial is not g.

Graphs of a batch with so few rows that their pairs cost less than the monomials are summed exactly.
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from difformer._compat import constant_result
from difformer.attention import blockwise
from difformer.attention.chebyshev import Bounds, bounds, coefficients, degree_for
from difformer.attention.layout import working_dtype
from difformer.attention.moments import degrees_of, evaluate, moments
from difformer.attention.monomials import total_count
from difformer.attention.reference import safe_total
from difformer.attention.scores import apart, diffusivity_of, score_key
from difformer.attention.segments import Segments
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.shortcut import is_eager

__all__ = ["DEFAULT_TOL", "Bounds", "answer", "bounds", "propagate", "summarise"]

DEFAULT_TOL = 1e-3
# Times the cost of pairs, and additions: beyond both a user is told. Tens of seconds for what takes less than one.
MUCH_DEARER, MANY_SUMS = 100, 2e10

# What rounding may add to a norm of one.
NORM_SLACK = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}


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


def summarise(
    k: Tensor, v: Tensor, diffusivity: str | Diffusivity, *, tol: float = DEFAULT_TOL, mass: Tensor | None = None
) -> Tensor:
    """All that queries need to know of keys ``[N, H, d]`` and values ``[N, H or 1, c]``.

    The state ``[H, monomials, c + 1]`` holds T. States of parts add up to that of the whole, and `answer` reads them.
    Both differentiate. `mass`, of the values' shape with one channel, replaces the ones that are summed next to v.
    """
    key = score_key(diffusivity, k.shape[-1])
    ones = v.new_ones(*v.shape[:-1], 1) if mass is None else mass
    return moments(k, torch.cat([v, ones], dim=-1), expand(key, tol))


def answer(q: Tensor, state: Tensor, diffusivity: str | Diffusivity, *, tol: float = DEFAULT_TOL) -> Tensor:
    """What queries ``[M, H, d]`` receive from the rows that `state` sums up: ``[M, H, c]``."""
    polynomial = expand(score_key(diffusivity, q.shape[-1]), tol)
    sums = evaluate(q, state, polynomial)
    # The first monomial is 1, where there is a constant: its last column counts the rows.
    count = state[:, 0, -1:].detach() if polynomial[0] != 0 else torch.ones_like(state[:, 0, -1:])
    return (sums[..., :-1] / safe_total(sums[..., -1:], count)).to(q.dtype)


def longest_row(x: Tensor) -> float:
    """The largest norm of a row."""
    norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=working_dtype(x.dtype))
    return float(norms.max()) if x.numel() else 0.0


def within_ball(x: Tensor) -> bool:
    """Whether all rows have norm at most one, but for rounding; taken on trust where values are out of sight."""
    return not is_eager(x) or longest_row(x) <= 1 + NORM_SLACK.get(x.dtype, 1e-4)


def check_norms(**rows: Tensor) -> None:
    """Refuses rows of norm above one.

    Raises:
        ValueError: Names the argument and its longest row.
    """
    for name, x in rows.items():
        if not within_ball(x):
            longest = longest_row(x)
            raise UserError(
                f"backend 'polynomial' needs rows of {name} with norm at most 1, got {longest:.4g}; "
                f"normalise them (qk_norm='row'), or use backend='blockwise', which takes any"
            )


def propagate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    diffusivity: str | Diffusivity,
    segments: Segments | None = None,
    *,
    tol: float = DEFAULT_TOL,
    check: bool = True,
) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]`` in time linear in N.

    Args:
        q: Queries, rows of norm at most one.
        k: Keys, rows of norm at most one.
        v: Values.
        diffusivity: Any.
        segments: Graphs that must not see each other.
        tol: Relative error allowed in g on [-1, 1]; `bounds` tells what it means for g'.
        check: Whether to look at the norms. Inside `torch.compile` and `torch.func` they are not.
    """
    diffusivity = score_key(diffusivity, q.shape[-1])
    if check:
        check_norms(q=q, k=k)
    if segments is None:
        _warn_of_cost(q, v, expand(diffusivity, tol))
        return answer(q, summarise(k, v, diffusivity, tol=tol), diffusivity, tol=tol)
    return _by_graph(q, k, v, diffusivity, segments, tol)


def _warn_of_cost(q: Tensor, v: Tensor, polynomial: tuple[float, ...]) -> None:
    """Monomials grow quickly with degree and channels: minutes where pairs take a second are not silent."""
    if torch.compiler.is_compiling():
        return
    pay = pairs_that_pay(q.shape[-1], v.shape[-1], polynomial)
    sums = q.shape[0] * q.shape[1] * total_count(q.shape[-1], degrees_of(polynomial)) * (v.shape[-1] + 1)
    if pay > MUCH_DEARER * q.shape[0] and sums > MANY_SUMS:
        warnings.warn(
            f"backend='polynomial' costs about {pay / q.shape[0]:,.0f} times as much as backend='blockwise' here: of "
            f"degree {len(polynomial) - 1} in {q.shape[-1]} channels it pays from {pay:,} rows on, and there are "
            f"{q.shape[0]:,}; raise tol, or leave the choice to backend='auto'",
            UserWarning,
            stacklevel=4,
        )


def _by_graph(
    q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, segments: Segments, tol: float
) -> Tensor:
    """Large graphs one after the other by their monomials, all small ones together by their pairs."""
    pay = pairs_that_pay(q.shape[-1], v.shape[-1], expand(diffusivity, tol))
    large = (segments.sizes > pay).nonzero().squeeze(1).tolist()
    if not large:
        return blockwise.propagate(q, k, v, diffusivity, segments)
    order, outs = [], []
    for graph in large:
        rows = (segments.batch == graph).nonzero().squeeze(1)
        state = summarise(k[rows], v[rows], diffusivity, tol=tol)
        outs.append(answer(q[rows], state, diffusivity, tol=tol))
        order.append(rows)
    rows = (segments.sizes[segments.batch] <= pay).nonzero().squeeze(1)
    if rows.numel():
        few = Segments(segments.batch[rows], segments.num_graphs)
        outs.append(blockwise.propagate(q[rows], k[rows], v[rows], diffusivity, few))
        order.append(rows)
    return torch.cat(outs)[torch.argsort(torch.cat(order))]
