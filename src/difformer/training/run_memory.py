"""Memory of a run: what a forward pass keeps for its backward pass, and how many runs fit into a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

# Of the free memory: gradients in flight, and what the allocator cannot use because it lies in pieces.
SHARE = 0.7
# Copies of a run's parameters: themselves, two moments, two forms of the gradient, the best epoch's.
PARAMETER_COPIES = 6


def saved_bytes(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Bytes that `forward` keeps for its backward pass, each memory counted once.

    Args:
        forward: A pass; no gradient can be taken of what it returns.
        besides: Tensors that exist anyway and do not count, such as parameters.
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


def chunks_that_fit(runs: int, bytes_each: int, free: int, most: int | None = None) -> list[int]:
    """Sizes of chunks of about equal length: as few as memory allows.

    Args:
        runs: How many there are in all.
        bytes_each: What one of them needs.
        free: What is there for all of a chunk.
        most: Largest chunk that is wanted whatever the memory.
    """
    if runs < 1:
        return []
    fitting = max(1, int(SHARE * free / max(1, bytes_each)))
    size = min(fitting, runs, most or runs)
    count = -(-runs // size)
    return [runs // count + (chunk < runs % count) for chunk in range(count)]
