"""What all commands share: how options are declared and read, and how errors are shown.

Errors of the request or the data (`difformer.errors.UserError`, files, missing extras, memory) become one sentence and
exit code 2. Any other exception is a bug and keeps its traceback, so that it can be reported.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.models import ArgumentInfo

from difformer import data, distributed, zoo
from difformer.distributed import rank, under_torchrun
from difformer.errors import UserError, WouldNotFitError, out_of_memory
from difformer.files import printable
from difformer.training.config import TrainConfig

if TYPE_CHECKING:
    from difformer.distributed.process_group import Ranks

CHECK_FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130  # exit codes

# Python arguments that have an option of their own, some with a word for its value.
_OPTIONS = ("device", "features FILE", "labels FILE", "edges FILE", "root", "out", "preset", "protocol", "stacked")
_SPELLED = {name.partition(" ")[0]: f"--{name}" for name in (*_OPTIONS, "seeds", "metric")}
_SPELLED |= {"splits": "--split FILE", "batch_size": "--batch-size N", "label_columns": "--label COLUMN"}
_ARGUMENT = re.compile(r"(?<![^\s(])(?!(?:name|seeds|out)=)([a-z_]+)=([^\s,;)]*)")  # in a message

_debug = False
_takes_data = True  # whether the command that runs has the option --data

MODEL = "Model and training"


def option(
    help: str, default: Any = None, *names: str, low: int | None = None, panel: str | None = None, **given: Any
) -> Any:
    """An option and its default, which help shows unless it is empty; `low` is the least value."""
    shown = not any(default is empty for empty in (None, False, math.inf, ...))
    return typer.Option(default, *names, help=help, show_default=shown, min=low, rich_help_panel=panel, **given)


def argument(help: str, default: Any = None, **given: Any) -> Any:
    return typer.Argument(default, help=help, show_default=False, **given)


def member(help: str, *given: Any, declare: Callable[..., Any] = option, **more: Any) -> Any:
    """An option as a field of a dataclass, a group of options such as `difformer.cli.inputs.Data`."""
    declared = declare(help, *given, **more)
    return field(default=declared.default, metadata={"option": declared})


# Completion in a shell.
def dataset_names(incomplete: str) -> list[str]:
    return [one.entry.name for one in data.download.list_datasets() if one.entry.name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    return [name for name in zoo.MODELS if name.startswith(incomplete)]


RUN = argument("Run folder, as written by `difformer fit`.", ..., metavar="RUN")
SEED = option("Seed of the run to use; by default the one with the best validation score.")
FORCE = option("Overwrite an existing file.", False, "--force")
DEVICE = option("auto, cpu, cuda, cuda:1 or mps.", "auto")
MODEL_NAME = option(
    "Model to train; `difformer models` lists them. Your own: package.module:Class.",
    panel=MODEL,
    autocompletion=model_names,
)
SETTINGS = option(
    "A setting of the model or the training, such as hidden_channels=64; repeatable. `difformer models NAME` lists "
    "them.",
    None,
    "--set",
    metavar="KEY=VALUE",
    panel=MODEL,
)
METRIC = option("Metric that selects the epoch and is reported: accuracy, rocauc, f1, mse, mae …", panel=MODEL)


def key_values(words: list[str] | None, option: str) -> dict[str, str]:
    """``["a=1", "b=x"]`` as a mapping of strings."""
    found: dict[str, str] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{option}: expected KEY=VALUE, got {word!r}")
        key = key.strip().replace("-", "_")
        if key in found:
            raise UserError(f"{option}: {key} is given twice, as {found[key]!r} and {value!r}")
        found[key] = value.strip()
    return found


def read_seeds(text: str | None, default: int) -> list[int]:
    """``"5"`` is seeds 0 to 4, ``"3,7"`` are these two, ``"3,"`` is this one, ``"0-4"`` are all from 0 to 4."""
    if text is None:
        return list(range(default))
    numbers: list[int] = []
    try:
        for word in text.strip().removesuffix(",").split(","):
            first, _, last = word.strip().partition("-")
            numbers += range(int(first), int(last) + 1) if first and last else [int(word)]
    except ValueError:
        expected = "a number of seeds such as 5, or seeds such as 0,3,7 or 0-4 (one seed: 3,)"
        raise UserError(f"--seeds: expected {expected}; got {text!r}") from None
    if not numbers:
        raise UserError(f"--seeds: expected a range such as 0-4, from a smaller to a larger seed; got {text!r}")
    if "," not in text and "-" not in text.strip()[1:]:
        if numbers[0] < 1:
            raise UserError(f"--seeds: expected at least 1, got {numbers[0]}")
        return list(range(numbers[0]))
    for number in numbers:
        if number < 0:
            raise UserError(f"--seeds: expected seeds of at least 0, got {number} in {text!r}")
        if numbers.count(number) > 1:
            raise UserError(f"--seeds: {text!r} names seed {number} more than once; every run needs its own seed")
    return numbers


def file_options() -> list[str]:
    """Arguments of `difformer.data.from_files`."""
    return list(inspect.signature(data.from_files).parameters)


def take_debug_flag(arguments: Sequence[str]) -> list[str]:
    """Removes ``--debug`` wherever it occurs before ``--``, and remembers it."""
    global _debug
    end = [*arguments, "--"].index("--")
    _debug = "--debug" in arguments[:end]
    return [word for word in arguments[:end] if word != "--debug"] + list(arguments[end:])


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
        parameters = [parameter for name, parameter in declared.items() if name not in groups]
        for group in groups.values():
            typed = inspect.signature(group, eval_str=True).parameters
            parameters += [typed[one.name].replace(default=one.metadata["option"]) for one in fields(group)]
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
    warnings.showwarning = lambda message, *_: print(
        f"warning: {printable(with_options(str(message)))}", file=sys.stderr
    )
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
        if not isinstance(error, (UserError, OSError, ImportError)) and not out_of_memory(error):
            print("This is a bug in difformer; please report it with the traceback.", file=sys.stderr)
            raise
        if _debug:
            traceback.print_exc()
        print(f"error: {printable(explain(error))}", file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None
    finally:
        _takes_data = True


@contextmanager
def joined(device: str, needed: bool = False) -> Iterator[Ranks | None]:
    """The group of processes that torchrun started, None without torchrun; if `needed`, then a group of one.

    Ranks other than the first do not repeat errors of rank 0.
    """
    if not needed and not under_torchrun():
        yield None
        return
    try:
        with distributed.join(device) as ranks:
            yield ranks
    except KeyboardInterrupt:
        if rank() == 0:
            raise
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if rank() > 0 and getattr(error, "of_rank_0", False):
            raise typer.Exit(USER_ERROR) from None
        raise


def _saved(error: KeyboardInterrupt) -> str:
    """What an interrupted run leaves, and how to resume it; a second Ctrl-C leaves no time to save."""
    saved, begun = getattr(error, "folder", ""), getattr(error, "begun", "")
    said = "; the state was saved. Resume with" if saved else " at once. Resume from the last checkpoint with"
    if saved and getattr(error, "again", False):
        said = "; the results so far were saved. Unfinished seeds start again with"
    return f"{said}: difformer fit --resume {saved or begun}" if saved or begun else ""


def explain(error: Exception) -> str:
    """The sentence that the command line shows for an expected error."""
    text = str(error) or type(error).__name__
    if isinstance(error, WouldNotFitError):
        return f"not enough memory: {text}"
    if out_of_memory(error):
        on_gpu = type(error).__name__ == "OutOfMemoryError"
        smaller = ", --set precision=bf16 or --device cpu" if on_gpu else " or --set precision=bf16"
        return f"out of memory ({text.split('. ')[0]}); try --batch-size, fewer hidden_channels{smaller}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return with_options(text, getattr(error, "argument", None))


def with_options(text: str, argument: str | None = None) -> str:
    """A message with arguments as they are typed, `argument` at the end: ``drop=age`` becomes ``--data drop=age``."""
    if "--" not in text:
        text = _ARGUMENT.sub(lambda found: spelled(found[1], found[2]) or found[0], text)
    option = "" if argument is None else spelled(argument)
    return f"{text} ({option})" if re.split("…| [A-Z]", option)[0] not in text else text


def spelled(argument: str, value: str = "") -> str:
    """An argument of Python as it is typed, ``--data duplicates=…``; empty if the command has no such option."""
    if not _takes_data and argument != "device":  # the others come with --data
        return ""
    if argument in _SPELLED:
        option, _, kind = _SPELLED[argument].partition(" ")
        return f"{option} {value or kind}".rstrip()
    settings = {**vars(TrainConfig()), **zoo.options_of("difformer")}
    group = "data" if argument in file_options() else "set" if argument in settings else ""
    return f"--{group} {argument}={value or '…'}" if group else ""
