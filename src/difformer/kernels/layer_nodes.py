r"""A whole layer as one node of the autograd graph, in torch's operations, on any device.

.. math::
    Z^{+} = m ⊙ σ(\mathrm{LayerNorm}(a Z + b P + c \, S V + s Z^{(0)})),

with unit queries q = q̂/‖q̂‖, q̂ = W_q z + b_q (keys k likewise), values v = W_v z + b_v or z, and

.. math::
    P_i = \frac{\sum_j g(q_i^\top k_j) v_j}{\sum_j g(q_i^\top k_j)} .

`LayerNode` is for graphs of moderate size, on which a GPU waits for Python: what counts is the number of operations,
not their size. The three maps are one product, with columns of ones between them,

.. math::
    B = [V, 1, \hat K, 1, \hat Q] = Z W^\top + b, \qquad K = \hat K / ‖\hat K‖, \; Q = \hat Q / ‖\hat Q‖ ,

so that with :math:`K_1 = [1, K]`, :math:`Q_1 = [1, Q]` and :math:`V_1 = [V, 1]` numerators and row sums of the latent
term come from the same products:

.. math::
    R = Q_1 (K_1^\top V_1) \;\text{(simple)}, \qquad R = σ(Q K^\top) V_1 \;\text{(sigmoid)}, \qquad P = R_{:c} / R_c .

Backward, with A = b ∂Z⁺ / R_c and D = A · P per row, ∂R = [A, -D]; everything else is the transpose of a product. B, P
and, for sigmoid, all pairs are kept.

`RowStep` is the step of `simple`, without what follows it, for any number of rows. With M = Σ_j k_j v_jᵀ, κ = Σ_j k_j
and ν = Σ_j v_j, :math:`P_i = (ν + M^\top q_i) / (N + κ^\top q_i)`. A first walk over the rows makes the sums, a second
one answers the queries; backward, one walk gives the gradients of queries and sums, one those of keys and values.
Queries, keys and values exist for one block of rows at a time and are worked out again backward, so that a layer keeps
its states and one number per row. On a CPU a block stays in the cache; on a GPU the step is one node of the autograd
graph instead of a dozen.

Both differentiate once, and tests compare them with the formula of `difformer.nn.conv`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from difformer.attention.reference import safe_total, smallest_total
from difformer.attention.scores import SMALLEST_MEAN_EXCHANGE
from difformer.kernels.rows import SMALLEST_NORM, drop, pull_unit, unit_and_norm
from difformer.shortcut import once_differentiated
from difformer.sparse import SparseMatrix, add_product

CACHED = 1 << 16  # elements of a block for each thread: several arrays of them fit the second level of cache
# What is kept for the backward pass: elements of the states, and pairs. On a CPU they should stay in the cache.
MOST_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 22}
MOST_PAIRS = {"cpu": 1 << 16, "cuda": 1 << 23}

Map = tuple[Tensor, Tensor]


class Weights(NamedTuple):
    """a, b, c and s of the equation; without a matrix S is the identity."""

    state: float
    latent: float
    observed: float
    source: float = 0.0


class MaskKey(NamedTuple):
    """All that a dropout mask follows from, for kernels that work it out by themselves.

    The first int16 that keeps an entry, 1 / (1 - p), the two halves of the key with the number of the dropout mixed in,
    and ``[N]`` int32 numbers of the rows, from 1 (None: 1 … N).
    """

    first: int
    scale: float
    key: int
    twin: int
    numbers: Tensor | None


class Tail(NamedTuple):
    """What follows a step: a LayerNorm (its ε; None without), ReLU, and dropout by a key or by torch's generator."""

    eps: float | None = None
    relu: bool = False
    mask: MaskKey | None = None
    rate: float = 0.0


class Plan(NamedTuple):
    """What a layer does beside its parameters.

    Args:
        weights: Of the four terms.
        matrix: S, where there is one.
        tail: What follows the step.
        pairs: Whether g is the logistic function of all pairs; otherwise g(x) = 1 + x.
        tied: Whether keys are the queries.
        transform: Whether there is a map of values.
        qk_norm: As in `DIFFormerConv`; unless it is ``"row"``, queries and keys are linear in the states.
    """

    weights: Weights
    matrix: SparseMatrix | None
    tail: Tail
    pairs: bool
    tied: bool
    transform: bool
    qk_norm: str

    def maps(self, parameters: tuple[Tensor, ...]) -> tuple[Map, Map, Map | None]:
        """Weight and bias of queries, keys and values."""
        pairs = [(parameters[i], parameters[i + 1]) for i in range(0, len(parameters), 2)]
        return pairs[0], pairs[0 if self.tied else 1], pairs[-1] if self.transform else None


