r"""A whole layer as one node of the autograd graph, by the kernels of `triton_rows`: float32 on a GPU.

.. math::
    Z^{+} = m ⊙ σ(\mathrm{LayerNorm}(a Z + b P + c \, S V + s Z^{(0)})),

with unit queries q = q̂/‖q̂‖, q̂ = W_q z + b_q (keys k likewise), values v = W_v z + b_v or z, and P the mean of the
values with weights g(q_iᵀk_j). A small graph is launch-bound: about 9 launches forward and 12 backward, where torch's
operations take 18 and 30. On a large one passes over memory count: every product is followed by one kernel that does
all that remains to be done with its rows.

For g(x) = 1 + x, with M = Σ_j k_j v_jᵀ, κ = Σ_j k_j and ν = Σ_j v_j,

.. math::
    P_i = (ν + M^\top q_i) / t_i, \qquad t_i = N + κ^\top q_i ;

backward, with A_i = b ∂Y_i / t_i for the gradient ∂Y of the step and D_i = A_i · P_i,

.. math::
    ∂q_i = M A_i - D_i κ, \quad ∂M = \sum_i q_i A_i^\top, \quad ∂κ = -\sum_i D_i q_i, \quad ∂ν = \sum_i A_i, \quad
    ∂k_j = ∂M v_j + ∂κ, \quad ∂v_j = ∂M^\top k_j + ∂ν + c \, (S^\top ∂Y)_j .

For g = σ all pairs are kept: P = σ(Q Kᵀ) V / t with t the sums of its rows.

Up to `MOST_ELEMENTS` a layer keeps queries, keys and values. Beyond, they exist for some rows at a time and are
computed again backward; a layer then keeps its states before the step and before the norm, the mask and t.

Under autocast in bfloat16 the product with a large S gathers bfloat16 and adds up float32. All else stays float32: ∂q
and ∂k are small differences of large terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from difformer.diffusivity import SMALLEST_MEAN_EXCHANGE
from difformer.kernels import Plan, Some
from difformer.kernels.rows import SMALLEST_NORM, drop, launch, launch_pairs, mask_scale, plain, programs
from difformer.shortcut import once_differentiated
from difformer.sparse import add_product

MOST_ELEMENTS = 1 << 24  # of the states, up to which queries, keys and values are kept: 64 MB each
CHUNK = 1 << 23  # elements of the states that are worked on at a time beyond: 32 MB
MOST_ENTRIES = 1 << 20  # of S, up to which a conversion takes longer than the product gains
SCALES = 1e-3, 1e3  # weights of the source by which gradients may be multiplied and divided again


class GPULayer(torch.autograd.Function):
    """Z⁺ of one head with norm, ReLU and dropout; `mask` multiplies the outputs, parameters of the norm come first."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, z: Tensor, source: Some, mask: Some, *parameters: Tensor) -> Tensor:
        layer, mask = _Layer(plan, z, parameters, 1.0), mask if mask is None else plain(mask)
        out, saved = (layer.forward if layer.keeps else layer.forward_in_chunks)(source, mask)
        if plan.tail.rate:
            out, mask = drop(out, plan.tail.rate)
        ctx.save_for_backward(z, mask, *saved, *parameters)
        ctx.plan, ctx.source, ctx.saved = plan, source is not None, len(saved)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Some, ...]:
        return None, *_gradients(grad, *ctx.saved_tensors, ctx)


@once_differentiated
def _gradients(grad: Tensor, z: Tensor, mask: Some, *rest: Any) -> tuple[Some, ...]:
    """Of z, the source, the mask (none) and the parameters."""
    *saved, ctx = rest
    # The gradient of the step is kept as that of the source, which is a multiple of it: one array instead of two.
    weight = ctx.plan.weights.source
    multiple = ctx.source and SCALES[0] <= abs(weight) <= SCALES[1]
    layer = _Layer(ctx.plan, z, saved[ctx.saved :], weight if multiple else 1.0)
    backward = layer.backward if layer.keeps else layer.backward_in_chunks
    z_grad, g, *grads = backward(plain(grad), mask, *saved[: ctx.saved])
    return z_grad, (g if multiple else g * weight) if ctx.source else None, None, *grads


