"""Errors that are the user's to fix. No torch here: the command line looks at errors before torch is loaded.

`UserError` means that the request or the data cannot be used as they are; the message says what was given, what was
expected and what to do. The command line shows the message of a `UserError` as one sentence. Any other `ValueError` is
a bug of the package and keeps its traceback.
"""

from __future__ import annotations


class UserError(ValueError):
    """A request or input that cannot be used as it is.

    Args:
        message: What was given, what was expected and what to do. It names arguments as ``name=value``, without
            quotes, so that it reads the same in Python and on the command line.
        argument: The argument that is wrong, or that solves the problem. The command line adds its own spelling, such
            as ``--data duplicates``.
    """

    def __init__(self, message: str = "", *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class WouldNotFitError(MemoryError):
    """A model needs more memory than is free; raised before any work is done, with advice in the message."""
