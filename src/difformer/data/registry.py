"""`load`: from a name to a task."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from importlib import import_module
from numbers import Integral, Real
from typing import Any

import numpy as np

from difformer.data.catalogue import entry
from difformer.data.task import Task
from difformer.errors import UserError


def load(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Task:
    """A data set as a task, ready for any model.

    Files are looked for in `root`, in `$DIFFORMER_DATA` and in the cache, in this order; what is in none of them is
    downloaded from its official source into the cache.

    Args:
        name: A data set of `list_datasets()`, in any spelling: ``"cora"``, ``"Amazon_Photo"``, ``"20news"``.
        root: Folder to search first.
        **options: What the data set can be asked for, `dataset_options(name)` lists it: ``protocol=``, ``num_splits=``,
            ``seed=``, ``self_loops=``, ``sparse=``, …

    Returns:
        Features, structure, targets, splits, metric and protocol.

    Raises:
        ValueError: If there is no such data set or option, or an option has no such value.
        DataError: If a file is broken or missing; it names the data set, the file and what to do.
        DownloadError: If a download fails; it also names the address and the folder to put the file into.
    """
    found = entry(name)
    function = _loader(found.loader)
    known = _options(function)
    for option in options:
        if option not in known:
            raise UserError(_unknown_option(found.name, option, known))
    _check_kinds(found.name, options, annotations_of(function))
    if _takes_files(function):
        return function(found.name, root, **options)
    return function(**options)


def dataset_options(name: str) -> dict[str, Any]:
    """What `load` can be asked for a data set: every option with its default."""
    return _options(loader_of(name))


def option_kinds(name: str) -> dict[str, str]:
    """What kind of value each option of a data set takes, as its annotation writes it: ``{"knn": "int | None", …}``."""
    return annotations_of(loader_of(name))


def loader_of(name: str) -> Callable[..., Task]:
    """The function that makes a data set; its docstring explains the options."""
    return _loader(entry(name).loader)


def annotations_of(function: Callable[..., Task]) -> dict[str, str]:
    """Annotations of the options that a reader takes by keyword alone."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: str(p.annotation) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _loader(place: str) -> Callable[..., Task]:
    module, _, function = place.partition(":")
    loader: Callable[..., Task] = getattr(import_module(f"difformer.data.{module}"), function)
    return loader


def _takes_files(function: Callable[..., Task]) -> bool:
    return "root" in inspect.signature(function).parameters


def _options(function: Callable[..., Task]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("True or False", lambda value: isinstance(value, (bool, np.bool_))),
    "int": ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str": ("a text", lambda value: isinstance(value, str)),
    "None": ("None", lambda value: value is None),
}


def _check_kinds(name: str, options: dict[str, Any], annotations: dict[str, str]) -> None:
    """Refuse ``self_loops="no"``, which Python would take for a yes; options of other kinds check themselves."""
    for option, value in options.items():
        kinds = [part.strip() for part in annotations[option].split("|")]
        if all(kind in _KINDS for kind in kinds) and not any(_KINDS[kind][1](value) for kind in kinds):
            expected = " or ".join(_KINDS[kind][0] for kind in kinds)
            raise UserError(f"data set {name!r}: {option} must be {expected}, got {value!r}")


def _unknown_option(name: str, option: str, known: dict[str, Any]) -> str:
    near = difflib.get_close_matches(option, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(f"{key}={value!r}" for key, value in known.items())
    return f"data set {name!r} has no option {option!r}; {hint}it takes {listed}"
