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
from difformer.errors import UserError

if TYPE_CHECKING:
    from difformer.experiments.runner import Outcome


@verb
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Which table or figure; --list shows them.", show_default=False)
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List all tables and figures, and exit.")] = False,
    quick: Annotated[bool, typer.Option(help="Generated data and few epochs, to check that everything works.")] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds per cell. Default: as in the protocol.", show_default=False)
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
        typer.Option(help="Folder of preset files that override the package's.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Start no new run after this many seconds.", show_default=False)
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(help="Stop a run that takes longer than this many seconds; its cell says so.", show_default=False),
    ] = None,
    retry: Annotated[bool, typer.Option(help="Repeat runs that failed before.")] = False,
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32, or bf16 for mixed precision, which is faster on a GPU for exact all-pair attention; tables "
            "say which runs used it. Default: as in the presets.",
            show_default=False,
        ),
    ] = None,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Run nothing; write the tables and the figure from existing runs.")
    ] = False,
    runs_only: Annotated[
        bool, typer.Option("--runs-only", help="Write no tables and no figure, which need the extra 'figures'.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="Write the page of all results under OUT to this file, and exit.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper. Each finished run is one line of OUT/NAME/runs.jsonl.

    The same command resumes after an interruption. It also writes table.md, table.tex, figure.svg and figure.png, with
    the paper's figures beside ours. A cell that could not be run gives the reason.
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
        raise UserError(f"NAME is missing: one of {', '.join(NAMES)}; `difformer reproduce --list` explains them")
    experiment = find(name)
    from difformer.experiments.analysis import pandas, read_summary, remaining
    from difformer.experiments.cells import Request
    from difformer.experiments.figures import pyplot
    from difformer.experiments.ledger import Ledger
    from difformer.experiments.render import write_files
    from difformer.experiments.runner import run

    if table_only and runs_only:
        raise UserError("--table-only and --runs-only exclude each other")
    if not runs_only:
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
        raise UserError(
            f"--table-only: there are no runs in {folder}; make some with `difformer reproduce {name}`, or give their "
            f"folder with --out (results-quick is the one of --quick)"
        )
    outcome = None if table_only else run(experiment, folder, request, output.remark)
    files: list[Path] = []
    if not runs_only:
        summary = read_summary(experiment, folder, presets)
        outcome = outcome or remaining(summary, request)
        files = write_files(summary, folder)
    assert outcome is not None
    output.json({"experiment": name, **outcome.to_dict(), "files": [str(path) for path in files]})
    output.say(_said(outcome))
    for path in files:
        output.say(f"written: {path}")
    if outcome.stopped:
        output.remark(f"{outcome.stopped}; finished runs are kept. Resume with: {_again()}")
    if outcome.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if outcome.errors:
        raise typer.Exit(CHECK_FAILED)


def _split(words: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for word in words or () for part in word.split(",") if part.strip())


def _said(outcome: Outcome) -> str:
    parts = [f"{outcome.made} runs made", f"{outcome.there} existed", f"{outcome.left} left"]
    if outcome.taken:
        parts.insert(1, f"{outcome.taken} shared with other tables or rows")
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} cells could not be run: the table says why")
    return ", ".join(parts)


def _again() -> str:
    """The command that was typed, which resumes what is left."""
    return shlex.join(["difformer", *sys.argv[1:]])
