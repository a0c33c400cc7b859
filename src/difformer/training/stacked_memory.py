"""How many runs can be trained as one: the memory of a run, and what is free."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

# Of the free memory: gradients in flight, and what the allocator cannot use because it lies in pieces.
SHARE = 0.7
# Copies of a run's parameters: themselves, two moments, two forms of the gradient, the best epoch's.
PARAMETER_COPIES = 6
WITHOUT_KNOWING = 2**31  # bytes, on systems that do not tell


def saved_bytes(forward: Callable[[], object]) -> int:
    """Bytes that `forward` leaves behind for its backward pass, each memory counted once."""
    found: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.layout == torch.strided:
            storage = x.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        kept = forward()  # alive until counted: memory that was given back could be counted as another's
        total = sum(found.values())
        del kept
    return total


def free_memory(device: torch.device) -> int:
    """Bytes that this process could take on a device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    found = [value for value in (_meminfo(), _cgroup()) if value is not None]
    if found:
        return min(found)
    if not hasattr(os, "sysconf"):
        return WITHOUT_KNOWING
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # no kernel that tells: half of what there is


def _meminfo() -> int | None:
    path = Path("/proc/meminfo")
    for line in path.read_text().splitlines() if path.is_file() else ():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _cgroup() -> int | None:
    """What a container leaves to its processes."""
    folder = Path("/sys/fs/cgroup")
    limit, used = folder / "memory.max", folder / "memory.current"
    if not limit.is_file() or not used.is_file() or not limit.read_text().strip().isdecimal():
        return None
    return max(0, int(limit.read_text()) - int(used.read_text()))


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
