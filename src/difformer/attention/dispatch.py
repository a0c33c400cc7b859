"""One call for all-pair propagation."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer._compat import is_transformed
from difformer.attention import blockwise, linear, pair_operator, polynomial, reference, softmax
from difformer.attention.choice import BACKENDS, Situation, choose
from difformer.attention.reference import safe_total
from difformer.attention.scores import form_of, score_key
from difformer.attention.segments import Segments, as_segments
from difformer.attention.summary import summarise
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError


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
        batch: Which graph each row belongs to, in any order; graphs never see each other. `Segments` worked out before
            save the sorting.
        backend: ``"auto"`` (`explain` tells what it takes), or one of ``"reference"`` (dense), ``"linear"`` (simple and
            constant), ``"blockwise"`` (any diffusivity), ``"fused"`` (simple and sigmoid, CUDA), ``"softmax"``
            (exponentials of one graph, CUDA) and ``"polynomial"`` (any, within `tol`, for rows of norm at most one).
        tol: Relative error allowed in g. None asks ``"auto"`` for the exact sums, and stands for 1e-3 where the backend
            is ``"polynomial"``.
        weight: ``[N]`` non-negative w: how often each row counts as a sender; None for once.

    Returns:
        ``[N, H, c]``, or ``[N, c]`` where `q` has no heads.

    Raises:
        ValueError: If shapes do not fit, or the backend does not serve what it is given.
    """
    _check(q, k, v, backend)
    if q.dim() == 2:
        q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
        return propagate(q, k, v, diffusivity, batch=batch, backend=backend, tol=tol, weight=weight).squeeze(1)
    if weight is not None:
        return _weighted(q, k, v, diffusivity, batch, backend, tol, weight)
    key = score_key(diffusivity, q.shape[-1])
    if form_of(key) == "identity":
        return v.expand(-1, q.shape[1], -1)
    q, k, v = _same_dtype(q, k, v)
    if torch.compiler.is_exporting() and batch is not None:
        # An exported program knows neither this package nor how the next batch is laid out.
        return reference.propagate(q, k, v, key, batch if isinstance(batch, Tensor) else batch.batch)
    segments = as_segments(batch)
    if segments is not None and segments.batch.numel() != q.shape[0]:
        raise UserError(f"batch names {segments.batch.numel()} rows, but q has {q.shape[0]}")
    if q.shape[0] == 0:
        return v.new_zeros(0, q.shape[1], v.shape[-1])
    if backend == "auto":
        backend = _auto(q, k, v, key, segments, tol)
    with torch.autocast(q.device.type, enabled=False):
        return _run(backend, q, k, v, key, segments, tol)


def _weighted(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    diffusivity: str | Diffusivity,
    batch: Tensor | Segments | None,
    backend: str,
    tol: float | None,
    weight: Tensor,
) -> Tensor:
    """Senders with weights: by their sums where these are exact, otherwise by any operator.

    For values [w v, w] an operator gives Σ_j g_ij [w_j v_j, w_j] / Σ_l g_il; the division of the first part by the
    second drops what it was normalised by.
    """
    if weight.shape != q.shape[:1]:
        raise UserError(f"weight must have one entry per row, shape ({q.shape[0]},), got {tuple(weight.shape)}")
    form = form_of(score_key(diffusivity, q.shape[-1]))
    if form == "identity":
        return propagate(q, k, v, diffusivity, batch=batch, backend=backend, tol=tol)
    if form in linear.LINEAR and batch is None and backend in ("auto", "linear"):
        q, k, v = _same_dtype(q, k, v)
        with torch.autocast(q.device.type, enabled=False):
            return summarise(k, v, diffusivity, weight).answer(q)
    mass = weight.to(v.dtype).view(-1, 1, 1).expand(-1, v.shape[1], 1)
    both = propagate(q, k, torch.cat([mass * v, mass], -1), diffusivity, batch=batch, backend=backend, tol=tol)
    return both[..., :-1] / safe_total(both[..., -1:], 1, torch.finfo(both.dtype).tiny)


def _auto(q: Tensor, k: Tensor, v: Tensor, key: str, segments: Segments | None, tol: float | None) -> str:
    largest = q.shape[0] if segments is None else segments.largest
    situation = Situation(
        n=largest,
        d=q.shape[-1],
        c=v.shape[-1],
        heads=q.shape[1],
        device=q.device,
        dtype=q.dtype,
        batched_rows=0 if segments is None else q.shape[0],
        pairwise=segments is not None and linear.pairs_are_cheaper(q, v, segments),
        transformed=not torch.compiler.is_compiling() and is_transformed(q),
    )
    backend = choose(situation, key, tol).backend
    if backend == "polynomial" and not (polynomial.within_ball(q) and polynomial.within_ball(k)):
        return choose(situation, key, None).backend
    return backend


def _run(
    backend: str, q: Tensor, k: Tensor, v: Tensor, key: str, segments: Segments | None, tol: float | None
) -> Tensor:
    if torch.compiler.is_compiling():  # the compiler wants the inputs of one operator to be different tensors
        k = k.view_as(k) if k is q else k
        v = v.view_as(v) if v is q or v is k else v
    if backend == "reference":
        return reference.propagate(q, k, v, key, None if segments is None else segments.batch)
    if backend == "linear":
        return linear.propagate(q, k, v, key, segments)
    if backend in ("fused", "softmax") and torch.compiler.is_exporting():
        backend = "blockwise"  # plain operations, which run where this package is not installed
    if backend == "fused":
        return pair_operator.propagate(q, k, v, key, segments)
    if backend == "softmax":
        return softmax.propagate(q, k, v, key, segments)
    if backend == "polynomial":
        return polynomial.propagate(q, k, v, key, segments, tol=polynomial.DEFAULT_TOL if tol is None else tol)
    return blockwise.propagate(q, k, v, key, segments)


def _same_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One dtype for all three: autocast's, as for any matrix product, or the widest of theirs."""
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if torch.is_autocast_enabled(q.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, backend: str) -> None:
    if backend not in BACKENDS:
        raise UserError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.dtype.is_floating_point:
            raise UserError(
                f"{name} must hold real numbers of floating point, got {x.dtype}; convert it: {name}.float()"
            )
    if q.dim() not in (2, 3) or q.shape != k.shape:
        raise UserError(f"q and k must both be [N, d] or [N, heads, d], got {tuple(q.shape)} and {tuple(k.shape)}")
    if v.dim() != q.dim() or v.shape[0] != q.shape[0] or (v.dim() == 3 and v.shape[1] not in (1, q.shape[1])):
        expected = f"[{q.shape[0]}, c]" if q.dim() == 2 else f"[{q.shape[0]}, {q.shape[1]} or 1, c]"
        raise UserError(f"v must be {expected} to go with q {tuple(q.shape)}, got {tuple(v.shape)}")
