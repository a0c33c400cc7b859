"""One call for all-pair propagation, and which operator answers it."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.attention import blockwise, linear, reference
from difformer.attention.scores import diffusivity_of, form_of, score_key
from difformer.attention.segments import Segments, as_segments
from difformer.diffusion.diffusivity import Diffusivity

BACKENDS = ("auto", "reference", "linear", "blockwise")


def propagate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    diffusivity: str | Diffusivity,
    *,
    batch: Tensor | Segments | None = None,
    backend: str = "auto",
    tol: float | None = None,
) -> Tensor:
    r"""All-pair propagation :math:`P_i = \sum_j g(q_i^\top k_j) v_j / \sum_l g(q_i^\top k_l)`.

    Args:
        q: Queries, ``[N, H, d]`` or ``[N, d]``.
        k: Keys, the shape of `q`.
        v: Values, ``[N, H, c]``, ``[N, 1, c]`` (shared by the heads) or ``[N, c]``.
        diffusivity: A name or a `Diffusivity`; ``"identity"`` returns the values.
        batch: Which graph each row belongs to, in any order; graphs never see each other. `Segments` worked out before
            save the sorting.
        backend: ``"auto"``, or one of ``"reference"`` (dense), ``"linear"`` (simple and constant) and ``"blockwise"``.
        tol: Relative error allowed in g; None asks for the exact sums.

    Returns:
        ``[N, H, c]``, or ``[N, c]`` where `q` has no heads.
    """
    _check(q, k, v, backend)
    if q.dim() == 2:
        q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
        return propagate(q, k, v, diffusivity, batch=batch, backend=backend, tol=tol).squeeze(1)
    chosen = score_key(diffusivity, q.shape[-1])
    form = form_of(chosen)
    if form == "identity":
        return v.expand(-1, q.shape[1], -1)
    q, k, v = _same_dtype(q, k, v)
    segments = as_segments(batch)
    if segments is not None and segments.batch.numel() != q.shape[0]:
        raise ValueError(f"batch names {segments.batch.numel()} rows, but q has {q.shape[0]}")
    if backend == "auto":
        backend = "linear" if form in linear.LINEAR else "blockwise"
    if backend == "linear" and form not in linear.LINEAR:
        raise ValueError(
            f"backend 'linear' serves {sorted(linear.LINEAR)}, not {diffusivity_of(chosen).name!r}; try backend='auto'"
        )
    if backend == "reference":
        return reference.propagate(q, k, v, diffusivity_of(chosen), None if segments is None else segments.batch)
    with torch.autocast(q.device.type, enabled=False):
        return {"linear": linear, "blockwise": blockwise}[backend].propagate(q, k, v, chosen, segments)


def _same_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One dtype for all three: autocast's, as for any matrix product, or the widest of theirs."""
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if torch.is_autocast_enabled(q.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if q.dim() not in (2, 3) or q.shape != k.shape:
        raise ValueError(f"q and k must both be [N, d] or [N, heads, d], got {tuple(q.shape)} and {tuple(k.shape)}")
    if v.dim() != q.dim() or v.shape[0] != q.shape[0] or (v.dim() == 3 and v.shape[1] not in (1, q.shape[1])):
        expected = f"[{q.shape[0]}, c]" if q.dim() == 2 else f"[{q.shape[0]}, {q.shape[1]} or 1, c]"
        raise ValueError(f"v must be {expected} to go with q {tuple(q.shape)}, got {tuple(v.shape)}")
