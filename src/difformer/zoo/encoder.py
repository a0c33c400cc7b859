"""What every model of the zoo is made from: the encoder, its options, and what a pass observes beside the features.

A model defines `Encoder.states`: states from features and from what is observed beside them (`Observed`). Arguments of
a pass are checked once, before that, so a model never sees an ``edge_index`` that does not fit its rows.
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
from difformer.errors import UserError, WouldNotFitError
from difformer.free_memory import free_bytes
from difformer.graph import Graph
from difformer.nn.context import as_structure
from difformer.nn.protocol import Batch, Edges, Features, Weight, check_count
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager

WORTH_A_LOOK = 2**28  # bytes: what is smaller is not worth asking the system for
SIZES = ("in_channels", "hidden_channels", "out_channels")


@dataclass(frozen=True)
class Observed:
    """What a forward pass knows beside the features, checked."""

    rows: int  # N
    device: torch.device  # where the features are
    graph: Graph | None = None  # observed edges; None where there are none
    segments: Segments | None = None  # the graphs of a batch; None for a single graph
    given: bool = False  # whether edges were given, be it an empty list

    @staticmethod
    def of(x: Features, edge_index: Edges | None = None, edge_weight: Weight = None, batch: Batch = None) -> Observed:
        """Arguments of a forward pass in one form; an error if edges, weights or batch do not fit the rows of `x`."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        return Observed(x.shape[0], x.device, structure.graph, structure.segments, edge_index is not None)

    def one_graph(self, system: str, knows: str) -> None:
        """Raises a ValueError for a batch of graphs, or snapshots of a series, if the system knows single nodes."""
        if self.segments is not None and self.segments.num_graphs > 1:
            raise UserError(f"{system} {knows}; it serves neither batches of graphs nor series")

    def once(self, kept: ResultCache[Tensor], key: tuple[Any, ...], work: Callable[[], Tensor]) -> Tensor:
        """The result of `work`, which depends on the graph and the batch only; computed once per graph."""
        if self.graph is None:
            return work()
        return kept.of(self.graph, key if self.segments is None else (*key, self.segments.batch), work)

    @property
    def pairs(self) -> int:
        """Pairs of nodes of one graph, over all graphs of a batch, padding included."""
        if self.segments is None:
            return self.rows**2
        return sum(graphs * nodes**2 for graphs, nodes, _ in self.segments.shapes)

    def places(self) -> tuple[Tensor, int]:
        """``[N]`` numbers of the rows within their graphs, in the order of blocks; and the largest graph's size."""
        place, segments = torch.arange(self.rows, device=self.device), self.segments
        if segments is None:
            return place, self.rows
        start = segments.sizes.cumsum(0) - segments.sizes
        place = place - start[segments.batch[segments.by_graph]]
        return torch.empty_like(place).index_copy(0, segments.by_graph, place), segments.largest

    @property
    def looped(self) -> Graph:
        """The graph with a self-loop at every node; self-loops alone where there are no edges."""
        return self_loops(self.rows, self.device) if self.graph is None else self.graph.with_self_loops()

    @property
    def edges(self) -> Graph:
        """The graph as it was given; one without edges where there are none."""
        if self.graph is not None:
            return self.graph
        return Graph(torch.empty(2, 0, dtype=torch.long, device=self.device), self.rows)


def self_loops(num_nodes: int, device: torch.device | None = None) -> Graph:
    """A graph of self-loops only; cached, so that the next pass does not synchronise with the device."""
    # What a compiler traces with must not outlive it.
    make = _loops.__wrapped__ if torch.compiler.is_compiling() else _loops
    return make(num_nodes, torch.device("cpu") if device is None else device)


@lru_cache(maxsize=1)
def _loops(num_nodes: int, device: torch.device) -> Graph:
    with torch.inference_mode(False):
        return Graph(torch.arange(num_nodes, device=device).expand(2, -1), num_nodes)


_loopless: ResultCache[Graph] = ResultCache()


def without_loops(graph: Graph | None) -> Graph | None:
    """A graph without its self-loops, for models that treat a node apart from its neighbours; made once per graph."""
    if graph is None:
        return None
    if graph.edge_weight is not None and graph.edge_weight.requires_grad:
        return _others(graph)
    return _loopless.of(graph, (), lambda: _others(graph))


