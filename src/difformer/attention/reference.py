"""All-pair propagation exactly as in the formulas: dense, readable, the specification of every other operator.

With scores x_ij = q_iᵀk_j and a diffusivity g,

    P_i = Σ_j g(x_ij) v_j / Σ_l g(x_il),

the sums running over the nodes of i's own graph. Memory and time are O(H N²): for tests and small N.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.attention.scores import diffusivity_of, form_of, least_of, slope_of
from difformer.diffusivity import Diffusivity, safe_total


def scores(q: Tensor, k: Tensor) -> Tensor:
    """q_iᵀk_j for all pairs: ``[H, N, N]``."""
    return torch.einsum("nhd,mhd->hnm", q, k)


def exchange(q: Tensor, k: Tensor, diffusivity: str | Diffusivity, batch: Tensor | None = None) -> Tensor:
    """g(q_iᵀk_j) for all pairs, zero between graphs: ``[H, N, N]``."""
    weights = diffusivity_of(diffusivity).g(scores(q, k))
    return weights if batch is None else weights * (batch.unsqueeze(1) == batch)


def attention_matrix(q: Tensor, k: Tensor, diffusivity: str | Diffusivity, batch: Tensor | None = None) -> Tensor:
    """Row-normalised exchange, ``[H, N, N]``; the identity diffusivity gives the identity matrix.

    `diffusivity` may be the key that `score_key` gave: compilers can pass on strings, but not objects.
    """
    if form_of(diffusivity) == "identity":
        return torch.eye(q.shape[0], dtype=q.dtype, device=q.device).expand(q.shape[1], -1, -1)
    if form_of(diffusivity) == "exponential":
        # e^(ax + b), row-normalised, is the softmax of ax, which stays finite where e^(ax + b) would not.
        x = slope_of(diffusivity) * scores(q, k)
        return torch.softmax(x if batch is None else x.masked_fill(batch.unsqueeze(1) != batch, -torch.inf), dim=-1)
    weights = exchange(q, k, diffusivity, batch)
    count: Tensor | int = k.shape[0]
    if batch is not None:
        count = (batch.unsqueeze(1) == batch).sum(-1, keepdim=True)
    return weights / safe_total(weights.sum(-1, keepdim=True), count, least_of(diffusivity))


def propagate(q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, batch: Tensor | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``."""
    matrix = attention_matrix(q, k, diffusivity, batch)
    return torch.einsum("hnm,mhc->nhc", matrix, v.expand(-1, q.shape[1], -1))
