"""The command line. Nothing here loads torch before a command needs it, so help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from difformer.cli.app import app
from difformer.cli.command import take_debug_flag

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command ``difformer`` and ends the process with its exit code.

    Exit codes: 0 success; 1 a check failed; 2 the request or the data are wrong, explained in one message; 130
    interrupted, with the state saved.

    Args:
        arguments: Words after the command's name; those of the process by default.
    """
    words = take_debug_flag(sys.argv[1:] if arguments is None else arguments)
    app(_one_option_per_model(words), prog_name="difformer")


def _one_option_per_model(words: list[str]) -> list[str]:
    """``--models gcn gat`` as ``--models gcn --models gat``, which is how the parser takes several values."""
    found: list[str] = []
    for word in words:
        if found[-2:-1] == ["--models"] and not word.startswith("-"):
            found.append("--models")
        found.append(word)
    return found
