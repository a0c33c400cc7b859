import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from difformer import toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = scalars | st.lists(st.booleans() | st.integers(-99, 99) | texts | st.lists(texts, max_size=2), max_size=3)
keys = texts.filter(lambda key: key != toml.UNSET)
tables = st.recursive(
    st.dictionaries(keys, values, max_size=4), lambda inner: st.dictionaries(keys, values | inner, max_size=4)
)


@settings(max_examples=150, deadline=None)
@given(tables)
def test_written_toml_is_read_back(table):
    again = toml.loads(toml.dumps(table))
    assert again == table
    assert _kinds(again) == _kinds(table)  # 1, 1.0 and true are equal, and are not the same


def _kinds(value):
    if isinstance(value, dict):
        return {key: _kinds(item) for key, item in value.items()}
    return [_kinds(item) for item in value] if isinstance(value, list) else type(value)


def test_numbers_that_are_none():
    again = toml.loads(toml.dumps({"a": math.nan, "b": -math.inf}))
    assert math.isnan(again["a"])
    assert again["b"] == -math.inf


def test_written_toml_is_readable():
    text = toml.dumps({"top": 1, "run": {"seeds": (0, 1), "rate": 1e-3, "clip": None, "odd key": "a\nb"}, "empty": {}})
    assert text == (
        'top = 1\n\n[run]\nseeds = [0, 1]\nrate = 0.001\n"odd key" = "a\\nb"\nunset = ["clip"]\n\n[empty]\n'
    )


def test_what_a_file_cannot_hold_is_named():
    with pytest.raises(TypeError, match=r"model\.options\.f is a function, which a file cannot hold"):
        toml.dumps({"model": {"options": {"f": _kinds}}})
    with pytest.raises(TypeError, match="the name is taken"):
        toml.dumps({"unset": 1})


def test_none_in_a_list_of_tables():
    assert toml.loads('[[a]]\nb = 1\n[a.c]\nunset = ["d"]\n') == {"a": [{"b": 1, "c": {"d": None}}]}
