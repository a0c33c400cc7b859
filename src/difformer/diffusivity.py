"""Diffusivities: how strongly two states exchange, and the energy that the exchange descends.

A diffusivity is a function f of the squared distance u = ||z_i - z_j||² between two states, the derivative of a penalty
δ. One diffusion step with coupling f(u_ij) descends the energy Σ_ij δ(u_ij) if δ is non-decreasing and concave, hence f
non-negative and non-increasing, wherever u can lie: on [0, 4] for states of norm at most one.

For unit states u = 2 - 2x with x = z_iᵀz_j, so the same function read as g(x) = f(2 - 2x) is an attention score:

========== ====================== ============================ =====================================
name       g(x)                   f(u)                         δ(u)
========== ====================== ============================ =====================================
simple     1 + x                  2 - u/2                      2u - u²/4
sigmoid    1 / (1 + e^-x)         1 / (1 + e^(u/2 - 1))        u - 2 log(1 + e^(u/2 - 1))
softmax    e^(x/t)                e^((1 - u/2)/t)              -2t e^((1 - u/2)/t)
gaussian   e^((x - 1)/s²)         e^(-u/2s²)                   2s² (1 - e^(-u/2s²))
sharp      e^(a(x - 1))           e^(-au/2)                    (2/a) (1 - e^(-au/2))
constant   1                      1                            u
identity   none: self-loops only  0                            0
========== ====================== ============================ =====================================
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from difformer.errors import UserError, did_you_mean, or_near

Elementwise = Callable[[Tensor], Tensor]

LARGEST_SQUARED_DISTANCE = 4.0  # between two points of the unit ball
GRID_POINTS = 1025
# If all exchanges of a row vanish (every k_j opposite to q_i under `simple`), 0/0 becomes 0 instead of NaN. What
# rounding leaves of 1 + (-1) is no exchange either; the others are sums of positive numbers, however small they are.
SMALLEST_MEAN_EXCHANGE = 1e-6


def smallest_total(count: Tensor | int, like: Tensor, least: float = SMALLEST_MEAN_EXCHANGE) -> Tensor:
    """The least row sum that is divided by: `least` for each of the `count` nodes summed."""
    return least * count.to(like.dtype) if isinstance(count, Tensor) else like.new_full((), least * count)


def safe_total(total: Tensor, count: Tensor | int, least: float = SMALLEST_MEAN_EXCHANGE) -> Tensor:
    """Row sums kept away from zero: at least `smallest_total` of the `count` nodes summed."""
    floor = smallest_total(count, total, least)
    return torch.where(total.abs() < floor, floor, total)


@dataclass(frozen=True, repr=False)
class Diffusivity:
    """A diffusivity f and its penalty δ, with f = δ', validated on construction.

    Args:
        name: Its name in options and reports.
        f: Exchange between two states at squared distance u, element by element.
        delta: Penalty with derivative f; only differences of it matter. Left out, it is integrated from f.
        score: g(x) = f(2 - 2x) written directly, where that is more accurate or cheaper. Left out, it comes from f.

    Raises:
        TypeError: If f does not work on tensors, for example because it calls ``math.exp`` instead of ``torch.exp``.
        ValueError: If f is negative, increases or is not finite somewhere on [0, 4], or if delta or score belongs to
            another f.

    Example:
        >>> cauchy = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
        >>> cauchy.g(torch.tensor(1.0))
        tensor(1.)
    """

    name: str
    f: Elementwise
    delta: Elementwise = None  # type: ignore[assignment]  # filled in below where it is left out
    score: Elementwise | None = None

    def __post_init__(self) -> None:
        u = _grid(GRID_POINTS)
        exchange = self._exchange(u)
        if self.delta is None:
            object.__setattr__(self, "delta", antiderivative(self.f))
        self._check_penalty(u, exchange)
        if self.score is not None:
            x = 1 - u / 2
            gap = (self.score(x) - exchange).abs()
            if not (gap <= 1e-6 * exchange.abs().max().clamp_min(1e-300)).all():
                where = x[gap.argmax()].item()
                raise UserError(f"diffusivity {self.name!r}: score(x) is not f(2 - 2x) at x = {where:.3g}")

    def _exchange(self, u: Tensor) -> Tensor:
        """f on a grid, or an error that says what f has to be."""
        this = f"diffusivity {self.name!r}"
        try:
            exchange = self.f(u)
        except (TypeError, ValueError, RuntimeError) as error:
            # Functions of math and branches on u ask a whole tensor for one number, which torch refuses.
            advice = "use torch.exp, not math.exp, and torch.where, not if"
            wanted = "f must be a function of tensors, such as lambda u: torch.exp(-u)"
            raise TypeError(f"{this}: {wanted}, but given one it failed ({error}); {advice}") from error
        if not isinstance(exchange, Tensor) or exchange.shape != u.shape:
            gave = f"{type(exchange).__name__} of shape {np.shape(exchange)}, not {tuple(u.shape)}"
            problem = f"{this}: f must work element by element, but gave {gave}; a constant is torch.ones_like(u)"
            raise UserError(problem)
        if not exchange.isfinite().all():
            where = u[~exchange.isfinite()][0].item()
            raise UserError(f"{this} is not finite at u = {where:.3g}; f must be finite on [0, 4]")
        tolerance = 1e-9 * exchange.abs().max()
        if (exchange < -tolerance).any():
            place = f"u = {u[exchange.argmin()].item():.3g} (f = {exchange.min():.3g})"
            raise UserError(f"{this} is negative at {place}; f must be ≥ 0 on [0, 4], or the energy has no lower bound")
        rise = exchange.diff()
        if (rise > tolerance).any():
            raise UserError(f"{this} increases at u = {u[rise.argmax()].item():.3g}; f must not increase on [0, 4]")
        return exchange

    def _check_penalty(self, u: Tensor, exchange: Tensor) -> None:
        # f falls, so on each interval the rise of δ lies between f(right)·h and f(left)·h: a bound free of quadrature.
        penalty = self.delta(u)
        rise, step = penalty.diff(), u.diff()
        slack = 1e-6 * (exchange.max() * step.max() + penalty.abs().max() * 1e-6)
        wrong = (rise > exchange[:-1] * step + slack) | (rise < exchange[1:] * step - slack) | ~rise.isfinite()
        if wrong.any():
            at = int(wrong.nonzero()[0])
            found = f"near u = {u[at]:.3g} it rises by {rise[at] / step[at]:.4g} per unit, where f = {exchange[at]:.4g}"
            raise UserError(f"diffusivity {self.name!r}: delta is not the penalty of f: {found}")

    def __repr__(self) -> str:
        return f"Diffusivity({self.name!r})"

    def is_named(self) -> bool:
        """Whether the name alone gives the diffusivity back in every process, as ``"gaussian:0.5"`` does."""
        if self.name in OWN or is_place(self.name):
            return False
        try:
            again = as_diffusivity(self.name)
        except ValueError:
            return False
        u = _grid(65)
        return torch.equal(again.f(u), self.f(u))

    def __deepcopy__(self, memo: object) -> Diffusivity:
        return self  # it never changes

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by name if that is enough; otherwise with its functions, if these can be pickled."""
        everything = (self.name, self.f, self.delta, self.score)
        return (as_diffusivity, (self.name,)) if self.is_named() else (Diffusivity, everything)

    def g(self, x: Tensor) -> Tensor:
        """Score of two unit states with inner product x; if rounding puts x above 1, u = 0 is used."""
        if self.score is not None:
            return self.score(x)
        u = 2.0 - 2.0 * x  # without normalisation x may be far above 1; f is then evaluated as it is
        return self.f(torch.where((u < 0) & (u > -ROUNDING), 0.0, u))


