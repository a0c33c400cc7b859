"""Launching Triton kernels with little overhead.

Triton looks at every argument of every launch to find the program that was compiled for its kind. For a kernel with
twenty arguments that takes longer than the kernel itself takes on a small graph. Here the compiled program is kept, and
later launches with arguments of the same kinds call it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# By kernel, kinds of arguments and constants: the compiled program, and the constants in the order of its arguments.
# As many entries as there are programs.
_COMPILED: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def _kind(x: Any) -> Any:
    """What of an argument a compiled program depends on."""
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if isinstance(x, int):
        return x == 1, x % 16 == 0, -(2**31) <= x < 2**31
    return type(x)


def launch(kernel: Any, blocks: int, like: Tensor, given: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Runs ``kernel[(blocks,)](*given, **constants)`` on the device of `like`.

    Args:
        kernel: A function of `triton.jit` whose constants, and options of Triton, come after all other arguments.
        blocks: Programs.
        like: A tensor of the device.
        given: Tensors, numbers and None, in the order of the kernel's arguments.
        constants: Its ``tl.constexpr`` arguments, and options of Triton.
    """
    device = like.get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, blocks, like, given, constants)
        return
    key = (kernel, device, *map(_kind, given), *constants.values())
    found = _COMPILED.get(key)
    if found is not None:
        program, rest = found
        program[blocks, 1, 1](*given, *rest)
        return
    program = kernel[(blocks,)](*given, **constants)
    if hasattr(program, "__getitem__"):  # not of the interpreter
        _COMPILED[key] = program, tuple(constants[name] for name in kernel.arg_names[len(given) :])
