"""Certificates and the measurement of violations.

A theorem states that a number does not rise or that two values are equal. To separate violations from rounding, a rise
is measured relative to the energy at which it happens, plus a small part of the magnitude of the summed terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from difformer.errors import UserError

TOLERANCE = 1e-9
SLACK = 1 + 1e-9  # for the rounding of step sizes such as 2/λ₁ and of distances of 4
ROUNDING = 1e-5  # TOLERANCE × ROUNDING = 1e-14 is the precision of sums of magnitude one


@dataclass(frozen=True)
class Certificate:
    """A claim, its condition, and the measured violation.

    Args:
        name: The label of the claim in the paper's source, or a similar name.
        claim: The claim.
        condition: The condition of the claim.
        condition_met: Whether the given data and settings meet the condition.
        violation: The largest relative violation; at most `tolerance` if the claim holds.
        tolerance: The largest violation that rounding may cause.
        proved: Whether there is a proof; otherwise the claim is only known from measurements.
        details: Step size, weight, eigenvalues and other values that the claim depends on.
    """

    name: str
    claim: str
    condition: str
    condition_met: bool
    violation: float
    tolerance: float = TOLERANCE
    proved: bool = True
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the claim held on these data, regardless of the condition."""
        return self.violation <= self.tolerance

    @property
    def verdict(self) -> str:
        """``holds`` (``measured`` without a proof), ``fails``, or ``not covered`` if the condition is not met."""
        if not self.condition_met:
            return "not covered"
        return ("holds" if self.proved else "measured") if self.holds else "fails"


def double(z: Tensor) -> Tensor:
    """States in double precision, without gradients."""
    if z.dim() != 2:
        raise UserError(f"z must be states [N, d], got shape {tuple(z.shape)}")
    if z.shape[0] == 0:
        raise UserError(f"z has no rows, shape {tuple(z.shape)}: a certificate is about at least one state")
    if not z.isfinite().all():
        row = int((~z.isfinite()).any(1).nonzero()[0])
        raise UserError(f"z must be finite, but row {row} holds NaN or infinity: nothing can be measured on it")
    return z.detach().to(torch.float64)


def largest_rise(
    before: Sequence[Tensor] | Tensor, after: Sequence[Tensor] | Tensor, *, magnitude: float, base: float = 0.0
) -> float:
    """max (after - before) / scale: zero if nothing rises, NaN if a value is NaN.

    Args:
        before: Upper bounds.
        after: Values that should not exceed them.
        magnitude: Size of the summed terms, to which rounding errors are proportional.
        base: The smallest possible value of `before`; the scale is the distance from it.
    """
    low, high = (torch.tensor([0.0, *map(float, values)], dtype=torch.float64) for values in (before, after))
    scale = (low - base).abs() + ROUNDING * magnitude
    rise = torch.where(scale == 0, 0.0, (high - low) / scale)
    return float(rise.clamp_min(0.0).max())


def largest_gap(left: Tensor, right: Tensor, *, magnitude: float = 0.0) -> float:
    """max |left - right| relative to the largest entry, plus the rounding of `magnitude`."""
    if not left.numel():
        return 0.0
    scale = float(torch.maximum(left.abs().max(), right.abs().max())) + ROUNDING * magnitude
    return 0.0 if scale == 0 else float((left - right).abs().max()) / scale
