"""Randomness of a run: everything follows from its seed, and nothing outside the run is disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def isolated_rng(device: torch.device) -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves torch's global generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def rng_state(device: torch.device) -> list[Tensor]:
    """States of the generators that a model on `device` may draw from."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def set_rng_state(device: torch.device, states: list[Tensor]) -> None:
    """Puts the generators back to what `rng_state` gave."""
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
