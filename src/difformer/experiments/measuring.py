"""What a run cost and where it was made: the peak of memory, the device, the versions."""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from difformer.training.devices import describe


@dataclass
class Peak:
    """Bytes at the peak, above what the process held before; None where unknown."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device, *, added: bool = True) -> Iterator[Peak]:
    """Measures what happens inside.

    Args:
        device: Whose memory is meant; a CPU's is that of the process.
        added: Whether what a GPU held before is left out; that of a CPU always is.
    """
    found = Peak()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device) if added else 0
        yield found
        torch.cuda.synchronize(device)
        found.bytes = torch.cuda.max_memory_allocated(device) - held
        return
    forgotten = _forget()
    before = _status("VmRSS")
    yield found
    after = _status("VmHWM")
    if forgotten and before is not None and after is not None:
        found.bytes = max(after - before, 0)


def _forget() -> bool:
    """Sets the process's highest memory back to the present one; False where the system does not allow it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free goes back, or it would not count when taken again
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(what: str) -> int | None:
    place = Path("/proc/self/status")
    if not place.is_file():
        return None
    return next((1024 * int(line.split()[1]) for line in place.read_text().splitlines() if line.startswith(what)), None)


def surroundings(device: torch.device) -> dict[str, Any]:
    """Device, threads and versions, for the record."""
    import numpy

    from difformer import __version__

    return {
        "device": f"{_processor()}, {torch.get_num_threads()} threads" if device.type == "cpu" else describe(device),
        "versions": {
            "difformer": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def _processor() -> str:
    """What the processor calls itself, where the system tells."""
    place = Path("/proc/cpuinfo")
    if place.is_file():
        for line in place.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
