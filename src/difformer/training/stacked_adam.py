r"""Adam for runs trained as one, each with a learning rate and a weight decay of its own.

All parameters of a run are one row θ of a matrix ``[runs, P]``. With the gradient g, the run's rate η and decay λ,

.. math::
    g &\leftarrow g + λθ \text{ (coupled)} \quad \text{or} \quad θ \leftarrow (1 - ηλ) θ \text{ (decoupled)} \\
    m &\leftarrow β_1 m + (1 - β_1) g, \qquad v \leftarrow β_2 v + (1 - β_2) g^2 \\
    θ &\leftarrow θ - \frac{η}{1 - β_1^t} \; \frac{m}{\sqrt{v / (1 - β_2^t)} + ε},

which is `torch.optim.Adam`, or `torch.optim.AdamW`, on every row.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPS = 1e-8


class StackedAdam:
    """Moments of stacked runs.

    Args:
        parameters: ``[runs, P]``, changed in place.
        weight_decay: ``[runs]``.
        decoupled: AdamW instead of Adam.
        columns: ``[P]`` one where a column is trained, zero where it never has a gradient (and so no decay either);
            None if all are.
    """

    def __init__(
        self, parameters: Tensor, weight_decay: Tensor, *, decoupled: bool = False, columns: Tensor | None = None
    ) -> None:
        self.parameters, self.decoupled = parameters, decoupled
        self.weight_decay = weight_decay.unsqueeze(1) if columns is None else weight_decay.unsqueeze(1) * columns
        self.decays = bool(weight_decay.any())
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        # On the device, like all that changes from step to step: a step can then be recorded and replayed.
        self.steps = torch.zeros(1, dtype=torch.float64, device=parameters.device)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: Tensor) -> None:
        """One step along ``gradient [runs, P]``, which may be overwritten, with rates ``[runs]``."""
        rate = learning_rate.unsqueeze(1)
        self.steps += 1
        first, second = BETAS
        if self.decays and self.decoupled:
            self.parameters.mul_(1 - rate * self.weight_decay)
        elif self.decays:
            gradient.addcmul_(self.parameters, self.weight_decay)
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (1 - second**self.steps).sqrt().to(gradient.dtype)
        denominator = torch.sqrt(self.square, out=gradient).div_(root).add_(EPS)
        direction = torch.div(self.mean, denominator, out=denominator)
        self.parameters.addcmul_(direction, rate / (first**self.steps - 1).to(rate.dtype))


def clip_gradients(gradient: Tensor, largest: float) -> None:
    """Shortens every row of ``[runs, P]`` to a norm of at most `largest`, as `clip_grad_norm_` does for one run."""
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    gradient.mul_((largest / (norm + 1e-6)).clamp_(max=1.0))
