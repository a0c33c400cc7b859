"""All-pair propagation as the formulas say it: dense, readable, the specification of every other operator.

With scores x_ij = q_iᵀk_j and a diffusivity g,

    P_i = Σ_j g(x_ij) v_j / Σ_l g(x_il),

the sums running over the nodes of i's own graph. Memory and time are O(H N²): for tests and small N.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.diffusion.diffusivity import Diffusivity

# Where all exchanges of a row vanish (every k_j opposite to q_i under `simple`), 0/0 becomes 0 instead of NaN.
SMALLEST_MEAN_EXCHANGE = 1e-6


def safe_total(total: Tensor, count: Tensor | int) -> Tensor:
    """Row sums kept away from zero: at least `SMALLEST_MEAN_EXCHANGE` on average over the `count` nodes summed."""
    floor = SMALLEST_MEAN_EXCHANGE * torch.as_tensor(count, dtype=total.dtype, device=total.device)
    return torch.where(total.abs() < floor, floor, total)


def exchange(q: Tensor, k: Tensor, diffusivity: Diffusivity, batch: Tensor | None = None) -> Tensor:
    """g(q_iᵀk_j) for all pairs, zero between graphs: ``[H, N, N]``."""
    weights = diffusivity.g(torch.einsum("nhd,mhd->hnm", q, k))
    if batch is not None:
        weights = weights * (batch.unsqueeze(1) == batch)
    return weights


def attention_matrix(q: Tensor, k: Tensor, diffusivity: Diffusivity, batch: Tensor | None = None) -> Tensor:
    """Row-normalised exchange, ``[H, N, N]``; the identity diffusivity gives the identity matrix."""
    if diffusivity.name == "identity":
        return torch.eye(q.shape[0], dtype=q.dtype, device=q.device).expand(q.shape[1], -1, -1)
    weights = exchange(q, k, diffusivity, batch)
    count: Tensor | int = q.shape[0] if batch is None else torch.bincount(batch)[batch].view(1, -1, 1)
    return weights / safe_total(weights.sum(-1, keepdim=True), count)


def propagate(q: Tensor, k: Tensor, v: Tensor, diffusivity: Diffusivity, batch: Tensor | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``."""
    matrix = attention_matrix(q, k, diffusivity, batch)
    return torch.einsum("hnm,mhc->nhc", matrix, v.expand(-1, q.shape[1], -1))
