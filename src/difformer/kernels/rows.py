r"""GPU kernels for many short rows: unit length, LayerNorm and products with a sparse matrix.

.. math::
    y = x / ‖x‖, \qquad ∂x = (∂y - y \, y^\top ∂y) / ‖x‖,

.. math::
    y = \frac{x - μ}{\sqrt{σ^2 + ε}} \, w + b, \qquad
    ∂x = \frac{1}{\sqrt{σ^2 + ε}} \left(g - \hat x \, \overline{g \hat x} - \overline{g}\right), \quad g = w \, ∂y,

with means over the channels of a row. Torch's kernels use one block of threads per row. States have few channels and
up to millions of rows, so here a block takes many rows.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer import sparse
from difformer._compat import is_forward_mode
from difformer.kernels import Some
from difformer.shortcut import is_eager, once_differentiated
from difformer.sparse import CSR

try:
    from difformer.kernels import triton_rows as kernels
except ImportError:  # no Triton where there is no GPU
    kernels = None  # type: ignore[assignment]

DEVICE = "cuda"  # where the kernels run; tests of Triton's interpreter set it to "cpu"
LONGEST_ROW = 512
FEWEST_ROWS = 1024  # below it torch's kernels are as quick
ELEMENTS = 2048  # of a block
COLUMNS = 1024  # of all pairs, that are taken at a time
LONGEST_SPARSE_ROW = 1 << 15  # entries that one program adds up in about two milliseconds
PROGRAMS = 1024  # at most: several for each processor of a large GPU
SMALLEST_NORM = 1e-12


def in_kernels(width: int, x: Tensor, *others: Tensor) -> bool:
    """Whether the kernels take rows of `width` channels of `x`, which may be a view, and other tensors beside."""
    if kernels is None or width > LONGEST_ROW or x.dtype is not torch.float32 or x.device.type != DEVICE:
        return False
    place = x.get_device()
    for y in others:
        if y.dtype is not torch.float32 or y.get_device() != place or not y.is_contiguous() or y.is_neg():
            return False
    return _runs_on(place)


@functools.cache
def _runs_on(place: int) -> bool:
    """Whether kernels compile and run on a device; Triton needs a C compiler, which slim images lack."""
    x = torch.ones(1, 1, dtype=torch.float32, device=DEVICE if place < 0 else f"{DEVICE}:{place}")
    try:
        for _ in range(2):  # compiled by Triton, then launched as `_run` keeps it
            launch("unit_forward", x, 1, (x, *[None] * 5, x, None, None), (1.0,), VALUES=0, UNITS=1, NORM_ROW=1)
    except Exception as error:
        warnings.warn(f"Triton cannot compile this package's kernels, so that models are slower: {error}", stacklevel=2)
        return False
    return True


def by_rows(x: Tensor) -> bool:
    """Whether the kernels take ``x [N, d]`` and are faster than torch."""
    return (
        is_eager(x)  # first: a compiler would trace the other conditions
        and x.device.type == DEVICE
        and x.dim() == 2
        and x.shape[0] >= FEWEST_ROWS
        and not torch.is_autocast_enabled(DEVICE)
        and in_kernels(x.shape[1], x)
    )


def plain(x: Tensor) -> Tensor:
    """`x` in order and without a pending sign, as kernels read memory."""
    return x if x.is_contiguous() and not x.is_neg() else x.resolve_neg().contiguous()


def programs(rows: int, width: int) -> int:
    """How many programs share the rows; each leaves one row of partial sums."""
    return min(-(-rows // _rows(width)[0]), PROGRAMS)


@functools.cache
def _rows(width: int) -> tuple[int, int]:
    """Rows and padded channels of a block."""
    padded = max(16, 1 << (width - 1).bit_length())
    return max(1, ELEMENTS // padded), padded


def launch(
    name: str, like: Tensor, width: int, tensors: Sequence[Some], numbers: Sequence[float], **constants: Any
) -> None:
    """Runs a kernel over the rows of `like`; its arguments are `tensors`, their rows, `numbers` and `constants`."""
    block, padded = _rows(width)
    constants.update(D=width, ROWS=block, WIDTH=padded)
    _run(name, like, programs(like.shape[0], width), tensors, (like.shape[0], *numbers), constants)


def launch_pairs(name: str, pairs: Tensor, *others: Some, **constants: Any) -> None:
    """Runs a kernel that takes one row of all pairs after the other."""
    constants["COLUMNS"] = COLUMNS
    _run(name, pairs, pairs.shape[0], (pairs, *others), (pairs.shape[0],), constants)


def multiply(matrix: CSR, x: Tensor, out: Tensor, beta: float, alpha: float) -> bool:
    """``out ← β out + α S X``, X in float32 or bfloat16, offered to `difformer.sparse`; False if nothing was done."""
    width, index = x.shape[1], matrix.crow
    known = index.dtype == torch.int32 and x.dtype in (torch.float32, torch.bfloat16) and out.is_contiguous()
    if not known or not 0 < matrix.longest <= LONGEST_SPARSE_ROW or not in_kernels(width, out, matrix.value):
        return False
    padded = _rows(width)[1]
    constants = {"D": width, "ADD": beta != 0, "EDGES": max(1, min(16, COLUMNS // padded)), "WIDTH": padded}
    given = (index, matrix.col, matrix.value, plain(x), out)
    _run("sparse_rows", out, index.numel() - 1, given, (float(alpha), float(beta)), {**constants, "num_warps": 1})
    return True


sparse.fast_products["cuda"] = multiply

_COMPILED: dict[Any, tuple[Any, ...]] = {}


def _stream(place: int) -> int:
    return kernels.triton.runtime.driver.active.get_current_stream(place)  # type: ignore[attr-defined]


def _run(
    name: str, like: Tensor, count: int, tensors: Sequence[Some], numbers: tuple[Any, ...], constants: Any
) -> None:
    """Launches a compiled kernel by itself: Triton's own call takes tens of microseconds to find it."""
    if like.is_cuda and like.get_device() != torch.cuda.current_device():
        with torch.cuda.device(like.device):
            return _run(name, like, count, tensors, numbers, constants)
    # A kernel depends on which tensors there are, on their types and alignment, and on the constants.
    pointers: list[int | None] = []
    kinds = []
    for x in tensors:
        pointer = None if x is None else x.data_ptr()
        pointers.append(pointer)
        kinds.append(0 if x is None or pointer is None else x.element_size() * (-1 if pointer % 16 else 1))
    place = like.get_device()
    key = (name, place, *kinds, *constants.items())
    known = _COMPILED.get(key)
    if known is not None:
        run, function, metadata, rest = known
        run(count, 1, 1, _stream(place), function, metadata, None, None, None, *pointers, *numbers, *rest)
        return None
    kernel = getattr(kernels, name)
    compiled = kernel[(count,)](*tensors, *numbers, **constants)
    if compiled is not None:  # the interpreter compiles nothing
        rest = [constants[each] for each in kernel.arg_names[len(tensors) + len(numbers) :]]
        _COMPILED[key] = compiled.run, compiled.function, compiled.packed_metadata, rest
    return None


