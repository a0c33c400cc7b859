"""TOML, written: the standard library only reads it.

Tables of tables, lists, texts, numbers and truth values come out as they went in. TOML has no None: a table lists the
keys that are None under ``unset``.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# The standard library reads TOML from Python 3.11 on; before it, the package that became it.
_reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

UNSET = "unset"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def dumps(table: Mapping[str, Any]) -> str:
    """A table as TOML.

    Raises:
        TypeError: If a value is of a kind that TOML does not have, naming its key.
    """
    lines: list[str] = []
    _write_table(lines, (), table)
    return "\n".join(lines).lstrip("\n") + "\n"


def loads(text: str) -> dict[str, Any]:
    """What `dumps` wrote, None included.

    Raises:
        ValueError: If it is not TOML; the message says where.
    """
    found: dict[str, Any] = _with_none(_reader.loads(text))
    return found


def _write_table(lines: list[str], path: tuple[str, ...], table: Mapping[str, Any]) -> None:
    unset = [key for key, value in table.items() if value is None]
    if UNSET in table:
        raise TypeError(f"{'.'.join((*path, UNSET))}: the name is taken; it lists the keys that are none")
    scalars = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    if path and (scalars or unset or not table):
        lines.append("")
        lines.append(f"[{'.'.join(map(_key, path))}]")
    for key, value in scalars.items():
        lines.append(f"{_key(key)} = {_value(value, '.'.join((*path, key)))}")
    if unset:
        lines.append(f"{UNSET} = {_value(unset, UNSET)}")
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write_table(lines, (*path, key), value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isfinite(value):
            text = repr(value)
            return text if any(sign in text for sign in ".e") else f"{text}.0"
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(item, f'{where}[{i}]') for i, item in enumerate(value))}]"
    raise TypeError(f"{where} is a {type(value).__name__}, which a file cannot hold: {value!r}")


def _text(text: str) -> str:
    escaped = "".join(_ESCAPES.get(c, c if c >= " " and c != "\x7f" else f"\\u{ord(c):04X}") for c in text)
    return f'"{escaped}"'


def _with_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_none(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _with_none(item) for key, item in value.items()}
    unset = found.pop(UNSET, [])
    return found | dict.fromkeys(unset)
