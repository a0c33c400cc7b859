r"""A whole layer of simple diffusion by kernels in C: step, norm, activation and dropout at once; and the input layer.

.. math::
    Z^{+} = m ⊙ σ(\mathrm{LayerNorm}(a Z + b P + c \, S V + s Z^{(0)})),

with P of unit queries and keys, as in `difformer.kernels.gpu_layer`, or of ones that are linear in the states, as in
`difformer.kernels.gram`. Four passes over the rows: sums over keys, answers to queries; backward, gradients of the
answers and of the sums, then those of keys and values. A layer keeps Z, the normalised rows and two numbers per row.

The input layer is a product, then bias, norm, ReLU and dropout in one pass,

.. math::
    Z^{(0)} = m ⊙ \mathrm{ReLU}(\mathrm{LayerNorm}(X W^\top + b)).

The product is torch's, or that of a sparse matrix; its rows are overwritten with the normalised ones, which is all that
is kept besides the input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from difformer.diffusivity import SMALLEST_MEAN_EXCHANGE
from difformer.kernels import MaskKey, Plan, Some, Tail
from difformer.kernels.cpu.passes import Pair, gram_backward, gram_forward, packed, padded, run, space
from difformer.shortcut import once_differentiated
from difformer.sparse import CSR, SparseMatrix, add_product


def tail_fields(tail: Tail, weight: Some, bias: Some) -> dict[str, Any]:
    """What follows a step, for the kernels."""
    found: dict[str, Any] = {"relu": int(tail.relu), "norm": weight, "norm_bias": bias, "eps": tail.eps}
    return found if tail.mask is None else found | {"drop": 1, **tail.mask._asdict()}


def _fields(plan: Plan, rows: int, edges: CSR | None) -> dict[str, Any]:
    names = ("state", "latent", "observed", "from_source")
    found: dict[str, Any] = dict(zip(names, plan.weights, strict=True)) | {"floor": SMALLEST_MEAN_EXCHANGE * rows}
    return found if edges is None else found | {"crow": edges.crow, "col": edges.col, "entry": edges.value}


def _map(which: Pair | None, name: str, *, back: bool = False) -> dict[str, Any]:
    """The fields of one map, by the name that the kernels give it."""
    if which is None:
        return {}
    weight, bias = which
    short = name.removesuffix("_map")
    found = {name: packed(weight.T), f"{short}_bias": packed(bias)}
    return found | {f"{short}_back": packed(weight)} if back else found


def _maps(plan: Plan, parameters: tuple[Tensor, ...]) -> tuple[Pair, Pair, Pair | None]:
    """Weight and bias of queries, keys and values."""
    pairs = [(parameters[i], parameters[i + 1]) for i in range(0, len(parameters), 2)]
    return pairs[0], pairs[0 if plan.tied else 1], pairs[-1] if plan.transform else None


def _forward(
    z: Tensor, source: Some, norm: tuple[Some, Some], plan: Plan, parameters: tuple[Tensor, ...], keep: bool
) -> tuple[Tensor, list[Some]]:
    """Z⁺, and what the gradient needs of it: nothing where it is not to be kept."""
    (query, key, value), (n, d), c = _maps(plan, parameters), z.shape, parameters[0].shape[0]
    width, wide, linear = padded(c), padded(d), plan.qk_norm != "row"
    keys = {} if linear else _map(key, "key_map")
    outer, keys_sum, states = run("sum_rows", n, d, c, sums=(c * wide, width, wide), z=z, **keys)
    fields: dict[str, Any]
    if linear:
        found, small = gram_forward(outer, states, n, query, key, scaled=plan.qk_norm == "global")
        fields = {"outer": found[0], "keys": found[1], "values": found[2], "count": found[3][0].item()}
        kept = [*found[:3], small]
    else:
        outer, values = outer.view(c, wide), states
        if value is not None:  # v = W z + b: Σ k vᵀ and Σ v from Σ k zᵀ, Σ k and Σ z
            weight, bias = value
            outer = packed(torch.addmm(torch.outer(keys_sum[:c], bias), outer[:, :d], weight.T))
            values = packed(torch.addmv(bias, weight, states[:d], beta=n))
        fields = {"outer": outer, "keys": keys_sum, "values": values, "count": n}
        fields |= _map(query, "query") | _map(value, "value")
        kept = [outer, keys_sum, values]
    out = space(n, c)
    before = space(n, c) if keep and (plan.tail.eps is not None or plan.tail.relu) else None  # the activation
    total, inverse, normal = (space(n), space(n), before) if keep else (None, None, None)
    fields |= _fields(plan, n, None if plan.matrix is None else plan.matrix.rows) | tail_fields(plan.tail, *norm)
    run("answer_rows", n, d, c, z=z, source=source, out=out, total=total, inverse=inverse, kept=normal, **fields)
    return out, [total, inverse, normal, *kept] if keep else []


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, source: Some, weight: Some, bias: Some, plan: Plan, *parameters: Tensor) -> Tensor:
        out, kept = _forward(z, source, (weight, bias), plan, parameters, keep=True)
        ctx.plan, ctx.parameters, ctx.source = plan, len(parameters), source is not None
        ctx.save_for_backward(z, weight, bias, *parameters, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Some, ...]:
        return _gradients(grad, *ctx.saved_tensors, ctx)


@once_differentiated
def _gradients(grad: Tensor, z: Tensor, weight: Some, bias: Some, *rest: Any) -> tuple[Some, ...]:
    """Of z, the source, weight and bias of the norm, the plan (none) and the parameters."""
    *saved, ctx = rest
    plan, parameters = ctx.plan, tuple(saved[: ctx.parameters])
    total, inverse, normal, *kept = saved[ctx.parameters :]
    (query, key, value), (n, d), c = _maps(plan, parameters), z.shape, parameters[0].shape[0]
    width, wide, linear = padded(c), padded(d), plan.qk_norm != "row"
    x_grad, z_grad = space(n, c), space(n, d)
    sums = (width, width, c * width, width, width, 16, c * wide, width)
    outer, keys, values, *small = kept
    fields = {"outer_back": packed(outer.view(c, -1)[:, :c].T), "keys": keys, "values": values}
    fields |= {} if linear else _map(query, "query", back=True)
    fields |= _fields(plan, n, None) | tail_fields(plan.tail, weight, bias)
    given = {"z": z, "grad": grad.contiguous(), "total": total, "inverse": inverse, "kept": normal}
    rows = {"x_grad": x_grad, "z_grad": z_grad}
    w_grad, b_grad, outer, keys, values, count, map_grad, map_bias = run(
        "pull_answers", n, d, c, sums=sums, **given, **rows, **fields
    )
    norm_grads = (None, None) if weight is None else (w_grad[:c], b_grad[:c])
    source = x_grad * plan.weights.source if ctx.source else None
    fields = _fields(plan, n, None if plan.matrix is None else plan.matrix.columns)
    if linear:
        grads = (outer, keys, values, count)
        square, level, trained = gram_backward(grads, small[0], query, key, scaled=plan.qk_norm == "global")
        run("pull_keys", n, d, c, sums=(c * wide, width) * 2, z=z, outer=square, values=level, **rows, **fields)
        if plan.tied:
            trained = [trained[0] + trained[2], trained[1] + trained[3]]
        return z_grad, source, *norm_grads, None, *trained
    fields |= {"outer": outer, "values": values, **_map(key, "key_map", back=True)}
    back, level = outer.view(c, width)[:, :c], keys
    if value is not None:  # ∂M v + ∂κ as a map of z
        v_weight, v_bias = value
        back, level = back @ v_weight, packed(torch.addmv(keys[:c], back, v_bias))
        fields["value_back"] = packed(v_weight)
    fields |= {"outer_back": packed(back.T), "keys": level}
    sizes = (c * wide, width) * 2
    key_grad, key_bias, value_grad, value_bias = run("pull_keys", n, d, c, sums=sizes, z=z, **rows, **fields)
    pairs = [(map_grad, map_bias), (key_grad, key_bias)]
    if plan.tied:
        pairs = [(map_grad + key_grad, map_bias + key_bias)]
    if value is not None:
        pairs.append((value_grad, value_bias))
    shaped = (x for weight_grad, bias_grad in pairs for x in (weight_grad.view(c, wide)[:, :d], bias_grad[:c]))
    return z_grad, source, *norm_grads, None, *shaped


def tracks(*tensors: Some) -> bool:
    """Whether a gradient may be asked for; otherwise nothing is kept."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def fused_layer(
    z: Tensor, source: Some, norm: nn.LayerNorm | None, plan: Plan, parameters: tuple[Tensor, ...]
) -> Tensor:
    """Z⁺ of one head, ``[N, d]`` → ``[N, c]``; differentiates once. `norm` is that of the plan's tail."""
    z, source = z.contiguous(), None if source is None else source.contiguous()
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    if tracks(z, source, weight, bias, *parameters):
        return _Layer.apply(z, source, weight, bias, plan, *parameters)
    return _forward(z, source, (weight, bias), plan, parameters, keep=False)[0]


