"""How an operator evaluates a diffusivity on a tile of scores: g(x), and the pullback w ↦ w · g'(x).

Closed forms are recognised by their values, not by their names, so that a user's own e^(-u) is as fast and as
safe as a built-in one. For every other diffusivity the slope comes from automatic differentiation.

Exponentials g(x) = e^(a x + b) are row-normalised as a softmax of a x: b cancels, and with the largest score of a row
subtracted nothing overflows, whatever the norms of q and k.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from difformer._compat import constant_result
from difformer.diffusivity import OWN, SMALLEST_MEAN_EXCHANGE, Diffusivity, Elementwise, as_diffusivity

Pullback = Callable[[Tensor], Tensor]
Result = TypeVar("Result")


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of sums: float64 for float64, float32 for all else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Score:
    """A diffusivity as operators see it."""

    diffusivity: Diffusivity
    form: str  # identity, constant, simple, sigmoid, exponential or general
    slope: float  # a of e^(a x + b); one for the other forms
    key: str  # finds this score again (`find_score`): compiled operators take strings, not objects

    @property
    def least(self) -> float:
        """Mean exchange of a row below which it counts as none; see `difformer.diffusivity.smallest_total`."""
        return SMALLEST_MEAN_EXCHANGE if self.form == "simple" else 1e-37

    @property
    def exponential(self) -> bool:
        return self.form == "exponential"

    def value(self, x: Tensor) -> Tensor:
        """g(x); `x` may be overwritten. Exponentials expect a x less a bound of the row."""
        if self.exponential:
            return x.exp_()
        if self.form == "sigmoid":
            return x.sigmoid_()
        if self.form == "simple":
            return x.add_(1)
        return x.fill_(1) if self.form == "constant" else self.diffusivity.g(x)

    def value_and_pullback(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """g(x) and the map w ↦ w · g'(x), which may overwrite w; `x` may be overwritten."""
        if self.form == "general":
            return _vjp(self.diffusivity.g, x)
        g = self.value(x)
        if self.exponential:
            return g, lambda w: w.mul_(g)
        if self.form == "sigmoid":
            return g, lambda w: torch.ops.aten.sigmoid_backward.grad_input(w, g, grad_input=w)
        return g, (lambda w: w) if self.form == "simple" else (lambda w: w.zero_())


def _vjp(g: Elementwise, x: Tensor) -> tuple[Tensor, Pullback]:
    value, pull, *_ = torch.func.vjp(g, x)
    return value, lambda w: pull(w)[0]


# A score lives as long as a diffusivity that has it, so that nothing is left of those that were dropped.
_SCORES: weakref.WeakValueDictionary[str, Score] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def find_score(key: str) -> Score:
    """The score behind a key that `score_key` gave."""
    return _SCORES[key]


@constant_result
def score_key(given: str | Diffusivity, channels: int = 1) -> str:
    """A string for a diffusivity or its name, the same at every call; a key passes through."""
    if isinstance(given, str) and given in _SCORES:
        return given
    # Registered names can be replaced, so they are not cached.
    built_in = isinstance(given, str) and given not in OWN
    diffusivity = _named(given, channels) if built_in else as_diffusivity(given)
    score = vars(diffusivity).get("_score")
    if score is None:
        score = Score(diffusivity, *apart(_form, diffusivity), f"{diffusivity.name}#{next(_numbers)}")
        _SCORES[score.key] = score
        object.__setattr__(diffusivity, "_score", score)  # it is frozen, and this is not part of its value
    return score.key


@functools.lru_cache(maxsize=256)
def _named(name: str, channels: int) -> Diffusivity:
    """`as_diffusivity`, which checks what it makes, once per name."""
    return apart(as_diffusivity, name, channels=channels)


def apart(work: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """Runs `work` in another thread, so that an export or a vmap in progress in this one does not record it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *args, **options).result()


@constant_result
def form_of(given: str | Diffusivity) -> str:
    """The form of a diffusivity, or of the one behind a key."""
    return find_score(score_key(given)).form


@constant_result
def least_of(given: str | Diffusivity) -> float:
    """Mean exchange of a row below which it counts as none."""
    return find_score(score_key(given)).least


@constant_result
def slope_of(given: str | Diffusivity) -> float:
    """a of e^(a x + b); one for the other forms."""
    return find_score(score_key(given)).slope


@constant_result
def diffusivity_of(given: str | Diffusivity) -> Diffusivity:
    """The diffusivity itself."""
    return find_score(score_key(given)).diffusivity


def _form(diffusivity: Diffusivity) -> tuple[str, float]:
    """The form of g, by comparing values; beyond [-1, 1] too, for scores that are not normalised."""
    x = torch.linspace(-20.0, 20.0, 401, dtype=torch.float64)
    with torch.no_grad():
        g = diffusivity.g(x.clone())
    if diffusivity.name == "identity" and not g.any():
        return "identity", 1.0
    for form, expected in (("constant", torch.ones_like(x)), ("simple", 1 + x), ("sigmoid", torch.sigmoid(x))):
        if torch.allclose(g, expected, rtol=1e-12, atol=0):
            return form, 1.0
    one = torch.ones((), dtype=torch.float64)
    at_one, pull = _vjp(diffusivity.g, one)
    slope = float(pull(one) / at_one)
    if not (float(at_one) > 0 and math.isfinite(slope) and slope > 0):
        return "general", 1.0
    # As far as e^600 reaches, so that no narrow width underflows.
    x = 1 + torch.linspace(-1.0, 1.0, 401, dtype=torch.float64) * min(21.0, 600 / slope)
    with torch.no_grad():
        g = diffusivity.g(x.clone())
    same = torch.allclose(g, float(at_one) * torch.exp(slope * (x - 1)), rtol=1e-9, atol=0)
    return ("exponential", slope) if same else ("general", 1.0)


# Values are not available during an export: the fixed forms are entered here, others when a layer is made with them.
for _known in ("simple", "sigmoid", "constant", "identity"):
    score_key(_known)