def _others(graph: Graph) -> Graph:
    other = graph.edge_index[0] != graph.edge_index[1]
    weight = None if graph.edge_weight is None else graph.edge_weight[other]
    return Graph(graph.edge_index[:, other], graph.num_nodes, weight, keep=graph.keep)


@dataclass(frozen=True)
class Option:
    """An option of a model: its default and meaning, its annotation, and which values it takes (`check_option`)."""

    default: Any
    about: str = ""
    choices: tuple[str, ...] = ()
    least: int = 1
    annotation: str = ""

    def check(self, name: str, value: Any) -> None:
        if self.choices:
            check_choice(name, value, self.choices)
        elif not (value is None and "None" in self.annotation):
            check_option(name, value, self.least)


def option(default: Any, about: str = "", *, least: int = 1) -> Any:
    """An option with its meaning, which joins the docstring of its class; `least` is the smallest value of a count."""
    return Option(default, about, least=least)


def one_of(*choices: str, about: str = "") -> Any:
    """An option that takes one of these names; the first is its default."""
    return Option(choices[0], about or f"One of {', '.join(choices)}.", choices)


class Encoder(nn.Module):
    """A model in the form of `difformer.nn.Model`.

    A subclass declares its options in its body, ``name: type = option(default, meaning)``, and gives `make` and
    `states`; `make` sets `output` for a linear decoder. Options are checked by their names, see `check_option`, and
    stored before `make` runs. A subclass has the options of the classes above it; with ``only=(…)``, those of them
    that it names.

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
                delattr(cls, name)  # it would hide a module of that name
        doc = (cls.__doc__ or "").rstrip()
        known = [(f"\n        {name}: ", one.about) for name, one in own.items()]
        said = [name + about for name, about in known if about and name not in doc]
        if said:
            cls.__doc__ = "".join([doc, "" if "\n    Args:\n" in doc else "\n\n    Args:", *said])
        above = [base for base in cls.__bases__ if issubclass(base, Encoder)]
        inherited = [name for base in above for name in base._settable] if only is None else only
        cls._settable = tuple(dict.fromkeys((*own, *inherited)))
        cls._options = {name: option for base in above for name, option in base._options.items()} | own
        keyword, positional = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        sizes = [inspect.Parameter(name, positional, annotation="int") for name in SIZES]
        named = [(name, cls._options[name]) for name in cls._settable]
        options = [inspect.Parameter(n, keyword, default=o.default, annotation=o.annotation) for n, o in named]
        # A class with a constructor of its own is known by that.
        cls.__signature__ = None if "__init__" in vars(cls) else inspect.Signature(sizes + options)  # type: ignore[attr-defined]

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
        """For copies and pickles: the penalty of the last pass holds on to that pass and is left out."""
        return {**vars(self), "_penalty": None} if "_penalty" in vars(self) else vars(self)

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        """Makes the layers."""
        raise NotImplementedError(f"{type(self).__name__} must define make(in_channels, hidden_channels, out_channels)")

    def look(self, x: Features, *structure: Any) -> Observed:
        """What the model sees beside the features: edges, their weights and the batch."""
        return Observed.of(x, *structure)

    def states(self, x: Features, observed: Observed) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""
        raise NotImplementedError(f"{type(self).__name__} must define states(x, observed)")

    def outputs(self, x: Features, observed: Observed) -> Tensor:
        """Outputs ``[N, out_channels]``."""
        return self.decode(self.states(x, observed))

    def embed(
        self, x: Features, edge_index: Edges | None = None, edge_weight: Weight = None, batch: Batch = None
    ) -> Tensor:
        """States ``[N, hidden]`` before the output layer."""
        return self.states(x, self.look(x, edge_index, edge_weight, batch))

    def decode(self, states: Tensor) -> Tensor:
        """Outputs of states, or of pooled states: ``[…, out_channels]``."""
        return self.output(states)

    def forward(
        self, x: Features, edge_index: Edges | None = None, edge_weight: Weight = None, batch: Batch = None
    ) -> Tensor:
        """Outputs ``[N, out_channels]``."""
        return self.outputs(x, self.look(x, edge_index, edge_weight, batch))


class Penalised(Encoder):
    """An encoder whose pass leaves a term of the loss in ``_penalty``."""

    _penalty: Tensor | None = None

    def penalty(self) -> Tensor:
        """The term of the last pass."""
        if self._penalty is None:
            raise UserError(f"{type(self).__name__} has no penalty yet: it is that of the last pass, so make one first")
        return self._penalty


# ---- checks of options

SHARES = ("alpha", "graph_weight", "residual_weight")
POSITIVE = ("inner_rate", "outer_rate", "step_size", "temperature", "theta", "threshold", "time", "tolerance")
COUNTS = (
    "attention_layers", "degree", "edge_layers", "encoding_steps", "feature_layers", "global_layers", "graph_channels",
    "bias_order", "hops", "inner_steps", "k", "local_passes", "max_degree", "max_distance", "mlp_layers", "num_heads",
    "num_layers", "num_nodes", "outer_every", "output_heads", "prior_layers", "random_features", "restart_every",
    "samples", "virtual_nodes", "widening",
)  # fmt: skip


def check_option(name: str, value: Any, least: int = 1) -> None:
    """Raises a ValueError unless `value` is one that options of this name can have; other names are not checked."""
    if name in COUNTS:
        check_count(name, value, least)
    elif name.endswith("dropout") and not 0 <= value < 1:
        raise UserError(f"{name} must lie in [0, 1), got {value!r}")
    elif name in SHARES and not 0 <= value <= 1:
        raise UserError(f"{name} must lie in [0, 1], got {value!r}")
    elif name in POSITIVE and not 0 < value < math.inf:
        raise UserError(f"{name} must be a number above 0, got {value!r}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises a ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise UserError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_heads(num_heads: int | None, hidden_channels: int, default: int = 8) -> int:
    """The number of heads: `default`, or its largest divisor that divides `hidden_channels`, where None is given."""
    heads = math.gcd(default, hidden_channels) if num_heads is None else num_heads
    if heads < 1 or hidden_channels % heads:
        raise UserError(f"num_heads must divide hidden_channels = {hidden_channels}, got {num_heads!r}")
    return heads


def class_labels(system: str, y: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The nodes of `index` whose class is known, and their classes; an error if the targets are not classes."""
    if y.dim() != 1 or y.is_floating_point():
        raise UserError(f"{system} needs one class number per instance, got {y.dtype} {tuple(y.shape)}")
    known = index[y[index] >= 0]
    return known, y[known]


