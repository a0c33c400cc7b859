"""All-pair propagation in linear time, for diffusivities that are sums: simple (g = 1 + x) and constant (g = 1).

With M = Σ_j k_j v_jᵀ, κ = Σ_j k_j and ν = Σ_j v_j, each worked out once,

    P_i = (ν + Mᵀq_i) / r_i,   r_i = N + κᵀq_i.

Time O(N d c), state O(d c). Backward, with a_i = ∂P_i / r_i and D_i = a_iᵀP_i:

    ∂q_i = M a_i - D_i κ,   ∂M = Σ_i q_i a_iᵀ,   ∂κ = -Σ_i D_i q_i,   ∂ν = Σ_i a_i,
    ∂k_j = ∂M v_j + ∂κ,     ∂v_j = ∂Mᵀk_j + ∂ν,

so that nothing of size N×d is kept but the inputs: one pass over keys and one over queries, either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from difformer.attention import blockwise
from difformer.attention.layout import Piece, by_head, pack, pieces, serve_runs, working_dtype
from difformer.attention.once import once_differentiated
from difformer.attention.reference import safe_total
from difformer.attention.scores import diffusivity_of, form_of
from difformer.attention.segments import Segments
from difformer.attention.sums import answer_queries, key_gradients, query_gradients, sum_keys
from difformer.diffusion.diffusivity import Diffusivity
from difformer.eager import direct

LINEAR = frozenset({"simple", "constant"})  # forms that are sums


def summarise(k: Tensor, v: Tensor) -> Tensor:
    """All that queries need to know of keys ``[N, H, d]`` and values ``[N, H or 1, c]`` under `simple`.

    The state ``[H, 1 + d, 1 + c]`` is Σ_j [1, k_j]ᵀ[1, v_j]. States of parts add up to that of the whole, and `answer`
    reads them. Both differentiate.
    """
    v = v.expand(-1, k.shape[1], -1)
    first = torch.cat([v.new_full((v.shape[1], 1), v.shape[0]), v.sum(0)], dim=-1)
    others = torch.cat([k.sum(0).unsqueeze(-1), torch.einsum("nhd,nhc->hdc", k, v)], dim=-1)
    return torch.cat([first.unsqueeze(1), others], dim=1)


def answer(q: Tensor, state: Tensor) -> Tensor:
    """What queries ``[M, H, d]`` receive from the rows that `state` sums up: ``[M, H, c]``."""
    count, values, keys, outer = state[:, :1, :1], state[:, :1, 1:], state[:, 1:, :1], state[:, 1:, 1:]
    queries = q.transpose(0, 1)
    total = safe_total(torch.baddbmm(count, queries, keys), count.detach())
    return (torch.baddbmm(values, queries, outer) / total).transpose(0, 1)


def _rows_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor | None,
    order: Tensor | None,
    place: Tensor | None,
    lengths: Tensor | None,
    shapes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``q, k [runs, N, H, d]``, ``v [runs, N, H or 1, c]`` → P, r; and, of a whole graph, M, κ and ν."""
    out, total, *state = _results(q, v, rows is None)
    for piece in pieces(rows, order, place, lengths, shapes, runs=q.shape[0]):
        block_out, block_total = piece.room(out), piece.room(total)
        if rows is not None:
            state = _state(q, v, q.shape[0] * piece.graphs)
        inputs = (piece.take(q), _alone(piece, k), _alone(piece, v), block_out, block_total, *state)
        for q_h, k_h, v_h, out_h, total_h, outer_h, keys_h, values_h in by_head(*inputs):
            sum_keys(k_h, v_h, outer_h, keys_h, values_h)
            answer_queries(q_h, outer_h, keys_h, values_h, _count(piece, q_h), out_h, total_h)
        piece.put(out, block_out)
        piece.put(total, block_total)
    outer, keys, values = state if rows is None else _state(q, v, 0)
    return out, total, outer, keys, values


def _rows_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor,
    outer: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor | None,
    order: Tensor | None,
    place: Tensor | None,
    lengths: Tensor | None,
    shapes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    q_grad, k_grad, v_grad = grads = tuple(torch.empty(x.shape, dtype=total.dtype, device=x.device) for x in (q, k, v))
    state = [outer, keys, values]
    for piece in pieces(rows, order, place, lengths, shapes, runs=q.shape[0]):
        room = piece.room(q_grad), piece.room(k_grad), piece.room(v_grad)
        if rows is not None:
            state = _state(q, v, q.shape[0] * piece.graphs)
        inputs = (_alone(piece, grad), piece.take(q), piece.take(total), _alone(piece, k), _alone(piece, v))
        heads = by_head(*inputs, *state, *room)
        for head, (g_h, q_h, total_h, k_h, v_h, outer_h, keys_h, values_h, *to) in enumerate(heads):
            if rows is not None:
                sum_keys(k_h, v_h, outer_h, keys_h, values_h)
            sums = query_gradients(g_h, q_h, total_h, _count(piece, q_h), outer_h, keys_h, values_h, to[0])
            key_gradients(k_h, v_h, sums, to[1], to[2], add=head > 0 and v.shape[2] == 1)
        for g, result in zip(grads, room, strict=True):
            piece.put(g, result)
    return q_grad, k_grad, v_grad


