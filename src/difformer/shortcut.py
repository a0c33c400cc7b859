"""Shortcuts of eager mode: when they are right, and operators that differentiate once.

A shortcut calls a kernel or a hand-written gradient. It is right on plain tensors alone, not while a model is compiled
or exported, nor inside `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from difformer._compat import is_transformed, is_transforming

PLAIN = (Tensor, nn.Parameter)  # not their subclasses, such as the tensors without values that compilers trace with


def is_eager(*tensors: Tensor) -> bool:
    """False while a model is compiled or exported, inside `torch.func`, and for tensors of other classes."""
    if torch.compiler.is_compiling():
        return False
    for x in tensors:
        if type(x) not in PLAIN:
            return False
    return not is_transforming() or not any(is_transformed(x) for x in tensors)


def direct(function: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    """`operator`, or on plain tensors the `function` it was made of: an operator's overhead is ten small ones."""

    def call(first: Tensor, *rest: Any) -> Any:
        return (function if is_eager(first) else operator)(first, *rest)

    return call


def once_differentiated(operator: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Any, ...]]:
    """`operator` for use in a backward pass, also where `torch.func.grad` records it to differentiate it again.

    The operators of this package do not say what their second derivatives are: asking for one raises an error that says
    what to do.
    """

    class Once(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor | None, ...]:
            return operator(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
            return

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            raise RuntimeError("second derivatives of a diffusion step need backend='reference'")

    def call(first: Tensor, *others: Any) -> tuple[Any, ...]:
        if not torch.is_grad_enabled() and not torch.is_autocast_enabled(first.device.type):
            return operator(first, *others)  # the usual backward pass
        # Operators choose their precision themselves, also where a backward pass is run under autocast.
        with torch.autocast(first.device.type, enabled=False):
            # A compiled model records the operator itself.
            return operator(first, *others) if torch.compiler.is_compiling() else Once.apply(first, *others)

    return call
