"""``difformer reproduce``: the paper's tables and figures, one command each."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from difformer.cli.command import CHECK_FAILED, DEVICE, INTERRUPTED, argument, command, option
from difformer.cli.output import Output, counted
from difformer.errors import UserError
from difformer.experiments.spec import NAMES, experiments, find


@command("difformer reproduce citation --quick")
def reproduce(
    output: Output,
    name: str | None = argument("Which table or figure; --list shows them.", metavar="NAME"),
    show_list: bool = option("List the tables and figures, and stop.", False, "--list"),
    quick: bool = option("Smoke test: small synthetic data and few epochs.", False, "--quick"),
    seeds: int | None = option("Seeds per cell; by default set by the protocol.", low=1),
    out: Path | None = option(
        "Folder of results, with a folder per NAME; results by default, results-quick with --quick."
    ),
    device: str = DEVICE,
    models: list[str] | None = option("Only these systems, separated by commas; repeatable."),
    datasets: list[str] | None = option("Only these data sets or sections, separated by commas; repeatable."),
    preset: list[str] | None = option("Only rows with these presets: public-code, paper, best, untuned; repeatable."),
    presets: Path | None = option("Read presets from the files of this folder; they override the package's own."),
    seconds: float = option("Start no new run after this many seconds.", math.inf, low=0),
    limit: float = option("Stop a run after this many seconds; its cell says so.", math.inf, low=0),
    retry: bool = option("Repeat runs that failed before.", False, "--retry"),
    table_only: bool = option("Run nothing: write tables and figure from existing runs.", False, "--table-only"),
    runs_only: bool = option("Write no tables and no figure, which need the extra 'figures'.", False, "--runs-only"),
    results: Path | None = option("Write the page of all results under OUT to this file, and stop."),
) -> None:
    """Reproduce a table or figure of the paper.

    Every finished run is one line of OUT/NAME/runs.jsonl, so a second call continues where the first ended. The folder
    also gets table.md, figure.svg and figure.png, with the paper's figures next to ours. A cell that cannot
    be run gives the reason.
    """
    out = out or Path("results-quick" if quick else "results")
    if show_list:
        found = experiments()
        output.json([{"name": one.name, "about": one.about, "source": one.source} for one in found])
        output.table(["name", "what", "where"], [[one.name, one.about, one.source] for one in found])
        return
    if name is None and results is None:
        raise UserError(f"NAME is missing: one of {', '.join(NAMES)}; `difformer reproduce --list` explains them")
    from difformer.experiments import analysis, cells, figures, ledger, render, runner

    if results is not None:
        render.write_results(out, results)
        output.json({"results": results})
        output.say(f"written: {results}")
        return
    experiment = find(str(name))
    if table_only and runs_only:
        raise UserError("--table-only and --runs-only exclude each other")
    if not runs_only:
        analysis.pandas(), figures.pyplot()  # a missing extra is reported before hours of training, not after
    rows: dict[str, Any] = {"models": _split(models), "datasets": _split(datasets), "presets": _split(preset)}
    rows |= {"preset_folder": presets, "seconds": seconds, "limit": limit, "retry": retry}
    request = cells.Request(quick, seeds, device, **rows)
    folder = out / experiment.name
    if table_only:
        if not (lines := ledger.Ledger(folder).read()):
            raise UserError(
                f"--table-only: there are no runs in {folder}, so there is nothing to write; make some with `difformer "
                f"reproduce {name}`, or name their folder with --out (results-quick is that of --quick)"
            )
        request = replace(request, quick=bool(lines[0].get("quick")))
        outcome = runner.outcome_of(cells.wanted_cells(experiment, request), lines, request)
    else:
        outcome = runner.run(experiment, folder, request, output.remark)
    files = [] if runs_only else render.write_files(analysis.read_summary(experiment, folder, presets), folder)
    output.json({"experiment": name, **outcome.to_dict(), "files": files})
    said = [f"{counted(outcome.made, 'runs')} made", f"{outcome.there} existed", f"{outcome.left} left"]
    if outcome.failed:
        said.append(f"{counted(len(outcome.failed), 'cells')} could not be run: the table says why")
    output.say(", ".join(said))
    for path in files:
        output.say(f"written: {path}")
    if outcome.stopped:
        again = shlex.join(["difformer", *sys.argv[1:]])  # the command that was typed
        output.remark(f"{outcome.stopped}; finished runs are kept. Continue with: {again}")
    if outcome.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if outcome.errors and not table_only:
        raise typer.Exit(CHECK_FAILED)


def _split(words: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for word in words or () for part in word.split(",") if part.strip())
