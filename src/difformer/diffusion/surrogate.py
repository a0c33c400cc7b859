r"""The surrogate energy of `prop-energy`: a quadratic bound from above, tight where the step is taken.

The penalty δ is concave, so it is the lower envelope of its tangents. With its concave conjugate on [0, 4]

.. math::
    \tilde\delta(\omega) = \min_{0 \le u \le 4} \omega u - \delta(u),   \qquad
    \delta(u) = \min_{\omega \ge 0} \omega u - \tilde\delta(\omega),

so that, for any variational parameters :math:`\omega_{ij} \ge 0`,

.. math::
    \tilde E(Z, k; \Omega) = \|Z - Z^{(k)}\|^2 + \lambda \sum_{ij} \left[\omega_{ij} \|z_i - z_j\|^2
    - \tilde\delta(\omega_{ij})\right] \;\ge\; E(Z, k; \delta),

with equality at :math:`\omega_{ij} = f(\|z_i - z_j\|^2)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from difformer.diffusion.pairs import BLOCK_SIZE, squared_distances
from difformer.diffusivity import LARGEST_SQUARED_DISTANCE, Diffusivity, as_diffusivity
from difformer.errors import UserError

HALVINGS = 40  # u to 4e-12; the minimum to the square of that, except where f jumps


def concave_conjugate(omega: Tensor, diffusivity: Diffusivity) -> Tensor:
    """δ̃(ω) = min over u in [0, 4] of ωu - δ(u), element by element.

    ωu - δ(u) is convex in u, and its slope ω - f(u) does not decrease: the minimum lies where f falls through ω, which
    is found by halving the interval. That needs nothing of f but what every diffusivity has, and a small error in u
    changes the minimum by its square only.
    """
    low, high = torch.zeros_like(omega), torch.full_like(omega, LARGEST_SQUARED_DISTANCE)
    with torch.no_grad():
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            beyond = diffusivity.f(middle) <= omega  # the slope is ≥ 0 here: the minimum is not to the right
            low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    # The ends of the last interval: 0 and 4 stay exact where the minimum lies there.
    return torch.minimum(omega * low - diffusivity.delta(low), omega * high - diffusivity.delta(high))


def surrogate_energy(
    z: Tensor,
    previous: Tensor,
    omega: Tensor | Callable[[slice], Tensor] | None,
    diffusivity: str | Diffusivity,
    *,
    weight: float = 1.0,
    block_size: int = BLOCK_SIZE,
) -> Tensor:
    """Ẽ(Z, k; Ω), summed over blocks of rows.

    Args:
        z: States Z, ``[N, d]``, no two further apart than a squared distance of 4.
        previous: States Z^(k), ``[N, d]``.
        omega: Ω ≥ 0: a dense ``[N, N]`` tensor; a function that gives the rows of a slice, where N×N is too much; or
            None for f(||z^(k)_i - z^(k)_j||²), what the diffusion takes.
        diffusivity: A name or a `Diffusivity`.
        weight: λ.
        block_size: Rows at a time.
    """
    chosen = as_diffusivity(diffusivity, channels=z.shape[1])
    centred, anchored = z - z.mean(0), previous - previous.mean(0)
    total = ((z - previous) ** 2).sum()
    rounding = 64 * torch.finfo(z.dtype).eps * float(chosen.f(z.new_zeros(1)))
    for start in range(0, z.shape[0], block_size):
        rows = slice(start, start + block_size)
        if omega is None:
            parameters = chosen.f(squared_distances(anchored[rows], anchored))
        else:
            parameters = omega(rows) if callable(omega) else omega[rows]
        # Opposite unit states may come out a rounding error further apart than 4, where f falls below zero.
        if (parameters < -rounding).any():
            raise UserError(f"omega must be ≥ 0, got {parameters.min().item():.3g}")
        parameters = parameters.clamp_min(0.0)
        bound = parameters * squared_distances(centred[rows], centred) - concave_conjugate(parameters, chosen)
        total = total + weight * bound.sum()
    return total
