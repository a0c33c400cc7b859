"""``difformer report``: a page about a run, in one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from difformer.cli.command import command
from difformer.cli.options import Device, Force, Json, Run, Seed, option
from difformer.cli.output import Output, check_new


@command
def report(
    run: Run,
    out: Annotated[Path | None, option("File to write; RUN/report.html by default, which is overwritten.")] = None,
    open_it: Annotated[bool, option("Open it in the browser.", "--open")] = False,
    node: Annotated[list[str] | None, option("An instance to explain besides the chosen ones; repeatable.")] = None,
    seed: Seed = None,
    force: Force = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write a page about a run.

    One HTML file that works without a network. The result against a constant prediction and a linear model, warnings,
    learning curves, confusion, calibration, errors, columns that matter, maps of the states with the strongest latent
    pairs, energy, predictions explained, cost. Needs plotly and jinja2: `pip install 'difformer[report]'`.
    """
    from difformer.report import write_report

    output = Output(as_json)
    if out is not None:
        check_new(out, force)
    written = write_report(run, out, seed=seed, nodes=tuple(node or ()), device=device)
    document = asdict(written)
    output.json({"run": run, "report": document.pop("path"), "bytes": document.pop("size"), **document})
    warnings = [f"warning: {warning}" for warning in written.warnings]
    for said in filter(None, (written.answer, *warnings, written.verdict, *written.notes)):
        output.say(said)
    output.say(f"report: {written.path} ({written.size / 1e6:.1f} MB)")
    if open_it:
        import webbrowser

        if not webbrowser.open(written.path.resolve().as_uri()):
            output.remark(f"no browser could be started; open {written.path} yourself")
