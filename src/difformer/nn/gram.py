r"""The simple diffusivity without queries, keys or values: all of it from the Gram matrix of the states.

Where queries and keys are not normalised row by row they are linear in the states, q_i = A_q z̃_i with z̃ = [z, 1] and
A = [W, b]. Then every sum of `difformer.attention.linear` comes from one small matrix,

.. math::
    G = \sum_j \tilde z_j \tilde z_j^\top, \quad M = A_k G A_v^\top, \quad κ = A_k G e, \quad ν = A_v G e, \quad
    \|Q\|^2 = \mathrm{tr}(A_q G A_q^\top),

with e the last unit vector, and the propagated states are one product with the states themselves,

.. math::
    P_i = \frac{U^\top \tilde z_i}{u^\top \tilde z_i}, \qquad
    U = γ A_q^\top M + e ν^\top, \quad u = γ A_q^\top κ + N e, \quad γ = 1 / (\|Q\| \|K\|) \text{ or } 1.

Two products of N rows instead of five. Unit rows (``qk_norm="row"``) are not linear in the states and go the other way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.attention.reference import safe_total
from difformer.nn.tall import affine, tall_product

SMALLEST_SQUARE = 1e-24


def gram_attention(
    z: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear | None, num_heads: int, *, scaled: bool
) -> Tensor:
    """Mean over heads of simple attention, ``[N, d]`` → ``[N, c]``.

    Args:
        z: States of one graph.
        query, key, value: The layer's maps; no `value` propagates the states themselves.
        num_heads: Heads H; the maps give ``H · c`` channels.
        scaled: Whether Q and K are divided by their norms over nodes and heads.
    """
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
    a_q, a_k = (augmented(layer.weight, layer.bias).unflatten(0, (num_heads, -1)) for layer in (query, key))
    keys = a_k @ gram  # [H, c, d + 1]: M and κ where the values are the states
    last = gram[-1:].expand(num_heads, 1, -1)  # ν and N likewise
    outer = keys
    if value is not None:
        a_v = augmented(value.weight, value.bias).unflatten(0, (num_heads, -1))
        outer = torch.cat([keys @ a_v.mT, keys[..., -1:]], -1)
        last = torch.cat([(a_v @ gram)[..., -1:].mT, gram[-1, -1].expand(num_heads, 1, 1)], -1)
    if scaled:
        outer = outer / (_norm(a_q @ gram, a_q) * _norm(keys, a_k))
    pulled = a_q.mT @ outer  # U and u but for their last rows
    return torch.cat([pulled[:, :-1], pulled[:, -1:] + last], 1)


def augmented(weight: Tensor, bias: Tensor) -> Tensor:
    """A = [W, b], ``[c, d + 1]``."""
    return torch.cat([weight, bias.unsqueeze(1)], 1)


def _norm(mapped: Tensor, a: Tensor) -> Tensor:
    """√tr(A G Aᵀ) over all heads: the Frobenius norm of what the map gives."""
    return (mapped * a).sum().clamp_min(SMALLEST_SQUARE).sqrt()
