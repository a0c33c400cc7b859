"""All pairs of the sigmoid diffusivity on a CPU, by the kernels of pairs.h; `difformer.attention.tiles` calls them.

An answer and its gradients for 2,708 rows of 64 channels, on one thread with AVX-512: 39 ms, tile by tile in torch 77.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from difformer.kernels.cpu.build import has_threads
from difformer.kernels.cpu.passes import BLOCK, call, packed, serves, space, structure

MOST_PARTS = 8  # of the gradient of queries; threads beyond find no work

_Pairs = structure(  # of pairs.h
    "rows keys channels values chunks threads", "q k v a inner out total q_grad k_grad v_grad"
)


def takes(form: str, *rows: Tensor) -> bool:
    """Whether the kernels take queries, keys and values ``[P, n, d]``."""
    return form == "sigmoid" and serves(rows[0].shape[1], max(x.shape[-1] for x in rows), *rows)


def forward(queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, total: Tensor) -> None:
    """Writes o to `out` ``[P, n, c]`` and r to `total` ``[P, n, 1]``."""
    for q, k, v, o, r in zip(queries, keys, values, out, total, strict=True):
        q, k, v = packed(q), packed(k), packed(v)
        found, sums = space(q.shape[0], v.shape[1]), space(q.shape[0], 1)
        _run("pairs_forward", q, k, v, out=found, total=sums)
        o.copy_(found[:, : o.shape[1]])
        r.copy_(sums)


def backward(
    queries: Tensor, keys: Tensor, values: Tensor, left: Tensor, inner: Tensor, grads: Sequence[Tensor]
) -> None:
    """Adds to `grads`, those of q, k and v, in place; `left` is a ``[P, n, c]`` and `inner` D ``[P, n, 1]``."""
    for q, k, v, a, level, *to in zip(queries, keys, values, left, inner, *grads, strict=True):
        q, k, v = packed(q), packed(k), packed(v)
        found = space(min(MOST_PARTS, -(-k.shape[0] // BLOCK)), *q.shape), space(*k.shape), space(*v.shape)
        names = dict(zip(("q_grad", "k_grad", "v_grad"), found, strict=True))
        _run("pairs_backward", q, k, v, chunks=found[0].shape[0], a=packed(a), inner=level.contiguous(), **names)
        for grad, x in zip(to, (found[0][0], *found[1:]), strict=True):
            grad += x[:, : grad.shape[1]]


def _run(name: str, q: Tensor, k: Tensor, v: Tensor, *, chunks: int = 1, **others: Tensor) -> None:
    threads = torch.get_num_threads() if has_threads() else 1
    fields = _Pairs(q.shape[0], k.shape[0], q.shape[1], v.shape[1], chunks, threads)
    call(name, fields, f"pairs of {q.shape[0]} rows", q=q, k=k, v=v, **others)
