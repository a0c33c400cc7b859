"""What a certificate is, and how a violation is measured.

A theorem says that some number does not rise, or that two things are equal. Numbers carry rounding errors, so a rise is
put in relation to the energy it happened at, plus a small part of the magnitude of what was summed: a violation below
the tolerance is rounding, one above it is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from difformer.errors import UserError

TOLERANCE = 1e-9
# Sums of magnitude one are known to about 1e-14 in double precision: TOLERANCE times this part of the magnitude.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Certificate:
    """What was claimed, under which condition, and what was measured.

    Args:
        name: The label of the claim in the paper's source, or a name in its manner.
        claim: What is claimed.
        condition: When.
        condition_met: Whether the data and settings at hand meet the condition.
        violation: The largest violation measured, relative; at most `tolerance` where the claim holds.
        tolerance: What rounding may cause.
        proved: Whether there is a proof; otherwise the claim is only known from measurements.
        details: Step size, weight, eigenvalues and whatever else the claim depends on.
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
        """Whether the claim held on these data, whatever the condition."""
        return self.violation <= self.tolerance

    @property
    def verdict(self) -> str:
        """``holds``, ``fails``, or ``not covered`` where the condition is not met."""
        if not self.condition_met:
            return "not covered"
        return ("holds" if self.proved else "measured") if self.holds else "fails"


def double(z: Tensor) -> Tensor:
    """States in double precision, apart from any graph of gradients."""
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
    """max (after - before) / scale: at most zero where nothing rises, NaN where a number is not one.

    Args:
        before: Values that should not be exceeded.
        after: Values that should not exceed them.
        magnitude: Size of the numbers that were summed, which rounding errors are in proportion to.
        base: The least value that `before` could have; heights are counted from it.
    """
    worst = -math.inf
    for low, high in zip(before, after, strict=True):
        scale = abs(float(low) - base) + ROUNDING * magnitude
        rise = 0.0 if scale == 0 else (float(high) - float(low)) / scale
        worst = math.nan if math.isnan(rise) else max(worst, rise)
        if math.isnan(worst):
            return worst
    return max(worst, 0.0)


def largest_gap(left: Tensor, right: Tensor, *, magnitude: float = 0.0) -> float:
    """max |left - right| relative to the largest entry of the two, plus what rounding makes of `magnitude`."""
    if not left.numel():
        return 0.0
    scale = float(torch.maximum(left.abs().max(), right.abs().max())) + ROUNDING * magnitude
    return 0.0 if scale == 0 else float((left - right).abs().max()) / scale
