"""Sums of monomials as differentiable operators: the two halves of polynomial attention.

    moments:  T_α = Σ_i x_i^α y_iᵀ,        evaluate:  z_i = Σ_α ω_α x_i^α T_α,

with weights ω_α = a_p w_α from the coefficients a_p of a polynomial and the multinomials w_α of its powers. Each is the
other's adjoint: the gradient of y is an `evaluate`, that of T is a `moments`; the gradient of x comes with either.
Monomials exist for a part of the rows at a time (`difformer.attention.monomials`), forward and backward.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from difformer._compat import constant_result
from difformer.attention import monomials
from difformer.attention.layout import serve_runs, working_dtype
from difformer.attention.scores import apart
from difformer.shortcut import once_differentiated


def degrees_of(coefficients: Sequence[float]) -> list[int]:
    """The degrees that a polynomial has."""
    return [degree for degree, a in enumerate(coefficients) if a != 0]


@constant_result
def _weights(d: int, coefficients: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """ω_α of all degrees that have a coefficient, ``[monomials, 1]``."""
    # A function of its own: compilers look through a cache, at the thread behind it.
    return _kept_weights(d, coefficients, device, dtype)


@functools.lru_cache(maxsize=64)
def _kept_weights(d: int, coefficients: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    def work() -> Tensor:
        each = [coefficients[degree] * monomials.weights(d, degree) for degree in degrees_of(coefficients)]
        return torch.cat(each).unsqueeze(1).to(device=device, dtype=dtype)

    return apart(work)


def _weighted(state: Tensor, d: int, coefficients: Sequence[float]) -> Tensor:
    return state * _weights(d, tuple(coefficients), state.device, state.dtype)


def _state_shape(x: Tensor, y: Tensor, coefficients: Sequence[float]) -> tuple[int, ...]:
    return x.shape[0], x.shape[2], monomials.total_count(x.shape[3], degrees_of(coefficients)), y.shape[-1]


def _problems(x: Tensor) -> Iterator[tuple[int, int]]:
    """Every run and head of ``x [runs, N, H, d]``."""
    return itertools.product(range(x.shape[0]), range(x.shape[2]))


@torch.library.custom_op("difformer::moments", mutates_args=())
def _moments(x: Tensor, y: Tensor, coefficients: Sequence[float], weighted: bool) -> Tensor:
    """``x [runs, N, H, d]``, ``y [runs, N, H or 1, w]`` → T, or ωT, ``[runs, H, monomials, w]``."""
    state = y.new_zeros(_state_shape(x, y, coefficients), dtype=working_dtype(x.dtype))
    for run, head in _problems(x):
        own = y[run, :, head if y.shape[2] > 1 else 0]
        monomials.add_moments(x[run, :, head], own, degrees_of(coefficients), state[run, head])
    return _weighted(state, x.shape[3], coefficients) if weighted else state


@torch.library.custom_op("difformer::monomial_sum", mutates_args=())
def _evaluate(x: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    """``x [runs, N, H, d]`` and T ``[runs, H, monomials, w]`` → z ``[runs, N, H, w]``."""
    out = state.new_empty((*x.shape[:3], state.shape[-1]))
    state = _weighted(state, x.shape[3], coefficients)
    for run, head in _problems(x):
        monomials.evaluate(x[run, :, head], state[run, head], degrees_of(coefficients), out[run, :, head])
    return out


@torch.library.custom_op("difformer::monomial_sum_and_slope", mutates_args=())
def _evaluate_and_pull(
    x: Tensor, state: Tensor, u: Tensor, coefficients: Sequence[float], weighted: bool
) -> tuple[Tensor, Tensor]:
    """Σ_α x_i^α T_α, with or without ω, and the gradient of x for the gradient ``u [runs, N, H or 1, w]`` of it."""
    out, x_grad = state.new_empty((*x.shape[:3], state.shape[-1])), state.new_empty(x.shape)
    state = _weighted(state, x.shape[3], coefficients) if weighted else state
    for run, head in _problems(x):
        own = u[run, :, head if u.shape[2] > 1 else 0]
        to = out[run, :, head], x_grad[run, :, head]
        monomials.evaluate_and_pull(x[run, :, head], state[run, head], own, degrees_of(coefficients), *to)
    return out, x_grad


@_moments.register_fake
def _(x: Tensor, y: Tensor, coefficients: Sequence[float], weighted: bool) -> Tensor:
    return y.new_empty(_state_shape(x, y, coefficients), dtype=working_dtype(x.dtype))


@_evaluate.register_fake
def _(x: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    return state.new_empty((*x.shape[:3], state.shape[-1]))


@_evaluate_and_pull.register_fake
def _(x: Tensor, state: Tensor, u: Tensor, coefficients: Sequence[float], weighted: bool) -> tuple[Tensor, Tensor]:
    return state.new_empty((*x.shape[:3], state.shape[-1])), state.new_empty(x.shape)


serve_runs(_moments, 2)
serve_runs(_evaluate, 2)
serve_runs(_evaluate_and_pull, 3)


def _moments_gradients(grad: Tensor, x: Tensor, y: Tensor, coefficients: Sequence[float]) -> tuple[Tensor, Tensor]:
    y_grad, x_grad = _evaluate_and_pull(x, grad.contiguous(), y, coefficients, False)
    return x_grad, y_grad if y.shape[2] == x.shape[2] else y_grad.sum(2, keepdim=True)


def _evaluate_gradients(grad: Tensor, x: Tensor, state: Tensor, coefficients: Sequence[float]) -> tuple[Tensor, Tensor]:
    return _evaluate_and_pull(x, state, grad, coefficients, True)[1], _moments(x, grad, coefficients, True)


_differentiate_moments = once_differentiated(_moments_gradients)
_differentiate_evaluate = once_differentiated(_evaluate_gradients)


class _Moments(torch.autograd.Function):
    """``x [N, H, d]``, ``y [N, H or 1, w]`` → ``[H, monomials, w]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, coefficients: Sequence[float]) -> Tensor:
        return _moments(x.unsqueeze(0), y.unsqueeze(0), coefficients, False).squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, y, ctx.coefficients = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        x_grad, y_grad = _differentiate_moments(*(t.unsqueeze(0) for t in (grad, x, y)), ctx.coefficients)
        return x_grad.squeeze(0).to(x.dtype), y_grad.squeeze(0).to(y.dtype), None


