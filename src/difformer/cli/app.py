"""The verbs, gathered into one command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

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
from difformer.cli.partition import partition
from difformer.cli.predict import predict
from difformer.cli.report import report
from difformer.cli.reproduce import reproduce
from difformer.cli.tune import tune

app = typer.Typer(
    name="difformer",
    help="Learn from a table of features, with or without a graph, by energy-constrained diffusion.\n\n"
    "Start with `difformer demo`, then `difformer fit digits`, or bring your own data: "
    "`difformer fit --features x.csv --labels y.csv`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_VERBS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train and use": (fit, predict, evaluate, embed, tune, partition),
    "Look at a run": (report, explain, compare, energy),
    "Look around": (demo, datasets, models, certify, reproduce),
}
for _panel, _group in _VERBS.items():
    for _verb in _group:
        app.command(rich_help_panel=_panel)(_verb)


def _version(wanted: bool) -> None:
    if wanted:
        from difformer import __version__

        print(f"difformer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; with any verb.")] = False,
) -> None:
    """Options before the verb; `--debug` is taken out of the words before they come here."""
