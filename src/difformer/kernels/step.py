r"""A whole step of simple diffusion as one operator, in torch's operations, on any device.

For graphs that are too large for `difformer.kernels.layer_node`, which keeps all it computes.

.. math::
    Z^{+}_i = a z_i + b P_i + c \sum_j s_{ij} v_j + s z^{(0)}_i .

`unit_step` serves unit queries and keys. With q = q̂/‖q̂‖, q̂ = W_q z + b_q (k likewise), v = W_v z + b_v or z, and
M = Σ_j k_j v_jᵀ, κ = Σ_j k_j, ν = Σ_j v_j,

.. math::
    P_i = \frac{ν + M^\top q_i}{N + κ^\top q_i} .

A first walk over the rows makes the sums, a second one answers the queries; backward, one walk gives the gradients of
queries and sums, one those of keys and values. Queries, keys and values exist for one block of rows at a time and are
worked out again backward, so that a layer keeps its states and one number per row.

`gram_step` serves queries and keys that are linear in the states, and values that are the states. With G the Gram
matrix of z̃ = [z, 1], A = [W, b] and γ one over the norms of Q and K (`difformer.kernels.gram`),

.. math::
    P_i = \frac{U^\top \tilde z_i}{u^\top \tilde z_i}, \qquad [U, u] = γ A_q^\top A_k G + e \, (G e)^\top ,

and backward, with Ḡ the gradient of G, :math:`A_i = b \, ∂Z^{+}_i / u^\top \tilde z_i` and
:math:`D_i = A_i^\top U^\top \tilde z_i / u^\top \tilde z_i`,

.. math::
    ∂U = \tilde Z^\top A, \quad ∂u = -\tilde Z^\top D, \quad
    ∂Z = a \, ∂Z^{+} + c \, S^\top ∂Z^{+} + A U^\top - D u^\top + Z (\bar G + \bar G^\top).

Both differentiate once, and tests compare them with the formula of `difformer.nn.conv`. On a CPU rows are taken in
blocks that stay in the cache; on a GPU the step is one node of the autograd graph instead of a dozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from difformer.attention.reference import safe_total, smallest_total
from difformer.kernels.gram import SMALLEST_SQUARE, augmented
from difformer.kernels.rows import pull_unit, unit_and_norm
from difformer.shortcut import once_differentiated
from difformer.sparse import SparseMatrix, add_product

CACHED = 1 << 16  # elements of a block for each thread: several arrays of them fit the second level of cache

Map = tuple[Tensor, Tensor]


class Weights(NamedTuple):
    """a, b, c and s of the equation; without a matrix S is the identity."""

    state: float
    latent: float
    observed: float
    source: float = 0.0


def row_blocks(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of ``x [N, d]``; all of them at once on other devices than a CPU."""
    n, d = x.shape
    step = n
    if x.device.type == "cpu":
        step = max(CACHED * torch.get_num_threads() // max(d, 1), 64)
    for i in range(0, n, max(step, 1)):
        yield slice(i, i + step)


def through_graph(grad: Tensor, matrix: SparseMatrix | None, weights: Weights) -> Tensor:
    """a G + c SᵀG, a new array: what reaches the states along the first and third term."""
    if matrix is None:
        return grad * (weights.state + weights.observed)
    out = torch.empty_like(grad)
    add_product(matrix.columns, grad, out, beta=0, alpha=weights.observed)
    return out if weights.state == 0 else out.add_(grad, alpha=weights.state)


def _unit(z: Tensor, layer: Map) -> tuple[Tensor, Tensor]:
    """Unit rows of what a map gives, and the norms they had."""
    weight, bias = layer
    return unit_and_norm(torch.addmm(bias, z, weight.T))


class _Gradients:
    """Sums over blocks for the parameters of one map."""

    def __init__(self, layer: Map) -> None:
        self.layer, self.weight, self.bias = layer, *(torch.zeros_like(x) for x in layer)

    def add(self, grad: Tensor, z: Tensor, z_grad: Tensor) -> None:
        """What the gradient ``grad [n, c]`` of the map's output adds to all that went into it."""
        self.weight.addmm_(grad.T, z)
        self.bias.add_(grad.sum(0))
        z_grad.addmm_(grad, self.layer[0])


class _UnitStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        source: Tensor | None,
        matrix: SparseMatrix | None,
        weights: Weights,
        tied: bool,
        *parameters: Tensor,
    ) -> Tensor:
        query, key, value = _maps(parameters, tied)
        n, c = z.shape[0], query[0].shape[0]
        outer, keys, values = z.new_zeros(c, c), z.new_zeros(c), z.new_zeros(c)
        kept = z.new_empty(n, c) if value is not None and weights.observed else None
        for i in row_blocks(z):
            k, _ = _unit(z[i], key)
            v = z[i] if value is None else torch.addmm(value[1], z[i], value[0].T)
            outer.addmm_(k.T, v)
            keys.add_(k.sum(0))
            values.add_(v.sum(0))
            if kept is not None:
                kept[i] = v
        total, out = z.new_empty(n, 1), z.new_empty(n, c)
        for i in row_blocks(z):
            q, _ = _unit(z[i], query)
            total[i] = safe_total(torch.mv(q, keys).add_(n), n).unsqueeze(1)
            received = torch.addmm(values, q, outer, out=out[i]).div_(total[i]).mul_(weights.latent)
            if weights.state:
                received.add_(z[i], alpha=weights.state)
            if weights.observed and matrix is None:
                received.add_((z if kept is None else kept)[i], alpha=weights.observed)
            if source is not None:
                received.add_(source[i], alpha=weights.source)
        if matrix is not None:
            add_product(matrix.rows, z if kept is None else kept, out, alpha=weights.observed)
        ctx.save_for_backward(z, total, outer, keys, values, *parameters)
        ctx.matrix, ctx.weights, ctx.source, ctx.tied = matrix, weights, source is not None, tied
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z_grad, source, *parameters = _differentiate_unit(grad, *ctx.saved_tensors, ctx)
        return z_grad, source, None, None, None, *parameters


