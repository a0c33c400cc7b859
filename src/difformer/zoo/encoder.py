"""The base class of all models of the zoo, its options, and the checked inputs of a forward pass.

A model defines `Encoder.states`, which computes states from the features and the observed structure (`Observed`).
Inputs are checked once, before that call, so a model never sees an ``edge_index`` that does not fit its rows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.errors import UserError, WouldNotFitError, check_choice
from difformer.free_memory import free_bytes
from difformer.graph import Graph
from difformer.nn.context import as_structure
from difformer.nn.protocol import Batch, Edges, Features, Weight, check_count
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager

WORTH_A_LOOK = 2**28  # bytes; below this, free memory is not queried
SIZES = ("in_channels", "hidden_channels", "out_channels")
# Valid values of numbers, by the name of an option; `option` can override them.
INTERVALS = {
    **dict.fromkeys(("alpha", "graph_weight", "residual_weight"), "[0, 1]"),
    **dict.fromkeys(("beta", "beta1", "beta2", "penalty_weight"), "[0, inf)"),
    **dict.fromkeys(("inner_rate", "outer_rate", "step_size", "temperature", "theta", "threshold"), "(0, inf)"),
    **dict.fromkeys(("time", "tolerance"), "(0, inf)"),
    "gamma": "[0, 1)",
    "teleport": "(0, 1)",
}


_loopless: ResultCache[Graph] = ResultCache()


@dataclass(frozen=True)
class Observed:
    """The checked inputs of a forward pass other than the features."""

    rows: int  # N
    device: torch.device  # of the features
    graph: Graph | None = None  # None if there are no edges
    segments: Segments | None = None  # the graphs of a batch; None for a single graph
    given: bool = False  # whether the caller passed edges, possibly none

    @staticmethod
    def of(x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Observed:
        """From the arguments of a forward pass; an error if edges, weights or batch do not fit the rows of `x`."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        return Observed(x.shape[0], x.device, structure.graph, structure.segments, edge_index is not None)

    def one_graph(self, system: str, knows: str) -> None:
        """Raises a ValueError for a batch of graphs or the snapshots of a series."""
        if self.segments is not None and self.segments.num_graphs > 1:
            raise UserError(f"{system} {knows}; it takes neither batches of graphs nor series")

    def once(self, kept: ResultCache[Tensor], key: tuple[Any, ...], work: Callable[[], Tensor]) -> Tensor:
        """The result of `work`, which depends on graph and batch only; cached per graph."""
        if self.graph is None:
            return work()
        return kept.of(self.graph, key if self.segments is None else (*key, self.segments.batch), work)

    @property
    def pairs(self) -> int:
        """Number of pairs of nodes within a graph, summed over the batch, including padding."""
        if self.segments is None:
            return self.rows**2
        return sum(graphs * nodes**2 for graphs, nodes, _ in self.segments.shapes)

    def places(self) -> tuple[Tensor, int]:
        """The position ``[N]`` of each row within its graph, and the size of the largest graph."""
        place, segments = torch.arange(self.rows, device=self.device), self.segments
        if segments is None:
            return place, self.rows
        start = segments.sizes.cumsum(0) - segments.sizes
        place = place - start[segments.batch[segments.by_graph]]
        return torch.empty_like(place).index_copy(0, segments.by_graph, place), segments.largest

    @property
    def looped(self) -> Graph:
        """The graph with a self-loop at every node; only self-loops if there are no edges."""
        return self_loops(self.rows, self.device) if self.graph is None else self.graph.with_self_loops()

    @property
    def loopless(self) -> Graph | None:
        """The graph without self-loops; cached per graph unless its weights need gradients."""
        graph = self.graph
        if graph is None:
            return None

        def work() -> Graph:
            other = graph.edge_index[0] != graph.edge_index[1]
            weight = None if graph.edge_weight is None else graph.edge_weight[other]
            return Graph(graph.edge_index[:, other], graph.num_nodes, weight, keep=graph.keep)

        differentiable = graph.edge_weight is not None and graph.edge_weight.requires_grad
        return work() if differentiable else _loopless.of(graph, (), work)

    @property
    def edges(self) -> Graph:
        """The observed graph; an empty one if there are no edges."""
        if self.graph is not None:
            return self.graph
        return Graph(torch.empty(2, 0, dtype=torch.long, device=self.device), self.rows)


