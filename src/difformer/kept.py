"""Work that depends on an input alone is done once: neighbour graphs, distances, walks.

A training loop hands over the same tensor or `Graph` at every epoch. What was worked out for such an object is kept as
long as the object lives, and forgotten with it; copies and saved models start without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

T = TypeVar("T")


class Kept(Generic[T]):
    """Results by the object they were worked out from."""

    def __init__(self) -> None:
        self._found: Any = WeakIdKeyDictionary()

    def of(self, owner: Any, key: tuple[Any, ...], work: Callable[[], T]) -> T:
        """The result for `owner`, by `work` where it is not known.

        Args:
            owner: A tensor, sparse matrix or graph.
            key: What else the result depends on; tensors are compared by value.
            work: Works it out; never under automatic differentiation, inference mode or reduced precision.
        """
        # A tensor that was written to is another one.
        key = (*key, owner._version if isinstance(owner, Tensor) and not owner.is_inference() else 0)
        known = self._found.get(owner)
        if known is not None and _same(known[0], key):
            return known[1]
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(owner.device.type, enabled=False):
            result = work()
        self._found[owner] = (key, result)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept[T]:
        return Kept()

    def __reduce__(self) -> tuple[type[Kept[T]], tuple[()]]:
        return Kept, ()


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(
        x is y or (torch.equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y)
        for x, y in zip(a, b, strict=True)
    )
