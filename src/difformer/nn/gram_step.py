r"""A whole step of simple diffusion as one operator, for queries and keys that are linear in the states.

.. math::
    Z^{+}_i = a z_i + b \frac{U^\top \tilde z_i}{u^\top \tilde z_i} + c \sum_j s_{ij} z_j + s z^{(0)}_i,

with U and u from the Gram matrix G of z̃ = [z, 1], as `difformer.nn.gram` works them out, and the observed structure S.
Forward it takes two products of N rows and one with S; backward, with Ḡ the gradient of G,

.. math::
    A_i = b \, ∂Z^{+}_i / u^\top \tilde z_i, \quad D_i = A_i^\top P_i, \quad
    ∂U = \tilde Z^\top A, \quad ∂u = -\tilde Z^\top D, \\
    ∂Z = a \, ∂Z^{+} + c \, S^\top ∂Z^{+} + A U^\top - D u^\top + Z (\bar G + \bar G^\top),

three products of N rows and one with S, all added into one array. Written term by term, as `DIFFormerConv` does
wherever this does not serve, the step takes about twice as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.attention.once import once_differentiated
from difformer.attention.reference import safe_total
from difformer.nn.gram import maps_of
from difformer.nn.mixing import Weights, combine, through_graph
from difformer.sparse import SparseMatrix


class _GramStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        source: Tensor | None,
        matrix: SparseMatrix | None,
        weights: Weights,
        scaled: bool,
        *parameters: Tensor,
    ) -> Tensor:
        n, d = z.shape
        gram = z.new_empty(d + 1, d + 1)
        gram[:d, :d] = z.T @ z
        gram[d, :d] = gram[:d, d] = z.sum(0)
        gram[d, d] = n
        # What follows is small: automatic differentiation does it, on a graph of its own that backward reads.
        with torch.set_grad_enabled(any(ctx.needs_input_grad)):
            gram.requires_grad_(any(ctx.needs_input_grad))
            maps = maps_of(gram, parameters[:2], parameters[-2:], None, 1, scaled)[0]  # tied keys are the queries
        fixed = maps.detach()
        plain = torch.addmv(fixed[d, d:], z, fixed[:d, d]).unsqueeze(1)
        total = safe_total(plain, n)
        received = torch.addmm(fixed[d, :d], z, fixed[:d, :d]).div_(total)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(z, plain, total, received)
            ctx.small, ctx.parameters = (gram, maps), parameters
            ctx.matrix, ctx.weights, ctx.source = matrix, weights, source is not None
        return combine(z, received, None, source, matrix, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z_grad, source, *parameters = _differentiate(grad, *ctx.saved_tensors, ctx)
        return z_grad, source, None, None, None, *parameters


def _gradients(
    grad: Tensor, z: Tensor, plain: Tensor, total: Tensor, received: Tensor, ctx: Any
) -> tuple[Tensor | None, ...]:
    """∂Z, ∂Z⁰ and those of the parameters."""
    (gram, maps), weights, d = ctx.small, ctx.weights, z.shape[1]
    fixed = maps.detach()
    a = grad / (total / weights.latent)
    inner = (a * received).sum(1).neg_()
    inner.masked_fill_((plain != total).squeeze(1), 0)  # a total that was clamped depends on nothing
    maps_grad = torch.empty_like(fixed)
    maps_grad[:d, :d], maps_grad[d, :d] = z.T @ a, a.sum(0)
    maps_grad[:d, d], maps_grad[d, d] = inner @ z, inner.sum()
    trained = [x for x in ctx.parameters if x.requires_grad]
    gram_grad, *grads = torch.autograd.grad(maps, (gram, *trained), maps_grad, retain_graph=True)
    both = gram_grad + gram_grad.T
    z_grad = through_graph(grad, ctx.matrix, weights)
    z_grad.addmm_(a, fixed[:d, :d].T).addmm_(z, both[:d, :d])
    z_grad.add_(torch.outer(inner, fixed[:d, d]).add_(both[d, :d]))
    source = grad * weights.source if ctx.source else None
    rest = iter(grads)
    return z_grad, source, *(next(rest) if x.requires_grad else None for x in ctx.parameters)


_differentiate = once_differentiated(_gradients)


def gram_step(
    z: Tensor,
    query: torch.nn.Linear,
    key: torch.nn.Linear | None,
    source: Tensor | None,
    matrix: SparseMatrix | None,
    weights: Weights,
    *,
    scaled: bool,
) -> Tensor:
    """Z⁺ of one head whose values are the states, ``[N, d]`` → ``[N, d]``; differentiates once.

    Args:
        z: States of one graph.
        query, key: The layer's maps; no key means that keys are the queries.
        source: Z⁰, where there is a source.
        matrix: Observed structure, where there is one.
        weights: Of the four terms.
        scaled: Whether Q and K are divided by their norms over all nodes.
    """
    parameters = [x for layer in (query, key) if layer is not None for x in (layer.weight, layer.bias)]
    return _GramStep.apply(z, source, matrix, weights, scaled, *parameters)
