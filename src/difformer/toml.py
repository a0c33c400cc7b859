"""A writer for TOML, which the standard library only reads.

Nested tables, lists, strings, numbers and booleans are read back as they were written. TOML has no None: a table lists
the keys that are None under ``unset``.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# `tomllib` came with Python 3.11; before that, the same code is the package tomli.
_reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

UNSET = "unset"


def dumps(table: Mapping[str, Any]) -> str:
    """A table as TOML."""
    return "\n".join(_lines((), table)).lstrip("\n") + "\n"


def loads(text: str) -> dict[str, Any]:
    """Reads what `dumps` wrote, None included."""
    return dict(_with_none(_reader.loads(text)))


def _lines(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    if UNSET in table:
        raise TypeError(f"{'.'.join((*path, UNSET))}: the name is taken; it lists the keys that are None")
    own = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value, '.'.join((*path, key)))}" for key, value in own.items()]
    if unset := [key for key, value in table.items() if value is None]:
        lines.append(f"{UNSET} = {_value(unset, UNSET)}")
    if path and (lines or not table):
        lines[:0] = ["", f"[{'.'.join(map(_key, path))}]"]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines((*path, key), value)
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key, key)


def _value(value: Any, where: str) -> str:
    if isinstance(value, bool | str):  # TOML escapes as JSON does, and also DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, int | float):
        return repr(float(value) if isinstance(value, float) else int(value))
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(item, f'{where}[{i}]') for i, item in enumerate(value))}]"
    raise TypeError(f"{where} is a {type(value).__name__}, which a file cannot hold: {value!r}")


def _with_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_none(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _with_none(item) for key, item in value.items()}
    return found | dict.fromkeys(found.pop(UNSET, []))
