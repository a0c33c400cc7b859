"""Builds models from a name and options: catalogue names, registered names, and ``package.module:Class``.

Your own model is a class ``(in_channels, hidden_channels, out_channels, *, options…)``. It either follows
`difformer.nn.Model` (``embed``, ``decode`` and ``forward``), or defines only ``forward``, like the models of PyTorch
Geometric: it then receives those of ``x``, ``edge_index``, ``edge_weight`` and ``batch`` that its signature names.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.errors import UserError, did_you_mean, nearest, or_near
from difformer.graph import Graph
from difformer.nn.protocol import Batch, Edges, Features, Weight
from difformer.zoo.encoder import Encoder
from difformer.zoo.linear_maps import dense
from difformer.zoo.model_catalogue import ALL_KINDS, MODELS, REMOVED, RENAMED, ModelInfo

DEFAULT_HIDDEN_CHANNELS = 64
ENTRY_POINTS = "difformer.models"  # the entry-point group for models of other installed packages

_registered: dict[str, type[nn.Module]] = {}


def register_model(
    name: str,
    model: type[nn.Module],
    *,
    about: str = "",
    kinds: tuple[str, ...] = ALL_KINDS,
    needs_graph: bool = False,
    stackable: bool = False,
    defaults: Mapping[str, Any] | None = None,
    space: Mapping[str, tuple[Any, ...]] | None = None,
) -> ModelInfo:
    """Adds a model, so that ``fit``, ``tune``, ``report`` and all other commands accept its name.

    The registration holds for this process. On the command line, use ``package.module:Class``, or a name that an
    installed package lists in the entry-point group ``difformer.models``.

    Args:
        name: The name for ``--model`` and ``TrainConfig(model=…)``.
        model: A class ``(in_channels, hidden_channels, out_channels, *, options…)``, as described in
            `difformer.zoo.model_registry`.
        about: One sentence; by default the first line of the docstring of the class.
        kinds: Supported kinds of task: ``"nodes"``, ``"series"`` and ``"graphs"``.
        needs_graph: Whether it requires observed edges.
        stackable: Whether `torch.vmap` can train several runs of it as one.
        defaults: Options whose default should differ from that of the class.
        space: Search space of ``difformer tune``: values per setting.

    Raises:
        ValueError: If the name belongs to a model of the package, or the class cannot be built from three sizes.

    Example:
        >>> class Sandwich(torch.nn.Module):
        ...     def __init__(self, in_channels, hidden_channels, out_channels, *, slices=2):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(in_channels, out_channels)
        ...
        ...     def forward(self, x):
        ...         return self.net(x)
        >>> register_model("sandwich", Sandwich).name
        'sandwich'
        >>> build("sandwich", 8, 3)(torch.ones(5, 8)).shape
        torch.Size([5, 3])
    """
    if not name or set(name) & set(" :/\\"):
        raise UserError(f"a model's name has no spaces, colons or slashes, got {name!r}")
    if name in MODELS and name not in _registered:
        raise UserError(f"{name!r} is a model of the package; register yours under another name")
    check_class(name, model)
    if unknown := set(kinds) - set(ALL_KINDS):
        raise UserError(f"kinds are of {', '.join(ALL_KINDS)}, got {', '.join(sorted(unknown))}")
    facts = {"kinds": kinds, "needs_graph": needs_graph, "stackable": stackable}
    _registered[name] = model
    MODELS[name] = _info(name, model, about, **facts, defaults=dict(defaults or {}), space=dict(space or {}))
    return MODELS[name]


def check_class(name: str, model: Any) -> None:
    """Raises a ValueError unless `model` is a module class that can be built from three sizes."""
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        raise UserError(f"model {name!r} must be a class derived from torch.nn.Module, got {model!r}")
    try:
        inspect.signature(model).bind(1, 1, 1)
    except TypeError as error:
        problem = f"model {name!r} must be built as {model.__name__}(in_channels, hidden_channels, out_channels, *, …) "
        problem += f"with a default for every option; its signature is {inspect.signature(model)}: {error}"
        raise UserError(problem) from error


def _info(name: str, model: type[nn.Module], about: str = "", **facts: Any) -> ModelInfo:
    first = inspect.cleandoc(model.__doc__ or "").partition("\n")[0]
    return ModelInfo(name, "own", f"{model.__module__}:{model.__qualname__}", about or first, **facts)


def name_of(model: type[nn.Module]) -> str:
    """The name of a class in configurations and run folders: its registered name, or ``"package.module:Class"``.

    A class that other processes cannot import (defined in a notebook, a script or a function) is registered under its
    own name. To use its run folders elsewhere, register it there too.
    """
    for name, known in _registered.items():
        if known is model:
            return name
    for info in MODELS.values():
        alike = info.home.endswith(f":{model.__name__}") and not info.fixed and not info.defaults
        if alike and model_class(info) is model:
            return info.name
    if model.__module__ == "__main__" or "<locals>" in model.__qualname__:
        return register_model(model.__name__, model).name
    return f"{model.__module__}:{model.__qualname__}"


def find(name: str | type[nn.Module]) -> ModelInfo:
    """The catalogue row of a name; an unknown name raises an error with the nearest one."""
    if isinstance(name, type):
        name = name_of(name)
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return _info(name, _imported(name))
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return register_model(name, entry.load())
    if name in REMOVED:
        raise UserError(f"there is no model {name!r}: {REMOVED[name]}")
    near, prefix = nearest(name, MODELS), name.lower()
    begun = [known for known in MODELS if known.startswith(prefix)] if near and near.startswith(prefix) else []
    others = f" Other names with this prefix: {', '.join(begun[1:])}." if len(begun) > 1 else ""
    problem = f"unknown model {name!r}{or_near(name, MODELS)}{others} Known: {', '.join(MODELS)}. Your own model is "
    problem += "package.module:Class or a name that difformer.register_model has given it"
    raise UserError(problem)


def _imported(name: str) -> type[nn.Module]:
    module, _, attribute = name.partition(":")
    try:
        home = importlib.import_module(module)
    except ImportError as error:
        problem = f"model {name!r}: cannot import {module!r} ({error}); write your own model as package.module:Class; "
        problem += "the package must be installed or on PYTHONPATH"
        raise UserError(problem) from error
    found: Any = home
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        hint = did_you_mean(attribute, dir(home))
        raise UserError(f"model {name!r}: module {module!r} has no {attribute!r}{'; ' if hint else ''}{hint.strip()}")
    check_class(name, found)
    return found


def model_class(info: ModelInfo) -> type[nn.Module]:
    """The class behind a row of the catalogue."""
    return _registered[info.name] if info.name in _registered else _imported(info.home)


def parameters_of(model: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Options of a class: its arguments after the three sizes, and those of its bases if it accepts ``**options``."""
    found: dict[str, inspect.Parameter] = {}
    for one in model.__mro__[: model.__mro__.index(nn.Module)]:
        if not {"__init__", "__signature__"} & vars(one).keys():
            continue
        parameters = inspect.signature(one).parameters.values()
        for place, parameter in enumerate(parameters):
            later = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and place >= 3
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY or later:
                found.setdefault(parameter.name, parameter)
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def options_of(name: str) -> dict[str, Any]:
    """Options of a model with their defaults, without those it fixes."""
    info = find(name)
    options = {key: parameter.default for key, parameter in parameters_of(model_class(info)).items()}
    options = {"hidden_channels": DEFAULT_HIDDEN_CHANNELS} | options | dict(info.defaults)
    return {key: value for key, value in options.items() if key not in info.fixed}


