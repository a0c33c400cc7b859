"""One call for all-pair propagation: which operator answers, and why.

Diffusivities that are sums use their sums. For all others the fastest operator of the device computes N² pairs in O(N)
memory. With a tolerance, N times F monomials take their place where they cost less and fit into free memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from difformer._compat import constant_result, is_exporting, is_transformed
from difformer.attention import linear, pair_operator, polynomial, reference, tiles
from difformer.attention.polynomial import Bounds, bounds
from difformer.attention.scores import diffusivity_of, form_of, score_key, slope_of
from difformer.attention.segments import Segments, as_segments
from difformer.attention.summary import LINEAR, summarise, with_mass
from difformer.diffusivity import Diffusivity, safe_total
from difformer.errors import UserError, check_choice
from difformer.free_memory import free_bytes
from difformer.kernels import MOST_PAIRS

BACKENDS = ("auto", "reference", "linear", "blockwise", "softmax", "fused", "polynomial")

LOW_PRECISION_GAIN = 8  # speed of pairs in low precision on a GPU; sums of monomials are float32
FUSED_ELEMENTS = 1 << 22  # of queries: up to this many, compiled programs propagate simple scores in plain operations
LONGEST_SOFTMAX_ROW = 512  # bytes: for longer rows torch has no kernel that keeps the pairs out of memory


@dataclass(frozen=True)
class Situation:
    """What a choice depends on."""

    n: int  # rows of the largest graph
    d: int  # channels of q
    c: int  # channels of v
    heads: int
    device: torch.device
    dtype: torch.dtype
    batched: bool = False  # whether there are several graphs
    pairwise: bool = False  # whether they are so small that pairs cost less than sums
    transformed: bool = False  # whether the call is inside `torch.vmap` or `torch.func.grad`


@dataclass(frozen=True)
class Choice:
    """An operator by its name, the reason for it in words, and error bounds of g and g' if it is not exact."""

    backend: str
    reason: str
    bounds: Bounds | None = None

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def _polynomial_bytes(s: Situation, found: tuple[float, ...]) -> int:
    """The sums of a graph, their weights and gradients, and the monomials held at a time."""
    degrees = polynomial.degrees_of(found)
    part = polynomial.CPU_PART if s.device.type == "cpu" else polynomial.GPU_PART
    held = max(part, 64 * polynomial.count(s.d, polynomial.held(degrees)))
    return 4 * (4 * s.heads * polynomial.total_count(s.d, degrees) * (s.c + 1) + 4 * held) + 16 * s.n * s.heads * s.c


@constant_result
def _polynomial_if(key: str, tol: float) -> tuple[float, ...]:
    """The polynomial within `tol`; empty if no degree reaches it."""
    if not 0 < tol < 1:
        raise UserError(f"tol must lie between 0 and 1, got {tol!r}; leave it out for exact sums")
    try:
        return polynomial.expand(key, tol)
    except ValueError:
        return ()


def softmax_serves(s: Situation, form: str) -> bool:
    """Whether torch's own attention answers without all pairs in memory: exponentials of one graph on a CUDA device."""
    known = s.device.type == "cuda" and s.dtype in (torch.float32, torch.bfloat16, torch.float16)
    fits = max(s.d, s.c) * s.dtype.itemsize <= LONGEST_SOFTMAX_ROW
    return known and fits and form == "exponential" and not s.batched


