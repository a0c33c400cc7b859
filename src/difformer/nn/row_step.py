r"""A whole step of simple diffusion with unit queries and keys, worked out block by block of rows.

.. math::
    Z^{+}_i = a z_i + b \frac{ν + M^\top q_i}{N + κ^\top q_i} + c \sum_j s_{ij} v_j + s z^{(0)}_i, \qquad
    q = \frac{\hat q}{‖\hat q‖}, \; \hat q = W_q z + b_q \;\text{(k likewise)}, \quad v = W_v z + b_v \;\text{or}\; z,

with M = Σ_j k_j v_jᵀ, κ = Σ_j k_j, ν = Σ_j v_j. A first walk over the rows makes the sums, a second one answers the
queries; backward, one walk gives the gradients of queries and sums, one those of keys and values. Queries, keys and
values exist for one block at a time and are worked out again backward, so that what a layer keeps is its states and one
number a row, and what it reads and writes is mostly in the cache. The gradients are those of
`difformer.attention.linear` and of `difformer.nn.unit`; tests compare with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention.once import once_differentiated
from difformer.attention.reference import safe_total, smallest_total
from difformer.nn.blocks import row_blocks
from difformer.nn.mixing import Weights, through_graph
from difformer.nn.unit import SMALLEST_NORM
from difformer.sparse import SparseMatrix, add_product

Map = tuple[Tensor, Tensor]


def _unit(z: Tensor, layer: Map) -> tuple[Tensor, Tensor]:
    """Unit rows of what a map gives, and the norms they had."""
    weight, bias = layer
    out = torch.addmm(bias, z, weight.T)
    norm = torch.linalg.vector_norm(out, dim=1, keepdim=True).clamp_min_(SMALLEST_NORM)
    return out.div_(norm), norm


def _pull_unit(grad: Tensor, unit: Tensor, norm: Tensor) -> Tensor:
    """The gradient of rows from that of their unit rows; overwrites it."""
    inner = (grad * unit).sum(1, keepdim=True)
    return grad.addcmul_(unit, inner, value=-1).div_(norm)


class _Gradients:
    """Sums over blocks for the parameters of one map."""

    def __init__(self, layer: Map) -> None:
        self.layer, self.weight, self.bias = layer, *(torch.zeros_like(x) for x in layer)

    def add(self, grad: Tensor, z: Tensor, z_grad: Tensor) -> None:
        """What the gradient ``grad [n, c]`` of the map's output adds to all that went into it."""
        self.weight.addmm_(grad.T, z)
        self.bias.add_(grad.sum(0))
        z_grad.addmm_(grad, self.layer[0])


class _RowStep(torch.autograd.Function):
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
        kept = z.new_empty(n, c) if value is not None and matrix is not None else None
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
            if source is not None:
                received.add_(source[i], alpha=weights.source)
        if matrix is not None:
            add_product(matrix.rows, z if kept is None else kept, out, alpha=weights.observed)
        ctx.save_for_backward(z, total, outer, keys, values, *parameters)
        ctx.matrix, ctx.weights, ctx.source, ctx.tied = matrix, weights, source is not None, tied
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z_grad, source, *parameters = _differentiate(grad, *ctx.saved_tensors, ctx)
        return z_grad, source, None, None, None, *parameters


def _maps(parameters: tuple[Tensor, ...], tied: bool) -> tuple[Map, Map, Map | None]:
    """Weight and bias of queries, keys and values."""
    pairs = [(parameters[i], parameters[i + 1]) for i in range(0, len(parameters), 2)]
    query, key, rest = (pairs[0], pairs[0], pairs[1:]) if tied else (pairs[0], pairs[1], pairs[2:])
    return query, key, rest[0] if rest else None


def _gradients(
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
    if value is None or ctx.matrix is None:
        z_grad = through_graph(grad, ctx.matrix, weights) if weights.state or value is None else torch.zeros_like(z)
    else:
        z_grad = grad * weights.state if weights.state else torch.zeros_like(z)
        observed = through_graph(grad, ctx.matrix, replace(weights, state=0.0))
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
        query.add(_pull_unit(q_grad, q, norm), z[i], z_grad[i])
    for i in row_blocks(z):
        k, norm = _unit(z[i], maps[1])
        v = z[i] if value is None else torch.addmm(value.layer[1], z[i], value.layer[0].T)
        v_grad = torch.addmm(values_grad, k, outer_grad)
        if observed is not None:
            v_grad.add_(observed[i])
        key.add(_pull_unit(torch.addmm(keys_grad, v, outer_grad.T), k, norm), z[i], z_grad[i])
        if value is None:
            z_grad[i].add_(v_grad)
        else:
            value.add(v_grad, z[i], z_grad[i])
    found = [query] + ([] if ctx.tied else [key]) + ([] if value is None else [value])
    source = grad * weights.source if ctx.source else None
    return z_grad, source, *(x for each in found for x in (each.weight, each.bias))


_differentiate = once_differentiated(_gradients)


def row_step(
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
    return _RowStep.apply(z, source, matrix, weights, key is None, *parameters)
