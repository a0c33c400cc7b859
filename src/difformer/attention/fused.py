r"""All-pair propagation in one Triton kernel forward and two backward: exact, O(N) memory, for CUDA devices.

Scores of unit rows are bounded, so the sums need no running maximum: with r_i = Σ_j g_ij and o_i = Σ_j g_ij v_j / r_i
one pass over the keys suffices. Backward, with a_i = ∂o_i / r_i and c_i = a_iᵀo_i, each pass recomputes its scores:

.. math::
    ∂s_{ij} = g'(s_{ij}) (a_i^\top v_j - c_i), \quad ∂q_i = \sum_j ∂s_{ij} k_j, \quad
    ∂k_j = \sum_i ∂s_{ij} q_i, \quad ∂v_j = \sum_i g_{ij} a_i.

Serves the diffusivities ``simple`` and ``sigmoid``; exponentials are softmaxes, for which torch has a kernel. Rows of a
batch are sorted by graph, and a block of queries visits only the keys of its own graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.scores import least_of
from difformer.attention.segments import Segments
from difformer.diffusion.diffusivity import SIGMOID, SIMPLE, Diffusivity

try:
    from difformer.attention import fused_kernels as kernels
except ImportError:  # no Triton where there is no GPU
    kernels = None  # type: ignore[assignment]

FORMS = {SIMPLE: 0, SIGMOID: 1}
LARGEST_WIDTH = 128  # channels of a row that a block can hold in shared memory

# Rows × columns of a block, warps, stages of the pipeline: forward, backward for keys, backward for queries.
TILES: dict[torch.dtype, tuple[tuple[int, int, int, int], ...]] = {
    torch.bfloat16: ((128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 4, 3)),
    torch.float16: ((128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 4, 3)),
    torch.float32: ((64, 64, 4, 2), (32, 64, 4, 2), (64, 32, 4, 2)),
}


def _width(channels: int) -> int:
    return max(16, 1 << (channels - 1).bit_length())


class _Layout:
    """Where each row's graph starts and ends, rows sorted by graph; of one graph nothing is looked up."""

    def __init__(self, segments: Segments | None, device: torch.device) -> None:
        self.batched = segments is not None
        none = torch.empty(0, dtype=torch.int32, device=device)
        self.start, self.end, self.graph = none, none, none
        if segments is not None:
            self.order = torch.argsort(segments.batch, stable=True)
            graph = segments.batch[self.order]
            last = segments.sizes.cumsum(0)
            self.graph = graph.int()
            self.start, self.end = (last - segments.sizes)[graph].int(), last[graph].int()


class _Fused(torch.autograd.Function):
    """``q, k [H, N, d]``, ``v [H, N, c]``, contiguous, rows sorted by graph."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: _Layout, form: int, least: float) -> Tensor:
        heads, n, d = q.shape
        c = v.shape[-1]
        out = torch.empty_like(v)
        total = torch.empty(heads, n, dtype=torch.float32, device=q.device)
        bm, bn, warps, stages = TILES[q.dtype][0]
        kernels._forward[(-(-n // bm), heads)](
            q, k, v, out, total, layout.start, layout.end, layout.graph, n, d, c, least, n * d, n * c,
            FORM=form, BATCHED=layout.batched, BM=bm, BN=bn, BD=_width(d), BC=_width(c), num_warps=warps,
            num_stages=stages, **_precision(q.dtype),
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, total)
        ctx.layout, ctx.form = layout, form
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, total = ctx.saved_tensors
        heads, n, d = q.shape
        c = v.shape[-1]
        scaled = grad.float() / total.unsqueeze(-1)
        const = (scaled * out.float()).sum(-1)
        a = scaled.to(v.dtype).contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        layout = ctx.layout
        shared = (layout.start, layout.end, layout.graph, n, d, c, n * d, n * c)
        options = {"FORM": ctx.form, "BATCHED": layout.batched, "BD": _width(d), "BC": _width(c), **_precision(q.dtype)}
        bm, bn, warps, stages = TILES[q.dtype][1]
        kernels._backward_keys[(-(-n // bn), heads)](
            q, k, v, a, const, dk, dv, *shared, BM=bm, BN=bn, num_warps=warps, num_stages=stages, **options
        )
        bm, bn, warps, stages = TILES[q.dtype][2]
        kernels._backward_queries[(-(-n // bm), heads)](
            q, k, v, a, const, dq, *shared, BM=bm, BN=bn, num_warps=warps, num_stages=stages, **options
        )
        return dq, dk, dv, None, None, None


def _precision(dtype: torch.dtype) -> dict[str, Any]:
    # Single precision is kept: the matrix units' own float32 mode would round q and k to ten bits.
    return {"FAST": dtype != torch.float32, "PRECISION": "ieee" if dtype == torch.float32 else "tf32"}


def _aligned(x: Tensor) -> Tensor:
    """Contiguous, with a multiple of 16 channels: rows of other lengths are not aligned for the copy engine."""
    missing = -x.shape[-1] % 16
    return functional.pad(x, (0, missing)) if missing else x.contiguous()


def serves(diffusivity: Diffusivity, q: Tensor, v: Tensor) -> bool:
    """Whether the kernel can answer: a CUDA device, a known form, a type and widths that it was written for."""
    return (
        kernels is not None
        and q.is_cuda
        and diffusivity in FORMS
        and q.dtype in TILES
        and max(q.shape[-1], v.shape[-1]) <= LARGEST_WIDTH
    )


def propagate(q: Tensor, k: Tensor, v: Tensor, diffusivity: Diffusivity, segments: Segments | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``, exact, on a CUDA device."""
    if not serves(diffusivity, q, v):
        raise ValueError(
            f"backend 'fused' needs a CUDA device with Triton, diffusivity simple or sigmoid, float32, float16 or "
            f"bfloat16, and at most {LARGEST_WIDTH} channels; got {q.device.type}, {diffusivity.name!r}, {q.dtype}, "
            f"{q.shape[-1]} and {v.shape[-1]} channels: try backend='auto'"
        )
    layout = _Layout(segments, q.device)
    q, k, v = (x if not layout.batched else x[layout.order] for x in (q, k, v.expand(-1, q.shape[1], -1)))
    laid = [_aligned(x.transpose(0, 1)) for x in (q, k, v.to(q.dtype))]
    out = _Fused.apply(*laid, layout, FORMS[diffusivity], least_of(diffusivity)).transpose(0, 1)[..., : v.shape[-1]]
    if not layout.batched:
        return out
    return torch.empty_like(out).index_copy(0, layout.order, out)
