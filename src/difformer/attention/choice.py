"""Which operator answers, and why.

Exact unless a tolerance allows otherwise. Diffusivities that are sums take their sums. For all others N² pairs are
worked out, in O(N) memory, by the quickest operator that serves the device; with a tolerance and enough rows, N times F
monomials cost less, and are chosen if they fit into the memory that is free. No choice needs memory quadratic in N.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from difformer._compat import constant_result
from difformer.attention import monomials, pair_operator, polynomial, softmax
from difformer.attention.chebyshev import Bounds, bounds, degree_for
from difformer.attention.linear import LINEAR
from difformer.attention.moments import degrees_of
from difformer.attention.scores import diffusivity_of, form_of, score_key
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.free_memory import free_bytes

BACKENDS = ("auto", "reference", "linear", "blockwise", "softmax", "fused", "polynomial")

# How much quicker than the sums of monomials, which are float32, a GPU works out pairs in low precision.
LOW_PRECISION_GAIN = 8


@dataclass(frozen=True)
class Situation:
    """What a choice depends on.

    Args:
        n: Rows of the largest graph.
        d: Channels of q and k.
        c: Channels of v.
        heads: Heads.
        device: Where the rows are.
        dtype: In which precision.
        batched_rows: Rows of the batch; 0 where there is one graph.
        pairwise: Whether the graphs of a batch are so small that pairs cost less than sums.
        transformed: Whether the call is inside `torch.vmap` or `torch.func.grad`.
    """

    n: int
    d: int
    c: int
    heads: int
    device: torch.device
    dtype: torch.dtype
    batched_rows: int = 0
    pairwise: bool = False
    transformed: bool = False


@dataclass(frozen=True)
class Choice:
    """An operator and the reason for it.

    Args:
        backend: Its name.
        reason: Why it, in words.
        bounds: Largest relative errors of g and g', where it is not exact.
    """

    backend: str
    reason: str
    bounds: Bounds | None = None

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def _polynomial_bytes(s: Situation, found: tuple[float, ...]) -> int:
    """The sums of a graph, their weights and gradients, and the monomials held at a time."""
    degrees = degrees_of(found)
    part = monomials.CPU_PART if s.device.type == "cpu" else monomials.GPU_PART
    held = max(part, 64 * monomials.count(s.d, max(max(degrees) - 1, 1)))
    return 4 * (4 * s.heads * monomials.total_count(s.d, degrees) * (s.c + 1) + 4 * held) + 16 * s.n * s.heads * s.c


@constant_result
def _polynomial_if(key: str, tol: float) -> tuple[float, ...]:
    """The polynomial within `tol`; empty if no degree reaches it."""
    if not 0 < tol < 1:
        raise UserError(f"tol must lie between 0 and 1, got {tol!r}; leave it out for exact sums")
    try:
        return polynomial.expand(key, tol)
    except ValueError:
        return ()


@constant_result
def _bounds(key: str, tol: float) -> Bounds:
    return bounds(diffusivity_of(key), degree_for(diffusivity_of(key), tol))


def _exact(s: Situation, form: str, why: str) -> Choice:
    width = max(s.d, s.c)
    if pair_operator.serves(form, s.device, s.dtype, width) and pair_operator.pays(s.dtype, s.batched_rows > 0):
        return Choice("fused", f"{why}; all pairs in one kernel of this package on {s.device.type}")
    if not s.transformed and softmax.serves(form, s.device, s.dtype, width, s.batched_rows > 0):
        return Choice("softmax", f"{why}; all pairs in torch's own kernels on {s.device.type}")
    return Choice("blockwise", f"{why}; all pairs tile by tile on {s.device.type}")


def choose(s: Situation, key: str, tol: float | None) -> Choice:
    """The operator for a situation and the score behind `key`."""
    form = form_of(key)
    if form == "identity":
        return Choice("identity", "each row receives its own values")
    if form in LINEAR:
        if s.pairwise and pair_operator.serves(form, s.device, s.dtype, max(s.d, s.c)):
            return Choice("fused", "graphs with fewer rows than channels: their pairs cost less than their sums")
        return Choice("linear", f"{form} is a sum: exact in O(N d c) operations and O(d c) memory")
    if tol is None:
        return _exact(s, form, "exact sums were asked for (no tol)")
    found = _polynomial_if(key, tol)
    if not found:
        return _exact(s, form, f"no polynomial of degree up to 12 is within tol = {tol:g}")
    pays = polynomial.pairs_that_pay(s.d, s.c, found)
    if s.device.type == "cuda" and s.dtype in (torch.bfloat16, torch.float16):
        pays *= LOW_PRECISION_GAIN
    if s.n <= pays:
        return _exact(s, form, f"below {pays:,} rows pairs cost less than monomials")
    if not torch.compiler.is_compiling():
        needed, free = _polynomial_bytes(s, found), free_bytes(s.device)
        if needed > 0.8 * free:
            gib = 2**30
            return _exact(s, form, f"the monomials need {needed / gib:.1f} GiB, {free / gib:.1f} GiB are free")
    return Choice("polynomial", f"above {pays:,} rows monomials cost less than pairs", _bounds(key, tol))


def explain(
    n: int,
    d: int,
    *,
    diffusivity: str | Diffusivity = "sigmoid",
    channels: int | None = None,
    heads: int = 1,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    tol: float | None = None,
) -> Choice:
    """Which operator ``backend="auto"`` takes for one graph, and why.

    Args:
        n: Rows.
        d: Channels of q and k.
        diffusivity: A name or a `Diffusivity`.
        channels: Channels of v; left out, d.
        heads: Heads.
        device: Where the rows are.
        dtype: In which precision.
        tol: Relative error allowed in g; None asks for the exact sums.

    Example:
        >>> print(explain(1_000_000, 64, diffusivity="simple"))
        linear: simple is a sum: exact in O(N d c) operations and O(d c) memory
    """
    situation = Situation(n, d, d if channels is None else channels, heads, torch.device(device), dtype)
    return choose(situation, score_key(diffusivity, d), tol)
