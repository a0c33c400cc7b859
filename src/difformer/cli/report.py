"""``difformer report``: a page about a run, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.cli.errors import verb
from difformer.cli.options import Device, Force, Json, Run, Seed
from difformer.cli.output import Output, check_new


@verb
def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; RUN/report.html by default, which is written anew.", show_default=False),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser when it is written.")] = False,
    node: Annotated[
        list[str] | None,
        typer.Option(help="An instance to explain besides those chosen by themselves; repeatable.", show_default=False),
    ] = None,
    seed: Seed = None,
    force: Force = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write a page about a run: one HTML file that works without a network.

    Learning curves, errors, maps of the states layer by layer with the strongest latent pairs, energy, predictions
    taken apart, cost. Needs plotly: `pip install 'difformer[report]'`.
    """
    from difformer.report import write_report

    output = Output(as_json)
    if out is not None:
        check_new(out, force)
    written = write_report(run, out, seed=seed, nodes=tuple(node or ()), device=device)
    output.json(
        {
            "run": run,
            "report": written.path,
            "bytes": written.size,
            "verdict": written.verdict,
            "notes": list(written.notes),
        }
    )
    if written.verdict:
        output.say(written.verdict)
    for note in written.notes:
        output.say(note)
    output.say(f"report: {written.path} ({written.size / 1e6:.1f} MB)")
    if open_it:
        import webbrowser

        if not webbrowser.open(written.path.resolve().as_uri()):
            output.remark(f"no browser could be started; open {written.path} yourself")
