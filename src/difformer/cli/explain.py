"""``difformer explain``: one prediction in one sentence, or taken apart layer by layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from difformer.cli.command import command
from difformer.cli.options import Device, Json, Run, Seed, option
from difformer.cli.output import Output


@command
def explain(
    run: Run,
    node: Annotated[
        str, option("Name or number of the instance; SNAPSHOT:NODE for series, GRAPH:NODE or GRAPH for graphs.")
    ],
    full: Annotated[bool, option("Add the tables: every layer's step as an exact sum of its parts.", "--full")] = False,
    top: Annotated[int, option("Instances and edges listed per layer with --full.", low=1, default=True)] = 8,
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Explain one prediction in one sentence.

    It names the columns, neighbours and other instances that moved the prediction. The effects add up to the predicted
    probability less the one that average features would give (integrated gradients); those below 1 % are summed up, and
    a rest of 0.005 or more that could not be attributed is printed.
    With `--full`, each layer's step is taken apart into what is kept of the state (self), what latent pairs give, what
    observed edges give, and the source.
    """
    from difformer.report import explain_node
    from difformer.report.explanation import PARTS

    output = Output(as_json)
    found = explain_node(run, node, top_k=top, seed=seed, device=device)
    output.json({"run": run, **asdict(found)})
    target = f" Its target is {found.target}." if found.target else ""
    output.say(f"{found.title}: {found.sentence}{target}")
    if found.remainder:
        output.say(found.remainder)
    if not full:
        output.remark("For every layer's step, add --full.")
        return
    output.say(f"score: {found.meaning} = {found.score:.4f}")
    rows = []
    for step in found.steps:
        values = [*(f"{step.lengths[part]:.4f}" for part in PARTS), *(f"{step.effects[part]:+.4f}" for part in PARTS)]
        rows.append([step.layer, *values, f"{step.residue:.0e}"])
    headings = ["layer", *(f"|{part}|" for part in PARTS), *(f"{part} effect" for part in PARTS), "residue"]
    output.table(headings, rows)
    rows = []
    for step in found.steps:
        for one in step.influences:
            numbers = [f"{value:.4g}" for value in (one.weight, one.length)]
            rows.append([step.layer, one.name, one.through, *numbers, f"{one.effect:+.4g}"])
        if step.influences:
            rows.append([step.layer, "all others", "", "", "", f"{step.others:+.4g}"])
    output.table(["layer", "instance", "through", "weight", "|given|", "effect"], rows)
    total = " ".join(f"{value:+.4f} {name}" for name, value in found.terms.items())
    output.say(f"after the last layer: {total} = {sum(found.terms.values()):+.4f}")
    output.say(
        "The parts add up to the step (the residue is rounding). After the last layer effects and biases add up "
        "to the score, with the deviation of its LayerNorm held fixed; before it effects are of first order."
    )