def _grid(points: int) -> Tensor:
    """Squared distances from 0 to 4, on the CPU whatever the default device is."""
    return torch.linspace(0.0, LARGEST_SQUARED_DISTANCE, points, dtype=torch.float64, device="cpu")


def antiderivative(f: Elementwise) -> Elementwise:
    """The penalty δ(u) = ∫₀ᵘ f of a diffusivity known by f alone, by Gauss-Legendre quadrature in small cells."""
    points, weights = (torch.from_numpy(part) / 2 for part in np.polynomial.legendre.leggauss(6))
    grid = _grid(GRID_POINTS)

    def integral(left: Tensor, right: Tensor) -> Tensor:
        size = right - left
        at = left.unsqueeze(-1) + size.unsqueeze(-1) * (points.to(right) + 0.5)
        return size * (f(at) * weights.to(right)).sum(-1)

    table = torch.cat([grid[:1], integral(grid[:-1], grid[1:])]).cumsum(0)

    def delta(u: Tensor) -> Tensor:
        # Whole cells come from the table, the last one is integrated anew, so that δ is differentiable in u.
        number = (u.detach() / grid[1].item()).floor().clamp(0, GRID_POINTS - 1).long()
        return table.to(u)[number] + integral(grid.to(u)[number], u)

    return delta


