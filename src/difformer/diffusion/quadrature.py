"""The penalty of a diffusivity that is known by its exchange alone: δ(u) = ∫₀ᵘ f on [0, 4]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Elementwise = Callable[[Tensor], Tensor]

LARGEST_SQUARED_DISTANCE = 4.0  # between two points of the unit ball
GRID_POINTS = 1025


def antiderivative(f: Elementwise) -> Elementwise:
    """The penalty of a diffusivity that is known by f alone: δ(u) = ∫₀ᵘ f, by Gauss-Legendre quadrature in small cells.

    Whole cells come from a table, the rest of the last one is integrated anew, so that δ is a differentiable function
    of u, and a kink of f spoils no more than the cell it lies in.
    """
    cell = LARGEST_SQUARED_DISTANCE / (GRID_POINTS - 1)
    points, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(6))
    points, weights = (points + 1) / 2, weights / 2  # from [-1, 1] to [0, 1]
    left = cell * torch.arange(GRID_POINTS - 1, dtype=torch.float64)
    table = torch.cat([torch.zeros(1), cell * (f(left.unsqueeze(1) + cell * points) * weights).sum(1)]).cumsum(0)

    def delta(u: Tensor) -> Tensor:
        number = (u.detach() / cell).floor().clamp(0, GRID_POINTS - 1).long()
        start = cell * number.to(u.dtype)
        within = u - start
        at = start.unsqueeze(-1) + within.unsqueeze(-1) * points.to(u)
        return table.to(u)[number] + within * (f(at) * weights.to(u)).sum(-1)

    return delta
