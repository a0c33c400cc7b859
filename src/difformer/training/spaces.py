"""Search spaces: which settings compete, over which values. ``spaces.toml`` holds the paper's grids and ours.

A space is a grid, A₁ × A₂ × …: finite, so that "every point once" and "n different points" are well defined. Its points
are numbered 0 to Π|Aᵢ| - 1, the last axis running fastest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from difformer import toml
from difformer.errors import UserError
from difformer.zoo import find, options_of
from difformer.zoo.model_catalogue import plain
from difformer.zoo.model_registry import takes

SHARP = {"diffusivity": ("simple", "sharp"), "tied_qk": (False, True)}  # competes if there is no graph
MOST_ROWS = 20_000  # with which all pairs are affordable in every trial


@dataclass(frozen=True)
class Space:
    """A grid of settings."""

    name: str  # "observed", "series", "unobserved", or another
    axes: Mapping[str, tuple[Any, ...]]  # values of each setting that competes
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that stay the same
    source: str = ""  # where it comes from
    difformer: Mapping[str, Any] = field(default_factory=dict)  # fixed for the paper's encoders after the first trial

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
        places = np.unravel_index(number, [len(values) for values in self.axes.values()])
        return {key: values[place] for (key, values), place in zip(self.axes.items(), places, strict=True)}

    def points(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """`count` different points in an order that the seed decides; a larger count continues the same list."""
        taken: set[int] = set()
        generator = random.Random(seed)
        while len(taken) < min(count, self.size):
            if (number := generator.randrange(self.size)) not in taken:
                taken.add(number)
                yield self.point(number)

    def with_axes(self, axes: Mapping[str, Sequence[Any]]) -> Space:
        """The same space with some axes added or replaced; what competes is no longer fixed."""
        chosen = {**self.axes, **{key: tuple(values) for key, values in axes.items()}}
        source = f"{self.source}, with other values for {', '.join(axes)}" if axes else self.source
        return replace(self, axes=chosen, fixed=_without(self.fixed, axes), source=source)

    def with_fixed(self, settings: Mapping[str, Any]) -> Space:
        """The same space with some settings held; what is fixed no longer competes."""
        axes, difformer = _without(self.axes, settings), _without(self.difformer, settings)
        return replace(self, axes=axes, fixed={**self.fixed, **settings}, difformer=difformer)

    def only(self, known: Sequence[str]) -> Space:
        """The same space without settings that are not `known`."""
        unknown = {*self.axes, *self.fixed} - set(known)
        return replace(self, axes=_without(self.axes, unknown), fixed=_without(self.fixed, unknown))


def _without(entries: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key not in names}


@cache
def load_spaces() -> dict[str, Space]:
    """Every space of ``spaces.toml``, by name."""
    content = plain(toml.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))
    return {name: Space(name, **entry) for name, entry in content.items()}


def default_space(kind: str, *, observed: bool, model: str, own: bool = False, rows: int = 0) -> Space:
    """The space of a model for a kind of task.

    For own data it holds values around the defaults. For a data set of the literature it is the space of the model's
    authors if the catalogue has one, otherwise the paper's grid. Without a graph, a model whose diffusivity is free
    also tries the sharp form, unless all pairs of `rows` would cost too much.
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
        axes = {key: tuple(v for v in values if takes(model, key, v)) for key, values in space.axes.items()}
        space = replace(space, axes={key: values for key, values in axes.items() if values})
    elif info.group == "difformer":
        space = replace(space.with_fixed(space.difformer), difformer=space.difformer)
    elif one_graph and info.space:
        source = f"the space of its authors ({info.paper})" if info.paper else "the space of the catalogue"
        return Space(model, axes=dict(info.space), fixed=space.fixed, source=source)
    if observed or not {"diffusivity", "tied_qk"} <= options.keys() or rows > MOST_ROWS:
        return space
    return replace(space, axes={**space.axes, **SHARP}, source=f"{space.source}, and the sharp form")
