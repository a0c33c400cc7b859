"""All-pair propagation: one call, one operator a file, each tested against `reference`."""

from difformer.attention.chebyshev import Bounds, bounds
from difformer.attention.choice import BACKENDS, Choice, explain
from difformer.attention.dispatch import propagate
from difformer.attention.segments import Segments, as_segments

__all__ = ["BACKENDS", "Bounds", "Choice", "Segments", "as_segments", "bounds", "explain", "propagate"]
