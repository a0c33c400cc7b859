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

    app(take_debug_flag(sys.argv[1:] if arguments is None else arguments), prog_name="difformer")