def self_loops(num_nodes: int, device: torch.device | None = None) -> Graph:
    """A graph of self-loops only; cached, so that the next pass does not synchronise with the device."""
    # A tensor created while tracing must not stay in the cache.
    make = _loops.__wrapped__ if torch.compiler.is_compiling() else _loops
    return make(num_nodes, torch.device("cpu") if device is None else device)


@lru_cache(maxsize=1)
def _loops(num_nodes: int, device: torch.device) -> Graph:
    with torch.inference_mode(False):
        return Graph(torch.arange(num_nodes, device=device).expand(2, -1), num_nodes)


@dataclass(frozen=True)
class Option:
    """An option of a model: default, meaning, valid values and annotation."""

    default: Any
    about: str = ""
    choices: tuple[str, ...] = ()
    least: int = 1
    within: str = ""
    annotation: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raises a ValueError if `value` is not valid."""
        if self.choices:
            check_choice(name, value, self.choices)
        elif value is None and "None" in self.annotation:
            return
        elif self.annotation.startswith("int") or (self.annotation == "Any" and type(self.default) is int):
            check_count(name, value, self.least, optional="None" in self.annotation)
        interval = self.within or ("[0, 1)" if name.endswith("dropout") else INTERVALS.get(name))
        if interval is not None:
            low, high = (float(end) for end in interval[1:-1].split(","))
            above = value is not None and (value >= low if interval[0] == "[" else value > low)
            if not (above and (value <= high if interval[-1] == "]" else value < high)):
                raise UserError(f"{name} must lie in {interval}, got {value!r}", argument=name)


def option(default: Any, about: str = "", *, least: int = 1, within: str = "") -> Any:
    """Declares an option; `about` is added to the docstring of the class.

    `least` is the minimum of a count, `within` the valid interval of a number, by default that of `INTERVALS`.
    """
    return Option(default, about, least=least, within=within)


def one_of(*choices: str, about: str = "") -> Any:
    """Declares an option with a fixed set of values; the first is the default."""
    return Option(choices[0], about or f"One of {', '.join(choices)}.", choices)


class Encoder(nn.Module):
    """Base class of models that follow `difformer.nn.Model`.

    A subclass declares its options in the class body, ``name: type = option(default, meaning)``, and defines `make`
    and `states`; `make` sets `output` if the decoder is linear. Options are checked and stored before `make` runs.
    A subclass inherits the options of its bases, or only those it names with ``only=(…)``.

    Args:
        in_channels: Features per instance.
        hidden_channels: Length of a state.
        out_channels: Outputs per instance.
    """

    output: nn.Linear
    _options: ClassVar[dict[str, Option]] = {}
    _settable: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, only: tuple[str, ...] | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        own = {}
        for name, annotation in inspect.get_annotations(cls).items():
            if name in vars(cls) and not name.startswith("_"):
                given = vars(cls)[name]
                own[name] = replace(given if isinstance(given, Option) else Option(given), annotation=str(annotation))
                delattr(cls, name)  # a class attribute would hide a module of that name
        doc = (cls.__doc__ or "").rstrip()
        if lines := [f"\n        {name}: {one.about}" for name, one in own.items() if one.about]:
            cls.__doc__ = "".join([doc, "" if "\n    Args:\n" in doc else "\n\n    Args:", *lines])
        above = [base for base in cls.__bases__ if issubclass(base, Encoder)]
        inherited = [name for base in above for name in base._settable] if only is None else only
        cls._settable = tuple(dict.fromkeys((*own, *inherited)))
        cls._options = {name: option for base in above for name, option in base._options.items()} | own
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="int") for n in SIZES]
        for name in cls._settable:
            default, annotation = cls._options[name].default, cls._options[name].annotation
            keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            parameters.append(keyword)
        # A class with its own constructor keeps the signature of that.
        cls.__signature__ = None if "__init__" in vars(cls) else inspect.Signature(parameters)  # type: ignore[attr-defined]

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__()
        if unknown := options.keys() - {*self._settable}:
            raise TypeError(f"{type(self).__name__} has no option {min(unknown)!r}; it has {', '.join(self._settable)}")
        for name, option in self._options.items():
            value = options.get(name, option.default)
            option.check(name, value)
            setattr(self, name, value)
        self.make(in_channels, hidden_channels, out_channels)

    def __getstate__(self) -> dict[str, Any]:
        """Without the penalty of the last pass, which holds the graph of gradients, for copies and pickles."""
        return {**vars(self), "_penalty": None} if "_penalty" in vars(self) else vars(self)

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        """Makes the layers."""
        raise NotImplementedError(f"{type(self).__name__} must define make(in_channels, hidden_channels, out_channels)")

    def look(self, x: Features, edge_index: Edges, edge_weight: Weight, batch: Batch) -> Observed:
        """The observed structure."""
        return Observed.of(x, edge_index, edge_weight, batch)

    def states(self, x: Features, observed: Observed) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""
        raise NotImplementedError(f"{type(self).__name__} must define states(x, observed)")

    def outputs(self, x: Features, observed: Observed) -> Tensor:
        """Outputs ``[N, out_channels]``."""
        return self.decode(self.states(x, observed))

    def embed(self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""
        return self.states(x, self.look(x, edge_index, edge_weight, batch))

    def decode(self, states: Tensor) -> Tensor:
        """Outputs of states, or of pooled states: ``[…, out_channels]``."""
        return self.output(states)

    def forward(self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Tensor:
        """Outputs ``[N, out_channels]``."""
        return self.outputs(x, self.look(x, edge_index, edge_weight, batch))


class Penalised(Encoder):
    """An encoder whose forward pass stores an additional loss term in ``_penalty``."""

    _penalty: Tensor | None = None

    def penalty(self) -> Tensor:
        """The loss term of the last forward pass."""
        if self._penalty is None:
            raise UserError(f"{type(self).__name__} has no penalty yet: run a forward pass first")
        return self._penalty


def check_heads(num_heads: int | None, hidden_channels: int, default: int = 8) -> int:
    """The number of heads; None means `default`, or its largest divisor that divides `hidden_channels`."""
    heads = math.gcd(default, hidden_channels) if num_heads is None else num_heads
    if heads < 1 or hidden_channels % heads:
        raise UserError(f"num_heads must divide hidden_channels = {hidden_channels}, got {num_heads!r}")
    return heads


def class_labels(system: str, y: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The nodes in `index` with a known class, and their classes; an error if the targets are not classes."""
    if y.dim() != 1 or y.is_floating_point():
        raise UserError(f"{system} needs one class number per instance, got {y.dtype} {tuple(y.shape)}")
    known = index[y[index] >= 0]
    return known, y[known]


