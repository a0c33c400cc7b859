r"""A whole step of simple diffusion as one operator, for queries and keys that are linear in the states.

.. math::
    Z^{+}_i = a z_i + b \frac{U^\top \tilde z_i}{u^\top \tilde z_i} + c \sum_j s_{ij} z_j + s z^{(0)}_i, \qquad
    [U, u] = γ A_q^\top A_k G + e \, (G e)^\top,

with G the Gram matrix of z̃ = [z, 1] and γ one over the norms of Q and K, as `difformer.nn.gram` derives them, and the
observed structure S. Forward it takes two products of N rows and one with S; backward, with Ḡ the gradient of G,

.. math::
    A_i = b \, ∂Z^{+}_i / u^\top \tilde z_i, \quad D_i = A_i^\top U^\top \tilde z_i / u^\top \tilde z_i, \quad
    ∂U = \tilde Z^\top A, \quad ∂u = -\tilde Z^\top D, \\
    ∂Z = a \, ∂Z^{+} + c \, S^\top ∂Z^{+} + A U^\top - D u^\top + Z (\bar G + \bar G^\top),

three products of N rows and one with S, all added into one array, block by block of rows, so that they stay in the
cache of a CPU. Written term by term, as `DIFFormerConv` does
wherever this does not serve, the step takes about twice as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention.once import once_differentiated
from difformer.attention.reference import safe_total, smallest_total
from difformer.nn.blocks import row_blocks
from difformer.nn.gram import SMALLEST_SQUARE, augmented
from difformer.nn.mixing import Weights, through_graph
from difformer.sparse import SparseMatrix, add_product


def _gram(z: Tensor) -> Tensor:
    """G of z̃, ``[d + 1, d + 1]``."""
    n, d = z.shape
    products, sums = z.new_zeros(d, d), z.new_zeros(d)
    for i in row_blocks(z):
        products.addmm_(z[i].T, z[i])
        sums.add_(z[i].sum(0))
    gram = z.new_empty(d + 1, d + 1)
    gram[:d, :d], gram[d, :d], gram[:d, d] = products, sums, sums
    gram[d, d].fill_(n)  # a number that is assigned to one element is copied from the host: a GPU would be waited for
    return gram


def maps_of_gram(gram: Tensor, a_q: Tensor, a_k: Tensor, scaled: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """[U, u], and what its gradient needs: A G of both maps, their squared norms and γ."""
    of_q, of_k = a_q @ gram, a_k @ gram
    squares = torch.stack([_inner(of_q, a_q), _inner(of_k, a_k)]).clamp_min_(SMALLEST_SQUARE)
    gamma = squares.rsqrt().prod() if scaled else squares.new_ones(())
    maps = (a_q.T @ of_k).mul_(gamma)
    maps[-1] += gram[-1]
    return maps, (of_q, of_k, squares, gamma)


def maps_gradients(
    grad: Tensor, gram: Tensor, a_q: Tensor, a_k: Tensor, kept: tuple[Tensor, ...], scaled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of A_q and A_k, and Ḡ + Ḡᵀ."""
    of_q, of_k, squares, gamma = kept
    q_grad, of_k_grad = of_k @ grad.T, a_q @ grad
    q_grad *= gamma
    of_k_grad *= gamma
    gram_grad = a_k.T @ of_k_grad
    k_grad = of_k_grad @ gram
    gram_grad[-1] += grad[-1]
    if scaled:
        # γ = (|Q|² |K|²)^(-½), |Q|² = tr(A_q G A_qᵀ): its gradient is 2 A_q G, that of G A_qᵀA_q.
        through_gamma = _inner(of_k_grad, of_k)  # of maps without its largest term, which is not scaled by γ
        slopes = (-0.5 * through_gamma / squares).masked_fill_(squares <= SMALLEST_SQUARE, 0)
        for a, of, to, slope in ((a_q, of_q, q_grad, slopes[0]), (a_k, of_k, k_grad, slopes[1])):
            to += (2 * slope) * of
            gram_grad += slope * (a.T @ a)
    return q_grad, k_grad, gram_grad + gram_grad.T


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))


