"""The command line, one file a verb. Nothing here loads torch before a verb needs it, so that ``--help`` is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command ``difformer`` and leaves the process with its exit code.

    Exit codes: 0 done; 1 a check did not hold; 2 something about the request or the data is wrong, said in one message;
    130 interrupted, with what was there saved.

    Args:
        arguments: Words after the command's name; those of the process by default.
    """
    from difformer.cli.app import app
    from difformer.cli.errors import take_debug_flag

    words = take_debug_flag(sys.argv[1:] if arguments is None else arguments)
    app(_one_option_per_model(words), prog_name="difformer")


def _one_option_per_model(words: list[str]) -> list[str]:
    """``--models gcn gat`` as ``--models gcn --models gat``, which is how the parser takes several values."""
    found: list[str] = []
    naming = False
    for word in words:
        if naming and not word.startswith("-") and found[-1] != "--models":
            found.append("--models")
        naming = word == "--models" or (naming and not word.startswith("-"))
        found.append(word)
    return found
