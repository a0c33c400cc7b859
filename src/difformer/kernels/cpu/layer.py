r"""A whole layer of simple diffusion by kernels in C: step, norm, activation and dropout at once.

.. math::
    Z^{+} = m ⊙ σ(\mathrm{LayerNorm}(a Z + b P + c \, S V + s Z^{(0)})),

with P of unit queries and keys or of ones that are linear in the states; `difformer.kernels.step` has the same in
torch's operations. Four passes over the rows: sums over keys, answers to queries; backward, gradients of the
answers and of the sums, then those of keys and values. What a layer keeps is Z, the normalised rows and two numbers a
row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention.scores import SMALLEST_MEAN_EXCHANGE
from difformer.kernels.cpu.passes import Pair, gram_backward, gram_forward, packed, padded, run, shaped, space
from difformer.kernels.step import Weights
from difformer.shortcut import once_differentiated
from difformer.sparse import CSR, SparseMatrix


@dataclass(frozen=True)
class MaskKey:
    """All that a mask follows from, for kernels that work it out by themselves.

    Args:
        first: The first int16 that keeps an entry.
        scale: 1 / (1 - p).
        key, twin: The two halves of the key, the number of the dropout mixed in.
        numbers: ``[N]`` int32 numbers of the rows, from 1; None for 1 … N.
    """

    first: int
    scale: float
    key: int
    twin: int
    numbers: Tensor | None


@dataclass(frozen=True)
class Tail:
    """What follows a step.

    Args:
        eps: Of the norm; None where there is none.
        relu: Whether the activation is ReLU; otherwise there is none.
        mask: Of dropout; None where nothing is dropped.
    """

    eps: float | None = None
    relu: bool = False
    mask: MaskKey | None = None

    @property
    def keeps(self) -> bool:
        """Whether the gradient needs the rows before the activation."""
        return self.eps is not None or self.relu

    def fields(self, weight: Tensor | None, bias: Tensor | None) -> dict[str, Any]:
        """For the kernels."""
        found: dict[str, Any] = {"relu": int(self.relu), "norm": weight, "norm_bias": bias, "eps": self.eps}
        if self.mask is not None:
            mask = self.mask
            found |= {"drop": 1, "first": mask.first, "scale": mask.scale, "key": mask.key, "twin": mask.twin}
            found["numbers"] = mask.numbers
        return found


@dataclass(frozen=True)
class Plan:
    """What a layer does beside its parameters.

    Args:
        weights: Of the four terms.
        matrix: Observed structure, where there is one.
        tail: What follows.
        linear: Whether queries and keys are linear in the states; otherwise they are unit rows.
        scaled: Whether linear ones are divided by their norms over all nodes.
        tied: Whether keys are the queries.
    """

    weights: Weights
    matrix: SparseMatrix | None
    tail: Tail
    linear: bool
    scaled: bool
    tied: bool

    def fields(self, rows: int, edges: CSR | None) -> dict[str, Any]:
        """For the kernels."""
        found: dict[str, Any] = {
            "state": self.weights.state,
            "latent": self.weights.latent,
            "observed": self.weights.observed,
            "from_source": self.weights.source,
            "floor": SMALLEST_MEAN_EXCHANGE * rows,
        }
        return found if edges is None else found | {"crow": edges.crow, "col": edges.col, "entry": edges.value}


Maps = dict[str, Pair]


def _maps(parameters: tuple[Tensor, ...], plan: Plan) -> Maps:
    """Weight and bias of the query, the key, and, where there is one, the value."""
    pairs = [(parameters[i], parameters[i + 1]) for i in range(0, len(parameters), 2)]
    return dict(zip(("query", "value") if plan.tied else ("query", "key", "value"), pairs, strict=False))


def _field(maps: Maps, which: str, name: str, *, back: bool = False) -> dict[str, Any]:
    """The fields of one map, by the name that the kernels give it."""
    if which not in maps:
        return {}
    weight, bias = maps[which]
    found = {name: packed(weight.T), f"{name.removesuffix('_map')}_bias": packed(bias)}
    return found | {f"{name.removesuffix('_map')}_back": packed(weight)} if back else found


def _forward(
    z: Tensor,
    source: Tensor | None,
    norm: tuple[Tensor | None, Tensor | None],
    plan: Plan,
    parameters: tuple[Tensor, ...],
    keep: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Z⁺, and what the gradient needs of it: nothing where it is not to be kept."""
    maps, (n, d), c = _maps(parameters, plan), z.shape, parameters[0].shape[0]
    width, wide = padded(c), padded(d)
    keys = {} if plan.linear else _field(maps, "query" if plan.tied else "key", "key_map")
    outer, keys_sum, states = run("sum_rows", n, d, c, sums=(c * wide, width, wide), z=z, **keys)
    kept: list[Tensor] = []
    fields: dict[str, Any]
    if plan.linear:
        found, small = gram_forward(outer, states, n, *_queries_and_keys(maps, plan), scaled=plan.scaled)
        fields = {"outer": found[0], "keys": found[1], "values": found[2], "count": found[3][0].item()}
        kept = [*found[:3], small]
    else:
        outer, values = shaped(outer, c), states
        if "value" in maps:  # v = W z + b: Σ k vᵀ and Σ v from Σ k zᵀ, Σ k and Σ z
            weight, bias = maps["value"]
            outer = packed(torch.addmm(torch.outer(keys_sum[:c], bias), outer[:, :d], weight.T))
            values = packed(torch.addmv(bias, weight, states[:d], beta=n))
        fields = {"outer": outer, "keys": keys_sum, "values": values, "count": n}
        fields |= _field(maps, "query", "query") | _field(maps, "value", "value")
        kept = [outer, keys_sum, values]
    out = space(n, c)
    total, inverse, normal = (
        (space(n), space(n), space(n, c) if plan.tail.keeps else None) if keep else (None, None, None)
    )
    edges = None if plan.matrix is None else plan.matrix.rows
    fields |= plan.fields(n, edges) | plan.tail.fields(*norm)
    run("answer_rows", n, d, c, z=z, source=source, out=out, total=total, inverse=inverse, kept=normal, **fields)
    return out, [total, inverse, normal, *kept] if keep else []  # type: ignore[list-item]


