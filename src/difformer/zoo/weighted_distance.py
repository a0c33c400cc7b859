r"""A learned distance of all pairs, :math:`s_{ij} = \sum_c a_c |p_{ic} - p_{jc}|`, that keeps nothing of size N² c.

Forward and backward work on as many rows at a time as a fixed budget allows,

.. math::
    ∂p_{ic} = a_c \sum_j (G_{ij} + G_{ji}) \, \mathrm{sign}(p_{ic} - p_{jc}), \qquad
    ∂a_c = \sum_{ij} G_{ij} |p_{ic} - p_{jc}|.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ENTRIES = 1 << 23  # differences held at a time


def _rows(p: Tensor) -> list[slice]:
    graphs, n, channels = p.shape
    size = max(1, ENTRIES // max(1, graphs * n * channels))
    return [slice(start, start + size) for start in range(0, n, size)]


class _Distance(torch.autograd.Function):
    """``p [G, n, c]``, ``a [c]`` → ``[G, n, n]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, a: Tensor) -> Tensor:
        parts = [(p[:, rows, None] - p[:, None]).abs() @ a for rows in _rows(p)]
        return torch.cat(parts, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        p, a = ctx.saved_tensors
        both = grad + grad.mT
        to_p, to_a = [], torch.zeros_like(a)
        for rows in _rows(p):
            difference = p[:, rows, None] - p[:, None]
            to_p.append(torch.einsum("gij,gijc->gic", both[:, rows], difference.sign()) * a)
            to_a = to_a + torch.einsum("gij,gijc->c", grad[:, rows], difference.abs())
        return torch.cat(to_p, 1), to_a


def weighted_distance(p: Tensor, a: Tensor) -> Tensor:
    """s of the module's formula for graphs side by side: ``p [G, n, c]``, ``a [c]`` → ``[G, n, n]``."""
    return _Distance.apply(p, a)