def _forward_input(
    x: Tensor | SparseMatrix, weight: Tensor, bias: Tensor, norm: tuple[Some, Some], tail: Tail, keep: bool
) -> tuple[Tensor, Some, Some]:
    """Z⁰; the rows before the activation and one over their deviations, where they are to be kept."""
    n, c = x.shape[0], weight.shape[0]
    rows = space(n, c)
    out = space(n, c) if keep else rows  # rows that are not kept are overwritten
    if isinstance(x, SparseMatrix):
        add_product(x.rows, weight.T.contiguous(), rows, beta=0)
    else:
        torch.mm(x, weight.T, out=rows)
    kept, inverse = (rows, space(n)) if keep else (None, None)
    run("finish_rows", n, c, c, z=rows, shift=bias, out=out, kept=kept, inverse=inverse, **tail_fields(tail, *norm))
    return out, kept, inverse


class _Input(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Some, matrix: Any, weight: Tensor, bias: Tensor, norm: Some, norm_bias: Some, tail: Tail
    ) -> Tensor:
        out, *kept = _forward_input(matrix if x is None else x, weight, bias, (norm, norm_bias), tail, keep=True)
        ctx.save_for_backward(x, weight, norm, norm_bias, *kept)
        ctx.matrix, ctx.tail = matrix, tail
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Some, ...]:
        return _input_gradients(grad, *ctx.saved_tensors, ctx)


