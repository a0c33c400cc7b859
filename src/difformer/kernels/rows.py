r"""Operations on many short rows: unit length, LayerNorm and what else a layer does row by row, by kernels on a GPU.

.. math::
    y = x / ‖x‖, \qquad ∂x = (∂y - y \, y^\top ∂y) / ‖x‖,

.. math::
    y = \frac{x - μ}{\sqrt{σ^2 + ε}} \, w + b, \qquad
    ∂x = \frac{1}{\sqrt{σ^2 + ε}} \left(g - \hat x \, \overline{g \hat x} - \overline{g}\right), \quad g = w \, ∂y,

with means over the channels of a row. torch gives every row to a block of threads of its own; states have few channels
and millions of rows, so there a block takes many rows at once.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.shortcut import is_eager, once_differentiated

kernels: Any = None
try:
    from difformer.kernels import triton_rows

    kernels = triton_rows
except ImportError:  # no Triton where there is no GPU
    pass
# Whether a compiled kernel takes its constants as well, as it does since Triton 3.3.
PASSES_ALL = kernels is not None and tuple(map(int, kernels.triton.__version__.split(".")[:2])) >= (3, 3)

DEVICE = "cuda"  # where the kernels run; tests of Triton's interpreter set it to "cpu"
LONGEST_ROW = 512
FEWEST_ROWS = 1024  # below it torch's kernels are as quick
ELEMENTS = 2048  # of a block
COLUMNS = 1024  # of all pairs, that are taken at a time
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
    """Whether kernels can be compiled and run on a device; Triton needs a compiler of C, which slim images lack."""
    x = torch.ones(1, 1, dtype=torch.float32, device=DEVICE if place < 0 else f"{DEVICE}:{place}")
    try:
        launch("unit_forward", x, 1, (x, *[None] * 5, x, None, None), (1.0,), VALUES=0, UNITS=1, NORM_ROW=1)
    except Exception as error:
        warnings.warn(f"Triton cannot compile this package's kernels, so that models are slower: {error}", stacklevel=2)
        return False
    return True


def by_rows(x: Tensor) -> bool:
    """Whether ``x [N, d]`` is for the kernels: torch gives every row a block of threads, or makes several passes."""
    return (
        is_eager(x)  # first: a compiler would follow what comes behind
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
    """How many programs share the rows, which is how many rows their partial sums have."""
    return min(-(-rows // _rows(width)[0]), PROGRAMS)


@functools.cache
def _rows(width: int) -> tuple[int, int]:
    """Rows and padded channels of a block."""
    padded = max(16, 1 << (width - 1).bit_length())
    return max(1, ELEMENTS // padded), padded


def launch(
    name: str, like: Tensor, width: int, tensors: Sequence[Tensor | None], numbers: Sequence[float], **constants: Any
) -> None:
    """Runs a kernel over the rows of `like`: its arguments are `tensors`, how many rows, `numbers` and `constants`."""
    block, padded = _rows(width)
    n = like.shape[0]
    constants.update(D=width, ROWS=block, WIDTH=padded)
    _run(name, like, min(-(-n // block), PROGRAMS), tensors, (n, *numbers), constants)


def launch_pairs(name: str, pairs: Tensor, *others: Tensor | None, **constants: Any) -> None:
    """Runs a kernel that takes one row of all pairs after the other."""
    constants["COLUMNS"] = COLUMNS
    _run(name, pairs, pairs.shape[0], (pairs, *others), (pairs.shape[0],), constants)


_COMPILED: dict[Any, tuple[Any, list[str]]] = {}


def _run(
    name: str, like: Tensor, count: int, tensors: Sequence[Tensor | None], numbers: tuple[Any, ...], constants: Any
) -> None:
    """Triton finds the compiled kernel by all that it may depend on, which takes tens of microseconds: kept here.

    That is which tensors there are, of which type and whether they begin on a multiple of 16 bytes, and the constants;
    none of the kernels depends on the number of rows.
    """
    if like.is_cuda and like.get_device() != torch.cuda.current_device():
        with torch.cuda.device(like.device):
            return _run(name, like, count, tensors, numbers, constants)
    pointers = [None if x is None else x.data_ptr() for x in tensors]
    kinds = [0 if x is None else x.element_size() for x in tensors]
    aligned = [x is not None and x % 16 == 0 for x in pointers]
    key = (name, like.get_device(), *kinds, *aligned, *constants.items())
    known = _COMPILED.get(key)
    if known is not None:
        compiled, names = known
        compiled[(count, 1, 1)](*pointers, *numbers, *[constants[each] for each in names])
        return None
    kernel = getattr(kernels, name)
    compiled = kernel[(count,)](*tensors, *numbers, **constants)
    if compiled is not None and PASSES_ALL:  # the interpreter compiles nothing
        _COMPILED[key] = compiled, kernel.arg_names[len(tensors) + len(numbers) :]
    return None


class _Unit(torch.autograd.Function):
    """``[…, d]`` → unit rows and their norms; both differentiate, so that second derivatives are right as well."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(SMALLEST_NORM)
        return x / norm, norm

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, norm_grad: Tensor | None) -> Tensor | None:
        unit, norm = ctx.saved_tensors
        if grad is None:
            return None if norm_grad is None else unit * norm_grad
        inner = (grad * unit).sum(-1, keepdim=True)
        if norm_grad is not None:
            inner = inner - norm_grad * norm
        return torch.addcmul(grad, unit, inner, value=-1) / norm

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor]:
        unit, norm = ctx.saved_tensors
        inner = (tangent * unit).sum(-1, keepdim=True)
        return (tangent - unit * inner) / norm, inner

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[tuple[Tensor, Tensor], int]:
        return _Unit.apply(x.movedim(in_dims[0], 0)), 0


