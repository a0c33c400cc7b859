"""Randomness of a run: everything follows from its seed, and nothing outside the run is disturbed.

Parameters are drawn from a private generator (`private_rng`), dropout masks and batches are functions of seed and epoch
(`difformer.nn.dropout`, `difformer.data.batches`). So runs in several threads of one process give the same results as
alone. Only a model that draws from torch's global generator during training needs `isolated_rng`; threads share that
generator, so such a model is not reproducible in threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Everything in torch that draws numbers and takes a generator: in-place draws, new tensors, and initialisers.
IN_PLACE = {"uniform_", "normal_", "bernoulli_", "random_", "exponential_", "cauchy_", "geometric_", "log_normal_"}
INITIALISERS = {"kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "trunc_normal_"}
NEW = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"}
DRAWS = IN_PLACE | INITIALISERS | NEW


class private_rng(TorchFunctionMode):
    """Inside it, all numbers this thread draws on the CPU follow from `seed`; torch's global generator is not touched.

    The numbers are those that the global generator would give after ``torch.manual_seed(seed)``.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") in DRAWS and given.get("generator") is None:
            given = given | {"generator": self.generator}
        return func(*args, **given)


_lock = threading.RLock()  # of torch's global generators
_inside: list[int] = []  # the thread of every entry into `isolated_rng` that has not been left
_before: list[Tensor] = []  # the states to return to when the last of them is left


@contextmanager
def isolated_rng(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves torch's global generators as they were; `seed` seeds them first.

    While other threads are inside, the generators are left alone; the last thread to leave restores them.
    """
    me = threading.get_ident()
    with _lock:
        state = rng_state(device)
        if not _inside:
            _before[:] = state
        _inside.append(me)
        if seed is not None:
            torch.manual_seed(seed)
    try:
        yield
    finally:
        with _lock:
            _inside.remove(me)
            if set(_inside) <= {me}:
                set_rng_state(device, state if _inside else _before)


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
