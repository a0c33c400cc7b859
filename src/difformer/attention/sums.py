"""The sums behind linear attention, and the passes over rows that make and use them.

For ``[problems, n, channels]``: M = Σ_j k_j v_jᵀ, κ = Σ_j k_j, ν = Σ_j v_j; the formulas stand in
`difformer.attention.linear`. Every pass goes through the rows in parts: on a CPU a part stays in the cache from the
first operation to the last, and rows of low precision are converted part by part.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from difformer.attention.reference import safe_total, smallest_total

CPU_PART = 1 << 20  # elements of q that are worked on at a time
GPU_PART = 1 << 26
GPU_SLICES = 512  # products side by side that fill a GPU
SMALLEST_SLICE = 128  # rows of a slice that are worth a product of their own


def parts(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Problems × rows of ``x [P, n, d]`` in parts of about the elements that a cache holds."""
    problems, n, d = x.shape
    budget = CPU_PART if x.device.type == "cpu" else GPU_PART
    if problems * n * d <= budget:
        yield slice(0, problems), slice(0, n)
        return
    step, rows = max(budget // max(n * d, 1), 1), max(budget // max(d, 1), 64)
    for p in range(0, problems, step):
        for i in range(0, n, rows):
            yield slice(p, p + step), slice(i, i + rows)


def add_outer(to: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds Σ_i a_i b_iᵀ of ``a [P, n, d]`` and ``b [P, n, c]`` to ``to [P, d, c]``.

    On a GPU a product of two tall matrices would be left to one of its processors for each problem: the rows are cut
    into slices, whose products are worked out side by side.
    """
    problems, n, _ = a.shape
    slices = min(GPU_SLICES // max(problems, 1), n // SMALLEST_SLICE) if a.is_cuda else 1
    if slices < 2:
        to.baddbmm_(a.mT, b)
        return
    whole = n // slices * slices
    first, second = (x[:, :whole].unflatten(1, (slices, -1)).flatten(0, 1) for x in (a, b))
    to.add_(torch.bmm(first.mT, second).unflatten(0, (problems, slices)).sum(1))
    if whole < n:
        to.baddbmm_(a[:, whole:].mT, b[:, whole:])


def _of(count: Tensor | int, p: slice) -> Tensor | int:
    return count[p] if isinstance(count, Tensor) else count


def sum_keys(k: Tensor, v: Tensor, outer: Tensor, keys: Tensor, values: Tensor) -> None:
    """Writes M to `outer` ``[P, d, c]``, κ to `keys` ``[P, 1, d]`` and ν to `values` ``[P, 1, c]``."""
    dtype = outer.dtype
    for state in (outer, keys, values):
        state.zero_()
    for p, i in parts(k):
        part_k, part_v = k[p, i].to(dtype), v[p, i].to(dtype)
        add_outer(outer[p], part_k, part_v)
        keys[p].add_(part_k.sum(1, keepdim=True))
        values[p].add_(part_v.sum(1, keepdim=True))


def answer_queries(
    q: Tensor, outer: Tensor, keys: Tensor, values: Tensor, count: Tensor | int, out: Tensor, total: Tensor
) -> None:
    """Writes P_i to `out` ``[P, n, c]`` and r_i to `total` ``[P, n, 1]``."""
    for p, i in parts(q):
        part = q[p, i].to(out.dtype)
        r = safe_total(torch.bmm(part, keys[p].mT).add_(_of(count, p)), _of(count, p))
        total[p, i] = r
        torch.baddbmm(values[p], part, outer[p], out=out[p, i]).div_(r)


def query_gradients(
    grad: Tensor,
    q: Tensor,
    total: Tensor,
    count: Tensor | int,
    outer: Tensor,
    keys: Tensor,
    values: Tensor,
    to: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes ∂q to `to` ``[P, n, d]``; returns ∂M, ∂κ and ∂ν.

    D_i = a_iᵀP_i = (q_iᵀM a_i + νᵀa_i) / r_i comes from M a_i, which ∂q needs anyhow: the output need not be kept.
    """
    dtype = total.dtype
    outer_grad, keys_grad = outer.new_zeros(outer.shape), keys.new_zeros(keys.shape)
    values_grad = values.new_zeros(values.shape)
    for p, i in parts(q):
        r, part = total[p, i], q[p, i].to(dtype)
        a = grad[p, i].to(dtype) / r
        mapped = torch.bmm(a, outer[p].mT, out=to[p, i])
        inner = (mapped * part).sum(-1, keepdim=True).baddbmm_(a, values[p].mT).div_(r)
        # A total that was clamped does not depend on q and k.
        inner.masked_fill_(r == smallest_total(_of(count, p), r), 0)
        mapped.addcmul_(inner, keys[p], value=-1)
        add_outer(outer_grad[p], part, a)
        add_outer(keys_grad[p], -inner, part)
        values_grad[p].add_(a.sum(1, keepdim=True))
    return outer_grad, keys_grad, values_grad


def key_gradients(
    k: Tensor, v: Tensor, sums: tuple[Tensor, Tensor, Tensor], k_grad: Tensor, v_grad: Tensor, *, add: bool
) -> None:
    """Writes ∂k to `k_grad` and ∂v to `v_grad`, or adds ∂v where heads share their values."""
    outer_grad, keys_grad, values_grad = sums
    for p, i in parts(k):
        part_k, part_v = k[p, i].to(k_grad.dtype), v[p, i].to(v_grad.dtype)
        torch.baddbmm(keys_grad[p], part_v, outer_grad[p].mT, out=k_grad[p, i])
        if add:
            v_grad[p, i].baddbmm_(part_k, outer_grad[p]).add_(values_grad[p])
        else:
            torch.baddbmm(values_grad[p], part_k, outer_grad[p], out=v_grad[p, i])
