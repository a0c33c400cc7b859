"""All-pair propagation in linear time, for diffusivities that are sums: simple (g = 1 + x) and constant (g = 1).

With M = Σ_j k_j v_jᵀ, κ = Σ_j k_j and ν = Σ_j v_j, each worked out once,

    P_i = (ν + Mᵀq_i) / r_i,   r_i = N + κᵀq_i.

Time O(N d c), state O(d c). Backward, with a_i = ∂P_i / r_i and s_i = ∂P_iᵀP_i / r_i:

    ∂q_i = M a_i - s_i κ,   ∂M = Σ_i q_i a_iᵀ,   ∂κ = -Σ_i s_i q_i,   ∂ν = Σ_i a_i,
    ∂k_j = ∂M v_j + ∂κ,     ∂v_j = ∂Mᵀk_j + ∂ν,

so that nothing of size N×d is kept but the inputs and the output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.attention.reference import SMALLEST_MEAN_EXCHANGE
from difformer.attention.segments import Segments
from difformer.diffusion.diffusivity import Diffusivity

LINEAR = frozenset({"simple", "constant"})


class _Simple(torch.autograd.Function):
    """Padded blocks ``q, k [B, n, d]``, ``v [B, n, c]`` and the true sizes ``count [B, 1, 1]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        outer = k.mT @ v
        total = torch.baddbmm(count, q, k.sum(-2).unsqueeze(-1))
        floor = SMALLEST_MEAN_EXCHANGE * count
        total = torch.where(total.abs() < floor, floor, total)
        out = torch.baddbmm(v.sum(-2, keepdim=True), q, outer).div_(total)
        return out, total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, count = inputs
        out, total = output
        ctx.mark_non_differentiable(total)
        ctx.save_for_backward(q, k, v, count, out, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, count, out, total = ctx.saved_tensors
        a = grad / total
        s = (a * out).sum(-1, keepdim=True)
        # A clamped total does not depend on q and k.
        s = s * (total != SMALLEST_MEAN_EXCHANGE * count).to(s.dtype)
        outer, outer_grad = k.mT @ v, q.mT @ a
        key_sum_grad = -(s.mT @ q)
        q_grad = torch.baddbmm(-(s * k.sum(-2, keepdim=True)), a, outer.mT)
        k_grad = torch.baddbmm(key_sum_grad, v, outer_grad.mT)
        v_grad = torch.baddbmm(a.sum(-2, keepdim=True), k, outer_grad)
        return q_grad, k_grad, v_grad, None


def _simple(q: Tensor, k: Tensor, v: Tensor, sizes: Tensor | int) -> Tensor:
    """``q, k [B, n, H, d]``, ``v [B, n, H or 1, c]`` → ``[B, n, H, c]``; rows beyond a graph's size hold zeros."""
    blocks, n, heads, _ = q.shape
    q, k = (x.transpose(1, 2).reshape(blocks * heads, n, -1) for x in (q, k))
    v = v.expand(-1, -1, heads, -1).transpose(1, 2).reshape(blocks * heads, n, -1)
    if isinstance(sizes, Tensor):
        count = sizes.to(q.dtype).repeat_interleave(heads).view(-1, 1, 1)
    else:
        count = torch.full((blocks * heads, 1, 1), sizes, dtype=q.dtype, device=q.device)
    out, _ = _Simple.apply(q, k, v, count)
    return out.reshape(blocks, heads, n, -1).transpose(1, 2)


def _constant(v: Tensor, segments: Segments | None) -> Tensor:
    """Each row gets the mean of its graph."""
    if segments is None:
        return v.mean(0, keepdim=True).expand_as(v)
    total = v.new_zeros(segments.num_graphs, *v.shape[1:]).index_add(0, segments.batch, v)
    return (total / segments.sizes.to(v.dtype).clamp_min(1).view(-1, 1, 1))[segments.batch]


def propagate(q: Tensor, k: Tensor, v: Tensor, diffusivity: Diffusivity, segments: Segments | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]`` in time linear in N."""
    if diffusivity.name == "constant":
        return _constant(v, segments).expand(-1, q.shape[1], -1)
    if segments is None:
        return _simple(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), q.shape[0]).squeeze(0)
    parts = [_simple(block.pad(q), block.pad(k), block.pad(v), block.sizes) for block in segments.blocks]
    return segments.gather(parts) if parts else v.new_zeros(0, q.shape[1], v.shape[-1])