def takes(name: str, option: str, value: Any) -> bool:
    """Whether a model of the package takes a value of one of its options; True for what it does not declare."""
    declared = getattr(model_class(find(name)), "_options", {})
    try:
        return option not in declared or declared[option].check(option, value) is None
    except UserError:
        return False


def current_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under their current names."""
    renamed = RENAMED.get(name, {})
    return {renamed.get(key, key): value for key, value in options.items()}


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises a ValueError that lists all options if the model lacks or fixes one of these."""
    known, fixed = options_of(name), find(name).fixed
    for key in current_options(name, options):
        if key in fixed:
            advice = "; use model 'difformer' to choose it" if name.startswith("difformer") else ""
            raise UserError(f"model {name!r} fixes {key}={fixed[key]!r}{advice}")
        if key not in known:
            problem = f"model {name!r} has no option {key!r}{or_near(key, known)} Its options: {', '.join(known)}"
            raise UserError(problem)


def build(name: str, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
    """Builds a model.

    Args:
        name: A name in `MODELS`, or ``"package.module:Class"``.
        options: Keyword arguments of the class, and ``hidden_channels``.

    Raises:
        ValueError: If the model or an option is unknown.
    """
    info = find(name)
    check_options(name, options)
    options = {**info.defaults, **info.fixed, **current_options(name, options)}
    hidden = options.pop("hidden_channels", DEFAULT_HIDDEN_CHANNELS)
    model = model_class(info)(in_channels, hidden, out_channels, **options)
    return model if hasattr(model, "embed") and hasattr(model, "decode") else Plain(model)


class Plain(Encoder):
    """Adapts a module with only ``forward`` to `difformer.nn.Model`; its outputs are its states.

    The module receives dense features and edges ``[2, E]``. For graph-level tasks its outputs are pooled.
    """

    def __init__(self, model: nn.Module) -> None:
        nn.Module.__init__(self)
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        for hook in ("penalty", "observe", "prepare"):
            if hasattr(model, hook):
                setattr(self, hook, getattr(model, hook))
        self.takes = tuple(n for n in ("edge_index", "edge_weight", "batch") if anything or n in parameters)

    def embed(self, x: Features, edge_index: Edges = None, edge_weight: Weight = None, batch: Batch = None) -> Tensor:
        edges = edge_index
        if isinstance(edge_index, Graph):
            edges, edge_weight = edge_index.edge_index, edge_index.edge_weight
        elif edge_index is None:
            edges = torch.empty(2, 0, dtype=torch.long, device=x.device)
        rows = batch.batch if isinstance(batch, Segments) else batch
        given = {"edge_index": edges, "edge_weight": edge_weight, "batch": rows}
        return self.model(dense(x), **{name: given[name] for name in self.takes})

    forward = embed

    def decode(self, states: Tensor) -> Tensor:
        return states