class _Evaluate(torch.autograd.Function):
    """``x [N, H, d]`` and T ``[H, monomials, w]`` → ``[N, H, w]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
        return _evaluate(x.unsqueeze(0), state.unsqueeze(0), coefficients).squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, state, ctx.coefficients = inputs
        ctx.save_for_backward(x, state)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, state = ctx.saved_tensors
        x_grad, state_grad = _differentiate_evaluate(*(t.unsqueeze(0) for t in (grad, x, state)), ctx.coefficients)
        return x_grad.squeeze(0).to(x.dtype), state_grad.squeeze(0), None


def moments(x: Tensor, y: Tensor, coefficients: Sequence[float]) -> Tensor:
    """T for ``x [N, H, d]`` and ``y [N, H or 1, w]``: ``[H, monomials, w]``, in the working precision."""
    if torch.compiler.is_exporting():  # an exported program must run where this package is not installed
        degrees, (d, w) = degrees_of(coefficients), (x.shape[-1], y.shape[-1])
        state = x.new_zeros(x.shape[1], monomials.total_count(d, degrees), w)
        for head in range(x.shape[1]):
            monomials.add_moments(x[:, head], y[:, head if y.shape[1] > 1 else 0], degrees, state[head])
        return state
    return _Moments.apply(x, y, list(coefficients))


def evaluate(x: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    """z for ``x [N, H, d]`` and the T of `moments`: ``[N, H, w]``."""
    if torch.compiler.is_exporting():
        out, degrees = state.new_empty(x.shape[0], x.shape[1], state.shape[-1]), degrees_of(coefficients)
        for head, own in enumerate(_weighted(state, x.shape[-1], coefficients)):
            monomials.evaluate(x[:, head], own, degrees, out[:, head])
        return out
    return _Evaluate.apply(x, state, list(coefficients))
