r"""All-pair propagation in one Triton kernel forward and two backward: exact, O(N) memory, for CUDA devices.

Scores of unit rows are bounded, so that one pass over the keys suffices: r_i = Σ_j g_ij, o_i = Σ_j g_ij v_j / r_i.
Backward, with a_i = ∂o_i / r_i and c_i = a_iᵀo_i, each pass recomputes its scores:

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

from difformer._compat import constant_result
from difformer.attention.scores import diffusivity_of, form_of, least_of
from difformer.attention.segments import Segments
from difformer.errors import UserError
from difformer.shortcut import row_operator

try:
    from difformer.kernels import triton_pairs as kernels
except ImportError:  # no Triton where there is no GPU
    kernels = None  # type: ignore[assignment]

FORMS = {"simple": 0, "sigmoid": 1}
LARGEST_WIDTH = 128  # channels of a row that a block can hold in shared memory
SPLIT = 1024  # elements that a program splits into parts
LARGEST_HALF = 6e4  # queries and keys beyond it would be infinite in float16
SMALLEST_UNIT = 1e-30  # values are divided by no less, even if all are zero

# Rows × columns of a block, warps, stages of the pipeline: forward, backward for keys, backward for queries; by the
# number of parts of a factor.
TILES: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    1: ((128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 4, 3)),
    3: ((128, 32, 4, 2), (64, 64, 4, 1), (128, 64, 8, 2)),
}
WIDE = ((32, 32, 4, 1),) * 3  # parts of more than 64 channels, which take twice the shared memory
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@constant_result
def parts_of(dtype: torch.dtype, form: str) -> int:
    """Parts of a factor: for float32 three in bfloat16 (24 bits), or one in float16 where torch may multiply in TF32.

    TF32 and float16 both have 11 bits. Scores of ``simple`` have no bound, so they keep three parts.
    """
    exact = torch.get_float32_matmul_precision() == "highest" or form != "sigmoid"
    return 3 if dtype == torch.float32 and exact else 1


def _shared(q: Tensor, v: Tensor, ranges: Tensor | None, *least: float) -> tuple[Any, ...]:
    """Arguments of all kernels: each row's graph (not read for one graph), sizes, strides of problems and of parts."""
    (problems, n, d), c = q.shape, v.shape[-1]
    graphs = (q,) * 3 if ranges is None else ranges.unbind()
    return *graphs, n, d, c, *least, n * d, n * c, problems * n * d, problems * n * c


def _options(
    kernel: int, q: Tensor, v: Tensor, ranges: Tensor | None, form: int, parts: int
) -> tuple[int, int, dict[str, Any]]:
    """Rows and columns of a block, and what a kernel is compiled for; channels are padded to powers of two."""
    d, c = q.shape[-1], v.shape[-1]
    rows, columns, warps, stages = WIDE[kernel] if parts > 1 and max(d, c) > 64 else TILES[parts][kernel]
    options = {"FORM": form, "PARTS": parts, "BATCHED": ranges is not None, "num_warps": warps, "num_stages": stages}
    options["NEAR"] = q.dtype == torch.bfloat16
    return rows, columns, options | {"BM": rows, "BN": columns, "BD": _width(d), "BC": _width(c)}


def _width(channels: int) -> int:
    return max(16, 1 << (channels - 1).bit_length())


