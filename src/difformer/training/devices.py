"""Where to train: a device by name, its precision, and the memory that a pass keeps."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from difformer.errors import UserError


def resolve(device: str | torch.device = "auto") -> torch.device:
    """The device of a name; ``"auto"`` is the first CUDA device if there is one, otherwise the CPU.

    Apple's ``"mps"`` has to be asked for: torch has no sparse products there yet, so graphs fail on it.
    """
    if isinstance(device, str) and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device must be auto, cpu, cuda, cuda:1 or mps, got {str(device)!r}") from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    missing = {"cuda": (found.index or 0) >= count, "mps": not torch.backends.mps.is_available()}
    if missing.get(found.type):
        advice = f"use device='auto' or 'cpu' (CUDA devices found: {count})"
        raise UserError(f"device {str(device)!r} is not available; {advice}")
    return torch.device("cuda", found.index or 0) if found.type == "cuda" else found


def precision(device: torch.device, name: str) -> torch.autocast:
    """Within it, forward passes have a precision: ``"float32"`` or ``"bf16"``."""
    return torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16")


def describe(device: torch.device) -> str:
    """A human-readable name of the device."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return platform.processor() or platform.machine()


def saved_bytes(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Bytes that `forward` keeps for its backward pass, each memory counted once; no gradient can be taken of it.

    Tensors in `besides` exist anyway and do not count, such as parameters.
    """
    # Storages are held until they are counted: memory that was given back could be counted as another's.
    found: dict[int, torch.UntypedStorage] = {}

    def pack(x: Tensor) -> None:  # keeps nothing: an operation that saved its own result would never be freed
        if x.layout == torch.strided:
            found[x.untyped_storage().data_ptr()] = x.untyped_storage()

    with saved_tensors_hooks(pack, lambda nothing: nothing):
        forward()
    for tensor in besides:
        found.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in found.values())