class Labelled(Encoder):
    """An encoder that is given the classes of one graph's nodes by `observe` before it is trained."""

    _labels: tuple[Tensor, Tensor] | None = None  # the nodes with a known class, and their classes

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Stores the training labels."""
        self._labels = class_labels(type(self).__name__.lower(), y, train_index)


# ---- memory, and counts of passes


def refuse_beyond_memory(
    needed: float, device: torch.device, what: str, remedy: str, *, count: int = 0, training: bool = False
) -> None:
    """Raises a `WouldNotFitError` that names a remedy if `what` needs more bytes than are free.

    `what` may contain ``{:,}`` for the count. With `training`, only passes with gradients are checked.
    """
    if torch.compiler.is_compiling() or (training and not torch.is_grad_enabled()) or needed < WORTH_A_LOOK:
        return
    # Recorded work has run before, and a query to the device may break the recording.
    if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    free = free_bytes(device)
    if needed > free:
        gib = 2**30
        # Suggest the CPU only if it is a different device with enough memory.
        if device.type != "cpu" and needed <= (of_machine := free_bytes(torch.device("cpu"))):
            remedy += f", or use device='cpu', where {of_machine / gib:,.1f} GiB are free"
        problem = f"{what.format(count)} needs about {needed / gib:,.1f} GiB, and {free / gib:,.1f} GiB are free on "
        problem += f"{device}; {remedy}"
        raise WouldNotFitError(problem)


class Passes:
    """Counts training passes in an integer buffer ``[]`` that is saved with the model.

    Reading the buffer synchronises with the device, so the value is cached until something else writes to it.
    """

    def __init__(self) -> None:
        self._known: tuple[Tensor, int, int] | None = None  # the buffer, its version, its value

    def of(self, count: Tensor) -> int:
        """The value of the buffer."""
        if not is_eager(count) or count.is_inference():
            return int(count)
        if self._known is None or self._known[0] is not count or self._known[1] != count._version:
            self._known = (count, count._version, int(count))
        return self._known[2]

    def add(self, count: Tensor) -> None:
        """Adds one, in place."""
        plain = is_eager(count) and not count.is_inference()
        value = self.of(count) + 1 if plain else 0
        with torch.no_grad():
            count += 1
        if plain:
            self._known = (count, count._version, value)
