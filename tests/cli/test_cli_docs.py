"""Every command of the guide is one that the command line understands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCKS = re.findall(r"```\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("difformer ")]


def test_there_are_commands():
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("line", COMMANDS)
def test_words_are_understood(call, line):
    """An unknown verb or option is refused before help is shown."""
    answer = call(*shlex.split(line)[1:], "--help")
    assert answer.code == 0, answer.err
    assert "Usage: difformer" in answer.out


def test_an_unknown_option_would_be_noticed(call):
    assert call("fit", "digits", "--sets", "a=1", "--help").code == 2


def test_every_verb_is_explained():
    from difformer.cli.app import app

    for command in app.registered_commands:
        assert f"`{command.callback.__name__}`" in GUIDE.read_text(encoding="utf-8")
