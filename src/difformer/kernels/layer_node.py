r"""A whole layer as one node of the autograd graph, made of few torch operations, for graphs of moderate size.

On small graphs a GPU waits for Python: what counts is the number of operations, not their size. Step, LayerNorm, ReLU
and dropout are one `torch.autograd.Function`. The three maps are one product, with columns of ones between them,

.. math::
    B = [V, 1, \hat K, 1, \hat Q] = Z W^\top + b, \qquad K = \hat K / ‖\hat K‖, \; Q = \hat Q / ‖\hat Q‖ ,

so that with :math:`K_1 = [1, K]`, :math:`Q_1 = [1, Q]` and :math:`V_1 = [V, 1]` numerators and row sums of the latent
term come from the same products:

.. math::
    R = Q_1 (K_1^\top V_1) \;\text{(simple)}, \qquad R = σ(Q K^\top) V_1 \;\text{(sigmoid)}, \qquad
    P = R_{:c} / R_c , \qquad Z^{+} = a Z + b P + c \, S V + s Z^{(0)} .

Backward, with A = b ∂Z⁺ / R_c and D = A · P per row, ∂R = [A, -D]; everything else is the transpose of a product. B, P
and, for sigmoid, all pairs are kept, so larger graphs take `difformer.kernels.step` or the formula.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from difformer.attention.scores import SMALLEST_MEAN_EXCHANGE
from difformer.kernels.rows import SMALLEST_NORM
from difformer.kernels.step import Weights
from difformer.shortcut import once_differentiated
from difformer.sparse import SparseMatrix, add_product

# What is kept for the backward pass: elements of the states, and pairs. On a CPU they should stay in the cache.
MOST_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 22}
MOST_PAIRS = {"cpu": 1 << 16, "cuda": 1 << 23}


def is_small(form: str | None, rows: int, channels: int, device: torch.device) -> bool:
    """Whether what the node keeps is small; other devices than CPU and CUDA take the formula."""
    pairs = rows * rows if form == "sigmoid" else 0
    kind = device.type
    return 0 < rows * channels <= MOST_ELEMENTS.get(kind, 0) and pairs <= MOST_PAIRS.get(kind, 0)


class NodePlan(NamedTuple):
    """What a node does.

    Args:
        weights: a, b, c and s of the equation; c weighs the values themselves where there is no matrix.
        matrix: S.
        pairs: Whether g is the logistic function of all pairs; otherwise g(x) = 1 + x.
        tied: Whether keys are the queries.
        transform: Whether there is a map of values.
        eps: Of the LayerNorm; None without one.
        relu: Whether ReLU follows.
        rate: Of dropout drawn from torch's generator.
    """

    weights: Weights
    matrix: SparseMatrix | None
    pairs: bool
    tied: bool
    transform: bool
    eps: float | None = None
    relu: bool = False
    rate: float = 0.0


@functools.lru_cache(maxsize=32)
def _between(channels: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Weight and bias of a column of ones."""
    with torch.inference_mode(False):
        return torch.zeros(1, channels, dtype=dtype, device=device), torch.ones(1, dtype=dtype, device=device)


def _stacked_maps(parameters: tuple[Tensor, ...], plan: NodePlan) -> tuple[Tensor, Tensor]:
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


class _LayerNode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: NodePlan, z: Tensor, source: Tensor | None, mask: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        norm: tuple[Tensor, ...] = ()
        if plan.eps is not None:
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
        if plan.eps is not None:
            step = out
            out, shift, scale = torch.native_layer_norm(step, (width,), norm[0], norm[1], plan.eps)
        if plan.relu:
            out = out.relu_()
        active = out if plan.relu else None
        if plan.rate:
            out, mask = _drop(out, plan.rate)
        elif mask is not None:
            out = out * mask
        ctx.save_for_backward(z, maps, lengths, inner, received, weight, step, shift, scale, active, mask, *norm)
        ctx.plan, ctx.source = plan, source is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_differentiate(grad, *ctx.saved_tensors, ctx))


def _drop(x: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Dropout as `torch.nn.functional.dropout` draws it, and its mask."""
    if x.is_cuda:
        return torch.native_dropout(x, rate, True)
    mask = torch.empty_like(x).bernoulli_(1 - rate).div_(1 - rate)
    return x * mask, mask


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
        drawn = plan.rate and mask.dtype == torch.bool
        grad = torch.ops.aten.native_dropout_backward(grad, mask, 1 / (1 - plan.rate)) if drawn else grad * mask
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


def layer_node(
    plan: NodePlan,
    z: Tensor,
    source: Tensor | None,
    mask: Tensor | None,
    norm: tuple[Tensor, ...],
    parameters: tuple[Tensor, ...],
) -> Tensor:
    """Z⁺ with norm, ReLU and dropout of one head, ``[N, d]`` → ``[N, c]``; differentiates once.

    Args:
        plan: What the layer does.
        z: States of one graph.
        source: Z⁰, where there is a source.
        mask: What the outputs are multiplied by, where dropout is not drawn here.
        norm: Weight and bias of the LayerNorm, where there is one.
        parameters: Weight and bias of queries, keys (unless tied) and values (unless they are the states).
    """
    return _LayerNode.apply(plan, z, source, mask, *norm, *parameters)