class _GramStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        a_q: Tensor,
        a_k: Tensor,
        source: Tensor | None,
        matrix: SparseMatrix | None,
        weights: Weights,
        scaled: bool,
    ) -> Tensor:
        n, d = z.shape
        gram = _gram(z)
        maps, kept = maps_of_gram(gram, a_q, a_k, scaled)
        total, out = z.new_empty(n, 1), z.new_empty(n, d)
        upper, bias, under = maps[:d, :d].contiguous(), maps[d, :d], maps[:d, d].contiguous()
        for i in row_blocks(z):
            total[i] = safe_total(torch.addmv(maps[d, d:], z[i], under), n).unsqueeze(1)
            received = torch.addmm(bias, z[i], upper, out=out[i]).div_(total[i]).mul_(weights.latent)
            if weights.state:
                received.add_(z[i], alpha=weights.state)
            if source is not None:
                received.add_(source[i], alpha=weights.source)
        if matrix is not None:
            add_product(matrix.rows, z, out, alpha=weights.observed)
        ctx.save_for_backward(z, total, a_q, a_k, gram, maps, *kept)
        ctx.matrix, ctx.weights, ctx.source, ctx.scaled = matrix, weights, source is not None, scaled
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_differentiate(grad, *ctx.saved_tensors, ctx), None, None, None


def _gradients(
    grad: Tensor, z: Tensor, total: Tensor, a_q: Tensor, a_k: Tensor, gram: Tensor, maps: Tensor, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Of z, A_q, A_k and the source."""
    *kept, ctx = rest
    weights, (n, d) = ctx.weights, z.shape
    floor = smallest_total(n, total)
    upper, bias, under = maps[:d, :d].T.contiguous(), maps[d, :d], maps[:d, d].contiguous()
    z_grad = through_graph(grad, ctx.matrix, weights)
    upper_grad, bias_grad, under_grad, last = z.new_zeros(d, d), z.new_zeros(d), z.new_zeros(d), z.new_zeros(())
    for i in row_blocks(z):
        a = grad[i] / (total[i] / weights.latent)
        mapped = torch.mm(a, upper)
        # D = AᵀP = (Uᵀz̃)ᵀA / total from A Uᵀ, which ∂Z needs anyhow: P need not be kept.
        inner = (mapped * z[i]).sum(1).addmv_(a, bias).div_(total[i].squeeze(1)).neg_()
        inner.masked_fill_((total[i] == floor).squeeze(1), 0)  # a total that was clamped depends on nothing
        z_grad[i].add_(mapped).addcmul_(inner.unsqueeze(1), under)
        upper_grad.addmm_(z[i].T, a)
        bias_grad.add_(a.sum(0))
        under_grad.addmv_(z[i].T, inner)
        last.add_(inner.sum())
    maps_grad = torch.empty_like(maps)
    maps_grad[:d, :d], maps_grad[d, :d], maps_grad[:d, d], maps_grad[d, d] = upper_grad, bias_grad, under_grad, last
    q_grad, k_grad, both = maps_gradients(maps_grad, gram, a_q, a_k, tuple(kept), ctx.scaled)
    square, level = both[:d, :d].contiguous(), both[d, :d].contiguous()
    for i in row_blocks(z):
        z_grad[i].addmm_(z[i], square).add_(level)
    return z_grad, q_grad, k_grad, grad * weights.source if ctx.source else None


_differentiate = once_differentiated(_gradients)


def gram_step(
    z: Tensor,
    query: nn.Linear,
    key: nn.Linear | None,
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
    a_q = augmented(query.weight, query.bias)
    a_k = a_q if key is None else augmented(key.weight, key.bias)
    return _GramStep.apply(z, a_q, a_k, source, matrix, weights, scaled)
