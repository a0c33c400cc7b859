"""The form of documents that are read from files: checked as a whole before anything uses them.

A schema is data: ``str``, ``bool`` and ``dict`` are those types, ``int`` a whole number of at least 0, ``float`` any
number, ``None`` null; a set lists the texts that are allowed, a list of one schema is a list of such values, a tuple
names alternatives, and a dictionary the entries of a table, which may have others.
"""

from __future__ import annotations

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


def check(value: Any, schema: Any, name: str = "") -> None:
    """Refuses a value that does not have the form of a schema.

    Raises:
        UserError: Naming the entry, what it must be, and what it is.
    """
    if not _fits(value, dict if isinstance(schema, dict) else schema):
        raise UserError(f"{name or 'the document'} must be {_said(schema)}, got {value!r:.60}")
    if isinstance(schema, dict):
        for key, one in schema.items():
            check(value.get(key), one, f"{name}.{key}" if name else key)


def _fits(value: Any, schema: Any) -> bool:
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
    if isinstance(schema, tuple):
        return " or ".join(map(_said, schema))
    if isinstance(schema, list):
        return f"a list, each item {_said(schema[0])}"
    if isinstance(schema, set):
        return f"one of {', '.join(sorted(schema))}"
    return _WORDS[dict if isinstance(schema, dict) else schema]
