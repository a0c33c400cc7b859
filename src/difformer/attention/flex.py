"""All-pair propagation with any diffusivity on a CUDA device, through torch's FlexAttention: exact, O(N) memory.

Row-normalised g is the softmax of log g:

    g(x_ij) / Σ_l g(x_il) = softmax_j(log g(x_ij)),

so a softmax kernel that lets the score be modified computes any diffusivity. Exponentials need no change but a scale,
and without a batch take torch's own scaled dot product. Rows of a batch are sorted by graph, and blocks of pairs that
no graph has in common are never visited.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.reference import smallest_total
from difformer.attention.scores import find_score, form_of, least_of, score_key, slope_of
from difformer.attention.segments import Segments
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Bytes of a row of which a block fits into the shared memory of an H200 (227 KiB): 128 channels of float32, 256 of
# bfloat16. Of 200 channels in float32 it would take 337 KiB.
LARGEST_ROW = 512
LARGEST_BATCH = 1 << 19  # rows of a batch, whose table of visited blocks is quadratic
BLOCK = 128
SMALLEST_EXCHANGE = 1e-30  # what log g sees where g is zero

_masks: weakref.WeakKeyDictionary[Segments, Any] = weakref.WeakKeyDictionary()


def serves(device: torch.device, dtype: torch.dtype, width: int, batched_rows: int = 0) -> bool:
    """Whether FlexAttention can answer: a CUDA device, a type, channels and a batch that it has kernels for."""
    fits = width * dtype.itemsize <= LARGEST_ROW and batched_rows <= LARGEST_BATCH
    return device.type == "cuda" and dtype in DTYPES and fits


@functools.lru_cache(maxsize=64)
def _modifier(key: str) -> Callable[..., Tensor] | None:
    """log g as FlexAttention takes it; one function for each score, so that nothing is compiled twice."""
    score = find_score(key)

    def log_sigmoid(x: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return functional.logsigmoid(x)

    def log_of_any(x: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.log(score.diffusivity.g(x).clamp_min(SMALLEST_EXCHANGE))

    return None if score.exponential else log_sigmoid if score.form == "sigmoid" else log_of_any


def _mask(segments: Segments) -> Any:
    """Blocks of pairs that a batch visits, and which pairs in them are of one graph; rows sorted by graph."""
    if segments not in _masks:
        from torch.nn.attention.flex_attention import BlockMask

        start, end, graph = segments.ranges
        n = graph.numel()
        first = torch.arange(0, n, BLOCK, device=graph.device)
        low, high = start[first] // BLOCK, (end[(first + BLOCK - 1).clamp_max(n - 1)] - 1) // BLOCK
        # A block of sorted rows visits one run of blocks; entries beyond the run are never looked at.
        indices = (low.unsqueeze(1) + torch.arange(len(first), device=graph.device)).clamp_max(len(first) - 1)

        def same_graph(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return graph[i] == graph[j]

        _masks[segments] = BlockMask.from_kv_blocks(
            (high - low + 1).int()[None, None],
            indices.int()[None, None],
            BLOCK_SIZE=BLOCK,
            mask_mod=same_graph,
            seq_lengths=(n, n),
        )
    return _masks[segments]


@functools.lru_cache(maxsize=256)
def _compiled(key: str, dtype: torch.dtype, batched: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    def attend(*args: Any, **options: Any) -> Any:
        return flex_attention(*args, **options)

    # A compiler counts how often it compiled a piece of code and gives up after a few times: each score has its own.
    attend.__code__ = attend.__code__.replace(co_name=f"attend_{_compiled.cache_info().misses}")
    # Whole or not at all: what is not compiled would build all pairs.
    return torch.compile(attend, fullgraph=True)


def _attend(q: Tensor, k: Tensor, v: Tensor, key: str, mask: Any) -> tuple[Tensor, Tensor]:
    """``[1, H, N, …]`` → values ``[1, H, N, c]`` and log r_i ``[1, H, N]``."""
    from torch.nn.attention import flex_attention as library

    attend: Any = library.flex_attention
    if not torch.compiler.is_compiling():
        attend = _compiled(key, q.dtype, mask is not None)
    options: dict[str, Any] = {"score_mod": _modifier(key), "block_mask": mask, "scale": slope_of(key)}
    if hasattr(library, "AuxRequest"):
        out, more = attend(q, k, v, **options, return_aux=library.AuxRequest(lse=True))
        return out, more.lse
    return attend(q, k, v, **options, return_lse=True)


def _laid(x: Tensor, segments: Segments | None) -> Tensor:
    """``[N, H, c]`` to ``[1, H, N, c']``, rows sorted by graph, channels padded to a multiple of 16."""
    x = x if segments is None else x.index_select(0, segments.by_graph)
    missing = -x.shape[-1] % 16
    return (functional.pad(x, (0, missing)) if missing else x).transpose(0, 1).unsqueeze(0)


def propagate(
    q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, segments: Segments | None = None
) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``, exact, on a CUDA device."""
    if not serves(q.device, q.dtype, max(q.shape[-1], v.shape[-1]), 0 if segments is None else q.shape[0]):
        raise UserError(
            f"backend 'flex' needs a CUDA device, at most {LARGEST_ROW // 4} channels in float32 or {LARGEST_ROW // 2} "
            f"in float16 or bfloat16 and, in a batch, at most {LARGEST_BATCH} rows; got {q.device.type}, {q.dtype}, "
            f"{q.shape[-1]} and {v.shape[-1]} channels, {q.shape[0]} rows: try backend='auto'"
        )
    key, channels = score_key(diffusivity, q.shape[-1]), v.shape[-1]
    queries, keys, values = (_laid(x, segments) for x in (q, k, v.expand(-1, q.shape[1], -1)))
    if form_of(key) == "exponential" and segments is None:
        out = functional.scaled_dot_product_attention(queries, keys, values, scale=slope_of(key))
    else:
        out, log_total = _attend(queries, keys, values, key, None if segments is None else _mask(segments))
        out = _damped(out, log_total, key, segments)
    out = out.squeeze(0).transpose(0, 1)[..., :channels]
    return out if segments is None else out.index_select(0, segments.place_by_graph)


def _damped(out: Tensor, log_total: Tensor, key: str, segments: Segments | None) -> Tensor:
    """Rows that exchange next to nothing are divided by the least total instead of their own, as everywhere."""
    if form_of(key) in ("exponential", "sigmoid"):  # positive, however small
        return out
    if segments is None:
        count: Tensor | int = out.shape[2]
    else:
        start, end, _ = segments.ranges
        count = end - start
    least = smallest_total(count, log_total, least_of(key)).log()
    return out * (log_total - least).clamp_max(0).exp().unsqueeze(-1).to(out.dtype)