def _exact(s: Situation, form: str, why: str) -> Choice:
    if pair_operator.serves(form, s.device, s.dtype, max(s.d, s.c)):
        return Choice("fused", f"{why}; all pairs in one kernel of this package on {s.device.type}")
    if not s.transformed and softmax_serves(s, form):
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
        needed, free = _polynomial_bytes(s, found) / 2**30, free_bytes(s.device) / 2**30
        if needed > 0.8 * free:
            return _exact(s, form, f"the monomials need {needed:.1f} GiB, {free:.1f} GiB are free")
    return Choice("polynomial", f"above {pays:,} rows monomials cost less than pairs")


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
        channels: Channels of v; None for d.
        heads, device, dtype: Of q.
        tol: Relative error allowed in g; None for exact sums.

    Example:
        >>> print(explain(1_000_000, 64, diffusivity="simple"))
        linear: simple is a sum: exact in O(N d c) operations and O(d c) memory
    """
    situation = Situation(n, d, d if channels is None else channels, heads, torch.device(device), dtype)
    key = score_key(diffusivity, d)
    choice = choose(situation, key, tol)
    if tol is None or choice.backend != "polynomial":
        return choice
    return replace(choice, bounds=bounds(diffusivity_of(key), len(_polynomial_if(key, tol)) - 1))


def propagate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    diffusivity: str | Diffusivity,
    *,
    batch: Tensor | Segments | None = None,
    backend: str = "auto",
    tol: float | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    r"""All-pair propagation :math:`P_i = \sum_j w_j g(q_i^\top k_j) v_j / \sum_l w_l g(q_i^\top k_l)`.

    Args:
        q: Queries, ``[N, H, d]`` or ``[N, d]``.
        k: Keys, the shape of `q`.
        v: Values, ``[N, H, c]``, ``[N, 1, c]`` (shared by the heads) or ``[N, c]``.
        diffusivity: A name or a `Diffusivity`; ``"identity"`` returns the values.
        batch: Which graph each row belongs to, in any order; graphs never see each other. `Segments` save the sorting.
        backend: ``"auto"`` (see `explain`), or one of ``"reference"`` (dense), ``"linear"`` (simple and constant),
            ``"blockwise"`` (any diffusivity), ``"fused"`` (simple and sigmoid, CUDA), ``"softmax"``
            (exponentials of one graph, CUDA) and ``"polynomial"`` (any, within `tol`, for rows of norm at most one).
        tol: Relative error allowed in g. None means exact sums for ``"auto"``, and 1e-3 for ``"polynomial"``.
        weight: ``[N]`` non-negative w: how often each row counts as a sender; None for once.

    Returns:
        ``[N, H, c]``, or ``[N, c]`` where `q` has no heads.

    Raises:
        ValueError: If shapes do not fit, or the backend does not support what it is given.
    """
    _check(q, k, v, backend, weight)
    if q.dim() == 2:
        q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
        return propagate(q, k, v, diffusivity, batch=batch, backend=backend, tol=tol, weight=weight).squeeze(1)
    key = score_key(diffusivity, q.shape[-1])
    form = form_of(key)
    if form == "identity":
        return v.expand(-1, q.shape[1], -1)
    if weight is not None and not (form in LINEAR and batch is None and backend in ("auto", "linear")):
        approximate = backend == "polynomial" or (tol is not None and _polynomial_if(key, tol))
        if form == "exponential" and not weight.requires_grad and not approximate:
            # w e^(ax) = e^(a (x + log w / a)): as a channel, so that a sender without weight is no row's largest score.
            slope = slope_of(key)
            share = (weight.to(k.dtype).log() / slope).clamp_min(torch.finfo(k.dtype).min / (4 * max(slope, 1)))
            k = torch.cat([k, share.view(-1, 1, 1).expand(-1, k.shape[1], 1)], -1)
            return propagate(torch.cat([q, torch.ones_like(q[..., :1])], -1), k, v, key, batch=batch, backend=backend)
        # Any operator gives Σ_j g_ij [w_j v_j, w_j] / Σ_l g_il; the division of the first part by the second drops
        # what it was normalised by.
        both = propagate(q, k, with_mass(v, weight), diffusivity, batch=batch, backend=backend, tol=tol)
        return both[..., :-1] / safe_total(both[..., -1:], 1, torch.finfo(both.dtype).tiny)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if torch.is_autocast_enabled(q.device.type) and dtype != torch.float64:  # as for any matrix product
        dtype = torch.get_autocast_dtype(q.device.type)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if is_exporting() and batch is not None:  # the program does not know how batches are laid out
        return reference.propagate(q, k, v, key, batch if isinstance(batch, Tensor) else batch.batch)
    segments = as_segments(batch)
    if segments is not None and segments.batch.numel() != q.shape[0]:
        raise UserError(f"batch names {segments.batch.numel()} rows, but q has {q.shape[0]}")
    if q.shape[0] == 0:
        return v.new_zeros(0, q.shape[1], v.shape[-1])
    with torch.autocast(q.device.type, enabled=False):
        if weight is not None:
            return summarise(k, v, key, weight).answer(q)
        (rows, heads, d), c = q.shape, v.shape[-1]
        batched, pairwise = segments is not None, False
        if segments is not None:
            rows, pairwise = segments.largest, pairs_are_cheaper(q, v, segments)
        transformed = not torch.compiler.is_compiling() and is_transformed(q)
        situation = Situation(rows, d, c, heads, q.device, q.dtype, batched, pairwise, transformed)
        if backend == "auto":
            backend = choose(situation, key, tol).backend
            if backend == "polynomial" and any(polynomial.beyond_ball(x) is not None for x in (q, k)):
                backend = choose(situation, key, None).backend
        return _run(backend, q, k, v, key, segments, tol, situation)


def pairs_are_cheaper(q: Tensor, v: Tensor, segments: Segments) -> bool:
    """Whether 2 n² (d + c) operations for the pairs of each graph are fewer than 4 n d c for its sums."""
    d, c = q.shape[-1], v.shape[-1]
    rows = sum(graphs * nodes for graphs, nodes, _ in segments.shapes)
    pairs = sum(graphs * nodes * nodes for graphs, nodes, _ in segments.shapes)
    return pairs * (d + c) < 2 * rows * d * c


def _run(
    backend: str, q: Tensor, k: Tensor, v: Tensor, key: str, segments: Segments | None, tol: float | None, s: Situation
) -> Tensor:
    form = form_of(key)
    if torch.compiler.is_compiling():  # the compiler wants the inputs of one operator to be different tensors
        k = k.view_as(k) if k is q else k
        v = v.view_as(v) if v is q or v is k else v
    if backend == "reference":
        return reference.propagate(q, k, v, key, None if segments is None else segments.batch)
    if backend == "polynomial":
        return _polynomial(q, k, v, key, segments, polynomial.DEFAULT_TOL if tol is None else tol)
    if backend == "linear" and form not in LINEAR:
        name = diffusivity_of(key).name
        raise UserError(f"backend 'linear' is for {' and '.join(sorted(LINEAR))}, not {name!r}; try backend='auto'")
    # Compilers fuse plain operations. These keep more for the backward pass than our operators do, so only small
    # problems take them, and exports, which must run where this package is missing.
    small = torch.compiler.is_compiling() and segments is None
    plain = is_exporting() or (small and s.n * s.heads * s.d <= FUSED_ELEMENTS)
    if backend == "linear" and form == "simple" and plain:
        return summarise(k, v, key).answer(q)
    if backend == "linear" and not (form == "simple" and s.pairwise):
        return linear.propagate(q, k, v, key, segments)
    if backend == "fused" and small and not is_exporting() and s.heads * s.n**2 <= MOST_PAIRS:
        return reference.propagate(q, k, v, key)
    if backend == "fused" and not is_exporting():
        return pair_operator.propagate(q, k, v, key, segments)
    if backend == "softmax" and not is_exporting():
        if not softmax_serves(s, form):
            needed = f"an exponential diffusivity, one graph, CUDA and rows of at most {LONGEST_SOFTMAX_ROW} bytes"
            got = f"form {form!r}, {q.device.type}, {q.dtype}, {max(s.d, s.c)} channels{', a batch' * s.batched}"
            raise UserError(f"backend 'softmax' needs {needed}; got {got}: try backend='auto'")
        return softmax_attention(q, k, v, slope_of(key))
    return tiles.propagate(q, k, v, key, segments)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, slope: float) -> Tensor:
    """softmax(a Q Kᵀ) V by torch; channels are padded to a multiple of 16, which its kernels need."""
    rows, channels = (q, k, v.expand(-1, q.shape[1], -1)), v.shape[-1]
    q, k, v = (pair_operator.aligned(x).transpose(0, 1).unsqueeze(0) for x in rows)
    out = functional.scaled_dot_product_attention(q, k, v, scale=slope)
    return out.squeeze(0).transpose(0, 1)[..., :channels]


def _polynomial(q: Tensor, k: Tensor, v: Tensor, key: str, segments: Segments | None, tol: float) -> Tensor:
    """Sums of monomials; in a batch, large graphs one by one and all small ones together by their pairs."""
    if segments is None:
        return summarise(k, v, key, tol=tol).answer(q)
    polynomial.check_norms(q=q, k=k)
    enough = polynomial.pairs_that_pay(q.shape[-1], v.shape[-1], polynomial.expand(key, tol))
    if segments.largest <= enough:
        return tiles.propagate(q, k, v, key, segments)
    large = segments.sizes > enough
    parts = [rows for rows in segments.by_graph.split(segments.sizes.tolist()) if len(rows) > enough]
    outs = [summarise(k[rows], v[rows], key, tol=tol).answer(q[rows]) for rows in parts]
    if len(few := (~large[segments.batch]).nonzero().squeeze(1)):
        parts.append(few)
        outs.append(tiles.propagate(q[few], k[few], v[few], key, Segments(segments.batch[few], segments.num_graphs)))
    return torch.cat(outs)[torch.cat(parts).argsort()]


def _check(q: Tensor, k: Tensor, v: Tensor, backend: str, weight: Tensor | None) -> None:
    check_choice("backend", backend, BACKENDS)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.dtype.is_floating_point:
            raise UserError(f"{name} must hold real numbers (float), got {x.dtype}; convert it: {name}.float()")
    if q.dim() not in (2, 3) or q.shape != k.shape:
        raise UserError(f"q and k must both be [N, d] or [N, heads, d], got {tuple(q.shape)} and {tuple(k.shape)}")
    if v.dim() != q.dim() or v.shape[0] != q.shape[0] or (v.dim() == 3 and v.shape[1] not in (1, q.shape[1])):
        expected = f"[{q.shape[0]}, c]" if q.dim() == 2 else f"[{q.shape[0]}, {q.shape[1]} or 1, c]"
        raise UserError(f"v must be {expected} to go with q {tuple(q.shape)}, got {tuple(v.shape)}")
    if weight is not None and weight.shape != q.shape[:1]:
        raise UserError(f"weight must have one entry per row, shape ({q.shape[0]},), got {tuple(weight.shape)}")
