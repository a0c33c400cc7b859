"""``difformer models``: what can be trained, and with which settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from difformer.cli.docstrings import meanings
from difformer.cli.errors import verb
from difformer.cli.options import Json
from difformer.cli.output import Output, shown
from difformer.cli.presets import describe_presets, list_presets
from difformer.cli.systems import KEY, listing


@verb
def models(
    name: Annotated[
        str | None,
        typer.Argument(help="One model, to see its settings and presets.", show_default=False),
    ] = None,
    presets: Annotated[
        bool, typer.Option("--presets", help="Of one model: every preset with its values and the command it is from.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the models: what each diffuses over, the energy it descends, what a layer costs; of one all there is.

    `difformer models NAME` shows settings with their meaning and defaults, and presets.
    """
    from difformer.zoo.model_catalogue import MODELS

    output = Output(as_json)
    if presets and name is None:
        raise ValueError("--presets: name the model whose presets are meant: difformer models NAME --presets")
    if name is not None:
        _one(name, output, in_full=presets)
        return
    output.json([{**asdict(info), "fixed": dict(info.fixed)} for info in MODELS.values()])
    output.show(listing(MODELS.values(), output.out.width))
    output.show(KEY)
    output.say("`difformer models NAME` says what it does and shows its settings and presets;")
    output.say("`difformer fit DATASET --model NAME` trains it.")
    output.say("None of them predicts links or reads features of edges (weights of edges are read).")


def _one(name: str, output: Output, *, in_full: bool) -> None:
    from difformer.experiments.presets import load_presets
    from difformer.training.config import TrainConfig
    from difformer.zoo.model_registry import find, model_class, options_of

    info, options = find(name), options_of(name)
    training = {key: value for key, value in TrainConfig().to_dict().items() if key not in ("model", "options")}
    presets = [preset for preset in load_presets() if preset.model == name]
    means = {"options": meanings(model_class(info)), "training": meanings(TrainConfig)}
    output.json(
        {
            **asdict(info),
            "fixed": dict(info.fixed),
            "options": options,
            "training": training,
            "meanings": {
                "options": {key: means["options"].get(key, "") for key in options},
                "training": {key: means["training"].get(key, "") for key in training},
            },
            "presets": [preset.to_dict() for preset in presets],
        }
    )
    if in_full:
        describe_presets(name, presets, output)
        return
    facts = {
        "name": info.name,
        "about": info.about,
        "tasks": ", ".join(info.kinds),
        "needs a graph": "yes" if info.needs_graph else "no",
        "coupling": info.coupling,
        "energy": info.energy,
        "cost a layer": info.cost,
        "is": ", ".join(f"{key}={shown(value)}" for key, value in info.fixed.items()),
    }
    output.table(["", ""], [[key, value] for key, value in facts.items() if value])
    for heading, values in (
        ("settings of the model (`--set KEY=VALUE`), with their defaults:", options),
        ("settings of the training:", training),
    ):
        explained = means["options" if values is options else "training"]
        output.say(heading)
        output.table(
            ["setting", "default", "meaning"],
            [[key, shown(value), explained.get(key, "")] for key, value in values.items()],
        )
    list_presets(name, presets, output)