def _factor(x: Tensor, parts: int, unit: Tensor | None = None) -> Tensor:
    """A factor as the kernels take it: in bfloat16 parts, or in one part of 16 bits.

    Values and answers in float32 become float16 divided by their `unit`, queries and keys cut at the largest numbers.
    """
    if x.dtype == torch.float32 and parts == 1:
        x = (x.clamp(-LARGEST_HALF, LARGEST_HALF) if unit is None else x / unit).to(torch.float16)
    x = x.contiguous()
    if parts == 1:
        return x
    out = torch.empty(parts, *x.shape, dtype=torch.bfloat16, device=x.device)
    kernels.split[(-(-x.numel() // SPLIT),)](x, out, x.numel(), PARTS=parts, BLOCK=SPLIT)
    return out


def _unit(x: Tensor, ranges: Tensor | None) -> Tensor:
    """The largest number of each problem, or of each row's graph, ``[P, 1 or N, 1]``: float16 takes x divided by it."""
    largest = torch.linalg.vector_norm(x, torch.inf, (1, 2) if ranges is None else 2, keepdim=True)
    if ranges is not None:  # a graph is known by its first row
        start = ranges[0].long().view(1, -1, 1).expand_as(largest)
        largest = torch.zeros_like(largest).scatter_reduce_(1, start, largest, "amax").gather(1, start)
    return largest.nan_to_num_(1.0, 1.0).clamp_min_(SMALLEST_UNIT)  # an infinite value stays one


def _forward(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor | None, form: int, least: float, parts: int
) -> tuple[Tensor, Tensor]:
    """``q, k [P, N, d]``, ``v [P, N, c]``, rows sorted by graph → P_i ``[P, N, c]`` and r_i ``[P, N]``.

    `ranges` ``[3, N]`` int32 says where each row's graph begins and ends and which it is; None stands for one graph.
    """
    problems, n, _ = q.shape
    out, total = _results(q, k, v)
    rows, _, options = _options(0, q, v, ranges, form, parts)
    unit = _unit(v, ranges) if v.dtype == torch.float32 and parts == 1 else None
    factors = [_factor(q, parts), _factor(k, parts), _factor(v, parts, unit)]
    kernels._forward[(-(-n // rows), problems)](*factors, out, total, *_shared(q, v, ranges, least), **options)
    return out if unit is None else out.mul_(unit), total


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, ranges: Tensor | None, form: int,
    least: float, parts: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    problems, n, _ = q.shape
    scaled = grad.float() / total.unsqueeze(-1)
    const = (scaled * out.float()).sum(-1)
    # A total that was clamped does not depend on q and k.
    floor = least * (n if ranges is None else ranges[1] - ranges[0])
    const = const.masked_fill((total > 0) & (total <= 1.000001 * floor), 0)
    # Answers are divided by sums of N terms: too small for float16 as they are.
    small = _unit(scaled, ranges) if parts == 1 and v.dtype != torch.bfloat16 else None
    unit = _unit(v, ranges) if parts == 1 and v.dtype == torch.float32 else None
    for each in (small, unit):
        const = const if each is None else const / each.squeeze(-1)
    answers = scaled.to(v.dtype) if small is None else scaled
    factors = [_factor(q, parts), _factor(k, parts), _factor(v, parts, unit), _factor(answers, parts, small), const]
    # In order, whatever the inputs are.
    kept = v.dtype if small is None else torch.float32
    dq, dk, dv = (torch.empty(x.shape, dtype=kept, device=x.device) for x in (q, k, v))
    shared = _shared(q, v, ranges)
    _, columns, options = _options(1, q, v, ranges, form, parts)
    kernels._backward_keys[(-(-n // columns), problems)](*factors, dk, dv, *shared, **options)
    rows, _, options = _options(2, q, v, ranges, form, parts)
    kernels._backward_queries[(-(-n // rows), problems)](*factors, dq, *shared, **options)
    if small is None:
        return dq, dk, dv
    dq, dk = (dq, dk) if unit is None else (dq.mul_(unit), dk.mul_(unit))
    dq, dk, dv = (grad.mul_(small).to(v.dtype) for grad in (dq, dk, dv))
    return dq, dk, dv


def _results(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(v.shape[:2], dtype=torch.float32)


_propagate = row_operator("fused", _forward, _backward, _results, inputs=3)


def aligned(x: Tensor) -> Tensor:
    """With a multiple of 16 channels: rows of other lengths are not aligned for the copy engine."""
    missing = -x.shape[-1] % 16
    return functional.pad(x, (0, missing)) if missing else x


def serves(form: str, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the kernels can answer: a CUDA device, a form, a type and channels that they were written for."""
    known = form in FORMS and dtype in DTYPES and width <= LARGEST_WIDTH
    return kernels is not None and device.type == "cuda" and known


def propagate(q: Tensor, k: Tensor, v: Tensor, diffusivity: str, segments: Segments | None = None) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]``, exact, on a CUDA device."""
    form, heads, channels = form_of(diffusivity), q.shape[1], v.shape[-1]
    if not serves(form, q.device, q.dtype, max(q.shape[-1], channels)):
        needed = f"CUDA with Triton, simple or sigmoid, no float64 and at most {LARGEST_WIDTH} channels"
        name, most = diffusivity_of(diffusivity).name, max(q.shape[-1], channels)
        got = f"{q.device.type}, {name!r}, {q.dtype}, {most} channels"
        raise UserError(f"backend 'fused' needs {needed}; got {got}: try backend='auto'")
    rows = (q, k, v.expand(-1, heads, -1).to(q.dtype))
    if segments is not None:
        rows = tuple(x.index_select(0, segments.by_graph) for x in rows)  # type: ignore[assignment]
    ranges = None if segments is None else segments.ranges
    laid = [aligned(x.transpose(0, 1)).contiguous() for x in rows]
    options = (FORMS[form], least_of(diffusivity), parts_of(q.dtype, form))
    out = _propagate(*laid, ranges, *options).transpose(0, 1)[..., :channels]
    return out if segments is None else out.index_select(0, segments.place_by_graph)