ROUNDING = 1e-3  # of a squared distance between unit states

SIMPLE = Diffusivity("simple", f=lambda u: 2 - u / 2, delta=lambda u: 2 * u - u**2 / 4, score=lambda x: 1 + x)

SIGMOID = Diffusivity(
    "sigmoid",
    f=lambda u: torch.sigmoid(1 - u / 2),
    delta=lambda u: u - 2 * functional.softplus(u / 2 - 1),
    score=torch.sigmoid,
)

CONSTANT = Diffusivity("constant", f=torch.ones_like, delta=lambda u: u, score=torch.ones_like)

# Each state exchanges with itself alone, so no pair is penalised; propagation treats it by name.
IDENTITY = Diffusivity("identity", f=torch.zeros_like, delta=torch.zeros_like, score=torch.zeros_like)


def softmax(temperature: float) -> Diffusivity:
    """The Transformer's dot-then-exponential score e^(x/t); with d channels its temperature is t = √d."""
    name, t = _named("softmax", "temperature", temperature)
    f = lambda u: torch.exp((1 - u / 2) / t)
    return Diffusivity(name, f, delta=lambda u: -2 * t * f(u), score=lambda x: torch.exp(x / t))


def gaussian(width: float = 1.0) -> Diffusivity:
    """The Gaussian kernel e^(-u/2s²) of width s."""
    name, s = _named("gaussian", "width", width)
    return _of_variance(name, s**2)


def sharp(sharpness: float = 40.0) -> Diffusivity:
    """e^(a(x - 1)) of sharpness a: rows exchange with their nearest ones alone; a Gaussian of width 1/√a.

    Of the named diffusivities only this one selects; between 20 and 60 results hardly differ. Meant for tied unit
    queries and keys (``tied_qk=True``).
    """
    name, a = _named("sharp", "sharpness", sharpness)
    return _of_variance(name, 1 / a)


def _of_variance(name: str, s2: float) -> Diffusivity:
    return Diffusivity(
        name,
        f=lambda u: torch.exp(-u / (2 * s2)),
        delta=lambda u: -2 * s2 * torch.expm1(-u / (2 * s2)),
        score=lambda x: torch.exp((x - 1) / s2),
    )


