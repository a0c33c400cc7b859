"""All-pair propagation in linear time, for diffusivities that are sums: simple (g = 1 + x) and constant (g = 1).

With M = Σ_j k_j v_jᵀ, κ = Σ_j k_j and ν = Σ_j v_j, each computed once,

    P_i = (ν + Mᵀq_i) / r_i,   r_i = N + κᵀq_i.

Time O(N d c), state O(d c). Backward, with a_i = ∂P_i / r_i and D_i = a_iᵀP_i:

    ∂q_i = M a_i - D_i κ,   ∂M = Σ_i q_i a_iᵀ,   ∂κ = -Σ_i D_i q_i,   ∂ν = Σ_i a_i,
    ∂k_j = ∂M v_j + ∂κ,     ∂v_j = ∂Mᵀk_j + ∂ν.

Nothing of size N×d is kept but the inputs. Each direction is one pass over keys and one over queries, in parts that
stay in the cache of a CPU; rows of low precision are converted part by part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from difformer.attention.scores import form_of, working_dtype
from difformer.attention.segments import Layout, Segments, Shapes, blocks, packed
from difformer.diffusivity import safe_total, smallest_total
from difformer.kernels.gram import in_slices
from difformer.shortcut import row_operator

CPU_PART = 1 << 20  # elements of q processed at a time
GPU_PART = 1 << 26
GPU_SLICES = 512  # products side by side that fill a GPU
SMALLEST_SLICE = 128  # rows of a slice that are worth a product of their own


def parts(x: Tensor) -> Iterator[slice]:
    """Rows of ``x [P, n, d]``, of all problems, in parts of about the elements that a cache holds."""
    problems, n, d = x.shape
    budget = CPU_PART if x.device.type == "cpu" else GPU_PART
    rows = max(budget // max(problems * d, 1), 64)
    return (slice(i, i + rows) for i in range(0, n, rows))


def add_outer(to: Tensor, a: Tensor, b: Tensor, most: int = GPU_SLICES, smallest: int = SMALLEST_SLICE) -> None:
    """Adds Σ_i a_i b_iᵀ of ``a [P, n, d]`` and ``b [P, n, c]`` to ``to [P, d, c]``."""
    problems, n, _ = a.shape
    # A GPU would use one processor per problem, so there the rows are cut into slices, multiplied side by side.
    slices = min(most // max(problems, 1), n // smallest) if a.is_cuda else 1
    if slices < 2:
        to.baddbmm_(a.mT, b)
    else:
        to.add_(in_slices(a, b, slices))


def sum_keys(k: Tensor, v: Tensor, outer: Tensor, keys: Tensor, values: Tensor) -> None:
    """Writes M to `outer` ``[P, d, c]``, κ to `keys` ``[P, 1, d]`` and ν to `values` ``[P, 1, c]``."""
    for state in (outer, keys, values):
        state.zero_()
    for i in parts(k):
        part_k, part_v = k[:, i].to(outer.dtype), v[:, i].to(outer.dtype)
        add_outer(outer, part_k, part_v)
        keys.add_(part_k.sum(1, keepdim=True))
        values.add_(part_v.sum(1, keepdim=True))


def answer_queries(
    q: Tensor, count: Tensor | int, out: Tensor, total: Tensor, outer: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Writes P_i to `out` ``[P, n, c]`` and r_i to `total` ``[P, n, 1]``."""
    for i in parts(q):
        part = q[:, i].to(out.dtype)
        r = safe_total(torch.bmm(part, keys.mT).add_(count), count)
        total[:, i] = r
        torch.baddbmm(values, part, outer, out=out[:, i]).div_(r)