@once_differentiated
def _input_gradients(
    grad: Tensor, x: Some, weight: Tensor, norm: Some, norm_bias: Some, rows: Tensor, inverse: Some, ctx: Any
) -> tuple[Some, ...]:
    """Of the features, the matrix (none), weight and bias of the map, those of the norm, the tail (none)."""
    n, c = rows.shape
    out, sums = space(n, c), (padded(c),) * 3
    fields = tail_fields(ctx.tail, norm, norm_bias)
    given = {"grad": grad.contiguous(), "kept": rows, "inverse": inverse, "x_grad": out}
    w_grad, b_grad, shift = (found[:c] for found in run("pull_finish", n, c, c, sums=sums, **given, **fields))
    x_grad = out @ weight if ctx.needs_input_grad[0] else None
    if x is None:
        weight_grad = add_product(ctx.matrix.columns, out, out.new_empty(weight.shape[1], c), beta=0).T
    else:
        weight_grad = out.T @ x
    return x_grad, None, weight_grad, shift, *((None, None) if norm is None else (w_grad, b_grad)), None


def fused_input(layer: nn.Linear, norm: nn.LayerNorm | None, x: Tensor | SparseMatrix, mask: MaskKey | None) -> Tensor:
    """Z⁰ ``[N, c]`` from features ``[N, d]``, where `difformer.kernels.fused.why_not_fused_input` finds no reason."""
    tail = Tail(None if norm is None else norm.eps, True, mask)
    scale = (None, None) if norm is None else (norm.weight, norm.bias)
    given = (None, x) if isinstance(x, SparseMatrix) else (x, None)
    if tracks(given[0], layer.weight, layer.bias, *scale):
        return _Input.apply(*given, layer.weight, layer.bias, *scale, tail)
    return _forward_input(x, layer.weight, layer.bias, scale, tail, keep=False)[0]
