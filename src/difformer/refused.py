"""What is refused before it is begun. No torch here: the command line looks at errors before torch is loaded."""

from __future__ import annotations


class WouldNotFitError(MemoryError):
    """A model says beforehand that it needs more memory than is free; the message holds the advice that fits it."""