def query_gradients(
    grad: Tensor, q: Tensor, total: Tensor, count: Tensor | int, to: Tensor, outer: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes ∂q to `to` ``[P, n, d]``; returns ∂M, ∂κ and ∂ν. D_i = (q_iᵀM a_i + νᵀa_i) / r_i needs no output."""
    dtype, (outer_grad, keys_grad, values_grad) = total.dtype, (x.new_zeros(x.shape) for x in (outer, keys, values))
    for i in parts(q):
        r, part = total[:, i], q[:, i].to(dtype)
        a = grad[:, i].to(dtype) / r
        mapped = torch.bmm(a, outer.mT, out=to[:, i])
        inner = (mapped * part).sum(-1, keepdim=True).baddbmm_(a, values.mT).div_(r)
        # A total that was clamped does not depend on q and k.
        inner.masked_fill_(r == smallest_total(count, r), 0)
        mapped.addcmul_(inner, keys, value=-1)
        add_outer(outer_grad, part, a)
        add_outer(keys_grad, -inner, part)
        values_grad.add_(a.sum(1, keepdim=True))
    return outer_grad, keys_grad, values_grad


def key_gradients(
    k: Tensor, v: Tensor, sums: tuple[Tensor, Tensor, Tensor], k_grad: Tensor, v_grad: Tensor, *, add: bool
) -> None:
    """Writes ∂k to `k_grad` and ∂v to `v_grad`, or adds ∂v where heads share their values."""
    outer_grad, keys_grad, values_grad = sums
    for i in parts(k):
        part_k, part_v = k[:, i].to(k_grad.dtype), v[:, i].to(v_grad.dtype)
        torch.baddbmm(keys_grad, part_v, outer_grad.mT, out=k_grad[:, i])
        if add:
            v_grad[:, i].baddbmm_(part_k, outer_grad).add_(values_grad)
        else:
            torch.baddbmm(values_grad, part_k, outer_grad, out=v_grad[:, i])


def _state(q: Tensor, v: Tensor, problems: int) -> list[Tensor]:
    """Room for M ``[problems, d, H, c]``, κ ``[problems, 1, H, d]`` and ν ``[problems, 1, H, c]``."""
    heads, d, c, dtype = q.shape[2], q.shape[3], v.shape[-1], working_dtype(q.dtype)
    shapes = ((problems, d, heads, c), (problems, 1, heads, d), (problems, 1, heads, c))
    return [q.new_empty(shape, dtype=dtype) for shape in shapes]


def _results(q: Tensor, k: Tensor, v: Tensor, layout: Layout, *rest: Any) -> tuple[Tensor, ...]:
    out, total = (q.new_empty((*q.shape[:3], c), dtype=working_dtype(q.dtype)) for c in (v.shape[-1], 1))
    return out, total, *_state(q, v, q.shape[0] if layout is None else 0)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, shapes: Shapes
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``q, k [runs, N, H, d]``, ``v [runs, N, H or 1, c]`` → P, r; and, of a whole graph, M, κ and ν."""
    out, total, *kept = _results(q, k, v, layout)
    for block in blocks(layout, shapes, q.shape[0]):
        state = kept if layout is None else _state(q, v, q.shape[0] * block.rows.shape[0])
        for _, (k_h, v_h, q_h, out_h, total_h, *sums) in block.pieces((k, v, q), (out, total), state, zeroed=2):
            sum_keys(k_h, v_h, *sums)
            answer_queries(q_h, block.count(q_h), out_h, total_h, *sums)
    outer, keys, values = kept
    return out, total, outer, keys, values


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, outer: Tensor, keys: Tensor, values: Tensor,
    layout: Layout, shapes: Shapes,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grads = [torch.empty(x.shape, dtype=total.dtype, device=x.device) for x in (q, k, v)]
    for block in blocks(layout, shapes, q.shape[0]):
        state = [outer, keys, values] if layout is None else _state(q, v, q.shape[0] * block.rows.shape[0])
        # Zero at padding, so that they may be summed: the gradient, keys and values.
        pieces = block.pieces((grad, k, v, q, total), grads, state, zeroed=3)
        for head, (g_h, k_h, v_h, q_h, r_h, q_grad, k_grad, v_grad, *sums) in pieces:
            if layout is not None:
                sum_keys(k_h, v_h, *sums)
            pulled = query_gradients(g_h, q_h, r_h, block.count(q_h), q_grad, *sums)
            key_gradients(k_h, v_h, pulled, k_grad, v_grad, add=head > 0 and v.shape[2] == 1)
    return grads[0].to(q.dtype), grads[1].to(k.dtype), grads[2].to(v.dtype)


_propagate = row_operator("linear", _forward, _backward, _results, inputs=3, keep=1)


def propagate(q: Tensor, k: Tensor, v: Tensor, diffusivity: str, segments: Segments | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]`` in time linear in N."""
    if form_of(diffusivity) == "constant":  # each row gets the mean of its graph
        if segments is None:
            return v.mean(0, keepdim=True).expand_as(v).expand(-1, q.shape[1], -1)
        means = segments.means(v.to(working_dtype(v.dtype))).to(v.dtype)
        return means[segments.batch].expand(-1, q.shape[1], -1)
    return _propagate(*(x.unsqueeze(0) for x in (q, k, v)), *packed(segments)).squeeze(0).to(q.dtype)
