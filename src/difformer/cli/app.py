"""The commands, gathered into one application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from difformer.cli.certify import certify
from difformer.cli.compare import compare
from difformer.cli.datasets import datasets
from difformer.cli.demo import demo
from difformer.cli.embed import embed
from difformer.cli.energy import energy
from difformer.cli.evaluate import evaluate
from difformer.cli.explain import explain
from difformer.cli.fit import fit
from difformer.cli.models import models
from difformer.cli.output import printable
from difformer.cli.partition import partition
from difformer.cli.predict import predict
from difformer.cli.report import report
from difformer.cli.reproduce import reproduce
from difformer.cli.tune import tune

START = """\
difformer learns from rows that influence each other: graphs, tables with links, series and sets.

  difformer demo                               compare models on handwritten digits
  difformer fit customers.csv --label segment  train on your own table; add --edges links.csv for a graph
  difformer report RUN --open                  see what the model learned

`difformer --help` lists all commands, `difformer COMMAND --help` explains one.
"""

# Commands by heading, each with an example.
COMMANDS: dict[str, dict[Callable[..., None], str]] = {
    "Train and predict": {
        fit: "difformer fit cora --preset best --seeds 5",
        predict: "difformer predict runs/my-run --features new.csv --out predictions.csv",
        evaluate: "difformer evaluate runs/my-run",
        embed: "difformer embed runs/my-run --out states.npz",
        tune: "difformer tune cora --trials 64",
        partition: "difformer partition cora --parts 4 --out parts",
    },
    "Look at a run": {
        report: "difformer report runs/my-run --open",
        explain: "difformer explain runs/my-run --node 17",
        compare: "difformer compare runs/first runs/second",
        energy: "difformer energy runs/my-run",
    },
    "Look around": {
        demo: "difformer demo",
        datasets: "difformer datasets cora",
        models: "difformer models difformer-s",
        certify: "difformer certify cora --diffusivity sigmoid",
        reproduce: "difformer reproduce citation --quick",
    },
}


class _Command(TyperCommand):
    """A command whose help groups options under headings, as plain text: no time is spent on drawing boxes."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = getattr(parameter, "rich_help_panel", None)
            heading = heading or ("Arguments" if parameter.param_type_name == "argument" else "Options")
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Group(TyperGroup):
    """The list of commands, under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, group in COMMANDS.items():
            rows = []
            for function in group:
                found = self.get_command(ctx, function.__name__)
                assert found is not None
                rows.append((function.__name__, found.get_short_help_str(formatter.width - 16)))
            with formatter.section(heading):
                formatter.write_dl(rows)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _harmless():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _harmless():
            return super().invoke(ctx)


@contextmanager
def _harmless() -> Iterator[None]:
    """A usage error repeats what was typed, which may hold control characters."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            error.message = printable(message)  # type: ignore[attr-defined]
        raise


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
for _heading, _group in COMMANDS.items():
    for _function, _example in _group.items():
        app.command(cls=_Command, epilog=f"Example: {_example}")(_function)


def _version(wanted: bool) -> None:
    if wanted:
        from difformer import __version__

        print(f"difformer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; with any command.")] = False,
) -> None:
    """Options before the command; `--debug` is removed from the words before they reach this function."""
    if context.invoked_subcommand is None:
        print(START, end="")
