"""The commands, gathered into one application."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from difformer import __version__, zoo
from difformer.cli.command import option, spelled
from difformer.cli.inputs import DEFAULT_MODEL
from difformer.cli.output import printable
from difformer.errors import nearest
from difformer.training.config import TrainConfig

START = """\
difformer learns from rows that influence each other: graphs, tables with links, series and sets.

  difformer demo                               compare models on handwritten digits
  difformer fit customers.csv --label segment  train on your own table; add --edges links.csv for a graph
  difformer report RUN --open                  see what the model learned

`difformer --help` lists all commands, `difformer COMMAND --help` explains one.
"""

# Commands by heading; each is the function of its name in the module of its name.
COMMANDS = {
    "Train and predict": ("fit", "predict", "evaluate", "embed", "tune", "partition"),
    "Look at a run": ("report", "explain", "compare", "energy"),
    "Look around": ("demo", "datasets", "models", "certify", "reproduce"),
}

# What a value is called in help, by the name of its type.
KINDS = {"path": "PATH", "int": "N", "float": "NUMBER", "str": "NAME"}


class _Command(TyperCommand):
    """A command whose help groups options under headings, as plain text: no time is spent on drawing boxes."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        parameters: Any = self.get_params(ctx)
        for parameter in parameters:
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            word, _, kind = record[0].partition(" <")  # typer writes the type as <list[str]>
            if parameter.param_type_name == "argument":
                sections.setdefault("Arguments", []).append((word, record[1]))
            else:
                word = f"{word} {next((name for known, name in KINDS.items() if known in kind), '')}".rstrip()
                sections.setdefault(parameter.rich_help_panel or "Options", []).append((word, record[1]))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Group(TyperGroup):
    """The list of commands, under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, group in COMMANDS.items():
            with formatter.section(heading):
                width = formatter.width - 16
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in group])

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _helpful():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _helpful():
            return super().invoke(ctx)


@contextmanager
def _helpful() -> Iterator[None]:
    """Adds a remedy to a usage error, and escapes control characters, since the error repeats what was typed."""
    try:
        yield
    except Exception as error:
        message: Any = getattr(error, "message", None)
        if message == "" and (missing := getattr(error, "param", None)) is not None:
            example = error.ctx.command.epilog.replace("\b\n", "")  # type: ignore[attr-defined]
            error.message = f"{getattr(missing, 'help', '')} {example}"  # type: ignore[attr-defined]
        elif isinstance(message, str):
            error.message = printable(message + _setting(error))  # type: ignore[attr-defined]
        raise


def _setting(error: Any) -> str:
    """``did you mean --set epochs=…?`` for an unknown option that is a setting or an option of files."""
    name = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
    options = {word for one in error.ctx.command.params for word in one.opts} if getattr(error, "ctx", None) else ()
    if not name or "--set" not in options or not hasattr(error, "possibilities"):
        return ""
    settings = [*vars(TrainConfig()), *zoo.options_of(DEFAULT_MODEL)]
    setting = name if name in settings else None if error.possibilities and len(name) > 3 else nearest(name, settings)
    found = f"--set {setting}=…" if setting else spelled(name)
    if not found:
        return ""
    error.possibilities = None
    return f"; did you mean {found}?"


app = typer.Typer(
    name="difformer",
    cls=_Group,
    help="Learn from a table of features, with or without a graph, by energy-constrained diffusion.",
    epilog="Start with `difformer demo`, or with your own table: `difformer fit customers.csv --label segment`.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
for _name in chain.from_iterable(COMMANDS.values()):
    _function = getattr(import_module(f"difformer.cli.{_name}"), _name)
    app.command(cls=_Command, epilog=f"\b\nExample: {_function.example}")(_function)


@app.callback()
def _options(
    context: typer.Context,
    version: bool = option("Show the version.", False, "--version"),
    debug: bool = option("Show the traceback of an error; with any command.", False, "--debug"),
) -> None:
    """Options before the command; `--debug` is removed from the words before they reach this function."""
    if version:
        print(f"difformer {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(START, end="")
