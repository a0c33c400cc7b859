"""`load`: from a name to a task; and names for your own data sets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from importlib import import_module
from numbers import Integral, Real
from operator import attrgetter
from typing import Any

import numpy as np

from difformer.data.catalogue import ENTRIES, Entry, entry, own_entry, plain_name
from difformer.data.datasets.common import Reader
from difformer.data.task import Kind, Task
from difformer.errors import UserError, did_you_mean

_registered: dict[str, Callable[..., Task]] = {}


def load(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Task:
    """A data set as a task, ready for any model.

    Files are looked for in `root`, in `$DIFFORMER_DATA` and in the cache, in this order; a file that
    none of them has is downloaded from its official source into the cache.

    Args:
        name: A data set of `list_datasets()`, in any spelling: ``"cora"``, ``"Amazon_Photo"``, ``"20news"``.
        root: Folder to search first.
        **options: Options of the data set, which `dataset_options(name)` lists: ``protocol=``, ``num_splits=``,
            ``seed=``, ``self_loops=``, ``sparse=``, …

    Raises:
        ValueError: If there is no such data set or option, or an option has no such value.
        DataError: If a file is broken or missing; it names the data set, the file and what to do.
        DownloadError: If a download fails; it also names the address and the folder to put the file into.
    """
    found = entry(name)
    function = loader_of(name)
    known, kinds = dataset_options(name), annotations_of(function)
    for option, value in options.items():
        if option not in known:
            listed = ", ".join(f"{key}={default!r}" for key, default in known.items()) or "none"
            hint = did_you_mean(option, known)
            raise UserError(f"data set {found.name!r} has no option {option!r}; {hint}it takes {listed}")
        # self_loops="no" would count as true; readers check options of other kinds themselves.
        allowed = [part.strip() for part in kinds[option].split("|")]
        if all(kind in _KINDS for kind in allowed) and not any(_KINDS[kind][1](value) for kind in allowed):
            expected = " or ".join(_KINDS[kind][0] for kind in allowed)
            raise UserError(f"data set {found.name!r}: {option} must be {expected}, got {value!r}")
    takes_files = "root" in inspect.signature(function).parameters
    made: Any = function(found.name, root, **options) if takes_files else function(**options)
    task = made.load() if isinstance(made, Reader) else made
    if not isinstance(task, Task):
        expected = "must return a difformer.data.Task, such as from_arrays makes"
        raise UserError(f"data set {found.name!r}: {found.loader} {expected}; got {type(task).__name__}")
    return task


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("True or False", lambda value: isinstance(value, (bool, np.bool_))),
    "int": ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str": ("a text", lambda value: isinstance(value, str)),
    "None": ("None", lambda value: value is None),
}


def register_dataset(
    name: str, loader: Callable[..., Task], *, about: str = "", kind: Kind = "nodes", metric: str = "any"
) -> Entry:
    """Adds your own data set, so that `load`, ``fit``, ``tune`` and everything else take its name.

    The name is known in this process. The command line knows it if an installed package names the loader in the
    entry-point group ``difformer.datasets``; without a name it takes ``package.module:function``.

    Args:
        name: What `load` and ``difformer fit`` take.
        loader: A function ``(*, options…) -> Task`` whose options have defaults, or ``(name, root=None, *, options…)``
            if it looks for files in the folder of ``--root``.
        about: One sentence; by default the first line of the function's docstring.
        kind: ``"nodes"``, ``"series"`` or ``"graphs"``, for the list of data sets.
        metric: What is reported, likewise.

    Raises:
        UserError: If the package has a data set of that name, or the loader has another signature.

    Example:
        >>> from difformer.data import from_arrays
        >>> def stripes(*, size: int = 40):
        ...     return from_arrays([[i % 4, i] for i in range(size)], [i % 2 for i in range(size)], name="stripes")
        >>> register_dataset("stripes", stripes).name
        'stripes'
        >>> load("stripes", size=60).num_nodes
        60
    """
    plain = plain_name(name)
    if not plain or set(plain) & set(":/\\"):
        raise UserError(f"the name of a data set has no colons or slashes, got {name!r}")
    if plain in ENTRIES and plain not in _registered:
        raise UserError(f"{plain!r} is a data set of the package; register yours under another name")
    _check_loader(plain, loader)
    first = (inspect.getdoc(loader) or "").strip().splitlines()
    place = f"{loader.__module__}:{loader.__qualname__}"
    _registered[plain] = loader
    ENTRIES[plain] = own_entry(plain, place, about or (first or [""])[0], kind, metric)
    return ENTRIES[plain]


def _check_loader(name: str, loader: Any) -> None:
    if not callable(loader):
        raise UserError(f"data set {name!r}: expected a function that returns a Task, got {loader!r}")
    parameters = inspect.signature(loader).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    positional = [p.name for p in parameters if p.kind is not keyword]
    bare = [p.name for p in parameters if p.kind is keyword and p.default is inspect.Parameter.empty]
    if positional not in ([], ["name", "root"]) or bare:
        expected = "a function (*, options…) or (name, root=None, *, options…) with a default for every option"
        given = f"that of {loader.__qualname__} is {inspect.signature(loader)}"
        raise UserError(f"data set {name!r}: a loader is {expected}; {given}")


def loader_of(name: str) -> Callable[..., Task | Reader]:
    """The function or the `Reader` that makes a data set; its docstring explains the options."""
    found = entry(name)
    if found.name in _registered:
        return _registered[found.name]
    module, _, attribute = found.loader.partition(":")
    ours = module.startswith("difformer.")
    try:
        loader: Any = attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError) as error:
        if ours:
            raise
        remedy = "it is package.module:function, and the package must be installed or on PYTHONPATH"
        raise UserError(f"data set {name!r}: {found.loader} cannot be imported ({error}); {remedy}") from error
    if not ours:
        _check_loader(found.name, loader)
    return loader


def dataset_options(name: str) -> dict[str, Any]:
    """The options that `load` takes for a data set, with their defaults."""
    return {p.name: p.default for p in _keyword_parameters(loader_of(name))}


def annotations_of(function: Callable[..., Any]) -> dict[str, str]:
    """Annotations of the keyword-only options of a loader: ``{"knn": "int | None", …}``."""
    found = {}
    for p in _keyword_parameters(function):
        kind = type(p.default) if p.annotation is inspect.Parameter.empty else p.annotation
        found[p.name] = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    return found


def _keyword_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
