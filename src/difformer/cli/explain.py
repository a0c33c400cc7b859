"""``difformer explain``: one prediction in one sentence."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from difformer import report
from difformer.cli.command import DEVICE, RUN, SEED, command, option
from difformer.cli.inputs import NewRows
from difformer.cli.output import Output


@command("difformer explain runs/my-run --node 17")
def explain(
    new: NewRows,
    output: Output,
    run: Path = RUN,
    node: str = option(
        "Name or number of the instance or graph, or of the row of --features; SNAPSHOT:NODE for series.", ...
    ),
    target: str | None = option("Target to explain, by name or number; by default the first, or the surest label."),
    seed: int | None = SEED,
    device: str = DEVICE,
) -> None:
    """Explain one prediction in one sentence.

    It names the columns, neighbours and other instances that moved the prediction. The effects add up to the predicted
    probability minus the one that average features would give (integrated gradients). Columns are named if they make up
    at least 1 % of all effects, at most the eight largest; the rest are summed. Neighbours likewise. A remainder of
    0.005 or more that could not be attributed is printed. Give new rows as for `difformer predict`. (Which operator
    computes a layer is another question, answered in Python by `difformer.attention.explain` and `model.explain`.)
    """
    given, names = new.read(run, output)
    found = report.explain_node(run, node, **given, names=names, seed=seed, device=device, target=target)
    output.json({"run": run, **asdict(found)})
    target = f" Its target is {found.target}." if found.target else ""
    output.say(f"{found.title}: {found.sentence}{target}")
    if found.remainder:
        output.say(found.remainder)
