"""Integers of 32 bits seen as pairs of 16 bits, inside `torch.vmap` too."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def halves(h: Tensor) -> Tensor:
    """``[…, c]`` int32 as ``[…, 2c]`` int16, low half first."""
    if _views_are_stacked():
        return h.view(torch.int16)
    return _AsInt16.apply(h)


class _AsInt16(torch.autograd.Function):
    """The view, with the rule for vmap that older versions of torch lack."""

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.view(torch.int16)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], h: Tensor) -> tuple[Tensor, int]:
        return h.movedim(in_dims[0], 0).contiguous().view(torch.int16), 0


@lru_cache(maxsize=1)
def _views_are_stacked() -> bool:
    """Whether this torch can look at a tensor as another type inside vmap; older ones cannot."""
    try:
        torch.vmap(lambda x: x.view(torch.int16))(torch.zeros(1, 2, dtype=torch.int32))
    except RuntimeError:
        return False
    return True
