"""Rules for values: what an option may be when an estimator is fitted, and an entry of a file when it is loaded."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from difformer.attention import BACKENDS
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError


@dataclass(frozen=True)
class Rule:
    """What a value has to be, in code and in words."""

    holds: Callable[[Any], bool]
    words: str

    def check(self, name: str, value: Any) -> None:
        """Raises a `UserError` unless the rule holds."""
        if not self.holds(value):
            raise UserError(f"{name} must be {self.words}, got {reprlib.repr(value)}", argument=name)

    def or_none(self) -> Rule:
        return Rule(lambda value: value is None or self.holds(value), f"{self.words}, or None")


def real(words: str, holds: Callable[[Any], bool]) -> Rule:
    """A number for which `holds`; comparisons in it are false for NaN."""
    return Rule(
        lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool) and holds(value),
        f"a {words}",
    )


def one_of(*values: Any) -> Rule:
    known = ", ".join(repr(value) for value in values)
    words = f"one of {known}" if len(values) > 1 else known
    return Rule(lambda value: any(type(value) is type(each) and value == each for each in values), words)


def whole(least: int) -> Rule:
    return real(f"whole number of at least {least}", lambda v: isinstance(v, int | np.integer) and bool(v >= least))


COUNT = whole(1)
FLAG = Rule(lambda value: isinstance(value, bool | np.bool_), "True or False")
FINITE = real("finite number", lambda v: -math.inf < v < math.inf)
POSITIVE = real("finite number above 0", lambda v: 0 < v < math.inf)
NOT_NEGATIVE = real("finite number of at least 0", lambda v: 0 <= v < math.inf)
SHARE = real("number in [0, 1)", lambda v: 0 <= v < 1)
TEXT = Rule(lambda value: isinstance(value, str), "a text")

OPTIONS: dict[str, Rule] = {
    "hidden_channels": COUNT,
    "num_layers": COUNT,
    "num_heads": COUNT,
    "diffusivity": Rule(lambda value: isinstance(value, str | Diffusivity), "a name or a Diffusivity"),
    "directed": FLAG,
    "neighbours": COUNT,
    "graph_weight": real("number in [0, 1]", lambda v: 0 <= v <= 1).or_none(),
    "step_size": real("number in (0, 1]", lambda v: 0 < v <= 1),
    "source_weight": FINITE,
    "transform_values": FLAG,
    "dropout": SHARE.or_none(),
    "steps": COUNT,
    "learning_rate": POSITIVE,
    "weight_decay": NOT_NEGATIVE.or_none(),
    "n_models": COUNT,
    "validation_fraction": SHARE.or_none(),
    "batch_size": COUNT.or_none(),
    "landmarks": COUNT.or_none(),
    "standardize": FLAG,
    "backend": one_of(*BACKENDS),
}


def check_all(rules: Mapping[str, Rule], values: Mapping[str, Any], where: str = "") -> None:
    """Checks that there is a value for every rule and a rule for every value, and that all rules hold."""
    for name in {**rules, **values}:
        if name not in rules:
            raise UserError(f"{where}{reprlib.repr(name)[1:-1]} is unknown; known are {', '.join(rules)}")
        if name not in values:
            raise UserError(f"{where}{name} is missing")
        rules[name].check(where + name, values[name])
