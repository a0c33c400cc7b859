r"""The tail of a diffusion step in one pass over the graph, forward and backward.

.. math::
    Z^{+} = a Z + b P + c \, S V + s Z^{(0)},

with latent propagation P, values V (the states themselves where nothing is transformed), observed structure S and the
source Z⁰. Written with torch's operations the step makes a new array for every plus sign and autograd one more; here
the product with S is added to what is there, and backward it is

.. math::
    ∂P = b G, \quad ∂V = c \, S^\top G, \quad ∂Z^{(0)} = s G, \quad ∂Z = a G \; (+ ∂V \text{ where } V = Z).

`reference` says the same in plain operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from difformer.attention.once import once_differentiated
from difformer.sparse import SparseMatrix, add_product


@dataclass(frozen=True)
class Weights:
    """a, b, c and s of the equation."""

    state: float
    latent: float
    observed: float
    source: float = 0.0


def reference(
    z: Tensor, p: Tensor, v: Tensor | None, source: Tensor | None, matrix: SparseMatrix | None, weights: Weights
) -> Tensor:
    """The equation, term by term."""
    out = weights.state * z + weights.latent * p
    if matrix is not None:
        out = out + weights.observed * (matrix @ (z if v is None else v))
    return out if source is None else out + weights.source * source


def combine(
    z: Tensor, p: Tensor, v: Tensor | None, source: Tensor | None, matrix: SparseMatrix | None, weights: Weights
) -> Tensor:
    """`reference` with as few passes over memory as there are terms; no gradients."""
    scale = 1.0
    if weights.state == 0:  # z may then be of another width
        out = p * weights.latent
    elif matrix is None:
        out = (z * weights.state).add_(p, alpha=weights.latent)
    else:  # a (z + b / a · P): the product with S scales what it is added to
        out, scale = torch.add(z, p, alpha=weights.latent / weights.state), weights.state
    if matrix is not None:
        add_product(matrix.rows, z if v is None else v, out, beta=scale, alpha=weights.observed)
    return out if source is None else out.add_(source, alpha=weights.source)


def through_graph(grad: Tensor, matrix: SparseMatrix | None, weights: Weights) -> Tensor:
    """a G + c SᵀG, a new array: what reaches the states along the first and third term."""
    if matrix is None:
        return grad * weights.state
    out = torch.empty_like(grad)
    add_product(matrix.columns, grad, out, beta=0, alpha=weights.observed)
    return out if weights.state == 0 else out.add_(grad, alpha=weights.state)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        p: Tensor,
        v: Tensor | None,
        source: Tensor | None,
        matrix: SparseMatrix | None,
        weights: Weights,
    ) -> Tensor:
        ctx.matrix, ctx.weights, ctx.values, ctx.source = matrix, weights, v is not None, source is not None
        return combine(z, p, v, source, matrix, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_differentiate(grad, ctx), None, None


def _gradients(grad: Tensor, ctx: Any) -> tuple[Tensor | None, ...]:
    """Of z, p, v and the source."""
    weights, v_grad = ctx.weights, None
    if not ctx.values:
        z_grad: Tensor | None = through_graph(grad, ctx.matrix, weights)
    else:
        z_grad = grad * weights.state if weights.state else None
        if ctx.matrix is not None:
            v_grad = through_graph(grad, ctx.matrix, replace(weights, state=0.0))
    return z_grad, grad * weights.latent, v_grad, grad * weights.source if ctx.source else None


_differentiate = once_differentiated(_gradients)


def mix(
    z: Tensor, p: Tensor, v: Tensor | None, source: Tensor | None, matrix: SparseMatrix | None, weights: Weights
) -> Tensor:
    """Z⁺ for ``[N, c]`` each; no `v` means V = Z, no `matrix` no graph. Differentiates once."""
    return _Mix.apply(z, p, v, source, matrix, weights)
