r"""Simple and constant diffusivity over ranks: only their sums travel.

With M = Σ_j k_j v_jᵀ, κ = Σ_j k_j and ν = Σ_j v_j over the nodes of *all* ranks, each rank answers its own queries,

.. math::
    P_i = (ν + M^\top q_i) / (N + κ^\top q_i),

and backward ∂M, ∂κ and ∂ν, sums over queries, are all that other ranks need (`difformer.attention.linear`). One message
of d c + d + c numbers a head, forward and backward, whatever N. Where queries and keys are linear in the states
(`difformer.nn.gram`) even less is summed: the Gram matrix of the states, (d + 1)² numbers for all heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.layout import working_dtype
from difformer.attention.reference import safe_total
from difformer.attention.sums import answer_queries, key_gradients, query_gradients, sum_keys
from difformer.distributed.collectives import all_reduce
from difformer.distributed.ranks import Ranks
from difformer.nn.conv import DIFFormerConv
from difformer.nn.gram import gram_maps


def _state(q: Tensor, c: int, dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Room for M ``[H, d, c]``, κ ``[H, 1, d]`` and ν ``[H, 1, c]``, behind each other, so that one message has all."""
    heads, _, d = q.shape
    flat = q.new_empty(heads * (d * c + d + c), dtype=dtype)
    outer, keys, values = flat.split([heads * d * c, heads * d, heads * c])
    return flat, (outer.view(heads, d, c), keys.view(heads, 1, d), values.view(heads, 1, c))


class _Simple(torch.autograd.Function):
    """``q, k [H, n, d]``, ``v [H, n, c]``; `count` is N of all ranks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, count: int, ranks: Ranks) -> Tensor:
        flat, sums = _state(q, v.shape[-1], q.dtype)
        sum_keys(k, v, *sums)
        ranks.sum_(flat, "sums")
        out, total = q.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(*q.shape[:2], 1)
        answer_queries(q, *sums, count, out, total)
        ctx.save_for_backward(q, k, v, total, *sums)
        ctx.count, ctx.ranks = count, ranks
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, total, outer, keys, values = ctx.saved_tensors
        q_grad, k_grad, v_grad = torch.empty_like(q), k.new_empty(k.shape), v.new_empty(v.shape)
        found = query_gradients(grad, q, total, ctx.count, outer, keys, values, q_grad)
        flat = ctx.ranks.sum_(torch.cat([part.reshape(-1) for part in found]), "sums")
        parts = [part.view_as(like) for part, like in zip(flat.split([f.numel() for f in found]), found, strict=True)]
        key_gradients(k, v, (parts[0], parts[1], parts[2]), k_grad, v_grad, add=False)
        return q_grad, k_grad, v_grad, None, None


def simple(q: Tensor, k: Tensor, v: Tensor, count: int, ranks: Ranks) -> Tensor:
    """``q, k [n, H, d]``, ``v [n, H or 1, c]`` of one rank → ``[n, H, c]``, summed over the keys of all ranks."""
    wide = working_dtype(q.dtype)
    queries, keys, values = (x.to(wide).expand(-1, q.shape[1], -1).transpose(0, 1) for x in (q, k, v))
    return _Simple.apply(queries, keys, values, count, ranks).transpose(0, 1).to(q.dtype)


def constant(v: Tensor, count: int, ranks: Ranks) -> Tensor:
    """Each row gets the mean of all: ``[n, H, c]``."""
    total = all_reduce(v.to(working_dtype(v.dtype)).sum(0, keepdim=True), ranks)
    return (total / count).to(v.dtype).expand_as(v)


def gram(layer: DIFFormerConv, z: Tensor, count: int, ranks: Ranks) -> Tensor:
    """`difformer.nn.gram.gram_attention` over ranks, ``[n, d]`` → ``[n, c]``."""
    assert layer.query is not None
    total = z.sum(0, keepdim=True)
    own = torch.cat([torch.cat([z.T @ z, total.T], 1), torch.cat([total, z.new_full((1, 1), z.shape[0])], 1)], 0)
    key = layer.query if layer.key is None else layer.key
    scaled = layer.qk_norm == "global"
    maps = gram_maps(all_reduce(own, ranks), layer.query, key, layer.value, layer.num_heads, scaled)
    maps = maps.transpose(0, 1).flatten(1)
    out = functional.linear(z, maps[:-1].T, maps[-1]).view(z.shape[0], layer.num_heads, layer.out_channels + 1)
    return (out[..., :-1] / safe_total(out[..., -1:], count)).mean(1)