class _Layer:
    """One pass through a layer, forward or backward; the gradient of the step is multiplied by `scale`."""

    def __init__(self, plan: Plan, z: Tensor, parameters: Sequence[Tensor], scale: float) -> None:
        self.plan, self.z, self.scale = plan, z, scale
        self.norm: Sequence[Some] = (None, None) if plan.tail.eps is None else parameters[:2]
        maps = parameters if plan.tail.eps is None else parameters[2:]
        # In the order values, keys, queries, without those that do not exist.
        self.weights, self.biases = list(maps[::2][::-1]), list(maps[1::2][::-1])
        self.rows, self.width = z.shape[0], maps[0].shape[0]
        self.programs, self.step = programs(self.rows, self.width), max(CHUNK // self.width, 1)
        self.floor = SMALLEST_MEAN_EXCHANGE * self.rows
        self.keeps = plan.pairs or self.rows * self.width <= MOST_ELEMENTS

    def forward(self, source: Some, mask: Some) -> tuple[Tensor, tuple[Some, ...]]:
        plan, z, n, width = self.plan, self.z, self.rows, self.width
        weight, values = _stacked(self.weights), z.new_empty(n, width) if plan.transform else None
        v = z if values is None else values
        stats = z.new_empty(n, 2 if plan.tied else 3)  # norms of keys and queries, and the total
        parts = None if plan.pairs else z.new_empty(self.programs, 2 * width)
        h = self.map_rows(z, weight, self.biases, values, stats, parts)
        q = h[:, -width:]
        k = q if plan.tied else h[:, -2 * width : -width]
        if parts is None:
            inner, sums = functional.linear(q, k), None
            launch_pairs("logistic_forward", inner, stats, T_ROW=stats.shape[1])
            r = torch.mm(inner, v)
        else:
            inner, sums = torch.mm(k.T, v), parts.sum(0)
            r = torch.mm(q, inner)
        observed = self.over_edges(v)
        step, out = self.space_for_step(v, observed), torch.empty_like(r) if plan.pairs else r
        self.finish(z, r, q, sums, stats, observed, source, mask, step, out)
        return out, (step, stats, inner, sums, r if plan.pairs else None, weight, k, q, values)

    def backward(
        self, grad: Tensor, mask: Some, step: Some, stats: Tensor, inner: Tensor, sums: Some, r: Some, weight: Tensor,
        k: Tensor, q: Tensor, values: Some,
    ) -> tuple[Some, ...]:  # fmt: skip
        plan, z, n, width, a = self.plan, self.z, self.rows, self.width, self.plan.weights.state
        v = z if values is None else values
        g, answers, parts = torch.empty_like(grad), torch.empty_like(grad), z.new_empty(self.programs, 5, width)
        mean = None if r is None else z.new_empty(n)
        self.pull_tail(grad, mask, step, r, stats, g, answers, mean, parts)
        if sums is None:
            pairs = functional.linear(answers, v)
            launch_pairs("logistic_backward", pairs, inner, mean)
            q_grad, k_grad, v_grad = torch.mm(pairs, k), torch.mm(pairs.T, q), torch.mm(inner.T, answers)
        else:
            inner_grad, q_grad = torch.mm(q.T, answers), functional.linear(answers, inner)
            k_grad, v_grad = functional.linear(v, inner_grad), torch.mm(k, inner_grad)
        h_grad, earlier = z.new_empty(n, weight.shape[0]), q_grad if plan.tied else None
        self.pull_queries(q_grad, answers, q, stats, stats, sums, h_grad if earlier is None else earlier, parts)
        found, base = parts.sum(0), None if plan.transform else torch.empty_like(z)
        pulled, given = self.over_edges(g, answers, back=True), None if sums is None else found  # answers are used up
        start = (g if a else None, a / self.scale)
        self.pull_senders(k_grad, v_grad, pulled, k, stats, given, earlier, *start, h_grad, base, parts, 5)
        if base is not None:
            z_grad = base.addmm_(h_grad, weight)
        else:
            z_grad = torch.addmm(g, h_grad, weight, beta=a / self.scale) if a else torch.mm(h_grad, weight)
        return z_grad, g, *self.gradients(found, parts.sum(0), torch.mm(h_grad.T, z).split(width))

    def forward_in_chunks(self, source: Some, mask: Some) -> tuple[Tensor, tuple[Some, ...]]:
        plan, z, width = self.plan, self.z, self.width
        weight, biases = self.senders()
        values = z.new_empty(self.rows, width) if plan.transform else None
        inner, parts = z.new_zeros(width, width), self.parts(2)
        for i, part in zip(self.chunks(), parts, strict=True):
            v = None if values is None else values[i]
            h = self.map_rows(z[i], weight, biases, v, None, part)
            inner.addmm_(h[:, -width:].T, z[i] if v is None else v)
        sums, total, out = parts.flatten(0, 1).sum(0), z.new_empty(self.rows, 1), z.new_empty(self.rows, width)
        observed = self.over_edges(z if values is None else values)
        step = self.space_for_step(out, observed)
        del values, v  # both hold the memory
        for i in self.chunks():
            q = self.map_rows(z[i], self.weights[-1], self.biases[-1:], None, None, None)
            r, kept = out[i], (_part(observed, i), _part(source, i), _part(mask, i), _part(step, i))
            self.finish(z[i], torch.mm(q, inner, out=r), q, sums, total[i], *kept, r)
        return out, (step, total, inner, sums)

    def backward_in_chunks(
        self, grad: Tensor, mask: Some, step: Some, total: Tensor, inner: Tensor, sums: Tensor
    ) -> tuple[Some, ...]:
        plan, z, width, a = self.plan, self.z, self.width, self.plan.weights.state
        weight, biases = self.senders()
        g, z_grad, parts = torch.empty_like(grad), torch.empty_like(z), self.parts(5)
        inner_grad, query_grad, sender_grad = (torch.zeros_like(x) for x in (inner, self.weights[-1], weight))
        for i, part in zip(self.chunks(), parts, strict=True):
            norms, answers = z.new_empty(z[i].shape[0], 1), torch.empty_like(grad[i])
            q = self.map_rows(z[i], self.weights[-1], self.biases[-1:], None, norms, None)
            self.pull_tail(grad[i], _part(mask, i), _part(step, i), None, total[i], g[i], answers, None, part)
            inner_grad.addmm_(q.T, answers)
            h_grad = torch.mm(answers, inner.T)
            self.pull_queries(h_grad, answers, q, norms, total[i], sums, h_grad, part)
            query_grad.addmm_(h_grad.T, z[i])
            if a:
                torch.addmm(g[i], h_grad, self.weights[-1], beta=a / self.scale, out=z_grad[i])
            else:  # the sizes of state and step may differ
                torch.mm(h_grad, self.weights[-1], out=z_grad[i])
        found, parts = parts.flatten(0, 1).sum(0), self.parts(2)
        pulled = self.over_edges(g, back=True)
        for i, part in zip(self.chunks(), parts, strict=True):
            norms, v = z.new_empty(z[i].shape[0], 1), torch.empty_like(grad[i]) if plan.transform else None
            h = self.map_rows(z[i], weight, biases, v, norms, None)
            k = h[:, -width:]
            k_grad, v_grad = torch.mm(z[i] if v is None else v, inner_grad.T), torch.mm(k, inner_grad)
            base = None if plan.transform else z_grad[i]
            self.pull_senders(k_grad, v_grad, _part(pulled, i), k, norms, found, None, base, 1.0, h, base, part, 2)
            sender_grad.addmm_(h.T, z[i])
            z_grad[i].addmm_(h, weight)
        found, more = found.view(5, width), parts.flatten(0, 1).sum(0).view(2, width)
        weight_grads = [*sender_grad.split(width), query_grad]
        if plan.tied:
            weight_grads[-2:] = [weight_grads[-2] + query_grad]
            more[1] += found[4]
        return z_grad, g, *self.gradients(found, more, weight_grads)

    def senders(self) -> tuple[Tensor, list[Tensor]]:
        """Weight and biases of values and keys."""
        count = len(self.weights) - (not self.plan.tied)  # keys and queries may be one
        return _stacked(self.weights[:count]), self.biases[:count]

    def chunks(self) -> Iterator[slice]:
        return (slice(i, i + self.step) for i in range(0, self.rows, self.step))

    def parts(self, count: int) -> Tensor:
        """Room for sums over the rows of each chunk; the last may have fewer programs."""
        return self.z.new_zeros(-(-self.rows // self.step), programs(self.step, self.width), count * self.width)

    def over_edges(self, x: Tensor, out: Some = None, *, back: bool = False) -> Some:
        """S x, or Sᵀ x if `back`, written to `out`; x itself where S is the identity."""
        if self.plan.matrix is None:
            return x if self.plan.weights.observed else None
        matrix = self.plan.matrix.columns if back else self.plan.matrix.rows
        low = self.plan.low and matrix.value.numel() > MOST_ENTRIES
        out = torch.empty_like(x) if out is None else out
        return add_product(matrix, x.to(torch.bfloat16) if low else x, out, beta=0)

    def space_for_step(self, like: Tensor, observed: Some) -> Some:
        """Where the step is kept, if what follows needs it: in place of the product with the graph."""
        if self.plan.tail.eps is None and not self.plan.tail.relu:
            return None
        return torch.empty_like(like) if self.plan.matrix is None else observed

    def gradients(self, found: Tensor, more: Tensor, weights: Sequence[Tensor]) -> tuple[Some, ...]:
        """Of the parameters, in their order; `found` and `more` hold sums over rows."""
        plan, (norm_weight, norm_bias, _, _, query_bias) = self.plan, found.unbind(0)
        value_bias, key_bias, *_ = more.unbind(0)
        grads: tuple[Tensor, ...] = (norm_weight, norm_bias) if self.norm[0] is not None else ()
        grads += (weights[-1], key_bias) if plan.tied else (weights[-1], query_bias, weights[-2], key_bias)
        return (*grads, weights[0], value_bias) if plan.transform else grads

    def map_rows(
        self, z: Tensor, weight: Tensor, biases: Sequence[Tensor], v: Some, norms: Some, parts: Some
    ) -> Tensor:
        """``[n, blocks · c]`` with the unit rows of keys and queries; values go to `v`, Σ v and Σ k to `parts`."""
        h, value = functional.linear(z, weight), None if v is None else biases[0]
        units = len(biases) - (v is not None)
        given = (h, z, value, biases[-units], biases[-1], v, h, norms, parts)
        sizes = {"VALUES": int(v is not None), "UNITS": units, "NORM_ROW": 1 if norms is None else norms.shape[1]}
        launch("unit_forward", h, self.width, given, (SMALLEST_NORM,), **sizes)
        return h

    def finish(
        self, z: Tensor, r: Tensor, q: Tensor, sums: Some, total: Tensor, observed: Some, source: Some, mask: Some,
        step: Some, out: Tensor,
    ) -> None:  # fmt: skip
        """From what the rows received, ``r [n, c]``, to `out`, which may be `r`; but for torch's dropout."""
        (a, b, c, s), (eps, relu, *_) = self.plan.weights, self.plan.tail
        given = (r, q, sums, total, observed, z if a else None, source, *self.norm, mask, step, out)
        numbers = (float(self.rows), self.floor, a, b, c, s, eps or 0.0)
        launch("tail_forward", r, self.width, given, numbers, Q_ROW=q.stride(0), T_ROW=total.shape[1], RELU=relu)

    def pull_tail(
        self, grad: Tensor, mask: Some, step: Some, r: Some, total: Tensor, g: Tensor, answers: Tensor, mean: Some,
        parts: Tensor,
    ) -> None:  # fmt: skip
        """The gradients of the step, of answers and, of pairs, of their mean."""
        eps, relu, _, rate = self.plan.tail
        given = (grad, mask, step, *self.norm, r, total, g, answers, mean, parts)
        numbers = (mask_scale(mask, rate), eps or 0.0, self.plan.weights.latent, self.scale)
        launch("tail_backward", grad, self.width, given, numbers, PARTS=5, T_ROW=total.shape[1], RELU=relu)

    def pull_queries(
        self, q_grad: Tensor, answers: Tensor, q: Tensor, norms: Tensor, total: Tensor, sums: Some, out: Tensor,
        parts: Tensor,
    ) -> None:  # fmt: skip
        """The gradients of what queries were mapped from, to the last columns of `out`."""
        given = (q_grad, answers, q, norms, total, sums, out, parts)
        sizes = {"Q_ROW": q.stride(0), "H_ROW": out.shape[1], "NORM_ROW": norms.shape[1], "T_ROW": total.shape[1]}
        unit = int(norms is total and not self.plan.tied)
        launch("query_backward", q_grad, self.width, given, (self.floor,), PARTS=5, UNIT=unit, **sizes)

    def pull_senders(
        self, k_grad: Tensor, v_grad: Tensor, pulled: Some, k: Tensor, norms: Tensor, sums: Some, earlier: Some,
        start: Some, weight: float, out: Tensor, base: Some, parts: Tensor, sums_kept: int,
    ) -> None:  # fmt: skip
        """The gradients of what keys and values were mapped from; without a map, `base` is `weight` `start` + ∂v."""
        given = (k_grad, v_grad, pulled, k, norms, sums, earlier, start, out, base, parts)
        sizes = {"K_ROW": k.stride(0), "H_ROW": out.shape[1], "NORM_ROW": norms.shape[1], "PARTS": sums_kept}
        numbers = (weight, self.plan.weights.observed / self.scale)
        launch("sender_backward", k_grad, self.width, given, numbers, VALUES=int(base is None), **sizes)


def _stacked(maps: Sequence[Tensor]) -> Tensor:
    return maps[0] if len(maps) == 1 else torch.cat(list(maps))


def _part(x: Some, rows: slice) -> Some:
    return None if x is None else x[rows]
