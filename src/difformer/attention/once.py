"""Backward operators inside `torch.func`: they may be called on tensors that track gradients, and end there.

`torch.func.grad` records what a backward pass does, in case it is differentiated again. The compiled operators of this
package do not say what their second derivatives are; behind an `autograd.Function` they can be recorded all the same,
and whoever does ask for a second derivative is told what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def once_differentiated(operator: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Any, ...]]:
    """`operator` for use in a backward pass."""

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
        # Operators choose their precision themselves, also where a backward pass is run under autocast.
        with torch.autocast(first.device.type, enabled=False):
            # A compiled model records the operator itself.
            return operator(first, *others) if torch.compiler.is_compiling() else Once.apply(first, *others)

    return call
