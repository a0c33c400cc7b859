"""Private parts of torch that the package uses, each with a fallback in case torch changes.

Every function answers a question about tensors or the running program. If the private part is missing, it uses a public
one, or gives the answer that leads to the plain formula: always correct, sometimes slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])


_functorch: Any = getattr(torch._C, "_functorch", None)


def is_transformed(x: Tensor) -> bool:
    """Whether `x` is a tensor of `torch.func`: inside `vmap`, `grad` or `jvp`."""
    return _known(x, "is_functorch_wrapped_tensor")


def is_stacked(x: Tensor) -> bool:
    """Whether `x` is a batch of tensors inside `torch.vmap`."""
    return _known(x, "is_batchedtensor")


def _known(x: Tensor, question: str) -> bool:
    ask = getattr(_functorch, question, None)
    if ask is not None:
        return bool(ask(x))
    try:
        x.data_ptr()
    except RuntimeError:  # tensors of `torch.func` have no memory of their own to point to
        return True
    return False


def is_transforming() -> bool:
    """Whether the program is inside a transform of `torch.func`; if not, no tensor needs to be inspected."""
    peek = getattr(_functorch, "peek_interpreter_stack", None)
    return peek is None or peek() is not None


def is_exporting() -> bool:
    """Whether `torch.export` records the program; up to torch 2.12 the public function is true of compilers, too."""
    flag = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.compiler.is_exporting() if flag is None else bool(flag)


def is_traced() -> bool:
    """Whether `torch.jit.trace` records the program."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]  # public, but not exported


def is_watched() -> bool:
    """Whether operations are recorded by a dispatch mode, such as a counter of operations."""
    count = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return count is None or count() > 0


def is_forward_mode(*tensors: Tensor) -> bool:
    """Whether derivatives are taken in forward mode."""
    level = getattr(forward_ad, "_current_level", None)
    if level is not None:
        return level >= 0
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def has_global_hooks() -> bool:
    """Whether a hook is registered for all modules."""
    ask = getattr(nn.modules.module, "_has_any_global_hook", None)
    return ask is None or bool(ask())


def constant_result(function: Function) -> Function:
    """`function` is evaluated while a model is compiled, which keeps the result and looks at no values itself.

    What `torch.compiler.assume_constant_result` does, without loading the compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
