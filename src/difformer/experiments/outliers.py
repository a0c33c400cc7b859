r"""How far an axis reaches so that most points can be told apart.

With quartiles q₁ and q₃ of the points, those outside of

    [q₁ - 3 (q₃ - q₁),  q₃ + 3 (q₃ - q₁)]

lie far from the others; they are left out of the axis where that more than doubles its scale, and shown at its edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles

FAR = 3.0
GAIN = 2.0
LEAST = 5  # of fewer points none is called far from the others


def near(points: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest point that the axis holds."""
    low, high = min(points), max(points)
    if len(points) < LEAST:
        return low, high
    first, _, third = quantiles(points, n=4, method="inclusive")
    reach = FAR * (third - first)
    kept = [point for point in points if first - reach <= point <= third + reach]
    return (min(kept), max(kept)) if (max(kept) - min(kept)) * GAIN < high - low else (low, high)
