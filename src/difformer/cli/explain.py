"""``difformer explain``: one prediction, taken apart layer by layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from difformer.cli.errors import verb
from difformer.cli.options import Device, Json, Run, Seed
from difformer.cli.output import Output


@verb
def explain(
    run: Run,
    node: Annotated[
        str,
        typer.Option(
            help="The instance, by name or number; SNAPSHOT:NODE of a series, GRAPH:NODE or GRAPH of graphs.",
            show_default=False,
        ),
    ],
    top: Annotated[int, typer.Option(help="Instances and edges listed a layer.", min=1)] = 8,
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Take one prediction apart: which instances and edges moved it, at which layer.

    A step of a DIFFormer is exactly the sum of what is kept of the state (self), what latent pairs give, what observed
    edges give, and the source. An effect is what a part does to the score of the prediction.
    """
    from difformer.report import explain_node
    from difformer.report.decomposition import PARTS

    output = Output(as_json)
    found = explain_node(run, node, top_k=top, seed=seed, device=device)
    output.json({"run": run, **asdict(found)})
    target = f", target {found.target}" if found.target else ""
    output.say(f"{found.title}: predicted {found.prediction}{target}")
    output.say(f"score: {found.meaning} = {found.score:.4f}")
    headings = ["layer", *(f"|{part}|" for part in PARTS), *(f"{part} effect" for part in PARTS), "residue"]
    output.table(
        headings,
        [
            [
                step.layer,
                *(f"{step.lengths[part]:.4f}" for part in PARTS),
                *(f"{step.effects[part]:+.4f}" for part in PARTS),
                f"{step.residue:.0e}",
            ]
            for step in found.steps
        ],
        right=headings,
    )
    output.table(
        ["layer", "instance", "through", "weight", "|given|", "effect"],
        [
            [step.layer, one.name, one.through, f"{one.weight:.4g}", f"{one.length:.4g}", f"{one.effect:+.4g}"]
            for step in found.steps
            for one in step.influences
        ]
        + [[step.layer, "all others", "", "", "", f"{step.others:+.4g}"] for step in found.steps if step.influences],
        right=["layer", "weight", "|given|", "effect"],
    )
    total = " ".join(f"{value:+.4f} {name}" for name, value in found.terms.items())
    output.say(f"after the last layer: {total} = {sum(found.terms.values()):+.4f}")
    output.say(
        "The parts add up to the step (the residue is rounding). After the last layer effects and biases add up "
        "to the score, with the deviation of its LayerNorm held fixed; before it effects are of first order."
    )
