"""Whether tensors are plain ones, on which shortcuts of eager mode are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (Tensor, nn.Parameter)  # not their subclasses, such as the tensors without values that compilers trace with


def is_eager(*tensors: Tensor) -> bool:
    """False while a model is compiled or exported, inside `torch.func`, and for tensors that only play a part."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not torch.compiler.is_compiling() and all(type(x) in PLAIN and not wrapped(x) for x in tensors)


def direct(function: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    """`operator`, or on plain tensors the `function` it was made of: an operator's overhead is ten small ones."""

    def call(first: Tensor, *rest: Any) -> Any:
        return (function if is_eager(first) else operator)(first, *rest)

    return call
