"""How many passes of training a model has made: saved with it, and known without asking the device."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.eager import is_eager


class Passes:
    """The value of a model's count, a buffer ``[]`` of integers; read from the device only after others wrote to it.

    A number that is read from a GPU is waited for until all that came before has been worked off.
    """

    def __init__(self) -> None:
        self._known: tuple[Tensor, int, int] | None = None  # the buffer, how often it was written to, its value

    def of(self, count: Tensor) -> int:
        """The value of the buffer."""
        if not is_eager(count) or count.is_inference():
            return int(count)
        if self._known is None or self._known[0] is not count or self._known[1] != count._version:
            self._known = (count, count._version, int(count))
        return self._known[2]

    def add(self, count: Tensor) -> None:
        """One more, in place."""
        plain = is_eager(count) and not count.is_inference()
        value = self.of(count) + 1 if plain else 0
        with torch.no_grad():
            count += 1
        if plain:
            self._known = (count, count._version, value)