def _named(name: str, parameter: str, value: float) -> tuple[str, float]:
    """``"name:value"``, the value as the shortest text that reads back as the same number; and the value, checked."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"diffusivity {name!r}: {parameter} must be positive and finite, got {value!r}")
    value = float(value)
    return f"{name}:{f'{value:g}' if float(f'{value:g}') == value else repr(value)}", value


# What a name stands for; softmax waits for the number of channels, which sets its temperature.
DIFFUSIVITIES: dict[str, Callable[[int], Diffusivity]] = {
    "simple": lambda channels: SIMPLE,
    "sigmoid": lambda channels: SIGMOID,
    "softmax": lambda channels: softmax(math.sqrt(channels)),
    "gaussian": lambda channels: gaussian(),
    "sharp": lambda channels: sharp(),
    "constant": lambda channels: CONSTANT,
    "identity": lambda channels: IDENTITY,
}
PARAMETRIC: dict[str, Callable[[float], Diffusivity]] = {"softmax": softmax, "gaussian": gaussian, "sharp": sharp}
OWN: dict[str, Diffusivity] = {}  # what `register_diffusivity` has added


def register_diffusivity(name: str, diffusivity: Diffusivity) -> Diffusivity:
    """Adds your own diffusivity, so that models, ``fit`` and ``tune`` take its name, in this process.

    A command line takes it as ``package.module:name`` without registration.

    Args:
        name: What ``diffusivity=`` and ``--set diffusivity=`` take.
        diffusivity: What it stands for.

    Raises:
        UserError: If the name is that of a diffusivity of the package, or `diffusivity` is something else.

    Example:
        >>> register_diffusivity("cauchy", Diffusivity("cauchy", f=lambda u: 1 / (1 + u)))
        Diffusivity('cauchy')
        >>> as_diffusivity("cauchy").g(torch.tensor(1.0))
        tensor(1.)
    """
    if not name or set(name) & set(" :/\\"):
        raise UserError(f"a diffusivity's name has no spaces, colons or slashes, got {name!r}")
    if name in DIFFUSIVITIES:
        raise UserError(f"{name!r} is a diffusivity of the package; register yours under another name")
    if not isinstance(diffusivity, Diffusivity):
        raise UserError(f"diffusivity {name!r} must be a Diffusivity, got {diffusivity!r}")
    OWN[name] = diffusivity
    return diffusivity


def is_place(name: str) -> bool:
    """Whether a name is ``package.module:name``."""
    return ":" in name and name.partition(":")[0] not in DIFFUSIVITIES


def _imported(place: str) -> Diffusivity:
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError) as error:
        problem = f"{did_you_mean(module, DIFFUSIVITIES)}cannot import {module!r} ({error})"
        advice = "write your own as package.module:name, of a package that is installed or on PYTHONPATH"
        raise UserError(f"unknown diffusivity {place!r}: {problem}; {advice}") from error
    if not isinstance(found, Diffusivity):
        raise UserError(f"unknown diffusivity {place!r}: {attribute!r} in {module!r} is {found!r}, not a Diffusivity")
    return found


def storable(given: object) -> object:
    """A diffusivity as the name that gives it back, where there is one; anything else as it is."""
    if not isinstance(given, Diffusivity):
        return given
    named = [name for name, known in OWN.items() if known is given]
    return named[0] if named else given.name if given.is_named() else given


def as_diffusivity(given: str | Diffusivity, *, channels: int = 1) -> Diffusivity:
    """The diffusivity that a name stands for; an object passes through.

    Args:
        given: A name from `DIFFUSIVITIES`, a name with its parameter (``"softmax:8"``, ``"gaussian:0.5"``,
            ``"sharp:40"``), a registered name, ``"package.module:name"``, or a `Diffusivity`.
        channels: Length d of the states, which gives plain ``"softmax"`` its temperature √d.

    Raises:
        ValueError: If the name is not known; the error names the nearest one.
    """
    if isinstance(given, Diffusivity):
        return given
    if not isinstance(given, str):
        raise TypeError(f"diffusivity must be a name or a Diffusivity, got {type(given).__name__}")
    if given in OWN:
        return OWN[given]
    if is_place(given):
        return _imported(given)
    name, _, parameter = given.partition(":")
    if parameter and name in PARAMETRIC:
        try:
            value = float(parameter)
        except ValueError:
            problem = f"{parameter!r} is not a number; write for example {name}:0.5"
            raise UserError(f"diffusivity {given!r}: {problem}") from None
        return PARAMETRIC[name](value)
    if name not in DIFFUSIVITIES or parameter:
        known = [*DIFFUSIVITIES, *OWN]
        raise UserError(
            f"unknown diffusivity {given!r}{'.' if parameter else or_near(name, known)} Known: {', '.join(known)}. "
            f"Your own is a Diffusivity, package.module:name, or a name given to it by difformer.register_diffusivity"
        )
    return DIFFUSIVITIES[name](channels)
