"""The form of documents that are read from files: checked as a whole before anything uses them.

A schema is data: ``str``, ``bool`` and ``dict`` are those types, ``int`` a whole number of at least 0, ``float`` any
number, ``None`` null; a set lists the texts that are allowed, a list of one schema is a list of such values, a tuple
names alternatives, a `Rule` is a function, and a dictionary names the entries of a table.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from difformer.errors import UserError

LARGEST = 2**40  # of a count: nothing that fits a disk has more
_WORDS: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    dict: "a table",
    int: "a whole number of at least 0",
    float: "a number",
    None: "null",
}


@dataclass(frozen=True)
class Rule:
    """What a value has to be, in code and in words."""

    holds: Callable[[Any], Any]
    words: str

    def or_none(self) -> Rule:
        return Rule(lambda value: value is None or self.holds(value), f"{self.words}, or None")


def one_of(*values: Any) -> Rule:
    """A value that equals one of these and has its type."""
    words = ("one of " if len(values) > 1 else "") + ", ".join(map(repr, values))
    return Rule(lambda value: any(type(value) is type(each) and value == each for each in values), words)


def check(value: Any, schema: Any, name: str = "", *, closed: bool = False) -> None:
    """Refuses a value that does not have the form of a schema; if `closed`, also tables with other entries.

    Raises:
        UserError: Naming the entry, what it must be, and what it is.
    """
    if not _fits(value, dict if isinstance(schema, dict) else schema):
        raise UserError(f"{name or 'the document'} must be {_said(schema)}, got {value!r:.60}")
    if isinstance(schema, dict):
        start = f"{name}." if name else ""
        for key in {**schema, **value} if closed else schema:
            if key not in schema:
                raise UserError(f"{start}{reprlib.repr(key)[1:-1]} is unknown; known are {', '.join(schema)}")
            if closed and key not in value:
                raise UserError(f"{start}{key} is missing")
            check(value.get(key), schema[key], start + key, closed=closed)


def _fits(value: Any, schema: Any) -> bool:
    if isinstance(schema, Rule):
        return bool(schema.holds(value))
    if isinstance(schema, tuple):
        return any(_fits(value, one) for one in schema)
    if isinstance(schema, list):
        return isinstance(value, list) and all(_fits(item, schema[0]) for item in value)
    if isinstance(schema, set):
        return isinstance(value, str) and value in schema
    if schema is None:
        return value is None
    if schema is int:
        return type(value) is int and 0 <= value < LARGEST
    return type(value) in (int, float) if schema is float else isinstance(value, schema)


def _said(schema: Any) -> str:
    if isinstance(schema, Rule):
        return schema.words
    if isinstance(schema, tuple):
        return " or ".join(map(_said, schema))
    if isinstance(schema, list):
        return f"a list, each item {_said(schema[0])}"
    if isinstance(schema, set):
        return f"one of {', '.join(sorted(schema))}"
    return _WORDS[dict if isinstance(schema, dict) else schema]
