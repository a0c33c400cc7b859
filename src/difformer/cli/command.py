"""From an exception to what a person sees: one message, an exit code, and a traceback on request.

Errors of the request or the data (`difformer.errors.UserError`, files, missing extras, memory) become one sentence and
exit code 2. Any other exception is a bug and keeps its traceback, so that it can be reported.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.models import ArgumentInfo

from difformer.cli.options import file_options
from difformer.cli.output import printable
from difformer.distributed import rank
from difformer.errors import UserError, WouldNotFitError, out_of_memory

if TYPE_CHECKING:
    from difformer.distributed.process_group import Ranks

CHECK_FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130  # exit codes
EXPECTED = (UserError, OSError, ImportError)

# Arguments of Python that have an option of their own.
_OPTIONS = ("labels", "edges", "features", "device", "root", "out", "preset", "protocol", "stacked", "seeds", "metric")
_SPELLED = {name: f"--{name}" for name in _OPTIONS}
_SPELLED |= {"splits": "--split FILE", "batch_size": "--batch-size", "label_columns": "--label"}

_debug = False
_takes_data = True  # whether the command that runs has the option --data


def take_debug_flag(arguments: Sequence[str]) -> list[str]:
    """Removes ``--debug`` wherever it occurs before a ``--``, and remembers it."""
    global _debug
    words = list(arguments)
    stop = words.index("--") if "--" in words else len(words)
    _debug = "--debug" in words[:stop]
    return [word for place, word in enumerate(words) if word != "--debug" or place > stop]


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: expected errors become one message and exit code 2, Ctrl-C becomes exit code 130.

    A parameter that is a dataclass of options, such as `Output` or `Data`, adds its fields to the command. Help ends
    with the example.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        declared = inspect.signature(function, eval_str=True).parameters
        groups: dict[str, Any] = {
            name: one.annotation for name, one in declared.items() if is_dataclass(one.annotation)
        }
        own = [parameter for name, parameter in declared.items() if name not in groups]
        parameters = own + [parameter for group in groups.values() for parameter in _members(group)]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        parameters.sort(key=lambda one: not isinstance(one.default, ArgumentInfo))

        def run(**given: Any) -> None:
            with _explained(takes_data="data" in given):
                for name, group in groups.items():
                    given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
                function(**given)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        vars(run).update(__signature__=inspect.Signature(parameters), example=example)
        return run

    return decorate


@contextmanager
def _explained(takes_data: bool) -> Iterator[None]:
    """Errors as one message and an exit code, warnings as one line."""
    global _takes_data
    _takes_data = takes_data
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
    try:
        yield
        sys.stdout.flush()  # here, where a closed pipe can be handled
    except KeyboardInterrupt as error:
        print(printable(f"interrupted{_saved(error)}"), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our output has gone (`difformer datasets | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except typer.Exit:  # a check failed, or another rank has said what is wrong
        raise
    except Exception as error:
        if not isinstance(error, EXPECTED) and not out_of_memory(error):
            print("This is a bug in difformer; please report it with the traceback.", file=sys.stderr)
            raise
        if _debug:
            traceback.print_exc()
        print(f"error: {printable(explain(error))}", file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None
    finally:
        _takes_data = True


def _members(group: Any) -> list[inspect.Parameter]:
    """The options of a group, with their types."""
    typed = inspect.signature(group, eval_str=True).parameters
    return [typed[one.name].replace(default=one.metadata["option"]) for one in fields(group)]


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The group of processes that torchrun started; ranks other than the first do not repeat errors of rank 0."""
    from difformer.distributed.process_group import join

    try:
        with join(device) as ranks:
            yield ranks
    except KeyboardInterrupt:
        if rank() == 0:
            raise
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if rank() > 0 and getattr(error, "of_rank_0", False):
            raise typer.Exit(USER_ERROR) from None
        raise


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """A second Ctrl-C within this block is told which run can be resumed."""
    try:
        yield
    except KeyboardInterrupt as error:
        if (folder / "config.toml").is_file():
            error.begun = str(folder)  # type: ignore[attr-defined]
        raise


def _saved(error: KeyboardInterrupt) -> str:
    """What an interrupted run leaves, and how to resume it; a second Ctrl-C leaves no time to save."""
    saved, begun = getattr(error, "folder", ""), getattr(error, "begun", "")
    said = "; the state was saved. Resume with" if saved else " at once. Resume from the last checkpoint with"
    if saved and "no checkpoints" in getattr(error, "kept", ""):
        said = "; the results so far were saved, but stacked seeds have no checkpoints. Train them again from the first"
        said += " epoch with"
    return f"{said}: difformer fit --resume {saved or begun}" if saved or begun else ""


def explain(error: Exception) -> str:
    """The sentence that the command line shows for an expected error."""
    text = str(error) or type(error).__name__
    if isinstance(error, WouldNotFitError):
        return f"refused for lack of memory: {text}"
    if out_of_memory(error):
        on_gpu = type(error).__name__ == "OutOfMemoryError"
        smaller = ", --set precision=bf16 or --device cpu" if on_gpu else " or --set precision=bf16"
        return f"out of memory ({text.split('. ')[0]}); try --batch-size, fewer hidden_channels{smaller}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return with_options(text, getattr(error, "argument", None))


def with_options(text: str, argument: str | None = None) -> str:
    """A message with the options that it speaks of: ``pass header=true (--data header=…)``."""
    named = [] if argument is None else [argument]
    if _takes_data and "--" not in text:
        named += [name for name in file_options() if name not in ("name", "seeds") and f" {name}=" in f" {text}"]
    typed = dict.fromkeys(filter(None, map(spelled, named)))
    missing = [option for option in typed if option.rstrip("…").removesuffix(" FILE") not in text]
    return f"{text} ({', '.join(missing)})" if missing else text


def spelled(argument: str) -> str:
    """An argument of Python as it is typed on the command line: ``--data duplicates=…``."""
    if argument in _SPELLED:
        return _SPELLED[argument]
    from difformer.training.config import TrainConfig

    if argument in file_options():
        return f"--data {argument}=…" if _takes_data else ""
    return f"--set {argument}=…" if argument in vars(TrainConfig()) else ""


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {printable(with_options(str(message)))}", file=sys.stderr)
