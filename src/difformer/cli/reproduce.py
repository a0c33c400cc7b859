"""``difformer reproduce``: the paper's tables and figures, one command each."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from difformer.cli.errors import CHECK_FAILED, INTERRUPTED, verb
from difformer.cli.options import Device, Json
from difformer.cli.output import Output

if TYPE_CHECKING:
    from difformer.experiments.runner import Outcome


@verb
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Which table or figure; --list shows them.", show_default=False)
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show what there is, and stop.")] = False,
    quick: Annotated[bool, typer.Option(help="Small data made on the spot, few epochs: does it work?")] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of every cell; what the protocol says by default.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results; those of NAME go into OUT/NAME. results by default, results-quick with --quick.",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    models: Annotated[
        list[str] | None,
        typer.Option(help="Only these systems, separated by commas; repeatable.", show_default=False),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option(help="Only these data sets or sections, separated by commas; repeatable.", show_default=False),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(help="Only rows of these presets: public-code, paper, best, untuned.", show_default=False),
    ] = None,
    presets: Annotated[
        Path | None,
        typer.Option(help="Folder of preset files that go before the package's own.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Begin no new run after so many seconds.", show_default=False)
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(help="Break off a run that takes more seconds; its cell says so.", show_default=False),
    ] = None,
    retry: Annotated[bool, typer.Option(help="Try runs again that failed before.")] = False,
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32, or bf16 for mixed precision, which may pay on a GPU where all pairs are worked out; tables "
            "say which runs were made in it. What the presets say by default.",
            show_default=False,
        ),
    ] = None,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Run nothing: write tables and figure from the runs that are there.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="Write the page of all results under OUT to this file, and stop.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper: every run is a line of OUT/NAME/runs.jsonl, written when it is done.

    A second call goes on where the first ended. Beside the runs stand table.md, table.tex, figure.svg and figure.png,
    with the paper's figures beside ours. What cannot be run is a cell with a reason.
    """
    from difformer.experiments.spec import NAMES, experiments, find

    output = Output(as_json)
    out = out or Path("results-quick" if quick else "results")
    if show_list:
        found = experiments()
        output.json([{"name": one.name, "about": one.about, "source": one.source} for one in found])
        output.table(["name", "what", "where"], [[one.name, one.about, one.source] for one in found])
        return
    if results is not None:
        from difformer.experiments.render import write_results

        write_results(out, results)
        output.json({"results": str(results)})
        output.say(f"written: {results}")
        return
    if name is None:
        raise ValueError(f"NAME is missing: one of {', '.join(NAMES)}; `difformer reproduce --list` explains them")
    experiment = find(name)
    from difformer.experiments.analysis import pandas, read_summary, remaining
    from difformer.experiments.cells import Request
    from difformer.experiments.figures import pyplot
    from difformer.experiments.ledger import Ledger
    from difformer.experiments.render import write_files
    from difformer.experiments.runner import run

    pandas(), pyplot()  # a missing extra is reported before hours of training, not after
    request = Request(
        quick=quick,
        seeds=seeds,
        device=device,
        models=_split(models),
        datasets=_split(datasets),
        presets=_split(preset),
        preset_folder=presets,
        seconds=math.inf if seconds is None else seconds,
        limit=math.inf if limit is None else limit,
        retry=retry,
        precision=precision,
    )
    folder = out / experiment.name
    if table_only and not Ledger(folder).read():
        raise ValueError(
            f"--table-only: there are no runs in {folder}, so there is nothing to write; make some with `difformer "
            f"reproduce {name}`, or name their folder with --out (results-quick is that of --quick)"
        )
    outcome = None if table_only else run(experiment, folder, request, output.remark)
    summary = read_summary(experiment, folder, presets)
    outcome = outcome or remaining(summary, request)
    files = write_files(summary, folder)
    output.json({"experiment": name, **outcome.to_dict(), "files": [str(path) for path in files]})
    output.say(_said(outcome))
    for path in files:
        output.say(f"written: {path}")
    if outcome.stopped:
        output.remark(f"{outcome.stopped}; what is done is kept. Go on with: {_again()}")
    if outcome.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if outcome.errors:
        raise typer.Exit(CHECK_FAILED)


def _split(words: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for word in words or () for part in word.split(",") if part.strip())


def _said(outcome: Outcome) -> str:
    parts = [f"{outcome.made} runs made", f"{outcome.there} were there", f"{outcome.left} left"]
    if outcome.taken:
        parts.insert(1, f"{outcome.taken} taken over from other tables or rows")
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} cells could not be run: the table says why")
    return ", ".join(parts)


def _again() -> str:
    """The words that were typed: the same call takes up what is left."""
    return shlex.join(["difformer", *sys.argv[1:]])