# ---- memory, and counts of passes


def refuse_beyond_memory(
    needed: float, device: torch.device, what: str, remedy: str, *, count: int = 0, training: bool = False
) -> None:
    """Raises a `WouldNotFitError` before `what` runs, if it needs more bytes than are free, with a remedy.

    `what` may say ``{:,}`` for a count. With `training`, only a pass with gradients is refused.
    """
    if torch.compiler.is_compiling() or (training and not torch.is_grad_enabled()) or needed < WORTH_A_LOOK:
        return
    # Work that is being recorded has run before; a question to the device may spoil the recording.
    if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    free = free_bytes(device)
    if needed > free:
        gib = 2**30
        # The CPU's memory is advice only where it is another one, and suffices.
        if device.type != "cpu" and needed <= (of_machine := free_bytes(torch.device("cpu"))):
            remedy += f", or take device='cpu', where {of_machine / gib:,.1f} GiB are free"
        raise WouldNotFitError(
            f"{what.format(count)} needs about {needed / gib:,.1f} GiB, and {free / gib:,.1f} GiB are free on "
            f"{device}; {remedy}"
        )


class Passes:
    """How many training passes a model has made: a buffer ``[]`` of integers, saved with the model.

    Its value is read from the device only after something else wrote to it: a read waits until the device has finished
    all earlier work.
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
        """One more, in place."""
        plain = is_eager(count) and not count.is_inference()
        value = self.of(count) + 1 if plain else 0
        with torch.no_grad():
            count += 1
        if plain:
            self._known = (count, count._version, value)
