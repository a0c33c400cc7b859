"""From a model's name and options to the model."""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any

from torch import nn

from difformer.zoo.catalogue import MODELS, ModelInfo

DEFAULT_HIDDEN_CHANNELS = 64


def find(name: str) -> ModelInfo:
    """The catalogue's entry of a name, or an error that names the nearest one."""
    if name not in MODELS:
        near = difflib.get_close_matches(name.lower(), MODELS, n=1)
        # A beginning is not near enough to a whole name to be taken for a slip of the keyboard.
        begun = [known for known in MODELS if name and known.startswith(name.lower())]
        hint = f"; did you mean {(near or begun)[0]!r}?" if near or begun else "."
        others = f" So begin also {', '.join(begun[1:])}." if not near and len(begun) > 1 else ""
        raise ValueError(f"unknown model {name!r}{hint}{others} Known: {', '.join(MODELS)}")
    return MODELS[name]


def model_class(info: ModelInfo) -> type[nn.Module]:
    """The class behind a catalogue entry."""
    module, _, attribute = info.home.partition(":")
    found: type[nn.Module] = getattr(importlib.import_module(module), attribute)
    return found


def options_of(name: str) -> dict[str, Any]:
    """Options a model takes, with their defaults; those that make it what it is are left out."""
    info = find(name)
    parameters = inspect.signature(model_class(info)).parameters
    options = {
        key: parameter.default
        for key, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and key not in info.fixed
    }
    return {"hidden_channels": DEFAULT_HIDDEN_CHANNELS} | options


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raises a ValueError for an option that the model does not have, naming those it has."""
    known = options_of(name)
    fixed = find(name).fixed
    for key in options:
        if key in fixed:
            raise ValueError(
                f"model {name!r} fixes {key}={fixed[key]!r}; use model 'difformer' to choose it"
                if name.startswith("difformer")
                else f"model {name!r} fixes {key}={fixed[key]!r}"
            )
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"model {name!r} has no option {key!r}{hint} Its options: {', '.join(known)}")


def build(name: str, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
    """A model of the catalogue.

    Args:
        name: See `MODELS`.
        in_channels: Features of an instance.
        out_channels: Outputs of an instance.
        options: What the model's class takes by keyword, and ``hidden_channels``.

    Raises:
        ValueError: If the model or an option is not known.
    """
    info = find(name)
    check_options(name, options)
    hidden = options.pop("hidden_channels", DEFAULT_HIDDEN_CHANNELS)
    return model_class(info)(in_channels, hidden, out_channels, **info.fixed, **options)
