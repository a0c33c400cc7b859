"""Where to train: a device by name, and what is known of it."""

from __future__ import annotations

import platform

import torch

from difformer.errors import UserError


def resolve(device: str | torch.device = "auto") -> torch.device:
    """The device of a name; ``"auto"`` is the first CUDA device where there is one, the CPU otherwise.

    Apple's ``"mps"`` has to be asked for: torch has no sparse products there yet, so graphs fail on it.

    Raises:
        ValueError: If there is no such device, saying which there are.
    """
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device must be auto, cpu, cuda, cuda:1 or mps, got {str(device)!r}") from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            raise UserError(
                f"device {str(device)!r} is not here: {count or 'no'} CUDA device{'' if count == 1 else 's'} found; "
                f"take device='auto' or 'cpu'"
            )
        return torch.device("cuda", found.index or 0)
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' is not here; take device='auto' or 'cpu'")
    return found


def describe(device: torch.device) -> str:
    """The device for people."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return platform.processor() or platform.machine()
