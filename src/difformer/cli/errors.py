"""From an exception to what a person sees: one message, an exit code, and a traceback only on request."""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import typer

from difformer.cli.output import printable
from difformer.cli.wording import as_typed
from difformer.errors import WouldNotFitError

CHECK_FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130

# What the package raises when the request or the data are at fault. Anything else is a fault of the package and keeps
# its traceback, so that it can be reported.
BLAMELESS = (ValueError, OSError, ImportError, ArithmeticError)

_debug = False
Verb = TypeVar("Verb", bound=Callable[..., None])


def take_debug_flag(arguments: Sequence[str]) -> list[str]:
    """Removes ``--debug`` wherever it stands before a ``--``, and remembers it."""
    global _debug
    words = list(arguments)
    stop = words.index("--") if "--" in words else len(words)
    _debug = "--debug" in words[:stop]
    return [word for place, word in enumerate(words) if word != "--debug" or place > stop]


def verb(function: Verb) -> Verb:
    """Decorates a verb: errors of the request become one message and exit code 2, Ctrl-C becomes exit code 130."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> None:
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        try:
            function(*args, **kwargs)
            sys.stdout.flush()  # here, where a reader that went away can be handled
        except KeyboardInterrupt as error:
            print(printable(f"interrupted{_kept(error)}"), file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output went away (`difformer datasets | head`): nothing to say, and nobody to say it to.
            _silence_stdout()
            raise typer.Exit(0) from None
        except Exception as error:
            if not isinstance(error, BLAMELESS) and not _out_of_memory(error):
                raise
            if _debug:
                traceback.print_exc()
            print(f"error: {printable(_said(error))}", file=sys.stderr)
            raise typer.Exit(USER_ERROR) from None

    return run  # type: ignore[return-value]


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Whoever stops what happens here at once is told which run there is to go on with."""
    try:
        yield
    except KeyboardInterrupt as error:
        if (folder / "config.toml").is_file():
            error.begun = str(folder)  # type: ignore[attr-defined]
        raise


def _kept(error: KeyboardInterrupt) -> str:
    """What a run that was stopped leaves, and how it goes on; a second Ctrl-C leaves no time to save."""
    if (folder := getattr(error, "folder", "")) and "no checkpoints" in error.kept:  # type: ignore[attr-defined]
        return (
            f"; the results so far were saved, but seeds that are trained as one have no checkpoints. Train them again "
            f"from their first epoch with: difformer fit --resume {folder}"
        )
    if folder:
        return f"; what there is was saved. Go on with: difformer fit --resume {folder}"
    if folder := getattr(error, "begun", ""):
        return f" at once. Go on from the last checkpoint with: difformer fit --resume {folder}"
    return ""


def _out_of_memory(error: Exception) -> bool:
    """By its name: torch, whose error it is on a GPU, may not be loaded. On a CPU torch has no name for it."""
    on_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or on_cpu


def _said(error: Exception) -> str:
    if isinstance(error, WouldNotFitError):
        return f"refused for lack of memory: {as_typed(str(error))}"
    if _out_of_memory(error):
        first = str(error).split(". ")[0] or type(error).__name__
        elsewhere = " or --device cpu" if type(error).__name__ == "OutOfMemoryError" else ""
        smaller = "--batch-size, fewer hidden_channels"
        smaller += ", --set precision=bf16" if elsewhere else " or --set precision=bf16"
        return f"out of memory ({first}); try {smaller}{elsewhere}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return as_typed(str(error)) or type(error).__name__


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {printable(as_typed(str(message)))}", file=sys.stderr)


def _silence_stdout() -> None:
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
