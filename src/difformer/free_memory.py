"""Free memory, and how much of it one step of an operator takes."""

from __future__ import annotations

from pathlib import Path

import torch

LEAST = 1 << 16  # elements that are worked on at a time, however little is free
UNKNOWN = 1 << 62  # where the system does not say: torch raises an error if memory runs out


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still take on a device."""
    if device.type == "cuda" and torch.cuda.is_available():
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    of_the_machine = kernel_value(Path("/proc/meminfo"), "MemAvailable:", 1024)
    return min((found for found in (of_the_machine, _of_the_container()) if found is not None), default=UNKNOWN)


def _of_the_container(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The limit of a container minus what its processes use, not counting files that can be read again."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # not in a container, or in one without a limit ("max")
        return None
    return max(0, limit - used + (kernel_value(folder / "memory.stat", "inactive_file", 1) or 0))


def kernel_value(path: Path, name: str, unit: int) -> int | None:
    """The number that follows a name in a table of the Linux kernel."""
    try:
        with path.open() as table:
            return next((unit * int(line.split()[1]) for line in table if line.startswith(name)), None)
    except OSError:
        return None


def elements_at_a_time(device: torch.device, cpu: int, gpu: int) -> int:
    """How many elements an operator works on at a time: `cpu` or `gpu`, fewer where a GPU's memory is nearly full."""
    if device.type == "cpu":
        return cpu
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return gpu
    return max(min(gpu, free_bytes(device) // 32), LEAST)  # a few buffers of float32