class _Unit(torch.autograd.Function):
    """``[…, d]`` → unit rows and their norms; both differentiate, so that second derivatives are right as well."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(SMALLEST_NORM)
        return x / norm, norm

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Some, norm_grad: Some) -> Some:
        unit, norm = ctx.saved_tensors
        if grad is None:
            return None if norm_grad is None else unit * norm_grad
        inner = (grad * unit).sum(-1, keepdim=True)
        if norm_grad is not None:
            inner = inner - norm_grad * norm
        return torch.addcmul(grad, unit, inner, value=-1) / norm


class _UnitRows(torch.autograd.Function):
    """Unit rows by kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x, (n, d) = plain(x), x.shape
        unit, norm = torch.empty_like(x), x.new_empty(n)
        given = (x, *[None] * 5, unit, norm, None)
        launch("unit_forward", x, d, given, (SMALLEST_NORM,), VALUES=0, UNITS=1, NORM_ROW=1)
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _unit_gradients(grad, *ctx.saved_tensors)[0]


@once_differentiated
def _unit_gradients(grad: Tensor, unit: Tensor, norm: Tensor) -> tuple[Tensor]:
    out, d = torch.empty_like(unit), unit.shape[1]
    given = (plain(grad), None, unit, norm, None, None, out, None)
    launch("query_backward", unit, d, given, (0.0,), PARTS=1, Q_ROW=d, H_ROW=d, NORM_ROW=1, UNIT=0, T_ROW=1)
    return (out,)


def unit_rows(x: Tensor) -> Tensor:
    """``x / ‖x‖`` along the last axis; rows shorter than `SMALLEST_NORM` are divided by that instead."""
    if torch.compiler.is_compiling() or is_forward_mode(x):  # a compiler fuses the plain formula
        return functional.normalize(x, dim=-1, eps=SMALLEST_NORM)
    if x.device.type == DEVICE and x.dim() > 1 and by_rows(x.flatten(0, -2)):
        return _UnitRows.apply(x.flatten(0, -2)).view(x.shape)
    return _Unit.apply(x)[0]


class RowTail(torch.autograd.Function):
    """LayerNorm of ``x [N, d]``, float32 or bfloat16, ReLU and dropout by a mask or a rate → ``[N, d]`` float32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool, mask: Some, rate: float
    ) -> Tensor:
        x, d = plain(x), x.shape[1]
        out = torch.empty_like(x, dtype=torch.float32)
        given = (*[None] * 4, x, None, None, weight, bias, mask, None, out)
        launch("tail_forward", x, d, given, (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, eps), Q_ROW=d, T_ROW=1, RELU=relu)
        if rate:
            out, mask = drop(out, rate)
        ctx.save_for_backward(x, weight, bias, mask)
        ctx.rest = eps, relu, rate
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Some, ...]:
        return *_tail_gradients(grad, *ctx.saved_tensors, *ctx.rest), None, None, None, None


@once_differentiated
def _tail_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mask: Some, eps: float, relu: bool, rate: float
) -> tuple[Tensor, ...]:
    n, d = x.shape
    x_grad, parts = torch.empty_like(x), grad.new_empty(programs(n, d), 2, d)
    given = (plain(grad), mask, x, weight, bias, None, None, x_grad, None, None, parts)
    numbers = (mask_scale(mask, rate), eps, 0.0, 1.0)
    launch("tail_backward", x, d, given, numbers, PARTS=2, T_ROW=1, RELU=relu)
    return x_grad, *parts.sum(0).unbind(0)


def drop(x: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Dropout as `torch.nn.functional.dropout` draws it, and its mask: bool, or with the factor 1 / (1 - rate)."""
    if x.is_cuda:
        return torch.native_dropout(x, rate, True)
    mask = torch.empty_like(x).bernoulli_(1 - rate).div_(1 - rate)
    return x * mask, mask


def mask_scale(mask: Some, rate: float) -> float:
    """The factor that a mask lacks."""
    return 1 / (1 - rate) if mask is not None and mask.dtype == torch.bool else 1.0


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        if by_rows(x) and in_kernels(x.shape[1], x, self.weight, self.bias) and is_eager(self.weight):
            return RowTail.apply(x, self.weight, self.bias, self.eps, False, None, 0.0)
        return super().forward(x)
