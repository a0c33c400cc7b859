"""What a forward pass keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def saved_bytes(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Bytes that `forward` leaves behind for its backward pass, each memory counted once.

    Args:
        forward: A pass; no gradient can be taken of what it returns.
        besides: Tensors that are there anyway and do not count, such as parameters.
    """
    # Storages are held until they are counted: memory that was given back could be counted as another's.
    found: dict[int, torch.UntypedStorage] = {}

    def pack(x: Tensor) -> None:
        # Nothing is handed on to a backward pass. A tensor that was would be its own owner if it is a result of the
        # operation that saves it, and never be freed.
        if x.layout == torch.strided:
            storage = x.untyped_storage()
            found[storage.data_ptr()] = storage

    with saved_tensors_hooks(pack, lambda _: _nothing()):
        forward()
    for tensor in besides:
        found.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in found.values())


def _nothing() -> Tensor:
    raise RuntimeError("this pass was made to be measured: nothing was kept for its gradient")
