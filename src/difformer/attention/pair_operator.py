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

from difformer.attention.scores import diffusivity_of, form_of, least_of
from difformer.attention.segments import Segments
from difformer.errors import UserError
from difformer.shortcut import row_operator

try:
    from difformer.attention import pair_kernels as kernels
except ImportError:  # no Triton where there is no GPU
    kernels = None  # type: ignore[assignment]

FORMS = {"simple": 0, "sigmoid": 1}
LARGEST_WIDTH = 128  # channels of a row that a block can hold in shared memory

# Rows × columns of a block, warps, stages of the pipeline: forward, backward for keys, backward for queries.
TILES: dict[torch.dtype, tuple[tuple[int, int, int, int], ...]] = {
    torch.bfloat16: ((128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 4, 3)),
    torch.float16: ((128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 4, 3)),
    torch.float32: ((64, 64, 4, 2), (32, 64, 4, 2), (64, 32, 4, 2)),
}


def _looked_up(ranges: Tensor | None, like: Tensor) -> tuple[Tensor, ...]:
    """What the kernels look up of each row's graph; of one graph they look nothing up."""
    return (like,) * 3 if ranges is None else ranges.unbind()


def _width(channels: int) -> int:
    return max(16, 1 << (channels - 1).bit_length())


def _forward(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor | None, form: int, least: float) -> tuple[Tensor, Tensor]:
    """``q, k [P, N, d]``, ``v [P, N, c]``, rows sorted by graph → P_i ``[P, N, c]`` and r_i ``[P, N]``.

    `ranges` ``[3, N]`` int32 says where each row's graph begins and ends and which it is; None stands for one graph.
    """
    (problems, n, d), c = q.shape, v.shape[-1]
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out, total = torch.empty_like(v), torch.empty(problems, n, dtype=torch.float32, device=q.device)
    bm, bn, warps, stages = TILES[q.dtype][0]
    kernels._forward[(-(-n // bm), problems)](
        q, k, v, out, total, *_looked_up(ranges, q), n, d, c, least, n * d, n * c,
        FORM=form, BATCHED=ranges is not None, BM=bm, BN=bn, BD=_width(d), BC=_width(c), num_warps=warps,
        num_stages=stages, **_precision(q.dtype),
    )  # fmt: skip
    return out, total


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    ranges: Tensor | None,
    form: int,
    least: float,
) -> tuple[Tensor, Tensor, Tensor]:
    (problems, n, d), c = q.shape, v.shape[-1]
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    scaled = grad.float() / total.unsqueeze(-1)
    const = (scaled * out.float()).sum(-1)
    # A total that was clamped does not depend on q and k.
    floor = least * (n if ranges is None else ranges[1] - ranges[0])
    const = const.masked_fill((total > 0) & (total <= 1.000001 * floor), 0)
    a = scaled.to(v.dtype).contiguous()
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    shared = (*_looked_up(ranges, q), n, d, c, n * d, n * c)
    options = {"FORM": form, "BATCHED": ranges is not None, "BD": _width(d), "BC": _width(c), **_precision(q.dtype)}
    bm, bn, warps, stages = TILES[q.dtype][1]
    kernels._backward_keys[(-(-n // bn), problems)](
        q, k, v, a, const, dk, dv, *shared, BM=bm, BN=bn, num_warps=warps, num_stages=stages, **options
    )
    bm, bn, warps, stages = TILES[q.dtype][2]
    kernels._backward_queries[(-(-n // bm), problems)](
        q, k, v, a, const, dq, *shared, BM=bm, BN=bn, num_warps=warps, num_stages=stages, **options
    )
    return dq, dk, dv


def _results(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(v.shape[:2], dtype=torch.float32)


_propagate = row_operator("fused", _forward, _backward, _results, inputs=3)


def _precision(dtype: torch.dtype) -> dict[str, Any]:
    # Single precision is kept: the matrix units' own float32 mode would round q and k to ten bits.
    return {"FAST": dtype != torch.float32, "PRECISION": "ieee" if dtype == torch.float32 else "tf32"}


def _aligned(x: Tensor) -> Tensor:
    """Contiguous, with a multiple of 16 channels: rows of other lengths are not aligned for the copy engine."""
    missing = -x.shape[-1] % 16
    return functional.pad(x, (0, missing)) if missing else x.contiguous()


def serves(form: str, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the kernels can answer: a CUDA device, a form, a type and channels that they were written for."""
    known = form in FORMS and dtype in TILES and width <= LARGEST_WIDTH
    return kernels is not None and device.type == "cuda" and known


def pays(dtype: torch.dtype, batched: bool) -> bool:
    """Whether the kernels are quicker than the tiles of `difformer.attention.tiles`, where they serve.

    In low precision they are, and for batches, whose tiles are small. One graph of float32 is not theirs: Triton's
    products by the rules of IEEE are slower than torch's. On an H200, 19,717 rows of 64, an answer and its gradients
    take 76 ms, by tiles 16; multiplied in three parts of TF32, to 24 bits, it would be 17.
    """
    return dtype != torch.float32 or batched


def propagate(q: Tensor, k: Tensor, v: Tensor, diffusivity: str, segments: Segments | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``, exact, on a CUDA device."""
    form, heads, channels = form_of(diffusivity), q.shape[1], v.shape[-1]
    if not serves(form, q.device, q.dtype, max(q.shape[-1], channels)):
        raise UserError(
            f"backend 'fused' needs a CUDA device with Triton, diffusivity simple or sigmoid, float32, float16 or "
            f"bfloat16, and at most {LARGEST_WIDTH} channels; got {q.device.type}, "
            f"{diffusivity_of(diffusivity).name!r}, {q.dtype}, {q.shape[-1]} and {channels} channels: "
            f"try backend='auto'"
        )
    rows = (q, k, v.expand(-1, heads, -1).to(q.dtype))
    if segments is not None:
        rows = tuple(x.index_select(0, segments.by_graph) for x in rows)  # type: ignore[assignment]
    ranges = None if segments is None else segments.ranges
    laid = [_aligned(x.transpose(0, 1)) for x in rows]
    out = _propagate(*laid, ranges, FORMS[form], least_of(diffusivity)).transpose(0, 1)[..., :channels]
    return out if segments is None else out.index_select(0, segments.place_by_graph)
