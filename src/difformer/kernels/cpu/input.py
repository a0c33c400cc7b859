r"""The input layer by kernels in C: a product, then bias, norm, ReLU and dropout in one pass.

.. math::
    Z^{(0)} = m ⊙ \mathrm{ReLU}(\mathrm{LayerNorm}(X W^\top + b)).

The product is torch's, or that of a sparse matrix; its rows are overwritten with the normalised ones, which is all that
is kept beside what came in. Second derivatives go by torch's operations in the backward pass: what follows this layer
may well have them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.kernels.cpu.layer import tail_fields, tracks
from difformer.kernels.cpu.passes import padded, run, space
from difformer.kernels.plan import MaskKey, Tail
from difformer.sparse import SparseMatrix, add_product


def _forward(
    x: Tensor | SparseMatrix,
    layer: tuple[Tensor, Tensor],
    norm: tuple[Tensor | None, Tensor | None],
    tail: Tail,
    keep: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Z⁰; the rows before the activation and one over their deviations, where they are to be kept."""
    weight, bias = layer
    n, c = x.shape[0], weight.shape[0]
    rows, out = space(n, c), space(n, c) if keep else None
    if isinstance(x, SparseMatrix):
        add_product(x.rows, weight.T.contiguous(), rows, beta=0)
    else:
        torch.mm(x, weight.T, out=rows)
    inverse = space(n) if keep else None
    # Where nothing is kept, rows are overwritten with what comes out.
    given: dict[str, Any] = {
        "z": rows,
        "shift": bias,
        "out": rows if out is None else out,
        "kept": rows if keep else None,
    }
    run("finish_rows", n, c, c, **given, inverse=inverse, **tail_fields(tail, *norm))
    return (rows, None, None) if out is None else (out, rows, inverse)


class _Input(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        matrix: SparseMatrix | None,
        weight: Tensor,
        bias: Tensor,
        norm: Tensor | None,
        norm_bias: Tensor | None,
        tail: Tail,
    ) -> Tensor:
        given = x if matrix is None else matrix
        assert given is not None
        out, rows, inverse = _forward(given, (weight, bias), (norm, norm_bias), tail, keep=True)
        ctx.save_for_backward(x, weight, bias, norm, norm_bias, rows, inverse)
        ctx.matrix, ctx.tail = matrix, tail
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, rows, inverse = ctx.saved_tensors
        # The type is that of the kernels, also where a backward pass is run under autocast.
        with torch.autocast("cpu", enabled=False):
            again = torch.is_grad_enabled()
            x_grad, *others = _graph(grad, inputs, ctx) if again else _gradients(grad, inputs, rows, inverse, ctx)
        return x_grad, None, *others, None


def _gradients(grad: Tensor, inputs: list[Any], rows: Tensor, inverse: Tensor, ctx: Any) -> list[Tensor | None]:
    """Of the features, weight and bias of the map, weight and bias of the norm."""
    x, weight, _, norm, norm_bias = inputs
    n, c = rows.shape
    out, sums = space(n, c), (padded(c),) * 3
    fields = tail_fields(ctx.tail, norm, norm_bias)
    given = {"grad": grad.contiguous(), "kept": rows, "inverse": inverse, "x_grad": out}
    w_grad, b_grad, shift = (found[:c] for found in run("pull_finish", n, c, c, sums=sums, **given, **fields))
    x_grad = out @ weight if ctx.needs_input_grad[0] else None
    if x is None:
        columns = add_product(ctx.matrix.columns, out, out.new_empty(weight.shape[1], c), beta=0)
        weight_grad = columns.T
    else:
        weight_grad = out.T @ x
    return [x_grad, weight_grad, shift, *((None, None) if norm is None else (w_grad, b_grad))]


def _graph(grad: Tensor, inputs: list[Any], ctx: Any) -> list[Tensor | None]:
    """The same as a graph of torch's operations, to be differentiated once more."""
    # Of their own: features that were made with the weights themselves must not be followed back to these.
    own: list[Any] = [None if given is None else given.view_as(given) for given in inputs]
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
    return _forward(x, (layer.weight, layer.bias), scale, tail, keep=False)[0]
