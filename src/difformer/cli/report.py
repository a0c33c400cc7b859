"""``difformer report``: a page about a run, in one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import difformer.report
from difformer.cli.command import DEVICE, FORCE, RUN, SEED, command, option
from difformer.cli.output import Output, check_new


@command("difformer report runs/my-run --open")
def report(
    output: Output,
    run: Path = RUN,
    out: Path | None = option("File to write; RUN/report.html by default, which is overwritten."),
    open_it: bool = option("Open it in the browser.", False, "--open"),
    node: list[str] | None = option("An instance to explain besides the chosen ones; repeatable."),
    seed: int | None = SEED,
    force: bool = FORCE,
    device: str = DEVICE,
) -> None:
    """Write a page about a run.

    One HTML file that works without a network. The result against a constant prediction and a linear model, warnings,
    learning curves, confusion, calibration, errors, columns that matter, maps of the states with the strongest latent
    pairs, energy, predictions explained, cost. Needs plotly and jinja2: `pip install 'difformer[report]'`.
    """
    if out is not None:
        check_new(out, force)
    written = difformer.report.write_report(run, out, seed=seed, nodes=tuple(node or ()), device=device)
    document = asdict(written)
    output.json({"run": run, "report": document.pop("path"), "bytes": document.pop("size"), **document})
    warnings = [f"warning: {warning}" for warning in written.warnings]
    for said in filter(None, (written.answer, *warnings, written.verdict, *written.notes)):
        output.say(said)
    output.say(f"report: {written.path} ({written.size / 1e6:.1f} MB)")
    if open_it:
        output.open(written.path)
