r"""Dropout whose masks are determined by a seed, a step and the position of an entry, so that they can be made again.

Entry (i, c) of the s-th dropout of a forward pass is dropped where 16 bits of a hash fall below p:

.. math::
    y_{ic} = \frac{x_{ic}}{1 - p} \; [\, h(\text{seed}, \text{step}, s, i, c) \ge 2^{16} p \,].

A mask does not depend on the device, on how many runs are trained as one, or on which machine holds row i. It is also
fast: five vectorised integer operations mix two channels each into the hash of a row (torch's own generator is
sequential on a CPU). Other random numbers of a training step come from the same hash (`keyed_uniform`). Outside
`dropout_key`, torch's global generator is used.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from difformer.kernels import MaskKey


class dropout_key:
    """A context in which dropout masks follow from the seed, the step and the order of the dropouts alone.

    Args:
        seed: The run's seed; or a key ``[2]`` of `dropout_keys`, for runs trained as one.
        step: Any number that distinguishes one pass, or one epoch of several passes, from the others.
        rows: ``[N]`` numbers of the rows of this process if it holds only some; None for 0 … N - 1.
        site: How many dropouts of this key came before, to continue with it; ``place.site`` tells afterwards.

    Example:
        >>> with dropout_key(seed=7, step=0):
        ...     loss = model.train()(x).sum()
    """

    def __init__(self, seed: int | Tensor, step: int = 0, *, rows: Tensor | None = None, site: int = 0) -> None:
        self.key = seed if isinstance(seed, Tensor) else dropout_keys([seed], [step])[0, 0]
        self.rows, self.start, self.site = rows, site, site  # `site` counts dropouts, and draws (`_DRAW`)

    def __enter__(self) -> dropout_key:
        global _keyed
        if _keyed is _at_place and "torch._dynamo" in sys.modules:  # loading it takes seconds, and few need it
            _keyed = torch.compiler.disable(_at_place)
        self.outer, self.site = _current.place, self.start
        _current.place = self
        _open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _open.remove(self)
        _current.place = self.outer

    def threshold(self, p: float | Tensor) -> tuple[Tensor, Tensor] | tuple[int, float]:
        """The first int16 (-2^15 … 2^15 - 1) that keeps an entry, and 1 / (1 - p), with p to the nearest 2^-16."""
        if isinstance(p, Tensor):
            counts = (p.float() * 65536).round().clamp(max=65535)
            return (counts - 32768).to(torch.int16), 65536 / (65536 - counts)
        count = min(round(float(np.float32(p)) * 65536), 65535)
        return count - 32768, 65536 / (65536 - count)

    def keep_mask(self, x: Tensor, p: float | Tensor) -> Tensor | None:
        """1 / (1 - p) where an entry of `x` is kept, 0 elsewhere; None, which counts as a dropout, if all are kept."""
        site, self.site = self.site, self.site + 1
        if not isinstance(p, Tensor) and p <= _NO_RATE:
            return None
        first, scale = self.threshold(p)
        columns = math.prod(x.shape[1:])
        bits = halves(self._words(self.rows, x.shape[0], (columns + 1) // 2, site, x.device))
        bits = (bits if columns % 2 == 0 else bits[:, :columns]).reshape(x.shape)
        if x.is_cuda or isinstance(first, Tensor):
            return (bits >= first) * torch.as_tensor(scale, dtype=x.dtype)
        # A boolean tensor is slow to make and to use on a CPU.
        return bits.clamp(first - 1, first).sub_(first - 1).to(x.dtype).mul_(scale)

    def uniform(self, shape: Sequence[int], device: torch.device, dtype: torch.dtype, nodes: bool) -> Tensor:
        """The numbers of `keyed_uniform`."""
        rows, site = self.rows if nodes else None, -1 - self.site // _DRAW
        self.site += _DRAW
        u = ((self._words(rows, shape[0], math.prod(shape[1:]), site, device) >> 1) & 0x7FFFFFFF).to(dtype)
        return u.add_(0.5).mul_(2.0**-31).clamp(max=1 - torch.finfo(dtype).eps / 2).reshape(shape)

    def _words(self, held: Tensor | None, count: int, columns: int, site: int, device: torch.device) -> Tensor:
        """``[count, columns]`` int32, every bit a fair coin: the hashes of all rows, or of those in `held`."""
        rows = _ramp(count, device) if held is None else (held + 1).to(torch.int32) * _GOLDEN
        # Two 32-bit states per row, so that rows with equal masks are as rare as equal 64-bit numbers.
        state = rows ^ (self.key.to(device) + _signed(site * _SECOND)).unsqueeze(-1)
        state = state.bitwise_xor_(state >> 16).mul_(_FIRST)
        state = state.bitwise_xor_(state >> 15).mul_(_SECOND).unsqueeze(-1)
        h = (state[0] ^ _ramp(columns, device)).mul_(_FIRST)
        return h.bitwise_xor_(h >> 15).mul_(state[1] | 1)


class _Current(threading.local):
    place: dropout_key | None = None  # of this thread's forward pass; None if torch's own generator is used


_current = _Current()
_open: list[dropout_key] = []  # of all threads: a compiled model is compiled again once keys are used


def _signed(value: int) -> int:
    """The int32 with the lowest 32 bits of `value`."""
    return (value + 2**31) % 2**32 - 2**31


# Odd numbers with irregular bits: 2^32 over the golden ratio, and multipliers that mix high bits into low ones.
_GOLDEN, _FIRST, _SECOND = _signed(0x9E3779B1), _signed(0x7FEB352D), _signed(0x846CA68B)
_DRAW = 2**32  # what a draw that is no dropout adds to a site: masks depend on the site modulo 2^32
_NO_RATE = 2**-17  # rates up to here round to 0 of 2^16


def dropout_keys(seeds: Sequence[int], steps: Sequence[int]) -> Tensor:
    """``[steps, seeds, 2]`` int32: the keys of runs at steps, 64 bits each, on the CPU."""
    seed, step = (np.array([value % 2**64 for value in values], dtype=np.uint64) for values in (seeds, steps))
    mixed = _mix64(_mix64(seed)[None, :] ^ _mix64(~step)[:, None])
    return torch.from_numpy(mixed.view(np.int32).reshape(*mixed.shape, 2).copy())


def _mix64(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def replay() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts for work done now and for the same work done again, with the same masks, as checkpoints need them."""
    place = _current.place
    return nullcontext(), nullcontext() if place is None else dropout_key(place.key, rows=place.rows, site=place.site)