class _UnitRows(torch.autograd.Function):
    """The same by kernels that read a row once."""

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
        return _differentiate_unit(grad, *ctx.saved_tensors)[0]


def _unit_gradients(grad: Tensor, unit: Tensor, norm: Tensor) -> tuple[Tensor]:
    out, d = torch.empty_like(unit), unit.shape[1]
    given = (plain(grad), None, unit, norm, None, None, out, None)
    launch("query_backward", unit, d, given, (0.0,), PARTS=1, Q_ROW=d, H_ROW=d, NORM_ROW=1, UNIT=0, T_ROW=1)
    return (out,)


_differentiate_unit = once_differentiated(_unit_gradients)


def unit_rows(x: Tensor) -> Tensor:
    """``x / ‖x‖`` along the last axis; rows shorter than `SMALLEST_NORM` are divided by that instead."""
    if torch.compiler.is_compiling():  # a compiler fuses the plain formula by itself
        return functional.normalize(x, dim=-1, eps=SMALLEST_NORM)
    if x.device.type == DEVICE and x.dim() > 1 and by_rows(x.flatten(0, -2)):
        return _UnitRows.apply(x.flatten(0, -2)).view(x.shape)
    return _Unit.apply(x)[0]


class RowTail(torch.autograd.Function):
    """LayerNorm of ``x [N, d]``, float32 or bfloat16, ReLU and dropout by a mask or a rate → ``[N, d]`` float32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool, mask: Tensor | None, rate: float
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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_differentiate_tail(grad, *ctx.saved_tensors, *ctx.rest), None, None, None, None


def _tail_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, eps: float, relu: bool, rate: float
) -> tuple[Tensor, ...]:
    n, d = x.shape
    x_grad, parts = torch.empty_like(x), grad.new_empty(programs(n, d), 2, d)
    given = (plain(grad), mask, x, weight, bias, None, None, x_grad, None, None, parts)
    numbers = (mask_scale(mask, rate), eps, 0.0, 1.0)
    launch("tail_backward", x, d, given, numbers, PARTS=2, T_ROW=1, RELU=relu)
    return x_grad, *parts.sum(0).unbind(0)


_differentiate_tail = once_differentiated(_tail_gradients)


def drop(x: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Dropout as `torch.nn.functional.dropout` draws it, and its mask: bool, or with the factor 1 / (1 - rate)."""
    if x.is_cuda:
        return torch.native_dropout(x, rate, True)
    mask = torch.empty_like(x).bernoulli_(1 - rate).div_(1 - rate)
    return x * mask, mask


def mask_scale(mask: Tensor | None, rate: float) -> float:
    """The factor that a mask lacks."""
    return 1 / (1 - rate) if mask is not None and mask.dtype == torch.bool else 1.0


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        if by_rows(x) and in_kernels(x.shape[1], x, self.weight, self.bias) and is_eager(self.weight):
            return RowTail.apply(x, self.weight, self.bias, self.eps, False, None, 0.0)
        return super().forward(x)
