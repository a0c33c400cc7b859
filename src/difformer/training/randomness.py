"""Randomness of a run: everything follows from its seed, and nothing outside the run is disturbed.

Parameters are drawn under `private_rng`, dropout masks and batches are functions of seed and epoch
(`difformer.nn.dropout`, `difformer.data.batches`). So runs in several threads of one process give the same results as
alone. Only a model that draws from torch's global generator during training needs `isolated_rng`; threads share that
generator, so such a model is not reproducible in threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_lock = threading.RLock()  # of torch's global generators
_inside = 0  # entries into `isolated_rng` that have not been left
_before: list[Tensor] = []  # the states to return to when the last of them is left


@contextmanager
def private_rng(seed: int) -> Iterator[None]:
    """Numbers drawn on the CPU inside follow from `seed`, as after ``torch.manual_seed(seed)``; other threads wait.

    Torch's global generator is afterwards what it was.
    """
    with _lock, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def isolated_rng(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves torch's global generators as they were; `seed` seeds them first.

    The last of several threads, or of several entries in one thread, restores them.
    """
    global _inside
    with _lock:
        if not _inside:
            _before[:] = rng_state(device)
        _inside += 1
        if seed is not None:
            torch.manual_seed(seed)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                set_rng_state(device, _before)


def rng_state(device: torch.device) -> list[Tensor]:
    """States of the generators that a model on `device` may draw from."""
    with _lock:
        return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def set_rng_state(device: torch.device, states: list[Tensor]) -> None:
    """Puts the generators back to what `rng_state` gave."""
    with _lock:
        torch.set_rng_state(states[0])
        if device.type == "cuda" and len(states) > 1:
            torch.cuda.set_rng_state(states[1], device)
