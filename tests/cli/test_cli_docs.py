"""Every command of the README and the guides is one that the command line understands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "cli.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```(?:\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(?:\$ )?(?:torchrun .* -m )?difformer (?P<words>\w.*)$", re.MULTILINE)


def commands():
    """Words after ``difformer``, of every page, each once; an ellipsis stands for words of the reader's own."""
    found = {}
    for page in PAGES:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for match in COMMAND.finditer(block.replace("\\\n", " ")):
                if "…" not in match["words"]:
                    found.setdefault(match["words"], page.name)
    return found


COMMANDS = commands()


def test_guides_contain_commands():
    assert len(COMMANDS) >= 20
    assert {"cli.md", "scale.md", "start.md", "choosing.md"} <= set(COMMANDS.values())


@pytest.mark.parametrize("words", COMMANDS)
def test_every_documented_command_is_accepted(call, words):
    """An unknown verb or option is refused before help is shown."""
    answer = call(*shlex.split(words, comments=True), "--help")
    assert answer.code == 0, answer.err
    assert "Usage: difformer" in answer.out


def test_an_unknown_option_would_be_noticed(call):
    assert call("fit", "digits", "--sets", "a=1", "--help").code == 2


def test_every_command_is_explained_in_the_guide():
    from difformer.cli.app import app

    for command in app.registered_commands:
        assert f"`{command.callback.__name__}`" in GUIDE.read_text(encoding="utf-8")
