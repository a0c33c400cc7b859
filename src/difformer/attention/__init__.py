"""All-pair propagation: one call (`propagate`), or a summary of the senders and an answer (`summarise`)."""

from difformer.attention.dispatch import BACKENDS, Choice, explain, propagate
from difformer.attention.polynomial import Bounds, bounds
from difformer.attention.segments import Segments, as_segments
from difformer.attention.summary import Summary, restore, summarise

__all__ = [
    "BACKENDS",
    "Bounds",
    "Choice",
    "Segments",
    "Summary",
    "as_segments",
    "bounds",
    "explain",
    "propagate",
    "restore",
    "summarise",
]
