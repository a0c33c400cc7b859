r"""Solvers of :math:`\partial Z / \partial t = r(Z)`: explicit steps of fixed length, or an adaptive one.

.. math::
    Z^{+} = Z + τ r(Z) \;\; \text{(Euler)}, \qquad
    Z^{+} = Z + \tfrac{τ}{6} (r_1 + 2 r_2 + 2 r_3 + r_4) \;\; \text{(Runge and Kutta's, of order four)}.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from difformer.zoo.base import check_choice

METHODS = ("euler", "rk4", "dopri5")
Rate = Callable[[Tensor], Tensor]


def check_method(method: str) -> None:
    """Raises a ValueError unless there is such a solver."""
    check_choice("method", method, METHODS)


def integrate(
    rate: Rate, z: Tensor, steps: int, step_size: float | Tensor, *, method: str = "euler", tolerance: float = 1e-3
) -> Tensor:
    """States at time ``steps × step_size``.

    Args:
        rate: r.
        z: States at time 0.
        steps: Steps of ``"euler"`` and ``"rk4"``; ``"dopri5"`` chooses its own on the way to the same time.
        step_size: τ.
        method: One of `METHODS`.
        tolerance: Relative and absolute, of ``"dopri5"``.
    """
    check_method(method)
    if method == "dopri5":
        return _adaptive(rate, z, steps * step_size, tolerance)
    advance = _euler if method == "euler" else _rk4
    for _ in range(steps):
        z = advance(rate, z, step_size)
    return z


def _euler(rate: Rate, z: Tensor, step: float | Tensor) -> Tensor:
    return z + step * rate(z)


def _rk4(rate: Rate, z: Tensor, step: float | Tensor) -> Tensor:
    first = rate(z)
    second = rate(z + step / 2 * first)
    third = rate(z + step / 2 * second)
    fourth = rate(z + step * third)
    return z + step / 6 * (first + 2 * second + 2 * third + fourth)


def _adaptive(rate: Rate, z: Tensor, time: float | Tensor, tolerance: float) -> Tensor:
    try:
        from torchdiffeq import odeint
    except ImportError as missing:
        raise ImportError("method='dopri5' needs torchdiffeq: pip install 'difformer[ode]'") from missing
    times = torch.tensor([0.0, float(time)], dtype=z.dtype, device=z.device)
    return odeint(lambda _, states: rate(states), z, times, method="dopri5", rtol=tolerance, atol=tolerance)[-1]
