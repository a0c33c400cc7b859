"""Schemas of documents that are read from files, which are checked as a whole before use.

A schema is data: ``str``, ``bool`` and ``dict`` stand for those types, ``int`` for a whole number of at least 0,
``float`` for any number and ``None`` for null. A set lists the strings that are allowed, a list of one schema describes
a list of such values, a tuple gives alternatives, a `Rule` is a function, and a dictionary describes a table.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from difformer.errors import UserError

LARGEST = 2**40  # of a count: nothing that fits a disk has more


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


_KINDS: dict[Any, Rule] = {
    str: Rule(lambda value: isinstance(value, str), "a text"),
    bool: Rule(lambda value: isinstance(value, bool), "true or false"),
    dict: Rule(lambda value: isinstance(value, dict), "a table"),
    int: Rule(lambda value: type(value) is int and 0 <= value < LARGEST, "a whole number of at least 0"),
    float: Rule(lambda value: type(value) in (int, float), "a number"),
    None: Rule(lambda value: value is None, "null"),
}


def _rule(schema: Any) -> Rule:
    if isinstance(schema, tuple):
        rules = [_rule(one) for one in schema]
        return Rule(lambda value: any(rule.holds(value) for rule in rules), " or ".join(rule.words for rule in rules))
    if isinstance(schema, list):
        item = _rule(schema[0])
        holds = lambda value: isinstance(value, list) and all(map(item.holds, value))
        return Rule(holds, f"a list, each item {item.words}")
    if isinstance(schema, set):
        words = f"one of {', '.join(sorted(schema))}"
        return Rule(lambda value: isinstance(value, str) and value in schema, words)
    return schema if isinstance(schema, Rule) else _KINDS[dict if isinstance(schema, dict) else schema]


def check(value: Any, schema: Any, name: str = "", *, closed: bool = False) -> None:
    """Refuses a value that does not have the form of a schema; if `closed`, also tables with other entries.

    Raises:
        UserError: Naming the entry, what it must be, and what it is.
    """
    rule = _rule(schema)
    if not rule.holds(value):
        raise UserError(f"{name or 'the document'} must be {rule.words}, got {value!r:.60}")
    if isinstance(schema, dict):
        start = f"{name}." if name else ""
        for key in {**schema, **value} if closed else schema:
            if key not in schema:
                raise UserError(f"{start}{reprlib.repr(key)[1:-1]} is unknown; known are {', '.join(schema)}")
            if closed and key not in value:
                raise UserError(f"{start}{key} is missing")
            check(value.get(key), schema[key], start + key, closed=closed)