def _at_place(work: Callable[..., Any], *given: Any) -> Any:
    """`work` at the place of this thread, or None if the thread has no place."""
    if torch.compiler.is_compiling():
        raise RuntimeError("a model is compiled inside dropout_key: compile it (torch.compile) before entering")
    place = _current.place
    return None if place is None else work(place, *given)


# The key of one step must not become a constant of a compiled model: once there is a compiler, it is kept out.
_keyed: Callable[..., Any] = _at_place


def dropout(x: Tensor, p: float | Tensor, training: bool) -> Tensor:
    """Dropout whose rate may be a tensor, as it is when runs of different rates are trained as one."""
    if not training:
        return x
    if _open and (kept := _keyed(dropout_key.keep_mask, x, p)) is not None:
        return x * kept
    if isinstance(p, Tensor):
        return x * (torch.rand_like(x) >= p) / (1 - p)
    return functional.dropout(x, p) if p > _NO_RATE else x


def keyed_uniform(
    shape: Sequence[int], device: torch.device, *, dtype: torch.dtype = torch.float32, nodes: bool = True
) -> Tensor | None:
    """Numbers uniform on (0, 1) of shape ``(rows, …)`` that follow from the key; None outside `dropout_key`.

    `nodes` says whether rows are nodes, of which this process may hold a part. Draws do not change the masks.
    """
    return _keyed(dropout_key.uniform, shape, device, dtype, nodes) if _open else None


class LayerDropout(NamedTuple):
    """The dropout after a layer, by itself (`apply`) or by a kernel, see `difformer.kernels.fused.fused_layer`."""

    rate: float  # in stacked runs, which no kernel takes, a tensor
    training: bool

    def key(self) -> MaskKey | None:
        """The key of the next mask, which counts as used; None if nothing is dropped or there is no `dropout_key`."""
        place = _current.place
        if place is None or not self.training or self.rate <= _NO_RATE:
            return None
        first, scale = place.threshold(self.rate)
        key, twin = (_signed(half + _signed(place.site * _SECOND)) for half in place.key.tolist())
        place.site += 1
        numbers = None if place.rows is None else (place.rows + 1).to(torch.int32).contiguous()
        return MaskKey(int(first), float(scale), key, twin, numbers)

    def mask(self, like: Tensor) -> tuple[Tensor | None, float]:
        """The mask of the key; or None and the rate at which torch's generator drops."""
        place = _current.place
        if not self.training or (place is None and self.rate <= _NO_RATE):
            return None, 0.0
        return (None, self.rate) if place is None else (place.keep_mask(like, self.rate), 0.0)

    def apply(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate, self.training)


@lru_cache(maxsize=32)
def _ramp(count: int, device: torch.device) -> Tensor:
    """``[count]`` int32, 1 … count spread over all 32 bits."""
    return torch.arange(1, count + 1, dtype=torch.int32, device=device) * _GOLDEN


def halves(h: Tensor) -> Tensor:
    """``[…, c]`` int32 as ``[…, 2c]`` int16, low half first."""
    try:
        return h.view(torch.int16)
    except RuntimeError:  # inside vmap, where older versions of torch have no such view
        return torch.stack([h.to(torch.int16), (h >> 16).to(torch.int16)], -1).flatten(-2)
