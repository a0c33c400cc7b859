"""``difformer explain``: one prediction in one sentence."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from difformer.cli.command import command
from difformer.cli.inputs import new_rows
from difformer.cli.options import Device, Json, NewEdges, NewFeatures, Run, Seed, option
from difformer.cli.output import Output


@command
def explain(
    run: Run,
    node: Annotated[
        str, option("Name or number of the instance or graph, or of the row of --features; SNAPSHOT:NODE for series.")
    ],
    features: NewFeatures = None,
    edges: NewEdges = None,
    target: Annotated[
        str | None, option("Name or number of the target to explain, of several; the first number by default.")
    ] = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Explain one prediction in one sentence.

    It names the columns, neighbours and other instances that moved the prediction. The effects add up to the predicted
    probability less the one that average features would give (integrated gradients). Columns are named if they make up
    at least 1 % of all effects, the eight largest at most, and the others are summed up; so are neighbours. A rest of
    0.005 or more that could not be attributed is printed. New rows are given as to `difformer predict`.
    """
    from difformer.report import explain_node

    output = Output(as_json)
    new = new_rows(run, features, edges, output, together=True)
    given: dict[str, Any] = {"seed": seed, "device": device, "target": target}
    if new is not None:
        given |= {"features": new.x, "edges": new.edges, "edge_weight": new.edge_weight, "names": new.names}
    found = explain_node(run, node, **given)
    output.json({"run": run, **asdict(found)})
    target = f" Its target is {found.target}." if found.target else ""
    output.say(f"{found.title}: {found.sentence}{target}")
    if found.remainder:
        output.say(found.remainder)
