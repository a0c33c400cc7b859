"""What an argument means, from the ``Args:`` section of the docstring that explains it: nothing is written twice."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_ENTRY = re.compile(r"^\*{0,2}(\w+)(?: \([^)]*\))?: (.*)$")


def meanings(documented: Callable[..., Any]) -> dict[str, str]:
    """Every argument of a function or class with its explanation, as one line of plain text.

    ::

        Args:
            step_size: τ in (0, 1].      ->   {"step_size": "τ in (0, 1]."}

    A class that does not explain an argument leaves it to those that it is made from.
    """
    explained: dict[str, str] = {}
    for one in reversed(documented.__mro__) if isinstance(documented, type) else (documented,):
        explained |= _section(inspect.cleandoc(one.__doc__ or "").splitlines())
    return explained


def _section(lines: list[str]) -> dict[str, str]:
    if "Args:" not in lines:
        return {}
    found: dict[str, str] = {}
    name = ""
    for line in lines[lines.index("Args:") + 1 :]:
        if not line.strip() or not line.startswith(" "):
            break
        entry = _ENTRY.match(line.strip())
        if entry is not None and not line.startswith(" " * 5):
            name, text = entry[1], entry[2]
            found[name] = text
        elif name:
            found[name] += f" {line.strip()}"
    return {key: _plain(text) for key, text in found.items()}


def _plain(text: str) -> str:
    """Without the marks that a docstring puts around code."""
    return re.sub(r"``\"?([^`]*?)\"?``", r"\1", text).replace("`", "")
