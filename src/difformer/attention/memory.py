"""Memory that is free, and how much of it one step of an operator takes."""

from __future__ import annotations

import torch

LEAST = 1 << 16  # elements that are worked on at a time, however little is free


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken on a device."""
    if device.type == "cuda" and torch.cuda.is_available():
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    try:
        with open("/proc/meminfo") as table:
            line = next(line for line in table if line.startswith("MemAvailable"))
        return 1024 * int(line.split()[1])
    except (OSError, StopIteration):  # not Linux: what torch cannot take it will say itself
        return 1 << 62


def elements_at_a_time(device: torch.device, cpu: int, gpu: int) -> int:
    """How many elements an operator works on at a time: `cpu` or `gpu`, or on a GPU what a full memory leaves room for.

    An operator holds a few buffers of this size, in float32: a thirty-second of the free bytes each, as elements.
    """
    if device.type == "cpu":
        return cpu
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return gpu
    return max(min(gpu, free_bytes(device) // 32), LEAST)