def row_blocks(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of ``x [N, d]``; all of them at once on other devices than a CPU."""
    n, d = x.shape
    step = n
    if x.device.type == "cpu":
        step = max(CACHED * torch.get_num_threads() // max(d, 1), 64)
    for i in range(0, n, max(step, 1)):
        yield slice(i, i + step)


def _through_graph(grad: Tensor, matrix: SparseMatrix | None, weights: Weights) -> Tensor:
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


class RowStep(torch.autograd.Function):
    """Z⁺ of one head, ``[N, d]`` → ``[N, c]``, without the tail."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, z: Tensor, source: Tensor | None, *parameters: Tensor) -> Tensor:
        (query, key, value), weights, matrix = plan.maps(parameters), plan.weights, plan.matrix
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
        ctx.plan, ctx.source = plan, source is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_differentiate_step(grad, *ctx.saved_tensors, ctx)


def _step_gradients(
    grad: Tensor, z: Tensor, total: Tensor, outer: Tensor, keys: Tensor, values: Tensor, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Of z, the source and the parameters."""
    *parameters, ctx = rest
    plan, weights, floor = ctx.plan, ctx.plan.weights, smallest_total(z.shape[0], total)
    maps = plan.maps(tuple(parameters))
    query = _Gradients(maps[0])
    key = query if plan.tied else _Gradients(maps[1])
    value = None if maps[2] is None else _Gradients(maps[2])
    observed = None
    if value is None:
        z_grad = _through_graph(grad, plan.matrix, weights)
    else:
        z_grad = grad * weights.state if weights.state else torch.zeros_like(z)
        observed = _through_graph(grad, plan.matrix, weights._replace(state=0.0)) if weights.observed else None
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
    found = [query] + ([] if plan.tied else [key]) + ([] if value is None else [value])
    source = grad * weights.source if ctx.source else None
    return z_grad, source, *(x for each in found for x in (each.weight, each.bias))


_differentiate_step = once_differentiated(_step_gradients)


def is_small(form: str | None, rows: int, channels: int, device: torch.device) -> bool:
    """Whether what the node keeps is small; other devices than CPU and CUDA take the formula."""
    pairs = rows * rows if form == "sigmoid" else 0
    kind = device.type
    return 0 < rows * channels <= MOST_ELEMENTS.get(kind, 0) and pairs <= MOST_PAIRS.get(kind, 0)


@functools.lru_cache(maxsize=32)
def _between(channels: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Weight and bias of a column of ones."""
    with torch.inference_mode(False):
        return torch.zeros(1, channels, dtype=dtype, device=device), torch.ones(1, dtype=dtype, device=device)


def _stacked_maps(parameters: tuple[Tensor, ...], plan: Plan) -> tuple[Tensor, Tensor]:
    """W and b of B, without the values where they are the states."""
    query_weight, query_bias = parameters[:2]
    none, one = _between(query_weight.shape[1], query_weight.dtype, query_weight.device)
    weights, biases = [none, query_weight], [one, query_bias]
    if not plan.tied:
        weights, biases = [none, parameters[2], *weights], [one, parameters[3], *biases]
    if plan.transform:
        weights, biases = [parameters[-2], *weights], [parameters[-1], *biases]
    return torch.cat(weights), torch.cat(biases)


def _units(maps: Tensor, width: int) -> Tensor:
    """Keys and queries of B, ``[N, 2 or 1, c]``, as a view."""
    rows, columns = maps.shape
    return maps.as_strided((rows, (columns - width) // (width + 1), width), (columns, width + 1, 1), width + 1)


class LayerNode(torch.autograd.Function):
    """Z⁺ with norm, ReLU and dropout of one head; `mask` multiplies the outputs, parameters of the norm come first."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, z: Tensor, source: Tensor | None, mask: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        norm: tuple[Tensor, ...] = ()
        if plan.tail.eps is not None:
            norm, parameters = parameters[:2], parameters[2:]
        (a, b, c, s), n, width = plan.weights, z.shape[0], parameters[0].shape[0]
        weight, bias = _stacked_maps(parameters, plan)
        if plan.transform:
            maps = torch.addmm(bias, z, weight.T)
            v = maps[:, :width]
        else:
            maps = z.new_empty(n, width + bias.shape[0])
            maps[:, :width] = v = z
            torch.addmm(bias, z, weight.T, out=maps[:, width:])
        units = _units(maps, width)
        lengths = torch.linalg.vector_norm(units, dim=2, keepdim=True).clamp_min_(SMALLEST_NORM)
        units.div_(lengths)
        if plan.pairs:
            inner = torch.mm(units[:, -1], units[:, 0].T).sigmoid_()
            received = torch.mm(inner, maps[:, : width + 1])
        else:
            inner = torch.mm(maps[:, width : 2 * width + 1].T, maps[:, : width + 1])
            received = torch.mm(maps[:, -width - 1 :], inner)
        total = received[:, width:]
        if not plan.pairs:
            total.clamp_min_(SMALLEST_MEAN_EXCHANGE * n)
        mean = received[:, :width].div_(total)
        out = mean * b
        if plan.matrix is not None:
            add_product(plan.matrix.rows, v, out, alpha=c)
        elif c:
            out.add_(v, alpha=c)
        if a:
            out.add_(z, alpha=a)
        if source is not None:
            out.add_(source, alpha=s)
        step = shift = scale = None
        if plan.tail.eps is not None:
            step = out
            out, shift, scale = torch.native_layer_norm(step, (width,), norm[0], norm[1], plan.tail.eps)
        if plan.tail.relu:
            out = out.relu_()
        active = out if plan.tail.relu else None
        if plan.tail.rate:
            out, mask = drop(out, plan.tail.rate)
        elif mask is not None:
            out = out * mask
        ctx.save_for_backward(z, maps, lengths, inner, received, weight, step, shift, scale, active, mask, *norm)
        ctx.plan, ctx.source = plan, source is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_differentiate(grad, *ctx.saved_tensors, ctx))


def _gradients(
    grad: Tensor,
    z: Tensor,
    maps: Tensor,
    lengths: Tensor,
    inner: Tensor,
    received: Tensor,
    weight: Tensor,
    step: Tensor | None,
    shift: Tensor | None,
    scale: Tensor | None,
    active: Tensor | None,
    mask: Tensor | None,
    *rest: Any,
) -> tuple[Tensor | None, ...]:
    """Of z, the source, the mask (none) and the parameters."""
    *norm, ctx = rest
    plan = ctx.plan
    (a, b, c, s), width = plan.weights, z.shape[1] if not plan.transform else received.shape[1] - 1
    if mask is not None:
        drawn = plan.tail.rate and mask.dtype == torch.bool
        grad = torch.ops.aten.native_dropout_backward(grad, mask, 1 / (1 - plan.tail.rate)) if drawn else grad * mask
    if active is not None:
        grad = torch.ops.aten.threshold_backward(grad, active, 0)
    norm_grads: list[Tensor] = []
    if norm:
        backward = torch.ops.aten.native_layer_norm_backward
        grad, *norm_grads = backward(grad, step, (width,), shift, scale, *norm, [True, True, True])
    mean, total = received[:, :width], received[:, width:]
    received_grad = torch.empty_like(received)
    mean_grad = received_grad[:, :width]
    torch.div(grad, total, out=mean_grad).mul_(b)
    total_grad = torch.sum(mean_grad * mean, 1, keepdim=True, out=received_grad[:, width:]).neg_()
    if not plan.pairs:
        total_grad.masked_fill_(total <= SMALLEST_MEAN_EXCHANGE * z.shape[0], 0)  # what was clamped depends on nothing
    left, right, query = maps[:, width : 2 * width + 1], maps[:, : width + 1], maps[:, -width - 1 :]
    maps_grad = torch.zeros_like(maps)
    v_grad, keys_grad, query_grad = (
        maps_grad[:, :width], maps_grad[:, width : 2 * width + 1], maps_grad[:, -width - 1 :]
    )  # fmt: skip
    if plan.pairs:
        scores_grad = torch.mm(received_grad, right.T)
        torch.ops.aten.sigmoid_backward.grad_input(scores_grad, inner, grad_input=scores_grad)
        torch.mm(inner.T, mean_grad, out=v_grad)
        torch.mm(scores_grad, left, out=query_grad)
        keys_grad.addmm_(scores_grad.T, query)
    else:
        inner_grad = torch.mm(query.T, received_grad)
        torch.mm(left, inner_grad[:, :width], out=v_grad)
        torch.mm(received_grad, inner.T, out=query_grad)
        keys_grad.addmm_(right, inner_grad.T)
    if plan.matrix is not None:
        v_grad.add_(add_product(plan.matrix.columns, grad, torch.empty_like(grad), beta=0, alpha=c))
    elif c:
        v_grad.add_(grad, alpha=c)
    units, units_grad = _units(maps, width), _units(maps_grad, width)
    along = torch.sum(units_grad * units, 2, keepdim=True)
    units_grad.addcmul_(units, along, value=-1).div_(lengths)
    mapped = maps_grad if plan.transform else maps_grad[:, width:]
    weight_grad, bias_grad = torch.mm(mapped.T, z), mapped.sum(0)
    z_grad = torch.addmm(grad, mapped, weight, beta=a) if a else torch.mm(mapped, weight)
    if not plan.transform:
        z_grad.add_(v_grad)
    sizes = [*([width] if plan.transform else []), *[1, width] * units.shape[1]]
    pairs = list(zip(weight_grad.split(sizes), bias_grad.split(sizes), strict=True))
    chosen = [pairs[-1]] + ([] if plan.tied else [pairs[-3]]) + ([pairs[0]] if plan.transform else [])
    found = [x for pair in chosen for x in pair]
    return z_grad, grad * s if ctx.source else None, None, *norm_grads, *found


_differentiate = once_differentiated(_gradients)
