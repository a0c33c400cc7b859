r"""The optimiser and the learning rate of every epoch, for one run and for runs trained as one.

In a stack, all parameters of a run are one row θ of a matrix ``[runs, P]``. With the gradient g, the run's learning
rate η and weight decay λ,

.. math::
    g &\leftarrow g + λθ \text{ (coupled)} \quad \text{or} \quad θ \leftarrow (1 - ηλ) θ \text{ (decoupled)} \\
    m &\leftarrow β_1 m + (1 - β_1) g, \qquad v \leftarrow β_2 v + (1 - β_2) g^2 \\
    θ &\leftarrow θ - \frac{η}{1 - β_1^t} \; \frac{m}{\sqrt{v / (1 - β_2^t)} + ε},

which is `torch.optim.Adam`, or `torch.optim.AdamW`, on every row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from difformer.training.config import TrainConfig

BETAS = (0.9, 0.999)
EPS = 1e-8


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer | None:
    """Adam with the decay inside the gradient, or AdamW; None for a model without parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    kind = torch.optim.AdamW if config.decoupled else torch.optim.Adam
    # One kernel for all parameters: three times as fast as one after the other, on the CPU too.
    fused = parameters[0].device.type in ("cpu", "cuda")
    return kind(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused)


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """The learning rate of an epoch, counted from 1; a function of the epoch only, so a schedule has no state.

    With u falling from 1 in the first epoch after the warm-up to 1/n in the last of n: η (constant), η u (linear) or
    η (1 - cos πu) / 2 (cosine).
    """
    if epoch <= config.warmup:
        return config.learning_rate * epoch / (config.warmup + 1)
    u = (config.epochs - epoch + 1) / max(1, config.epochs - config.warmup)
    factor = {"constant": 1.0, "linear": u, "cosine": 0.5 - 0.5 * math.cos(math.pi * u)}[config.schedule]
    return config.learning_rate * factor


class StackedAdam:
    """Adam for ``parameters [runs, P]``, changed in place, with one ``weight_decay [runs]`` per run."""

    def __init__(self, parameters: Tensor, weight_decay: Tensor, decoupled: bool = False) -> None:
        self.parameters, self.weight_decay, self.decoupled = parameters, weight_decay.unsqueeze(1), decoupled
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        # On the device, like all that changes from step to step: a step can then be recorded and replayed.
        self.steps = torch.zeros(1, dtype=torch.float64, device=parameters.device)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: Tensor, used: Tensor | None = None) -> None:
        """One step along ``gradient [runs, P]``, which may be overwritten, with rates ``[runs]``.

        ``used [P]`` is one for parameters with a gradient, zero for others, which do not decay; None if all have one.
        """
        rate, decay = learning_rate.unsqueeze(1), self.weight_decay if used is None else self.weight_decay * used
        self.steps += 1
        first, second = BETAS
        if self.decoupled:
            self.parameters.mul_(1 - rate * decay)
        else:
            gradient.addcmul_(self.parameters, decay)
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
