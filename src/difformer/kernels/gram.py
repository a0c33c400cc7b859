r"""The simple diffusivity without queries, keys or values: all of it from the Gram matrix of the states.

Where queries and keys are not normalised row by row they are linear in the states, q_i = A_q z̃_i with z̃ = [z, 1] and
A = [W, b]. Then every sum of `difformer.attention.linear` comes from one small matrix,

.. math::
    G = \sum_j \tilde z_j \tilde z_j^\top, \quad M = A_k G A_v^\top, \quad κ = A_k G e, \quad ν = A_v G e, \quad
    \|Q\|^2 = \mathrm{tr}(A_q G A_q^\top),

with e the last unit vector, and the propagated states are one product with the states,

.. math::
    P_i = \frac{U^\top \tilde z_i}{u^\top \tilde z_i}, \qquad
    U = γ A_q^\top M + e ν^\top, \quad u = γ A_q^\top κ + N e, \quad γ = 1 / (\|Q\| \|K\|) \text{ or } 1.

Two products of N rows instead of five. Unit rows (``qk_norm="row"``) are not linear in the states.

The two products have few results and many terms. A GPU's library splits a single one; of a stack of runs it would give
each to one processor. There the rows are cut into slices, :math:`A^\top B = \sum_s A_s^\top B_s`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer._compat import is_stacked
from difformer.diffusivity import safe_total

SMALLEST_SQUARE = 1e-24
SLICES = 64  # at most; the rest of a GPU is filled by runs that are stacked
SMALLEST_SLICE = 128  # rows that are worth a product of their own


def gram_attention(
    z: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear | None, num_heads: int, *, scaled: bool
) -> Tensor:
    """Mean over heads of simple attention, ``[N, d]`` → ``[N, c]``; `scaled` divides Q and K by their norms."""
    count = z.shape[0]
    total = z.sum(0, keepdim=True)
    gram = torch.cat([torch.cat([tall_product(z, z), total.T], 1), torch.cat([total, z.new_full((1, 1), count)], 1)], 0)
    maps = gram_maps(gram, query, key, value, num_heads, scaled).transpose(0, 1).flatten(1)
    out = affine(z, maps[:-1], maps[-1]).unflatten(1, (num_heads, -1))
    answer = out[..., :-1] / safe_total(out[..., -1:], count)
    return answer.squeeze(1) if num_heads == 1 else answer.mean(1)


def gram_maps(
    gram: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear | None, num_heads: int, scaled: bool
) -> Tensor:
    """``[H, d + 1, c + 1]``: U beside u of every head, from ``gram [d + 1, d + 1]``."""
    a_q, a_k = (augmented(layer, num_heads) for layer in (query, key))
    keys = a_k @ gram  # [H, c, d + 1]: M and κ where the values are the states
    last = gram[-1:].expand(num_heads, 1, -1)  # ν and N likewise
    outer = keys
    if value is not None:
        a_v = augmented(value, num_heads)
        outer = torch.cat([keys @ a_v.mT, keys[..., -1:]], -1)
        last = torch.cat([(a_v @ gram)[..., -1:].mT, gram[-1, -1].expand(num_heads, 1, 1)], -1)
    if scaled:
        outer = outer / (_norm(a_q @ gram, a_q) * _norm(keys, a_k))
    pulled = a_q.mT @ outer  # U and u but for their last rows
    return torch.cat([pulled[:, :-1], pulled[:, -1:] + last], 1)


def augmented(layer: nn.Linear, num_heads: int) -> Tensor:
    """A = [W, b] of each head, ``[H, c, d + 1]``."""
    return torch.cat([layer.weight, layer.bias.unsqueeze(1)], 1).unflatten(0, (num_heads, -1))


def _norm(mapped: Tensor, a: Tensor) -> Tensor:
    """√tr(A G Aᵀ) over all heads: the Frobenius norm of what the map gives."""
    return (mapped * a).sum().clamp_min(SMALLEST_SQUARE).sqrt()


def number_of_slices(a: Tensor) -> int:
    """1 if slicing does not pay: on a CPU, or if the product is not batched."""
    stacked = a.is_cuda and not torch.compiler.is_compiling() and is_stacked(a)
    return max(1, min(SLICES, a.shape[0] // SMALLEST_SLICE)) if stacked else 1


def tall_product(a: Tensor, b: Tensor) -> Tensor:
    """Σ_i a_i b_iᵀ of ``[n, d]`` and ``[n, c]``: ``[d, c]``."""
    return a.T @ b if number_of_slices(a) < 2 else _Product.apply(a, b)


def affine(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``z [n, d]`` times ``weight [d, c]`` and ``bias [c]`` added; the weight's gradient in slices where that pays."""
    return functional.linear(z, weight.T, bias) if number_of_slices(z) < 2 else _Times.apply(z, weight) + bias


def in_slices(a: Tensor, b: Tensor, slices: int) -> Tensor:
    """Σ_i a_i b_iᵀ of ``[…, n, d]`` and ``[…, n, c]``, from slices of rows that are multiplied side by side."""
    whole = a.shape[-2] // slices * slices
    # Problems and slices share the first axis before the transposition: what is copied is copied in order.
    first, second = (x[..., :whole, :].unflatten(-2, (slices, -1)).flatten(0, -3) for x in (a, b))
    product = torch.bmm(first.mT, second).unflatten(0, (*a.shape[:-2], slices)).sum(-3)
    return product if whole == a.shape[-2] else product + a[..., whole:, :].mT @ b[..., whole:, :]


class _OfTwoFactors(torch.autograd.Function):
    """Keeps the factors for gradients, not their slices, which are copies."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class _Product(_OfTwoFactors):
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return in_slices(a, b, number_of_slices(a))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _alike(grad, *ctx.saved_tensors)
        return b @ grad.T, a @ grad


class _Times(_OfTwoFactors):
    @staticmethod
    def forward(z: Tensor, weight: Tensor) -> Tensor:
        return z @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        z, weight = _alike(grad, *ctx.saved_tensors)
        return grad @ weight.T, tall_product(z, grad)


def _alike(grad: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
    """Factors in the type of a gradient: mixed precision casts them on the way forward, not those that are kept."""
    return tuple(factor.to(grad.dtype) for factor in factors)
