"""The command line: one file per command. Nothing here loads torch before a command needs it, so help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command ``difformer`` and ends the process with its exit code.

    Exit codes: 0 success; 1 a check failed; 2 the request or the data are wrong, explained in one message; 130
    interrupted, with the state saved.

    Args:
        arguments: Words after the command's name; those of the process by default.
    """
    from difformer.cli.app import app
    from difformer.cli.command import take_debug_flag

    app(take_debug_flag(sys.argv[1:] if arguments is None else arguments), prog_name="difformer")