def _queries_and_keys(maps: Maps, plan: Plan) -> tuple[Pair, Pair]:
    return maps["query"], maps["query" if plan.tied else "key"]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        source: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        plan: Plan,
        *parameters: Tensor,
    ) -> Tensor:
        out, kept = _forward(z, source, (weight, bias), plan, parameters, keep=True)
        ctx.plan, ctx.parameters, ctx.source = plan, len(parameters), source is not None
        ctx.save_for_backward(z, weight, bias, *parameters, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z_grad, source, weight, bias, *parameters = _differentiate(grad, *ctx.saved_tensors, ctx)
        return z_grad, source, weight, bias, None, *parameters


def _gradients(
    grad: Tensor, z: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Of z, the source, weight and bias of the norm, and the parameters."""
    *saved, ctx = rest
    plan, parameters, kept = ctx.plan, tuple(saved[: ctx.parameters]), saved[ctx.parameters :]
    total, inverse, normal, *kept = kept
    maps, (n, d), c = _maps(parameters, plan), z.shape, parameters[0].shape[0]
    width, wide = padded(c), padded(d)
    x_grad, z_grad = space(n, c), space(n, d)
    sums = (width, width, c * width, width, width, 16, c * wide, width)
    outer, keys, values, *small = kept
    fields = {"outer_back": packed(shaped(outer, c)[:, :c].T), "keys": keys, "values": values}
    if not plan.linear:
        fields |= _field(maps, "query", "query", back=True)
    fields |= plan.fields(n, None) | plan.tail.fields(weight, bias)
    given = {"z": z, "grad": grad.contiguous(), "total": total, "inverse": inverse, "kept": normal}
    rows = {"x_grad": x_grad, "z_grad": z_grad}
    w_grad, b_grad, outer, keys, values, count, map_grad, map_bias = run(
        "pull_answers", n, d, c, sums=sums, **given, **rows, **fields
    )
    norm_grads = (None, None) if weight is None else (w_grad[:c], b_grad[:c])
    source = x_grad * plan.weights.source if ctx.source else None
    edges = None if plan.matrix is None else plan.matrix.columns
    fields = plan.fields(n, edges)
    if plan.linear:
        both, grads = _queries_and_keys(maps, plan), (outer, keys, values, count)
        square, level, trained = gram_backward(grads, small[0], *both, scaled=plan.scaled)
        run("pull_keys", n, d, c, sums=(c * wide, width) * 2, z=z, outer=square, values=level, **rows, **fields)
        if plan.tied:
            trained = [trained[0] + trained[2], trained[1] + trained[3]]
        return z_grad, source, *norm_grads, *trained
    fields |= {"outer": outer, "values": values, **_field(maps, "query" if plan.tied else "key", "key_map", back=True)}
    back, level = shaped(outer, c)[:, :c], keys
    if "value" in maps:  # ∂M v + ∂κ as a map of z
        v_weight, v_bias = maps["value"]
        back, level = back @ v_weight, packed(torch.addmv(keys[:c], back, v_bias))
        fields["value_back"] = packed(v_weight)
    fields |= {"outer_back": packed(back.T), "keys": level}
    key_grad, key_bias, value_grad, value_bias = run(
        "pull_keys", n, d, c, sums=(c * wide, width) * 2, z=z, **rows, **fields
    )
    pairs = [(map_grad, map_bias), (key_grad, key_bias)]
    if plan.tied:
        pairs = [(map_grad + key_grad, map_bias + key_bias)]
    if "value" in maps:
        pairs.append((value_grad, value_bias))
    spread = (x for each, level in pairs for x in (shaped(each, c)[:, :d], level[:c]))
    return z_grad, source, *norm_grads, *spread


_differentiate = once_differentiated(_gradients)


def tracks(*tensors: Tensor | None) -> bool:
    """Whether a gradient may be asked for; otherwise nothing is kept."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def fused_layer(
    z: Tensor, source: Tensor | None, norm: nn.LayerNorm | None, plan: Plan, parameters: tuple[Tensor, ...]
) -> Tensor:
    """Z⁺ of one head, ``[N, d]`` → ``[N, c]``; differentiates once.

    Args:
        z: States of one graph.
        source: Z⁰, where there is a source.
        norm: Of the tail, where it has one.
        plan: All the rest.
        parameters: Weight and bias of the query, of the key unless it is tied, and of the value where there is one.
    """
    z, source = z.contiguous(), None if source is None else source.contiguous()
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    if tracks(z, source, weight, bias, *parameters):
        return _Layer.apply(z, source, weight, bias, plan, *parameters)
    return _forward(z, source, (weight, bias), plan, parameters, keep=False)[0]
