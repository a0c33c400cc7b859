"""``difformer explain``: one prediction in one sentence."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from difformer.cli.command import command
from difformer.cli.options import Device, Json, Run, Seed, option
from difformer.cli.output import Output


@command
def explain(
    run: Run,
    node: Annotated[str, option("Name or number of the instance or graph; SNAPSHOT:NODE for series.")],
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Explain one prediction in one sentence.

    It names the columns, neighbours and other instances that moved the prediction. The effects add up to the predicted
    probability less the one that average features would give (integrated gradients); those below 1 % are summed up, and
    a rest of 0.005 or more that could not be attributed is printed.
    """
    from difformer.report import explain_node

    output = Output(as_json)
    found = explain_node(run, node, seed=seed, device=device)
    output.json({"run": run, **asdict(found)})
    target = f" Its target is {found.target}." if found.target else ""
    output.say(f"{found.title}: {found.sentence}{target}")
    if found.remainder:
        output.say(found.remainder)
