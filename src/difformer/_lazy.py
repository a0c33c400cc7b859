"""Names of a package that are imported on first use, so that the command line answers before torch is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], modules: str = ""
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package whose names are resolved on first use.

    Args:
        package: ``__name__`` of the package.
        homes: Module within the package → the names it holds, separated by blanks.
        modules: Further modules that are attributes of the package without an import of their own, likewise.
    """
    attributes = {*modules.split(), *(module.partition(".")[0] for module in homes)}
    home = {name: module for module, names in homes.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name in home:
            value = getattr(import_module(f"{package}.{home[name]}"), name)
            setattr(sys.modules[package], name, value)  # the next look-up does not come here
            return value
        if name in attributes:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *attributes})

    return sorted(home), __getattr__, __dir__