def _maps(parameters: tuple[Tensor, ...], tied: bool) -> tuple[Map, Map, Map | None]:
    """Weight and bias of queries, keys and values."""
    pairs = [(parameters[i], parameters[i + 1]) for i in range(0, len(parameters), 2)]
    query, key, rest = (pairs[0], pairs[0], pairs[1:]) if tied else (pairs[0], pairs[1], pairs[2:])
    return query, key, rest[0] if rest else None


def _unit_gradients(
    grad: Tensor, z: Tensor, total: Tensor, outer: Tensor, keys: Tensor, values: Tensor, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Of z, the source and the parameters."""
    *parameters, ctx = rest
    weights, floor = ctx.weights, smallest_total(z.shape[0], total)
    maps = _maps(tuple(parameters), ctx.tied)
    query = _Gradients(maps[0])
    key = query if ctx.tied else _Gradients(maps[1])
    value = None if maps[2] is None else _Gradients(maps[2])
    observed = None
    if value is None:
        z_grad = through_graph(grad, ctx.matrix, weights)
    else:
        z_grad = grad * weights.state if weights.state else torch.zeros_like(z)
        observed = through_graph(grad, ctx.matrix, weights._replace(state=0.0)) if weights.observed else None
    outer_grad, keys_grad, values_grad = torch.zeros_like(outer), torch.zeros_like(keys), torch.zeros_like(values)
    for i in row_blocks(z):
        q, norm = _unit(z[i], maps[0])
        a = grad[i] / (total[i] / weights.latent)
        q_grad = torch.mm(a, outer.T)
        inner = (q_grad * q).sum(1).addmv_(a, values).div_(total[i].squeeze(1))
        inner.masked_fill_((total[i] == floor).squeeze(1), 0)  # a total that was clamped depends on nothing
        q_grad.addcmul_(inner.unsqueeze(1), keys, value=-1)
        outer_grad.addmm_(q.T, a)
        keys_grad.addmv_(q.T, inner, alpha=-1)
        values_grad.add_(a.sum(0))
        query.add(pull_unit(q_grad, q, norm), z[i], z_grad[i])
    for i in row_blocks(z):
        k, norm = _unit(z[i], maps[1])
        v = z[i] if value is None else torch.addmm(value.layer[1], z[i], value.layer[0].T)
        v_grad = torch.addmm(values_grad, k, outer_grad)
        if observed is not None:
            v_grad.add_(observed[i])
        key.add(pull_unit(torch.addmm(keys_grad, v, outer_grad.T), k, norm), z[i], z_grad[i])
        if value is None:
            z_grad[i].add_(v_grad)
        else:
            value.add(v_grad, z[i], z_grad[i])
    found = [query] + ([] if ctx.tied else [key]) + ([] if value is None else [value])
    source = grad * weights.source if ctx.source else None
    return z_grad, source, *(x for each in found for x in (each.weight, each.bias))


_differentiate_unit = once_differentiated(_unit_gradients)


def unit_step(
    z: Tensor,
    query: nn.Linear,
    key: nn.Linear | None,
    value: nn.Linear | None,
    source: Tensor | None,
    matrix: SparseMatrix | None,
    weights: Weights,
) -> Tensor:
    """Z⁺ of one head, ``[N, d]`` → ``[N, c]``; differentiates once.

    Args:
        z: States of one graph.
        query, key, value: The layer's maps; no key means that keys are the queries, no value that values are states.
        source: Z⁰, where there is a source.
        matrix: Observed structure, where there is one.
        weights: Of the four terms.
    """
    parameters = [x for layer in (query, key, value) if layer is not None for x in (layer.weight, layer.bias)]
    return _UnitStep.apply(z, source, matrix, weights, key is None, *parameters)


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
        own = weights.state + (weights.observed if matrix is None else 0)
        for i in row_blocks(z):
            total[i] = safe_total(torch.addmv(maps[d, d:], z[i], under), n).unsqueeze(1)
            received = torch.addmm(bias, z[i], upper, out=out[i]).div_(total[i]).mul_(weights.latent)
            if own:
                received.add_(z[i], alpha=own)
            if source is not None:
                received.add_(source[i], alpha=weights.source)
        if matrix is not None:
            add_product(matrix.rows, z, out, alpha=weights.observed)
        ctx.save_for_backward(z, total, a_q, a_k, gram, maps, *kept)
        ctx.matrix, ctx.weights, ctx.source, ctx.scaled = matrix, weights, source is not None, scaled
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_differentiate_gram(grad, *ctx.saved_tensors, ctx), None, None, None


def _gram_gradients(
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


_differentiate_gram = once_differentiated(_gram_gradients)


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
