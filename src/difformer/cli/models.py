"""``difformer models``: what can be trained, and with which settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from difformer.cli.errors import verb
from difformer.cli.options import Json
from difformer.cli.output import Output, shown


@verb
def models(
    name: Annotated[
        str | None,
        typer.Argument(help="One model, to see its settings and presets.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models: what each does, what it diffuses over, what a layer costs."""
    from difformer.zoo.catalogue import MODELS

    output = Output(as_json)
    if name is not None:
        _one(name, output)
        return
    output.json([{**asdict(info), "fixed": dict(info.fixed)} for info in MODELS.values()])
    output.table(
        ["name", "group", "tasks", "cost a layer", "about"],
        [[info.name, info.group, ", ".join(info.kinds), info.cost, info.about] for info in MODELS.values()],
    )
    output.say("`difformer models NAME` shows its settings; `difformer fit DATASET --model NAME` trains it.")


def _one(name: str, output: Output) -> None:
    from difformer.experiments.presets import load_presets
    from difformer.training.config import TrainConfig
    from difformer.zoo import find, options_of

    info, options = find(name), options_of(name)
    training = {key: value for key, value in TrainConfig().to_dict().items() if key not in ("model", "options")}
    presets = [preset for preset in load_presets() if preset.model == name]
    output.json(
        {
            **asdict(info),
            "fixed": dict(info.fixed),
            "options": options,
            "training": training,
            "presets": [preset.to_dict() for preset in presets],
        }
    )
    output.table(
        ["", ""],
        [
            ["name", info.name],
            ["about", info.about],
            ["tasks", ", ".join(info.kinds)],
            ["needs a graph", "yes" if info.needs_graph else "no"],
            ["coupling", info.coupling],
            ["energy", info.energy],
            ["cost a layer", info.cost],
        ],
    )
    output.say("settings of the model (`--set KEY=VALUE`), with their defaults:")
    output.table(["setting", "default"], [[key, shown(value)] for key, value in options.items()])
    output.say("settings of the training:")
    output.table(["setting", "default"], [[key, shown(value)] for key, value in training.items()])
    if presets:
        output.say("presets (`--preset NAME`):")
        output.table(["data set", "preset", "source"], [[p.dataset, p.name, p.source] for p in presets])
