"""All-pair propagation: one call, one operator a file, each tested against `reference`."""

from difformer.attention.dispatch import propagate
from difformer.attention.segments import Segments, as_segments

__all__ = ["Segments", "as_segments", "propagate"]
