"""Names of a package that are imported on first use, so that the command line answers before torch is loaded.

The stub ``__init__.pyi`` of a package lists its names once, for type checkers and for `lazy_names`.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package whose names are resolved on first use.

    Modules that hold names of the stub, and those that it lists by ``from . import module as module``, are attributes
    of the package, too.
    """
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    home = {alias.name: str(node.module) for node in imports if node.level == 0 for alias in node.names}
    modules = {alias.name for node in imports if node.level for alias in node.names}
    modules |= {one.split(".")[package.count(".") + 1] for one in home.values() if one.startswith(f"{package}.")}

    def __getattr__(name: str) -> Any:
        if name in home:
            value = getattr(import_module(home[name]), name)
            setattr(sys.modules[package], name, value)  # the next look-up does not come here
            return value
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *modules} - {"annotations", "lazy_names"})

    return sorted(home), __getattr__, __dir__