_forward = torch.library.custom_op("difformer::linear", mutates_args=())(_rows_forward)
_backward = torch.library.custom_op("difformer::linear_backward", mutates_args=())(_rows_backward)


def _state(q: Tensor, v: Tensor, problems: int) -> list[Tensor]:
    """Room for M ``[problems, d, H, c]``, κ ``[problems, 1, H, d]`` and ν ``[problems, 1, H, c]``."""
    heads, d, c, dtype = q.shape[2], q.shape[3], v.shape[-1], working_dtype(q.dtype)
    shapes = ((problems, d, heads, c), (problems, 1, heads, d), (problems, 1, heads, c))
    return [q.new_empty(shape, dtype=dtype) for shape in shapes]


def _results(q: Tensor, v: Tensor, whole: bool) -> tuple[Tensor, ...]:
    dtype = working_dtype(q.dtype)
    out = q.new_empty((*q.shape[:3], v.shape[-1]), dtype=dtype)
    return out, q.new_empty((*q.shape[:3], 1), dtype=dtype), *_state(q, v, q.shape[0] if whole else 0)


def _alone(piece: Piece, x: Tensor) -> Tensor:
    """The rows of a piece, zero at padding, so that they may be summed."""
    taken, padding = piece.take(x), piece.padding()
    return taken if padding is None else taken.masked_fill_(padding.view(*padding.shape, 1, 1), 0)


def _count(piece: Piece, x: Tensor) -> Tensor | int:
    # A traced program has sizes that are tensors.
    return int(x.shape[1]) if piece.lengths is None else piece.lengths.view(-1, 1, 1)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _results(q, v, rows is None)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape, dtype=total.dtype) for x in (q, k, v))


serve_runs(_forward, 3)
serve_runs(_backward, 8)


_run_forward = direct(_rows_forward, _forward)
_differentiate = once_differentiated(direct(_rows_backward, _backward))


class _Simple(torch.autograd.Function):
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` and a packed layout."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: Tensor | None,
        order: Tensor | None,
        place: Tensor | None,
        lengths: Tensor | None,
        shapes: list[int],
    ) -> tuple[Tensor, ...]:
        inputs = (q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
        return tuple(x.squeeze(0) for x in _run_forward(*inputs, rows, order, place, lengths, shapes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, rows, order, place, lengths, ctx.shapes = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(q, k, v, *output[1:], rows, order, place, lengths)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        grads = _differentiate(*(x.unsqueeze(0) for x in (grad, *tensors[:7])), *tensors[7:], ctx.shapes)
        return (*(g.squeeze(0).to(x.dtype) for g, x in zip(grads, tensors[:3], strict=True)), *(None,) * 5)


def _constant(v: Tensor, segments: Segments | None) -> Tensor:
    """Each row gets the mean of its graph."""
    if segments is None:
        return v.mean(0, keepdim=True).expand_as(v)
    wide = v.to(working_dtype(v.dtype))
    total = wide.new_zeros(segments.num_graphs, *v.shape[1:]).index_add(0, segments.batch, wide)
    return (total / segments.sizes.to(wide.dtype).clamp_min(1).view(-1, 1, 1)).to(v.dtype)[segments.batch]


def pairs_are_cheaper(q: Tensor, v: Tensor, segments: Segments) -> bool:
    """2 n² (d + c) operations for the pairs of each graph against 4 n d c for its sums: small graphs have few pairs."""
    d, c = q.shape[-1], v.shape[-1]
    pairs = sum(graphs * nodes * nodes for graphs, nodes, _ in segments.shapes)
    rows = sum(graphs * nodes for graphs, nodes, _ in segments.shapes)
    return pairs * (d + c) < 2 * rows * d * c


def propagate(
    q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, segments: Segments | None = None
) -> Tensor:
    """``q, k [N, H, d]``, ``v [N, H or 1, c]`` → ``[N, H, c]`` in time linear in N."""
    form = form_of(diffusivity)
    if form not in LINEAR:
        name = diffusivity_of(diffusivity).name
        raise ValueError(f"backend 'linear' serves {' and '.join(sorted(LINEAR))}, not {name!r}; try backend='auto'")
    if form == "constant":
        return _constant(v, segments).expand(-1, q.shape[1], -1)
    if torch.compiler.is_exporting():  # an exported program must run where this package is not installed
        wide = working_dtype(q.dtype)
        return answer(q.to(wide), summarise(k.to(wide), v.to(wide))).to(q.dtype)
    if segments is not None and pairs_are_cheaper(q, v, segments):
        return blockwise.propagate(q, k, v, diffusivity, segments)
    out, *_ = _Simple.apply(q, k, v, *pack(segments))
    return out.to(q.dtype)
