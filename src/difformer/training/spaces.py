"""Search spaces: which settings compete, over which values. ``spaces.toml`` holds the paper's grids and ours.

A space is a grid, A₁ × A₂ × …: finite, so that "every point once" and "n different points" are well defined. Its points
are numbered 0 to Π|Aᵢ| - 1, the last axis running fastest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from difformer.errors import UserError
from difformer.training import toml
from difformer.zoo import find, options_of

SPACES = Path(__file__).with_name("spaces.toml")
SHARP = {"diffusivity": ("simple", "sharp"), "tied_qk": (False, True)}  # competes where there is no graph
MOST_ROWS = 20_000  # with which all pairs are affordable in every trial
WITHOUT = ("graph_weight", "activation", "gradient_clip")  # settings that take the value None


@dataclass(frozen=True)
class Space:
    """A grid of settings."""

    name: str  # "observed", "series", "unobserved", or another
    axes: Mapping[str, tuple[Any, ...]]  # values of each setting that competes
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that stay the same
    source: str = ""  # where it comes from
    difformer: Mapping[str, Any] = field(default_factory=dict)  # fixed for the paper's encoders, not for other systems

    def __post_init__(self) -> None:
        for key, values in self.axes.items():
            if not values:
                raise UserError(f"space: {key} has no values; give at least one, as in {key}=1,2")
            if len(set(map(repr, values))) != len(values):
                raise UserError(f"space: {key} names a value twice: {', '.join(map(str, values))}")

    @property
    def size(self) -> int:
        """Points of the grid."""
        return math.prod(len(values) for values in self.axes.values())

    def point(self, number: int) -> dict[str, Any]:
        """The point of a number."""
        chosen: dict[str, Any] = {}
        for key, values in reversed(list(self.axes.items())):
            number, place = divmod(number, len(values))
            chosen[key] = values[place]
        return {key: chosen[key] for key in self.axes}

    def points(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """`count` different points in an order that the seed decides; a larger count continues a smaller one's list."""
        taken: set[int] = set()
        generator = random.Random(seed)
        while len(taken) < min(count, self.size):
            number = generator.randrange(self.size)
            if number not in taken:
                taken.add(number)
                yield self.point(number)

    def with_axes(self, axes: Mapping[str, Sequence[Any]]) -> Space:
        """The same space with some axes added or replaced; what competes is no longer fixed."""
        if not axes:
            return self
        fixed = {key: value for key, value in self.fixed.items() if key not in axes}
        chosen = {**self.axes, **{key: tuple(values) for key, values in axes.items()}}
        return replace(self, axes=chosen, fixed=fixed, source=f"{self.source}, with other values for {', '.join(axes)}")

    def with_fixed(self, settings: Mapping[str, Any]) -> Space:
        """The same space with some settings held; what is fixed no longer competes."""
        axes = {key: values for key, values in self.axes.items() if key not in settings}
        return replace(self, axes=axes, fixed={**self.fixed, **settings})

    def only(self, known: Sequence[str]) -> Space:
        """The same space without settings that are not `known`."""
        return replace(
            self,
            axes={key: values for key, values in self.axes.items() if key in known},
            fixed={key: value for key, value in self.fixed.items() if key in known},
        )


@cache
def load_spaces(path: Path = SPACES) -> dict[str, Space]:
    """Every space of a file, by name; the text ``"none"`` is the value None for settings that can be without one."""

    def space(name: str, entry: dict[str, Any]) -> Space:
        axes = {
            key: tuple(None if value == "none" and key in WITHOUT else value for value in values)
            for key, values in entry["axes"].items()
        }
        return Space(name, axes, **{key: value for key, value in entry.items() if key != "axes"})

    content = toml.loads(path.read_text(encoding="utf-8"))
    return {name: space(name, entry) for name, entry in content.items()}


def default_space(kind: str, *, observed: bool, model: str, own: bool = False, rows: int = 0) -> Space:
    """The space of a model for a kind of task.

    For own data it is one that a practitioner would choose, around the defaults. For a data set of the literature it is
    the space of the model's authors where the catalogue has one, or the paper's grid. Without a graph, a model whose
    diffusivity is free also tries the sharp form, which selects, unless all pairs of `rows` would cost too much.
    """
    spaces, info, options = load_spaces(), find(model), options_of(model)
    if model in spaces:
        return spaces[model]
    if info.group == "own" and info.space:
        return Space(model, axes=dict(info.space), source="the space that the model was registered with")
    one_graph = kind == "nodes" and observed
    space = spaces["series" if kind == "series" else "observed" if one_graph else "unobserved"]
    if own and info.trained:
        graph = () if observed else ("graph_weight", "graph_norm")
        space = spaces["own"].only([key for key in ("learning_rate", "weight_decay", *options) if key not in graph])
    elif info.group == "difformer":
        space = space.with_fixed(space.difformer)
    elif one_graph and info.space:
        source = f"the space of its authors ({info.paper})" if info.paper else "the space of the catalogue"
        return Space(model, axes=dict(info.space), fixed=space.fixed, source=source)
    if observed or not {"diffusivity", "tied_qk"} <= options.keys() or rows > MOST_ROWS:
        return space
    return replace(space, axes={**space.axes, **SHARP}, source=f"{space.source}, and the sharp form")
