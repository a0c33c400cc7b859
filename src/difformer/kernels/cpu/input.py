r"""The input layer by kernels in C: a product, then bias, norm, ReLU and dropout in one pass.

.. math::
    Z^{(0)} = m ⊙ \mathrm{ReLU}(\mathrm{LayerNorm}(X W^\top + b)).

The product is torch's, or that of a sparse matrix; its rows are overwritten with the normalised ones, which is all that
is kept besides the input. Second derivatives go by torch's operations in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.kernels.cpu.layer import tail_fields, tracks
from difformer.kernels.cpu.passes import padded, run, space
from difformer.kernels.plan import MaskKey, Some, Tail
from difformer.sparse import SparseMatrix, add_product


def _forward(
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
        out, *kept = _forward(matrix if x is None else x, weight, bias, (norm, norm_bias), tail, keep=True)
        ctx.save_for_backward(x, weight, bias, norm, norm_bias, *kept)
        ctx.matrix, ctx.tail = matrix, tail
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Some, ...]:
        # The type is that of the kernels, also where a backward pass is run under autocast.
        with torch.autocast("cpu", enabled=False):
            work = _graph if torch.is_grad_enabled() else _gradients
            x_grad, *others = work(grad, ctx, *ctx.saved_tensors)
        return x_grad, None, *others, None


def _gradients(
    grad: Tensor, ctx: Any, x: Some, weight: Tensor, _: Tensor, norm: Some, norm_bias: Some, rows: Tensor, inverse: Some
) -> list[Some]:
    """Of the features, weight and bias of the map, weight and bias of the norm."""
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
    return [x_grad, weight_grad, shift, *((None, None) if norm is None else (w_grad, b_grad))]


def _graph(grad: Tensor, ctx: Any, *saved: Any) -> list[Some]:
    """The same as a graph of torch's operations, to be differentiated once more."""
    # Views: features that were made with the weights themselves must not be followed back to these.
    own: list[Any] = [None if given is None else given.view_as(given) for given in saved[:5]]
    x, weight, bias, norm, norm_bias = own
    out = (ctx.matrix if x is None else x) @ weight.T + bias
    if norm is not None:
        out = functional.layer_norm(out, norm.shape, norm, norm_bias, ctx.tail.eps)
    out = functional.relu(out)
    if ctx.tail.mask is not None:
        mask, (n, c) = space(*out.shape), out.shape
        run(
            "finish_rows",
            n,
            c,
            c,
            z=torch.ones_like(mask),
            out=mask,
            **tail_fields(Tail(mask=ctx.tail.mask), None, None),
        )
        out = out * mask
    asked = [given for given in own if given is not None and given.requires_grad]
    found = iter(torch.autograd.grad(out, asked, grad, create_graph=True))
    return [next(found) if given is not None and given.requires_grad else None for given in own]


def fused_input(layer: nn.Linear, norm: nn.LayerNorm | None, x: Tensor | SparseMatrix, mask: MaskKey | None) -> Tensor:
    """Z⁰ ``[N, c]`` from features ``[N, d]``, where `difformer.kernels.fused.why_not_fused_input` finds no reason."""
    tail = Tail(None if norm is None else norm.eps, True, mask)
    scale = (None, None) if norm is None else (norm.weight, norm.bias)
    given = (None, x) if isinstance(x, SparseMatrix) else (x, None)
    if tracks(given[0], layer.weight, layer.bias, *scale):
        return _Input.apply(*given, layer.weight, layer.bias, *scale, tail)
    return _forward(x, layer.weight, layer.bias, scale, tail, keep=False)[0]
