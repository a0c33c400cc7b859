"""When eager-mode shortcuts (kernels, hand-written gradients) may be used, and operators that use them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from difformer._compat import is_transforming

PLAIN = (Tensor, nn.Parameter)  # not their subclasses, such as the fake tensors that compilers trace with


def is_eager(*tensors: Tensor) -> bool:
    """Whether shortcuts may be used: not in compiled or exported programs, in `torch.func`, or on tensor subclasses."""
    if torch.compiler.is_compiling():
        return False
    for x in tensors:
        if type(x) not in PLAIN:
            return False
    return not is_transforming()  # inside a transform, functions without a rule of their own fail on plain tensors too


def once_differentiated(operator: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Any, ...]]:
    """`operator` for use in a backward pass, also where `torch.func.grad` records it to differentiate it again.

    Asking for a second derivative raises an error that says what to do.
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


def row_operator(
    name: str,
    work: Callable[..., Any],
    pull: Callable[..., Any],
    results: Callable[..., Any],
    *,
    inputs: int,
    layouts: int = 1,
    keep: int = 0,
    hold: Callable[..., Any] | None = None,
) -> Callable[..., Tensor]:
    """A differentiable operator on tensors with a leading axis of runs, known to `torch.compile` and `torch.vmap`.

    Args:
        name: Of the operator, ``difformer::name``.
        work: From `inputs` tensors and further arguments, the same for all runs, to the result, or to a tuple of the
            result and what `pull` needs.
        pull: From the gradient of the result, the tensors, the results from number `keep` on, and the further arguments
            to the gradients of the tensors, in their types.
        results: Empty tensors of the shapes that `work` gives.
        inputs: Number of tensors that differentiate.
        layouts: Number of tensors behind them, or None in their place, that do not.
        keep: The first of the results that `pull` is given, where there are several.
        hold: From the further arguments to what has to live until the backward pass is done.
    """

    def made(label: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
        operator: Any = torch.library.custom_op(f"difformer::{label}", function, mutates_args=())
        operator.register_fake(fake)
        operator.register_vmap(functools.partial(_stacked, operator))
        return getattr(torch.ops.difformer, label).default  # which a compiler finds in a closure, too

    gradients = lambda grad, *given: tuple(x.new_empty(x.shape) for x in given[:inputs])
    forward_operator, backward_operator = made(name, work, results), made(f"{name}_backward", pull, gradients)
    # On plain tensors the functions themselves: an operator's overhead is that of ten small ones.
    differentiate = once_differentiated(
        lambda grad, *rest: (pull if is_eager(grad) else backward_operator)(grad, *rest)
    )

    class Rows(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        @functools.wraps(work)  # compilers count the parameters
        def forward(*given: Any) -> Any:
            return (work if is_eager(given[0]) else forward_operator)(*given)

        @staticmethod
        def setup_context(ctx: Any, given: tuple[Any, ...], output: Any) -> None:
            kept = () if isinstance(output, Tensor) else output[keep:]
            if not isinstance(output, Tensor):
                ctx.mark_non_differentiable(*output[1:])
            ctx.save_for_backward(*given[:inputs], *kept, *given[inputs : inputs + layouts])
            ctx.rest = given[inputs + layouts :]
            if hold is not None and not torch.compiler.is_compiling():
                ctx.held = hold(*ctx.rest)

        @staticmethod
        def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
            return (*differentiate(grad, *ctx.saved_tensors, *ctx.rest), *(None,) * (layouts + len(ctx.rest)))

    def call(*given: Any) -> Tensor:
        found = Rows.apply(*given)
        return found if isinstance(found, Tensor) else found[0]

    return call


def _stacked(operator: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    """An operator under `torch.vmap`: stacked runs join the first axis of its tensors, which are all floating."""
    joined = []
    for x, dim in zip(args, in_dims, strict=True):
        if isinstance(x, Tensor) and x.is_floating_point():
            x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.flatten(0, 1)
        joined.append(x)
    found = operator(*joined)
    results = (found,) if isinstance(found, Tensor) else found
    apart = tuple(x.unflatten(0, (info.batch_size, x.shape[0] // info.batch_size)) for x in results)
    return (apart[0], 0) if isinstance(found, Tensor) else (apart, (0,) * len(apart))
